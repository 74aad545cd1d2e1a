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

/// KiB written that a crash may leave uncounted, but for those of the last commit interval.
const UNRECORDED_KBYTES: u64 = 16 << 10;

impl Operations {
    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// Those of this writeback and commit, and unreported losses of data. All callers that share a
    /// sync get its error, and so do those that call it while it runs.
    pub fn sync(&self) -> Result<()> {
        self.alive()?;
        self.may_sync()?;
        // The thread that does the work takes locks of files, and all callers wait for it.
        levels::assert_may_take(Level::Directory);
        self.syncs.share(|| !self.is_durable(), || self.write_and_commit())
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

    /// Frees queued inodes and writes back all pages, until nothing is left to do. Inodes without
    /// a name are freed, too, in spite of holders.
    pub(super) fn drain(&self) -> Result<()> {
        let written = self.write_and_commit();
        self.free_nameless();
        self.reap_all(written)
    }

    /// As [`Operations::drain`], but inodes that are held stay with their records.
    pub(super) fn drain_unheld(&self) -> Result<()> {
        let written = self.write_and_commit();
        self.reap_all(written)
    }

    fn reap_all(&self, written: Result<()>) -> Result<()> {
        while self.reap() > 0 {}
        written.and(self.st().journal.sync().map_err(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenFlags, OpenOptions};
    use extant_blocks::BlockDevice;
    use extant_testkit::{FeatureSet, Memory};
    use std::io::{self, IoSlice};
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::{Arc, OnceLock};
    use std::thread;
    use std::time::Duration;

    /// Content that is lost.
    const LOST: u8 = 0x77;

    /// A device on which writes of that content wait, and then fail.
    #[derive(Debug)]
    struct Losing {
        inner: Memory,
        waits: AtomicBool,
        waiting: AtomicUsize,
    }

    impl Losing {
        fn pass(&self, data: &[u8]) -> io::Result<()> {
            if data.iter().any(|byte| *byte != LOST) {
                return Ok(());
            }
            self.waiting.fetch_add(1, SeqCst);
            while self.waits.load(SeqCst) {
                thread::yield_now();
            }
            Err(io::Error::from_raw_os_error(5))
        }
    }

    impl BlockDevice for Losing {
        extant_blocks::forward_device!(self => self.inner;
            len, name, alignment, read_only, read_exact_at, read_vectored_at, flush, discard,
            write_zeroes, next_data, claim);

        fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
            self.pass(data)?;
            self.inner.write_all_at(data, offset)
        }

        fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
            bufs.iter().try_for_each(|buf| self.pass(buf))?;
            self.inner.write_vectored_at(bufs, offset)
        }
    }

    /// Returns whether a thread sleeps, by its directory below `/proc`.
    fn sleeps(thread: &std::path::Path) -> bool {
        let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    }

    #[test]
    fn a_caller_that_comes_while_a_sync_loses_its_data_is_told() {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let device = Arc::new(Losing {
            inner: Memory::from_bytes(&image.bytes()),
            waits: AtomicBool::new(true),
            waiting: AtomicUsize::new(0),
        });
        let options = OpenOptions::new().commit_interval(Duration::from_secs(3600));
        let fs = Fs::open_device(device.clone(), &options).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
        file.write_at(0, &[LOST; 4096]).unwrap();
        let second = OnceLock::new();
        thread::scope(|scope| {
            let first = scope.spawn(|| fs.sync());
            while device.waiting.load(SeqCst) == 0 {
                thread::yield_now();
            }
            let late = scope.spawn(|| {
                second.set(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                fs.sync()
            });
            while !second.get().is_some_and(|thread| sleeps(thread)) {
                thread::yield_now();
            }
            device.waits.store(false, SeqCst);
            assert!(first.join().unwrap().is_err());
            assert!(late.join().unwrap().is_err(), "its data are lost");
        });
        fs.sync().expect("all callers were told");
        drop((file, node, root));
        fs.unmount().unwrap();
    }

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
