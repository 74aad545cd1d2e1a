//! Writeback of the dirty pages of many files together. First the blocks of all files are placed,
//! so that small files become neighbors. Then all data are written, sorted and merged. Then the
//! files are mapped, as many in one handle as it has credits for. For example, 500 new files of 4
//! KiB become one write of 2 MiB and a few handles.
//!
//! # Invariants
//! - Data before mapping: no file of a batch is mapped before the data of all are written.
//! - A failure affects only the file that met it. A file whose pages shared a failed write, or
//!   which got no space, is written again alone, and page by page if that fails: only pages that
//!   cannot be written are lost.
//! - No thread waits while placed pages are not submitted: a file that would have to wait for space
//!   is left for later. A batch is bounded by bytes, files and time.
//!
//! # Locking
//! The `work` of each file is held from taking its pages until they are mapped. Only the lock of
//! the first file of a batch may be waited for, since none is held then. The others are tried;
//! files whose `work` is held by another thread are written alone afterwards.

use crate::error::Result;
use crate::file::plan::{self, Pieces, Written};
use crate::file::writeback::{self, Placing, UnderWriteback};
use crate::file::{deferred, map, submit, window};
use crate::inode::{Inode, Work};
use crate::store::Store;
use extant_blocks::Plug;
use extant_sync::MutexGuard;
use extant_sync::atomic::{AtomicUsize, Ordering};
use std::ops::Range;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

#[cfg(not(feature = "designs"))]
use self::max_blocks as room_of;
#[cfg(feature = "designs")]
use super::designs::max_blocks as room_of;

/// Most bytes of a batch. A file that has more is written by itself.
const MAX_BYTES: usize = 8 << 20;

/// Most files of a batch.
const MAX_FILES: usize = 1024;

/// Files that a sync deals with before it looks for more, and the most threads that it has for
/// them.
const ROUND: usize = 16 * MAX_FILES;
const MAX_THREADS: usize = 4;

/// Bytes that are worth the start of a thread, and chunks that it gets if all are as fast.
const WORTH_BYTES: u64 = 16 << 20;
const CHUNKS_EACH: usize = 4;

/// How long a batch may take to be put together.
const MAX_TIME: Duration = Duration::from_millis(100);

/// A file of a batch. A panic drops the fields in this order: claimed blocks are returned and pages
/// are settled before another thread may map them.
struct Job<'a> {
    inode: &'a Arc<Inode>,
    stage: Stage,
    reserved: u32,
    taken: UnderWriteback<'a>,
    work: MutexGuard<'a, Work>,
}

/// How far a file of a batch is.
enum Stage {
    /// Its pages have places, which cover them exactly.
    Placed(Pieces),
    /// Its pages are written and mapped.
    Mapped,
    /// It has to be written alone.
    Alone,
}

/// Writes the dirty pages of all files back, and waits for those that others are writing. Gives the
/// first error of its own writing; each is noted for the files' openers.
pub fn writeback_all(st: &Store) -> Result<()> {
    let result = write_back(st, ROUND, MAX_THREADS, || true);
    st.pages.wait_for_writeback();
    result
}

/// Writes back the dirty files that no other thread works on, which frees their reservations. Waits
/// for no other thread. The caller may hold a file's `rw`, but must not hold a `work`.
pub(in crate::file) fn clean(st: &Store) {
    let mut walk = st.dirty_files.walk();
    loop {
        let inodes = walk.next(MAX_FILES);
        if inodes.is_empty() {
            return;
        }
        for inode in inodes {
            let Some(mut work) = inode.pages.work.try_lock() else { continue };
            // Errors are noted for fsync.
            let _ = writeback::within(st, &inode, &mut work, 0..map::END);
            window::discard_of_closed(&inode, &mut work);
            drop(work);
            st.dirty_files.note_clean(&inode);
        }
    }
}

/// Writes back until the pool is within its bounds. The caller may hold a file's `rw`, no `work`.
pub(in crate::file) fn throttle(st: &Store) {
    st.pages.shrink();
    if st.pages.too_dirty() {
        // Errors are noted for fsync.
        let _ = write_back(st, MAX_FILES, 1, || st.pages.too_dirty());
        st.pages.shrink();
    }
}

/// Writes files back that have dirty pages now, as long as `go_on` says, `round` of them at a time,
/// by at most so many threads.
fn write_back(
    st: &Store,
    round: usize,
    most_threads: usize,
    go_on: impl Fn() -> bool + Sync,
) -> Result<()> {
    let (mut walk, mut busy, mut result) = (st.dirty_files.walk(), Vec::new(), Ok(()));
    while go_on() {
        let inodes = walk.next(round);
        if inodes.is_empty() {
            break;
        }
        let threads = threads_for(st, inodes.len()).min(most_threads);
        let (left, written) = shared(st, &inodes, threads, &go_on);
        busy.extend(left);
        result = result.and(written);
    }
    // Files that other threads wrote meanwhile: their locks are waited for, one at a time.
    for inode in busy {
        if !go_on() {
            break;
        }
        result = result.and(writeback::writeback(st, &inode, 0, u64::MAX));
    }
    result
}

/// Threads that are worth their start for so many files; at least one.
fn threads_for(st: &Store, files: usize) -> usize {
    if st.policy.deterministic {
        return 1;
    }
    let by_bytes =
        usize::try_from(st.pages.dirty_bytes() / WORTH_BYTES).unwrap_or(usize::MAX).min(files);
    (files / MAX_FILES).max(by_bytes).min(st.shards).clamp(1, MAX_THREADS)
}

/// Writes files back, by so many threads of which this is one: each takes the next chunk when it is
/// done with one. Gives those that others work on.
fn shared(
    st: &Store,
    inodes: &[Arc<Inode>],
    threads: usize,
    go_on: &(impl Fn() -> bool + Sync),
) -> (Vec<Arc<Inode>>, Result<()>) {
    let size = if threads < 2 {
        MAX_FILES
    } else {
        inodes.len().div_ceil(threads * CHUNKS_EACH).clamp(1, MAX_FILES)
    };
    // Relaxed: each number is taken by one thread, which then owns that part; no other data is
    // published by it.
    let next = AtomicUsize::new(0);
    let chunks =
        std::iter::from_fn(|| inodes.chunks(size).nth(next.fetch_add(1, Ordering::Relaxed)));
    let work = || write_chunks(st, chunks.clone(), go_on);
    let own = extant_sync::shard_index();
    // In runs of its own: files of two threads that share one alternate in it, and do not merge.
    let other = |nth| {
        extant_sync::set_shard_index(own + nth);
        work()
    };
    let other = &other;
    std::thread::scope(|scope| {
        let start = |nth| {
            let thread = Builder::new().name("extant-sync".into());
            thread.spawn_scoped(scope, move || other(nth)).ok()
        };
        // Those that could not be had are done without.
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let (mut busy, mut result) = work();
        for other in others {
            // Files that a panicking thread left dirty are written afterwards.
            let (theirs, written) = other.join().unwrap_or_else(|_| (inodes.to_vec(), Ok(())));
            busy.extend(theirs);
            result = result.and(written);
        }
        (busy, result)
    })
}

/// Writes chunks of files back, as many files at a time as a batch takes. Gives those that others
/// work on.
fn write_chunks<'a>(
    st: &Store,
    chunks: impl Iterator<Item = &'a [Arc<Inode>]>,
    go_on: impl Fn() -> bool,
) -> (Vec<Arc<Inode>>, Result<()>) {
    let (mut busy, mut result) = (Vec::new(), Ok(()));
    for chunk in chunks {
        let mut rest = chunk;
        while !rest.is_empty() && go_on() {
            let (dealt, written) = first_of(st, rest, &mut busy);
            result = result.and(written);
            rest = rest.get(dealt..).unwrap_or_default();
        }
    }
    (busy, result)
}

/// Returns the most blocks of a batch.
pub fn max_blocks(st: &Store) -> usize {
    (MAX_BYTES / st.block_size()).max(1)
}

/// Writes back as many of the first files as fit into one batch, at least one. Returns the number
/// of files handled; those that another thread works on are added to `busy`.
fn first_of(st: &Store, inodes: &[Arc<Inode>], busy: &mut Vec<Arc<Inode>>) -> (usize, Result<()>) {
    let (begun, mut room, mut dealt) = (Instant::now(), room_of(st), 0);
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for inode in inodes {
        let work = if jobs.is_empty() {
            Some(inode.pages.work.lock())
        } else {
            inode.pages.work.try_lock()
        };
        match work {
            None => busy.push(inode.clone()),
            Some(mut work) => {
                let waiting = inode.pages.read().waiting();
                if waiting > room && !jobs.is_empty() {
                    break;
                }
                if waiting > room {
                    let result = writeback::within(st, inode, &mut work, 0..map::END);
                    window::discard_of_closed(inode, &mut work);
                    drop(work);
                    st.dirty_files.note_clean(inode);
                    return (dealt + 1, result);
                }
                // All of it, though more has become dirty since: a walk does not come back to the
                // file.
                if let Some(job) = Job::take(st, inode, work, usize::MAX) {
                    room = room.saturating_sub(job.taken.len());
                    jobs.push(job);
                }
            }
        }
        dealt += 1;
        if room == 0 || !st.policy.deterministic && begun.elapsed() > MAX_TIME {
            break;
        }
    }
    (dealt, finish(st, jobs))
}

impl<'a> Job<'a> {
    /// Takes the file's dirty pages and finds places for them. `None` if it has none.
    fn take(
        st: &'a Store,
        inode: &'a Arc<Inode>,
        work: MutexGuard<'a, Work>,
        most: usize,
    ) -> Option<Job<'a>> {
        let take =
            |pages: &mut crate::inode::PageMap| pages.take(0..map::END, most, st.geo.cluster_bits);
        let (taken, reserved) = inode.pages.change(&st.pages, take);
        if taken.is_empty() {
            drop(work);
            st.dirty_files.note_clean(inode);
            return None;
        }
        let taken = UnderWriteback::new(st, inode, taken);
        let mut job = Job { inode, work, taken, reserved, stage: Stage::Alone };
        job.place(st);
        Some(job)
    }

    fn place(&mut self, st: &Store) {
        let mut groups = writeback::groups(st, &self.taken);
        let (Some(group), None) = (groups.next(), groups.next()) else { return };
        // An error is met again, and told, when the file is written alone.
        if deferred::settle(st, self.inode).is_err() {
            return;
        }
        // Pages that were not placed are written again alone, which yields the error.
        let how = Placing { reserved: &mut self.reserved, waits: super::space::Waits::NONE };
        if let Ok(pieces) = writeback::place(st, self.inode, &mut self.work, group, how) {
            self.stage = Stage::Placed(pieces.into());
        }
    }

    /// It has to be written alone: its places go back, and their space stays set aside for it.
    fn unplace(&mut self) {
        if let Stage::Placed(pieces) = std::mem::replace(&mut self.stage, Stage::Alone) {
            self.reserved += plan::unplace(pieces);
        }
    }

    /// Whether one of the file's places overlaps one of the byte ranges.
    fn touches(&self, st: &Store, ranges: &[Range<u64>]) -> bool {
        let Stage::Placed(pieces) = &self.stage else { return false };
        pieces.iter().any(|piece| {
            let bytes = map::at(st, piece.pblk.0)
                ..map::at(st, piece.pblk.0.saturating_add(piece.len.into()));
            ranges.iter().any(|range| range.start < bytes.end && bytes.start < range.end)
        })
    }

    /// Writes the file alone if it has to be, and lets go of it.
    fn end(mut self, st: &Store) -> Result<()> {
        let result = match self.stage {
            Stage::Mapped => {
                writeback::give_back(st, self.inode, self.reserved);
                writeback::settle(st, self.inode, &self.taken, Ok(()))
            }
            Stage::Placed(_) | Stage::Alone => {
                self.unplace();
                writeback::alone(st, self.inode, &mut self.work, &self.taken, self.reserved)
            }
        };
        window::discard_of_closed(self.inode, &mut self.work);
        drop(self.work);
        st.dirty_files.note_clean(self.inode);
        result
    }
}

/// Writes and maps the placed pages. Files that fail are written alone after the others.
fn finish(st: &Store, mut jobs: Vec<Job<'_>>) -> Result<()> {
    submit_all(st, &mut jobs);
    map_all(st, &mut jobs);
    let (done, alone): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| matches!(job.stage, Stage::Mapped));
    done.into_iter().chain(alone).map(|job| job.end(st)).fold(Ok(()), Result::and)
}

/// Writes the data of all files that are placed.
fn submit_all(st: &Store, jobs: &mut [Job<'_>]) {
    let (mut plug, mut files) = (Plug::new(&*st.dev), 0);
    for job in jobs.iter() {
        if let Stage::Placed(pieces) = &job.stage {
            writeback::add_data(st, &mut plug, pieces, &job.taken);
            files += 1;
        }
    }
    if plug.is_empty() || st.writable().is_err() {
        jobs.iter_mut().for_each(Job::unplace);
        return;
    }
    let mut failed = Vec::new();
    submit::each(st, (plug, files), |offset, len, result| {
        if let Err(e) = result {
            tracing::debug!("a write of several files failed: {e}");
            failed.push(offset..offset.saturating_add(len));
        }
    });
    // After the writes: a later flush covers them.
    let stamp = st.journal.note_data_write();
    for job in jobs {
        job.inode.pages.note_written(stamp);
        if job.touches(st, &failed) {
            job.unplace();
        }
    }
}

/// Maps the written files, many in one handle.
fn map_all(st: &Store, jobs: &mut [Job<'_>]) {
    let mut files = Vec::new();
    for job in jobs.iter_mut() {
        if let Stage::Placed(pieces) = &mut job.stage {
            job.inode.pages.set_uses_share(true);
            files.push(Written { inode: job.inode, pieces, size: job.inode.pages.size() });
        }
    }
    let results = plan::apply_all(st, files);
    let placed = jobs.iter_mut().filter(|job| matches!(job.stage, Stage::Placed(_)));
    for (job, result) in placed.zip(results) {
        job.inode.pages.set_uses_share(false);
        match result {
            Ok(()) => job.stage = Stage::Mapped,
            Err(e) => {
                tracing::debug!("a file of several could not be mapped: {e}");
                job.unplace();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenFlags, OpenOptions};
    use extant_sync::{set_shard_index, shard_index};
    use extant_testkit::{FeatureSet, Memory};
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    /// Files of two threads that share a run alternate in it, so that each takes a request.
    #[test]
    fn threads_of_a_sync_use_shards_of_their_own() {
        let image = FeatureSet::named("default").make();
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new().shards(2)).unwrap();
        let (root, st) = (fs.root().unwrap(), fs.operations().st());
        let writing = OpenFlags { write: true, ..OpenFlags::default() };
        let make = |n| {
            let node = fs.create(&root, format!("f{n}").as_bytes(), 0o644, NodeKind::File).unwrap();
            fs.open_file(&node, writing).unwrap().write_at(0, &[7; 4096]).unwrap();
            node
        };
        // The thread that a sync starts would get the next index: one of them is this thread's.
        for round in 0..2 {
            set_shard_index(0);
            let nodes: Vec<_> = (0..16).map(|n| make(round * 16 + n)).collect();
            let inodes: Vec<_> = nodes.iter().map(|node| Arc::clone(&node.0)).collect();
            let (both, seen) = (Barrier::new(2), Mutex::new(BTreeSet::new()));
            let chunks = AtomicUsize::new(0);
            let go_on = || {
                seen.lock().unwrap().insert(shard_index() % 2);
                // Each has a chunk before one of them takes another.
                if chunks.fetch_add(1, Ordering::Relaxed) < 2 {
                    both.wait();
                }
                true
            };
            let (busy, written) = shared(st, &inodes, 2, &go_on);
            assert!(busy.is_empty() && written.is_ok());
            assert_eq!(seen.into_inner().unwrap().len(), 2, "one shard for both threads");
        }
        drop(root);
        fs.unmount().unwrap();
    }
}
