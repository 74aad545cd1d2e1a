//! Sync: makes all changes durable.
//!
//! A sync walks the inodes with dirty pages, waits for those under writeback, and commits; it
//! visits no clean inode. Callers that arrive while a sync runs share the next one; after a sync
//! with many callers, the next one waits a moment, so that others work. Whether there is work is
//! decided by a few words: changes are first on the list of dirty inodes, then on the list of those
//! under writeback, then in the running transaction or waiting for a flush, and the words are read
//! in this order. Files without a name and holders come first: their space is free when a sync
//! returns.

use crate::error::{Result, lost};
use crate::ops::Operations;
use extant_sync::levels::{self, Level};
use std::sync::Arc;

/// KiB written that a crash may leave uncounted, but for those of the last commit interval.
const UNRECORDED_KBYTES: u64 = 16 << 10;

impl Operations {
    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// Those of this writeback and commit, and unreported losses of data. All callers that share a
    /// sync get its error.
    pub fn sync(&self) -> Result<()> {
        self.alive()?;
        self.may_sync()?;
        // The thread that does the work takes locks of files, and all callers wait for it.
        levels::assert_may_take(Level::Directory);
        let work = || self.write_and_commit().map_err(Arc::new);
        let shared = self.syncs.share(|| !self.is_durable(), work).unwrap_or(Ok(()));
        shared.map_err(|e| Arc::try_unwrap(e).unwrap_or_else(|e| e.to_another()))
    }

    /// Whether there is nothing that a sync would have to do.
    fn is_durable(&self) -> bool {
        let st = self.st();
        self.is_all_freed() && st.is_clean() && st.journal.is_clean()
    }

    /// Frees inodes without holders, writes back all dirty pages and commits, also after errors.
    /// Returns the errors of this writeback and unreported ones.
    fn write_and_commit(&self) -> Result<()> {
        self.reap();
        let written = self.write_back_all();
        let untold = self.st().dirty_files.untold_loss();
        let synced = self.st().journal.sync().map_err(lost);
        written.and(untold).and(synced)
    }

    /// Writes all dirty pages back, and waits for those that others write.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        crate::file::writeback_all(self.st())
    }

    /// Has the next transaction carry the count of bytes written, once it has grown by so much that
    /// a crash should not lose it.
    pub(crate) fn record_writes(&self) -> Result<()> {
        let st = self.st();
        if st.groups.kbytes_unrecorded() < UNRECORDED_KBYTES || st.writable().is_err() {
            return Ok(());
        }
        st.begin(1)?.step(|step| st.groups.join_superblock(step.handle()))
    }

    /// Frees queued inodes and writes back all pages, until nothing is left to do.
    pub(super) fn drain(&self) -> Result<()> {
        let written = self.write_and_commit();
        self.free_nameless();
        while self.reap() > 0 {}
        written.and(self.st().journal.sync().map_err(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenFlags, OpenOptions};
    use extant_testkit::FeatureSet;
    use std::time::Duration;

    #[test]
    fn a_crash_loses_little_of_the_count_of_writes() {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        image.leave_unjudged("the file system is not closed");
        let fs =
            Fs::open(image.path(), &OpenOptions::new().commit_interval(Duration::from_secs(3600)))
                .unwrap();
        let before = fs.superblock().kbytes_written();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        let file = fs
            .open_file(&node, OpenFlags { write: true, direct: true, ..Default::default() })
            .unwrap();
        file.write_at(0, &vec![1; (UNRECORDED_KBYTES << 10) as usize]).unwrap();
        fs.operations().record_writes().unwrap();
        fs.sync().unwrap();
        drop((file, node, root));
        fs.crash();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        let counted = fs.superblock().kbytes_written();
        assert!(counted >= before + UNRECORDED_KBYTES, "{before} and then {counted}");
        fs.unmount().unwrap();
    }
}
