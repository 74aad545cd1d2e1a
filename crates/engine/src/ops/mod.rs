//! Operations, one file per family of system calls.
//!
//! The only module that takes the locks of several inodes and starts handles for changes of names.
//!
//! # Locking
//! Directories first, then other inodes, each kind in the order of the numbers ([`lock_dirs`],
//! [`lock_inodes`]); then the handle. A name looked up without a lock is looked up again under it.

mod access;
mod anchor;
mod attr;
mod create;
mod grow;
mod handle;
mod label;
mod link;
mod orphan_recovery;
mod quota;
mod readdir;
mod reaper;
mod rename;
mod replay;
mod reserve;
mod restricted;
mod search;
mod syncs;
mod thawed;
mod trim;
mod unlink;
mod uuid;
mod xattrs;

pub use access::AccessTimes;
pub(crate) use anchor::Anchor;
pub use attr::{Attr, SetAttr, TimeSet};
pub use create::NodeKind;
pub use grow::{FsSize, GrowTo};
pub use handle::{File, OpenFlags};
pub use orphan_recovery::OrphanReport;
pub use readdir::DirEntry;
pub(crate) use reaper::ToReap;
pub use rename::RenameFlags;

use crate::alloc::{Fragmentation, Usage};
use crate::bounds::Remark;
use crate::error::{Errno, Error, Result};
use crate::file::{MAX_WAITS_FOR_SPACE, release_reserved};
use crate::inode::Inode;
use crate::store::Store;
use crate::vfs::{Caller, Follow, InodeRef, Vfs, alive};
use anchor::Anchors;
use extant_format::features::Incompat;
use extant_format::types::InodeNr;
use extant_journal::Tid;
use extant_sync::epoch::pin;
use extant_sync::scheduler::Bell;
use extant_sync::{ArcWriteGuard, FreezeLock, RwLockWriteGuard, write_all_arc};
use reaper::Reaper;
use smallvec::SmallVec;
use std::sync::Arc;
use syncs::Syncs;

/// An inode that the caller refers to. It stays in memory as long as this lives; to keep it alive
/// on disk after its last name is gone, open it or [`hold`](Node::hold) it.
#[derive(Clone, Debug)]
pub struct Node(pub(crate) InodeRef);

impl Node {
    /// The inode's number.
    pub fn ino(&self) -> u64 {
        u64::from(self.0.ino.0)
    }

    /// The inode's generation: number and generation together never come again.
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// Keeps the inode alive without links, `n` times. ESTALE once it is being freed.
    pub fn hold(&self, n: u64) -> Result<()> {
        self.0.hold(n)
    }

    /// Returns the attributes of stat(2).
    pub fn attr(&self) -> Attr {
        Attr::of(&self.0)
    }
}

/// Every operation on an open file system. `&self` throughout; any number of threads.
#[derive(Debug)]
pub struct Operations {
    pub(crate) vfs: Vfs,
    reaper: Reaper,
    anchors: Anchors,
    /// One freezes at a time, while changes wait with no lock held ([`thawed`]).
    freezing: FreezeLock,
    /// Syncs, shared by concurrent callers.
    pub(crate) syncs: Syncs,
    /// Wakes the task that scans bitmaps, which sleeps while that is switched off.
    pub(crate) scan_bell: Bell,
}

impl Operations {
    pub(crate) fn new(vfs: Vfs) -> Self {
        Operations {
            vfs,
            reaper: Reaper::default(),
            anchors: Anchors::default(),
            freezing: FreezeLock::default(),
            syncs: Syncs::default(),
            scan_bell: Bell::default(),
        }
    }

    pub(crate) fn st(&self) -> &Store {
        &self.vfs.st
    }

    /// ESTALE once the file system is closed. Operations ask this first, or [`Operations::own`].
    #[inline]
    pub(crate) fn alive(&self) -> Result<()> {
        self.st().alive()
    }

    /// Locks a file's content for a change that may stay in memory: pages of a regular file become
    /// durable without a handle. ESTALE if the inode is being freed or was, or the file system is
    /// closed. See [`Operations::wait_for_writers`].
    pub(crate) fn lock_content<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, ()>> {
        let lock = inode.write_lock()?;
        self.alive()?;
        Ok(lock)
    }

    /// Waits for changes of content that began before the file system was closed; no other begins.
    /// Each holds its file's lock, and checks under it whether the file system is closed. No change
    /// of a file is therefore in progress once its lock was taken, or the file loaded, since then.
    pub(crate) fn wait_for_writers(&self) {
        self.vfs.inodes.each_file(|file| drop(file.rw.read()));
    }

    /// As [`Operations::alive`]; EXDEV if the node belongs to another file system, or to an earlier
    /// opening of this one.
    #[inline]
    pub(crate) fn own(&self, node: &Node) -> Result<()> {
        self.alive()?;
        if self.is_own(node) { Ok(()) } else { Err(Errno::Xdev.into()) }
    }

    #[inline]
    fn is_own(&self, node: &Node) -> bool {
        node.0.mounting == self.st().mounted.id()
    }

    /// The root directory.
    pub fn root(&self) -> Result<Node> {
        self.alive()?;
        self.record_corruption(self.vfs.node(InodeNr::ROOT)).map(Node)
    }

    /// The inode of a number. ESTALE if the number is free, or one of the file system's own: its
    /// journal, its quota files and the like.
    pub fn node(&self, ino: u64) -> Result<Node> {
        self.alive()?;
        let ino = u32::try_from(ino).map(InodeNr).map_err(|_| Errno::Stale)?;
        if self.st().quota.is_hidden(ino) {
            return Err(Errno::Stale.into());
        }
        if let Some(inode) = self.vfs.inodes.peek(ino) {
            return Ok(Node(alive(inode)?));
        }
        // Where the bitmap cannot be trusted, the slot decides.
        match self.record_corruption(self.st().alloc.inode_in_use(ino)) {
            Ok(true) | Err(Error::Corrupt(_)) => {}
            Ok(false) => return Err(Errno::Stale.into()),
            Err(e) => return Err(e),
        }
        match self.vfs.node(ino) {
            // A new inode has its number before it is in the cache, and its slot is written later.
            Err(Error::Corrupt(_)) if Inode::has_empty_slot(self.st(), ino)? => {
                Err(Errno::Stale.into())
            }
            found => Ok(Node(found?)),
        }
    }

    /// Resolves an absolute path (bytes).
    pub fn resolve(&self, path: impl AsRef<[u8]>, follow: Follow) -> Result<Node> {
        self.resolve_by(None, path.as_ref(), follow)
    }

    /// Returns the attributes of stat(2) for a path. If the whole path is cached, this takes no
    /// lock and writes no shared memory.
    pub fn stat(&self, path: impl AsRef<[u8]>, follow: Follow) -> Result<Attr> {
        self.stat_by(None, path.as_ref(), follow)
    }

    pub(super) fn stat_by(
        &self,
        caller: Option<&Caller<'_>>,
        path: &[u8],
        follow: Follow,
    ) -> Result<Attr> {
        self.alive()?;
        let pinned = pin();
        if let Some(inode) = self.vfs.look(&pinned, caller, path, follow) {
            return Ok(Attr::of(inode));
        }
        drop(pinned);
        self.resolve_by(caller, path, follow).map(|node| node.attr())
    }

    pub(super) fn resolve_by(
        &self,
        caller: Option<&Caller<'_>>,
        path: &[u8],
        follow: Follow,
    ) -> Result<Node> {
        self.alive()?;
        self.record_corruption(self.vfs.resolve(caller, path, follow).map(Node))
    }

    pub(super) fn parent_by<'p>(
        &self,
        caller: Option<&Caller<'_>>,
        path: &'p [u8],
    ) -> Result<(Node, &'p [u8])> {
        self.alive()?;
        let (dir, name) = self.vfs.resolve_parent(caller, path)?;
        Ok((Node(dir), name))
    }

    /// The directory that holds the last component of a path, and that component.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Node, &'p [u8])> {
        self.parent_by(None, path)
    }

    /// The child `name` of a directory. ENOENT if there is none.
    pub fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.own(dir)?;
        if !dir.0.is_dir() {
            return Err(Errno::NotDir.into());
        }
        let found = self.record_corruption(self.vfs.child_node(&dir.0, name))?;
        found.map(Node).ok_or(Errno::NoEnt.into())
    }

    /// The directory that a directory is in; the root is in itself. Takes no lock if memory has the
    /// parent and knows that it is.
    pub fn parent(&self, dir: &Node) -> Result<Node> {
        self.own(dir)?;
        if !dir.0.is_dir() {
            return Err(Errno::NotDir.into());
        }
        self.record_corruption(self.vfs.parent(&dir.0)).map(Node)
    }

    /// Returns the target of a symlink; of an encrypted one, its form without the key, as in the
    /// kernel.
    pub fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        self.own(node)?;
        if node.0.ftype != extant_format::types::FileType::Symlink {
            return Err(Errno::Inval.into());
        }
        let _lock = node.0.rw.read();
        crate::file::read_link(self.st(), &node.0)
    }

    /// Looks at up to `budget` inodes and as many names that are in memory without being used, the
    /// oldest first, and forgets those that were not looked up since the last time; how many.
    /// Memory does that by itself when its bound is reached.
    pub fn shrink(&self, budget: usize) -> usize {
        self.vfs.inodes.shrink(budget) + self.vfs.dentries.shrink(budget)
    }

    /// Usage of the file system.
    pub fn usage(&self) -> Usage {
        self.st().alloc.usage()
    }

    /// How fragmented free space is, as far as is known.
    pub fn fragmentation(&self) -> Fragmentation {
        self.st().alloc.fragmentation()
    }

    /// Sets a tunable of the live file system and gives the value that holds then:
    /// `mb_frsp_max_mem` (bytes that free-space trees may take, 0 for any number),
    /// `frsp_cache_aggression` (0 to 3), `prefetch_block_bitmaps` (0 or 1), `pa` (0 or 1: whether
    /// space is kept for files), `lg` (0 to 2: small files share space with none, with all, with
    /// those of their thread).
    ///
    /// # Errors
    /// ENOENT if there is no such tunable, EINVAL if it cannot have the value.
    pub fn set_tunable(&self, name: &str, value: u64) -> Result<u64> {
        let now = self.st().alloc.set(name, value);
        self.scan_bell.ring();
        now
    }

    /// Returns whether there may be directories whose entries are found by several names:
    /// case-insensitive ones, and those with encrypted names, shown without their key.
    pub fn has_spellings(&self) -> bool {
        let geo = &self.st().geo;
        geo.incompat(Incompat::CASEFOLD) || geo.incompat(Incompat::ENCRYPT)
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        self.st().geo.block_size
    }

    /// Runs `op`. As long as it fails for lack of space while freed space waits for its commit,
    /// commits and runs it again: other threads may take the freed space and free more. If no freed
    /// space waits and blocks are scarce, writes back all pages, which need less than their
    /// reservations, and runs it again. If it fails at the limit of an owner, frees inodes without
    /// holders, for which their owners are charged until then, and runs it once more.
    fn with_space<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        if self.st().policy.deterministic && self.to_reap() != ToReap::Nothing {
            // No thread does it.
            self.reap();
        }
        let (mut reaped, mut written) = (false, false);
        for _ in 0..MAX_WAITS_FOR_SPACE {
            let before = self.commits();
            let refused = self.st().alloc.refused();
            // A lack of inodes, or of room for an attribute, is no lack of blocks.
            let lacks_blocks = || self.st().alloc.refused() != refused;
            match op() {
                Err(e) if e.is(Errno::NoSpc) && (self.reclaim() || self.became_free(before)) => {}
                Err(e)
                    if e.is(Errno::NoSpc)
                        && !written
                        && lacks_blocks()
                        && !self.st().is_written() =>
                {
                    release_reserved(self.st());
                    written = true;
                }
                Err(e) if e.is(Errno::DQuot) && !reaped => {
                    self.reap();
                    reaped = true;
                }
                done => return self.record_corruption(done),
            }
        }
        self.record_corruption(op())
    }

    /// Records a corruption in the superblock and obeys the error policy: go on, or change nothing
    /// any more (a library does not panic the machine, so that policy stops changes, too).
    fn record_corruption<T>(&self, done: Result<T>) -> Result<T> {
        if let Err(e @ Error::Corrupt(_)) = &done {
            if self.st().remarks.tells(Remark::Damage) {
                tracing::error!("{e}");
            }
            self.st().note_damage(e);
        }
        done
    }

    /// Returns words that change when transactions freeze and become durable, and that only commits
    /// write.
    fn commits(&self) -> (Tid, Tid) {
        let journal = &self.st().journal;
        (journal.running_tid(), journal.durable())
    }

    /// Returns whether pending frees may have completed since `before`, too late for the caller's
    /// attempt. Waits for a commit in progress.
    fn became_free(&self, before: (Tid, Tid)) -> bool {
        let (running, durable) = self.commits();
        let frozen = running.previous();
        let waited = durable < frozen && self.st().journal.wait(frozen).is_ok();
        waited || (running, durable) != before
    }

    /// Returns whether freed blocks or numbers wait for the next commit.
    fn pending(&self) -> bool {
        self.st().alloc.pending() > 0 || self.st().alloc.inodes_pending()
    }

    /// Makes freed space allocatable; false if there was none.
    fn reclaim(&self) -> bool {
        let reaped = self.reap();
        if !self.pending() && reaped == 0 {
            return false;
        }
        self.st().journal.sync().map_err(Error::from).is_ok()
    }
}

/// Locks directories for writing, in order, each once.
fn lock_dirs<'a>(
    dirs: impl IntoIterator<Item = &'a Arc<Inode>>,
) -> SmallVec<[(InodeNr, ArcWriteGuard<()>); 4]> {
    write_all_arc(dirs.into_iter().filter(|d| d.is_dir()).map(|d| (d.ino, &d.rw)))
}

/// Locks inodes that are no directories for writing, in order, each once.
fn lock_inodes<'a>(
    inodes: impl IntoIterator<Item = &'a Arc<Inode>>,
) -> SmallVec<[(InodeNr, ArcWriteGuard<()>); 4]> {
    write_all_arc(inodes.into_iter().filter(|i| !i.is_dir()).map(|i| (i.ino, &i.rw)))
}
