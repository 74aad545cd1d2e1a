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

use crate::types::NodeId;
use extant_engine::Errno;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const SHARDS: usize = 16;

/// Largest number of known gaps of a file. The kernel has fewer requests under way.
const GAPS: usize = 128;

/// Longest delay of the kernel's time of a write behind the clock.
const CLOCKS: Duration = Duration::from_secs(2);

/// An inode with descriptors that are open for writing.
#[derive(Debug)]
struct Written {
    opens: u64,
    /// The part of `opens` without O_APPEND.
    plain: u64,
    /// The size when the file became append-only.
    floor: Option<u64>,
    /// Ranges that early appends left free.
    gaps: Vec<Range<u64>>,
    /// Time of the first open.
    since: SystemTime,
    /// Number of 512-byte blocks in the kernel's copy of the attributes, if known.
    told: Option<u64>,
    refused: Option<Refused>,
    /// The kernel has no pages: they were dropped, and no read has filled pages since.
    no_pages: bool,
}

/// Failure of the kernel to write data that it had accepted.
#[derive(Clone, Copy, Debug)]
struct Refused {
    why: Errno,
    /// Free blocks of the file system at that time.
    free: u64,
}

/// The files that are open for writing.
#[derive(Debug)]
pub struct Writers {
    /// Number of files of which the kernel has no pages.
    without_pages: AtomicUsize,
    /// Inodes with wrong times in the kernel's cache.
    wrong: Mutex<HashSet<u64>>,
    any_wrong: AtomicBool,
    shards: [Mutex<HashMap<u64, Written>>; SHARDS],
    /// Held from the check of a write to an append-only file until its end.
    judging: [Mutex<()>; SHARDS],
}

impl Default for Writers {
    fn default() -> Self {
        let (without_pages, wrong, any_wrong) = Default::default();
        let shards = std::array::from_fn(|_| Mutex::default());
        Writers { without_pages, wrong, any_wrong, shards, judging: Default::default() }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are locked.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Written {
    fn new() -> Written {
        Written {
            opens: 0,
            plain: 0,
            floor: None,
            gaps: Vec::new(),
            since: SystemTime::now(),
            told: None,
            refused: None,
            no_pages: false,
        }
    }

    /// No gap is in `range` any more.
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
    fn shard(&self, ino: NodeId) -> MutexGuard<'_, HashMap<u64, Written>> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }

    /// Opened for writing.
    pub fn open(&self, ino: NodeId, to_append: bool) {
        let mut shard = self.shard(ino);
        let written = shard.entry(ino.0).or_insert_with(Written::new);
        written.opens += 1;
        written.plain += u64::from(!to_append);
    }

    /// Closed by one who could write, and had opened it like this. True if that was the last.
    pub fn close(&self, ino: NodeId, to_append: bool) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return true };
        written.opens = written.opens.saturating_sub(1);
        written.plain = written.plain.saturating_sub(u64::from(!to_append));
        let last = written.opens == 0;
        if last && shard.remove(&ino.0).is_some_and(|written| written.no_pages) {
            // Relaxed, here and below: the count only saves a look, under whose lock it is changed.
            self.without_pages.fetch_sub(1, Ordering::Relaxed);
        }
        last
    }

    /// Whether the kernel may keep content that is not written yet.
    pub fn any(&self, ino: NodeId) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// Something was written past the kernel's pages: whether it may have some. From now on it has
    /// none, until it reads into them.
    pub fn outdates_pages(&self, ino: NodeId) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return true };
        let had = !std::mem::replace(&mut written.no_pages, true);
        self.without_pages.fetch_add(usize::from(had), Ordering::Relaxed);
        had
    }

    /// The kernel reads into its pages. What it reads now it puts there before they can be dropped:
    /// they are locked until then.
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

    /// What the kernel keeps of this inode's times is not so, and it asks nobody for them.
    pub fn wrong(&self, ino: NodeId) {
        lock(&self.wrong).insert(ino.0);
        // Relaxed: who closes the file does so after what was wrong was answered.
        self.any_wrong.store(true, Ordering::Relaxed);
    }

    /// Whether something that the kernel keeps of this inode is not so.
    pub fn is_wrong(&self, ino: NodeId) -> bool {
        self.any_wrong.load(Ordering::Relaxed) && lock(&self.wrong).contains(&ino.0)
    }

    /// The kernel has forgotten the inode; whether something of it was wrong.
    pub fn forgotten(&self, ino: NodeId) -> bool {
        self.any_wrong.load(Ordering::Relaxed) && lock(&self.wrong).remove(&ino.0)
    }

    /// Whether the kernel has to be told that the file now has so many blocks; it counts as told
    /// then.
    pub fn blocks_changed(&self, ino: NodeId, blocks: u64) -> bool {
        match self.shard(ino).get_mut(&ino.0) {
            Some(written) => written.told.replace(blocks) != Some(blocks),
            None => true,
        }
    }

    /// Somebody changes attributes, and the kernel takes what the reply says: so many blocks as
    /// `blocks` finds now. `then` runs before anybody else says that they changed.
    pub fn tell_blocks(&self, ino: NodeId, blocks: impl FnOnce() -> u64, then: impl FnOnce()) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.told = Some(blocks());
            then();
        }
    }

    /// Whether a modification time is from before the file was opened for writing: then it is
    /// somebody's wish, and none that the kernel kept of a write. To times that it kept it does not
    /// look at the reply.
    pub fn predates(&self, ino: NodeId, mtime: SystemTime) -> bool {
        self.shard(ino)
            .get(&ino.0)
            .is_some_and(|written| written.since.duration_since(mtime).is_ok_and(|by| by > CLOCKS))
    }

    /// What the kernel had accepted could not be written, while `free` blocks were free. False if
    /// the file is open for writing no more.
    pub fn refuse(&self, ino: NodeId, why: Errno, free: u64) -> bool {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return false };
        written.refused = Some(Refused { why, free });
        true
    }

    /// Why the kernel may accept no more writes to this file. It may again once more is `free` than
    /// when they failed.
    pub fn refused(&self, ino: NodeId, free: impl FnOnce() -> u64) -> Option<Errno> {
        let mut shard = self.shard(ino);
        let written = shard.get_mut(&ino.0)?;
        written.refused = written.refused.filter(|refused| free() <= refused.free);
        written.refused.map(|refused| refused.why)
    }

    /// The file is append-only from now on, with this size; or no more.
    pub fn set_floor(&self, ino: NodeId, size: Option<u64>) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.floor = size;
        }
    }

    /// How much of an append-only file of this size pages must leave as it is.
    pub fn floor(&self, ino: NodeId, size: u64) -> u64 {
        match self.shard(ino).get(&ino.0) {
            Some(written) if written.plain > 0 => 0,
            Some(written) => written.floor.unwrap_or(size),
            None => size,
        }
    }

    /// One write at a time to an append-only file is judged and done.
    pub fn judge(&self, ino: NodeId) -> MutexGuard<'_, ()> {
        lock(&self.judging[ino.0 as usize % SHARDS])
    }

    /// Whether `range` is behind a file of this size, or in a gap.
    pub fn is_free(&self, ino: NodeId, range: &Range<u64>, size: u64) -> bool {
        let within = |gap: &Range<u64>| gap.start <= range.start && range.end <= gap.end;
        range.start >= size
            || self.shard(ino).get(&ino.0).is_some_and(|written| written.gaps.iter().any(within))
    }

    /// `range` of an append-only file was written, which had this size before.
    pub fn filled(&self, ino: NodeId, range: Range<u64>, size: u64) {
        let mut shard = self.shard(ino);
        let Some(written) = shard.get_mut(&ino.0) else { return };
        written.close_gaps(&range);
        if range.start > size && written.gaps.len() < GAPS {
            written.gaps.push(size..range.start);
        }
    }

    /// The kernel got new attributes in another way.
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
    fn the_kernel_is_told_once_of_each_number_of_blocks() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        writers.open(ino, false);
        assert!(writers.blocks_changed(ino, 8));
        assert!(!writers.blocks_changed(ino, 8));
        assert!(writers.blocks_changed(ino, 16));
        writers.blocks_unknown(ino);
        assert!(writers.blocks_changed(ino, 16));
        writers.tell_blocks(ino, || 24, || ());
        assert!(!writers.blocks_changed(ino, 24), "the kernel heard of it otherwise");
        writers.close(ino, false);
        assert!(writers.blocks_changed(ino, 16), "nothing is known of a closed file");
    }

    #[test]
    fn an_old_time_is_nobodys_but_a_callers() {
        let (writers, ino, now) = (Writers::default(), NodeId(12), SystemTime::now());
        assert!(
            !writers.predates(ino, SystemTime::UNIX_EPOCH),
            "nothing is known of a closed file"
        );
        writers.open(ino, false);
        assert!(writers.predates(ino, SystemTime::UNIX_EPOCH));
        assert!(!writers.predates(ino, now), "the file may have been written to");
        assert!(!writers.predates(ino, now + CLOCKS));
    }

    #[test]
    fn writes_are_refused_until_there_is_more_room() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        assert!(!writers.refuse(ino, Errno::NoSpc, 3), "nobody can write");
        writers.open(ino, false);
        assert_eq!(writers.refused(ino, || 0), None);
        assert!(writers.refuse(ino, Errno::NoSpc, 3));
        assert_eq!(writers.refused(ino, || 3), Some(Errno::NoSpc));
        assert_eq!(writers.refused(ino, || 4), None);
        assert_eq!(writers.refused(ino, || 0), None, "it was refused for the failure before");
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
    fn pages_of_descriptors_that_append_leave_the_floor() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        assert_eq!(writers.floor(ino, 50), 50, "nothing has pages");
        writers.open(ino, true);
        writers.set_floor(ino, Some(40));
        assert_eq!(writers.floor(ino, 50), 40);
        writers.open(ino, false);
        assert_eq!(writers.floor(ino, 50), 0);
        writers.close(ino, false);
        assert_eq!(writers.floor(ino, 50), 40);
    }
}
