//! Mounts for writing on which the kernel opens files without a request.
//!
//! Other requests stand in for opens and closes: writers are known from WRITE ([`Writers`]), their
//! end from time and from FORGET, and accesses from READ. Where a request must
//! be answered for the case that a program has the file open for writing, it is answered so: the
//! kernel may always have unwritten data, and its times may always be cached ones.
//!
//! Flags that an open would check (immutable, append-only, and those of encrypted and verified
//! files) do not exist on such a mount: an image with any is refused, and chattr(1) sets none.
//! Each write is checked nevertheless.

use super::*;

impl Server {
    /// Returns whether files are opened for writing without a request.
    pub(super) fn misses_opens(&self) -> bool {
        self.fast_opens && !self.read_only
    }

    /// Counts a descriptor that was opened with these flags. Where opens are missed, its first
    /// write counts instead.
    pub(super) fn note_open(&self, ino: NodeId, node: &Node, flags: i32) {
        if writes(flags) && !self.misses_opens() {
            self.writers.open(ino, flags & APPEND != 0);
            self.ops.open_hint(node);
        }
    }

    /// Counts the close of a descriptor that was opened with these flags. Where opens are missed,
    /// the kernel tells of a few closes only: of files that it made before the first open.
    pub(super) fn note_close(&self, ino: NodeId, flags: i32) -> Result<(), Error> {
        if writes(flags) && !self.misses_opens() {
            if self.writers.close(ino, flags & APPEND != 0) {
                self.notices.closed(ino);
            }
            self.ops.close_hint(&self.node(ino)?);
        }
        Ok(())
    }

    /// Notes a write, or an allocation of space, where opens are missed. Ends the writers of files
    /// that count as closed since.
    pub(super) fn note_writer(&self, ino: NodeId, node: &Node) {
        if !self.misses_opens() {
            return;
        }
        let now = Instant::now();
        if !self.writers.wrote(ino, now) {
            return;
        }
        self.ops.open_hint(node);
        for closed in self.writers.take_closed(ino, now) {
            self.close_unseen(closed);
        }
    }

    /// Ends the writers of a file that the kernel forgets, where opens are missed. This comes
    /// before its last lookup is gone: a file without a name is freed then.
    pub(super) fn end_writer(&self, ino: NodeId) {
        if self.misses_opens() {
            if self.writers.end(ino) {
                self.close_unseen(ino);
            }
            self.descriptors.forget(ino);
        }
    }

    fn close_unseen(&self, ino: NodeId) {
        // Inodes with writers stay in memory; one that is gone needs no close.
        if let Ok(node) = self.node(ino) {
            self.ops.close_hint(&node);
        }
    }

    /// Notes the access of a read that reached the server, where opens are missed.
    pub(super) fn note_unseen_access(&self, ino: NodeId) -> Result<(), Error> {
        if self.misses_opens()
            && self.access_times.is_some()
            && self.note_access(ino, &self.node(ino)?)
        {
            // The kernel holds the inode until the reply, and the notice does not wait.
            self.notices.settle(ino);
        }
        Ok(())
    }

    /// Returns the error of a writeback of which the descriptor, or the thread, was not told.
    pub(super) fn untold_error(
        &self,
        ino: NodeId,
        node: &Node,
        descriptor: u64,
    ) -> Result<(), Error> {
        let check = |seen: &mut u32| self.ops.check_errors(node, seen);
        if self.misses_opens() {
            self.descriptors.check_thread((ino, descriptor), check)
        } else {
            self.descriptors.check((ino, descriptor), check)
        }
    }
}
