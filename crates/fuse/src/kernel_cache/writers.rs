//! Files that are open for writing, and the state of the kernel's cache of them.
//!
//! With the writeback cache the kernel requests attributes once and then trusts its own copy. Its
//! writes keep the copy current, except for the number of blocks; a notice invalidates the copy
//! when that number changes. Only the kernel knows its unwritten data, so a search for holes makes
//! it write them first.
//!
//! The kernel also trusts its own times, even where the server changes them: chattr(1) sets the
//! change time, and the server truncates times that an inode cannot hold. The server asks the
//! kernel to forget such an inode as soon as it is unused. The kernel also does not drop pages when
//! an asynchronous write that bypasses them ends; the server sends a notice for that.
//!
//! The kernel accepts cached writes without a check for space, without end. After a failed write of
//! cached data a notice invalidates the attributes. The kernel then requests attributes before each
//! write to the open file, and the reply is the error.
//!
//! # Append-only files
//! Descriptors that are opened while a file is append-only bypass the page cache, so that the
//! server checks each write. Older descriptors have pages. Pages of descriptors without O_APPEND
//! may have any content; pages of other descriptors must not change content below the size at which
//! the file became append-only. The parts of a large direct write may arrive out of order: a part
//! that comes early leaves a gap for the others.

use super::unseen::Unseen;
use crate::types::NodeId;
use extant_engine::Errno;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Shards by the number of the inode.
pub(super) const SHARDS: usize = 16;

/// Largest number of known gaps of a file. The kernel has fewer requests under way.
pub(super) const GAPS: usize = 128;

/// Longest delay of the kernel's time of a write behind the clock.
const CLOCKS: Duration = Duration::from_secs(2);

/// An inode with descriptors that are open for writing.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) opens: u64,
    /// The part of `opens` without O_APPEND.
    pub(super) plain: u64,
    /// The size when the file became append-only.
    pub(super) floor: Option<u64>,
    /// Ranges that early appends left free.
    pub(super) gaps: Vec<Range<u64>>,
    /// Time of the first open.
    pub(super) since: SystemTime,
    /// Number of 512-byte blocks in the kernel's copy of the attributes, if known.
    told: Option<u64>,
    pub(super) refused: Option<Refused>,
    /// The kernel has no pages: they were dropped, and no read has filled pages since.
    no_pages: bool,
    /// Where opens are not seen: the first and the last write.
    pub(super) wrote: Option<(Instant, Instant)>,
}

/// Failure of the kernel to write data that it had accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) why: Errno,
    /// Free blocks of the file system at that time.
    pub(super) free: u64,
}

/// The files that are open for writing.
#[derive(Debug)]
pub struct Writers {
    /// Number of files of which the kernel has no pages.
    without_pages: AtomicUsize,
    /// Inodes with wrong times in the kernel's cache.
    pub(super) wrong: Mutex<HashSet<u64>>,
    any_wrong: AtomicBool,
    pub(super) shards: [Mutex<HashMap<u64, Written>>; SHARDS],
    /// Held from the check of a write to an append-only file until its end.
    judging: [Mutex<()>; SHARDS],
    /// Files that are written to, where opens are not seen.
    pub(super) unseen: [Mutex<Unseen>; SHARDS],
}

impl Default for Writers {
    fn default() -> Self {
        let (without_pages, wrong, any_wrong) = Default::default();
        let shards = std::array::from_fn(|_| Mutex::default());
        let (judging, unseen) = Default::default();
        Writers { without_pages, wrong, any_wrong, shards, judging, unseen }
    }
}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is valid: no code panics while it holds these locks.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Written {
    /// A file that is opened now, by no descriptor yet.
    pub(super) fn new() -> Written {
        Written {
            opens: 0,
            plain: 0,
            floor: None,
            gaps: Vec::new(),
            since: SystemTime::now(),
            told: None,
            refused: None,
            no_pages: false,
            wrote: None,
        }
    }

    /// Removes `range` from all gaps.
    fn close_gaps(&mut self, range: &Range<u64>) {
        let parts = |gap: Range<u64>| {
            [gap.start..gap.end.min(range.start), gap.start.max(range.end)..gap.end]
        };
        self.gaps = std::mem::take(&mut self.gaps)
            .into_iter()
            .flat_map(parts)
            .filter(|part| !part.is_empty())
            .collect();
    }
}

impl Writers {
    pub(super) fn shard(&self, ino: NodeId) -> MutexGuard<'_, HashMap<u64, Written>> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }

    /// Counts a descriptor that was opened for writing.
    pub fn open(&self, ino: NodeId, to_append: bool) {
        let mut shard = self.shard(ino);
        let written = shard.entry(ino.0).or_insert_with(Written::new);
        written.opens += 1;
        written.plain += u64::from(!to_append);
    }

    /// Counts the close of a descriptor for writing, with the `to_append` of its open. Returns
    /// whether it was the last one.
    pub fn close(&self, ino: NodeId, to_append: bool) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return true };
        written.opens = written.opens.saturating_sub(1);
        written.plain = written.plain.saturating_sub(u64::from(!to_append));
        let last = written.opens == 0;
        if last {
            self.remove(&mut shard, ino);
        }
        last
    }

    /// Removes a file from its shard; false if it is not there.
    pub(super) fn remove(&self, shard: &mut HashMap<u64, Written>, ino: NodeId) -> bool {
        let removed = shard.remove(&ino.0);
        if removed.as_ref().is_some_and(|written| written.no_pages) {
            // Relaxed, here and below: the count only saves a lookup in the shard. It is changed
            // under the lock of that lookup.
            self.without_pages.fetch_sub(1, Ordering::Relaxed);
        }
        removed.is_some()
    }

    /// Returns whether the kernel may cache unwritten data of the file.
    pub fn any(&self, ino: NodeId) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// Notes a write that bypassed the page cache. Returns whether the kernel may have pages of the
    /// file. Later calls return false until the next [`Writers::read_into_pages`].
    pub fn outdates_pages(&self, ino: NodeId) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return true };
        let had = !std::mem::replace(&mut written.no_pages, true);
        self.without_pages.fetch_add(usize::from(had), Ordering::Relaxed);
        had
    }

    /// Notes a read into the page cache. The kernel keeps these pages locked until the data is in
    /// them, so it cannot drop them earlier.
    pub fn read_into_pages(&self, ino: NodeId) {
        if self.without_pages.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(written) = self.shard(ino).get_mut(&ino.0)
            && std::mem::take(&mut written.no_pages)
        {
            self.without_pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel's cached times of an inode are wrong. The kernel never requests them
    /// again.
    pub fn wrong(&self, ino: NodeId) {
        lock(&self.wrong).insert(ino.0);
        // Relaxed: the last close of the file is a request after the reply to the one that made the
        // times wrong.
        self.any_wrong.store(true, Ordering::Relaxed);
    }

    /// Returns whether the kernel's cached times of this inode are wrong.
    pub fn is_wrong(&self, ino: NodeId) -> bool {
        self.any_wrong.load(Ordering::Relaxed) && lock(&self.wrong).contains(&ino.0)
    }

    /// Notes that the kernel has forgotten an inode. Returns whether its cached times were wrong.
    pub fn forgotten(&self, ino: NodeId) -> bool {
        self.any_wrong.load(Ordering::Relaxed) && lock(&self.wrong).remove(&ino.0)
    }

    /// Returns whether the kernel needs a notice that the file now has `blocks` blocks of 512
    /// bytes. From then on the kernel's copy counts as current.
    pub fn blocks_changed(&self, ino: NodeId, blocks: u64) -> bool {
        match self.shard(ino).get_mut(&ino.0) {
            Some(written) => written.told.replace(blocks) != Some(blocks),
            None => true,
        }
    }

    /// Notes that a reply gives the kernel the number of blocks that `blocks` returns. Both
    /// functions run under the lock of the shard, so `then` runs before another thread reports a
    /// change.
    pub fn tell_blocks(&self, ino: NodeId, blocks: impl FnOnce() -> u64, then: impl FnOnce()) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.told = Some(blocks());
            then();
        }
    }

    /// Returns whether a modification time is older than the first open for writing. Such a time
    /// was set by a caller, not by the kernel for a cached write. The kernel ignores the reply to a
    /// request that carries its cached times.
    pub fn predates(&self, ino: NodeId, mtime: SystemTime) -> bool {
        self.shard(ino)
            .get(&ino.0)
            .is_some_and(|written| written.since.duration_since(mtime).is_ok_and(|by| by > CLOCKS))
    }

    /// Records a failure to write data that the kernel had accepted, while `free` blocks were free.
    /// Returns false if the file is no longer open for writing.
    pub fn refuse(&self, ino: NodeId, why: Errno, free: u64) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return false };
        written.refused = Some(Refused { why, free });
        true
    }

    /// Returns the error of new writes to this file. The error is cleared as soon as more blocks
    /// are `free` than at the time of the failure.
    pub fn refused(&self, ino: NodeId, free: impl FnOnce() -> u64) -> Option<Errno> {
        let mut shard = self.shard(ino);
        let written = shard.get_mut(&ino.0)?;
        written.refused = written.refused.filter(|refused| free() <= refused.free);
        written.refused.map(|refused| refused.why)
    }

    /// Records the size at which the file became append-only; `None` if it no longer is.
    pub fn set_floor(&self, ino: NodeId, size: Option<u64>) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.floor = size;
        }
    }

    /// Returns the number of bytes of an append-only file, from its start, that writes of pages
    /// must not change. `size` is the file's size.
    pub fn floor(&self, ino: NodeId, size: u64) -> u64 {
        match self.shard(ino).get(&ino.0) {
            Some(written) if written.plain > 0 => 0,
            Some(written) => written.floor.unwrap_or(size),
            None => size,
        }
    }

    /// Locks an append-only file from the check of a write until the end of that write.
    pub fn judge(&self, ino: NodeId) -> MutexGuard<'_, ()> {
        lock(&self.judging[ino.0 as usize % SHARDS])
    }

    /// Returns whether `range` lies at or past the end of a file of this size, or in a gap.
    pub fn is_free(&self, ino: NodeId, range: &Range<u64>, size: u64) -> bool {
        let within = |gap: &Range<u64>| gap.start <= range.start && range.end <= gap.end;
        range.start >= size
            || self.shard(ino).get(&ino.0).is_some_and(|written| written.gaps.iter().any(within))
    }

    /// Notes a write of `range` to an append-only file that had this size before.
    pub fn filled(&self, ino: NodeId, range: Range<u64>, size: u64) {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return };
        written.close_gaps(&range);
        if range.start > size && written.gaps.len() < GAPS {
            written.gaps.push(size..range.start);
        }
    }

    /// Forgets the number of blocks in the kernel's copy: the next change needs a notice.
    pub fn blocks_unknown(&self, ino: NodeId) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.told = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_blocks_needs_one_notice() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        writers.open(ino, false);
        assert!(writers.blocks_changed(ino, 8));
        assert!(!writers.blocks_changed(ino, 8));
        assert!(writers.blocks_changed(ino, 16));
        writers.blocks_unknown(ino);
        assert!(writers.blocks_changed(ino, 16));
        writers.tell_blocks(ino, || 24, || ());
        assert!(!writers.blocks_changed(ino, 24), "a reply carried the number");
        writers.close(ino, false);
        assert!(writers.blocks_changed(ino, 16), "no state is kept for a closed file");
    }

    #[test]
    fn times_from_before_the_open_are_set_by_callers() {
        let (writers, ino, now) = (Writers::default(), NodeId(12), SystemTime::now());
        assert!(
            !writers.predates(ino, SystemTime::UNIX_EPOCH),
            "no state is kept for a closed file"
        );
        writers.open(ino, false);
        assert!(writers.predates(ino, SystemTime::UNIX_EPOCH));
        assert!(!writers.predates(ino, now), "the file may have been written to");
        assert!(!writers.predates(ino, now + CLOCKS));
    }

    #[test]
    fn writes_are_refused_until_more_blocks_are_free() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        assert!(!writers.refuse(ino, Errno::NoSpc, 3), "no descriptor can write");
        writers.open(ino, false);
        assert_eq!(writers.refused(ino, || 0), None);
        assert!(writers.refuse(ino, Errno::NoSpc, 3));
        assert_eq!(writers.refused(ino, || 3), Some(Errno::NoSpc));
        assert_eq!(writers.refused(ino, || 4), None);
        assert_eq!(writers.refused(ino, || 0), None, "the failure was cleared");
    }

    #[test]
    fn a_file_is_written_until_its_last_writer_closes() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        writers.open(ino, false);
        writers.open(ino, false);
        assert!(!writers.close(ino, false));
        assert!(writers.any(ino));
        assert!(writers.close(ino, false));
        assert!(!writers.any(ino));
    }

    #[test]
    fn only_gaps_of_an_append_only_file_are_free() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        writers.open(ino, true);
        assert!(!writers.is_free(ino, &(90..110), 100));
        writers.filled(ino, 300..400, 100);
        assert!(writers.is_free(ino, &(400..500), 400));
        assert!(!writers.is_free(ino, &(90..110), 400));
        assert!(writers.is_free(ino, &(200..300), 400));
        writers.filled(ino, 150..200, 400);
        assert!(!writers.is_free(ino, &(150..200), 400));
        assert!(!writers.is_free(ino, &(100..300), 400), "a part of it was written");
        assert!(writers.is_free(ino, &(100..150), 400));
        assert!(writers.is_free(ino, &(200..300), 400));
    }

    #[test]
    fn pages_of_appending_descriptors_do_not_change_bytes_below_the_floor() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        assert_eq!(writers.floor(ino, 50), 50, "no descriptor has pages");
        writers.open(ino, true);
        writers.set_floor(ino, Some(40));
        assert_eq!(writers.floor(ino, 50), 40);
        writers.open(ino, false);
        assert_eq!(writers.floor(ino, 50), 0);
        writers.close(ino, false);
        assert_eq!(writers.floor(ino, 50), 40);
    }
}
