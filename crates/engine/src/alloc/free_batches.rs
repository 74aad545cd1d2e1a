//! Frees of file data, booked many at a time.
//!
//! A thread that frees blocks of a file adds them to the batch of its shard of threads, and writes
//! no memory that threads of other shards write. The thread that fills a batch books it; the freeze
//! of the transaction books the rest. For example, removing 100 files of 40 KiB adds 100 runs to
//! one batch, which is booked in one pass over the bitmap.
//!
//! # Invariants
//! - A batch has frees of the running transaction only: freeze, with no handle open, books all.
//! - A group of a batched free has joined the transaction with its bitmap and its descriptor.
//!   Booking therefore joins nothing, and costs no credits.
//! - Batched blocks are used by their bitmap, so no thread can claim them until they are booked;
//!   then they are listed as leaving (`ReturnedRuns`) until the transaction is durable. They count
//!   as pending from the batch on.
//! - Blocks that prove to be free already when they are booked stay free: the error is recorded in
//!   the superblock, the error policy applies, and no block of the group is allocated any more. The
//!   thread that freed them has returned long before.

use super::Alloc;
use super::book::{Part, bits, used, wrong_free};
use super::free_space::FreeSpace;
use super::free_space::is_metadata;
use crate::bounds::Remark;
use crate::error::{Error, Result};
use crate::groups::Kind;
use extant_blocks::Buffer;
use extant_format::bitmap;
use extant_format::types::{BlockNr, GroupNr};
use extant_journal::{Freezer, Handle, Seal, Tid};
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{GrowingTable, Level, Mutex, Sharded};
use std::sync::Arc;

/// Runs in a batch that is full, and in one that has waited for others long enough.
const FULL_RUNS: usize = if cfg!(test) { 64 } else { 2048 };
const MAX_RUNS: usize = 4 * FULL_RUNS;

/// The frees of a shard's threads that are not booked.
#[derive(Debug)]
struct Batch {
    parts: Vec<Part>,
    /// Booked when there are so many.
    full: usize,
}

impl Batch {
    fn new() -> Batch {
        Batch { parts: Vec::new(), full: FULL_RUNS }
    }

    /// All that was noted, if it is to be booked now.
    fn due(&mut self) -> Option<Vec<Part>> {
        (self.parts.len() >= self.full).then(|| self.take())
    }

    fn take(&mut self) -> Vec<Part> {
        self.full = FULL_RUNS;
        std::mem::take(&mut self.parts)
    }

    fn put_off(&mut self, mut parts: Vec<Part>) {
        self.parts.append(&mut parts);
        self.full = (self.parts.len() + FULL_RUNS / 2).min(MAX_RUNS);
    }
}

/// The frees of all threads that are not booked.
#[derive(Debug)]
pub(super) struct FreeBatches {
    noted: Sharded<Mutex<Batch>>,
    /// The transaction that each group joined last for the sake of notes.
    joined: GrowingTable<AtomicU64>,
}

impl FreeBatches {
    pub fn new(groups: u32) -> FreeBatches {
        FreeBatches {
            noted: Sharded::new(|_| Mutex::new(Level::Alloc, Batch::new())),
            joined: (0..groups).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Appends groups, up to so many.
    pub fn append_groups(&self, groups: u32) {
        let new = (groups as usize).saturating_sub(self.joined.len());
        self.joined.append((0..new).map(|_| AtomicU64::new(0)));
    }

    fn has_joined(&self, tid: Tid, g: GroupNr) -> bool {
        // Relaxed: a thread that reads this transaction's number has a handle of it open, or
        // freezes it, and the number publishes no other data.
        self.joined.get(g.index()).is_some_and(|joined| joined.load(Ordering::Relaxed) == tid.0)
    }
}

/// Clears bits in a bitmap's block of the transaction.
type Clear<'a> = dyn FnMut(&Arc<Buffer>, &[Part]) -> Result<()> + 'a;

fn clear(bytes: &mut [u8], parts: &[Part]) {
    parts.iter().for_each(|part| bitmap::clear_range(bytes, bits(part.run)));
}

impl Alloc {
    /// Frees runs of blocks with file data, as [`Alloc::free_all`] does, but that they are booked
    /// with others later, when the transaction freezes at the latest.
    ///
    /// # Errors
    /// `Corrupt` if a block belongs to the file system's own metadata, does not exist, or lies in a
    /// group that cannot be trusted; `Io`. That a block is free already is only noted in the
    /// superblock, later.
    pub fn free_data(&self, h: &mut Handle<'_>, runs: &[(BlockNr, u32)]) -> Result<()> {
        self.free_by_group(runs, |parts| self.space.note(h, parts))
    }

    /// Whether data was freed in the group already in the transaction that runs: then its bitmap is
    /// in memory, and can be trusted.
    pub fn frees_in(&self, tid: Tid, g: GroupNr) -> bool {
        self.space.free_batches.has_joined(tid, g)
    }
}

impl FreeSpace {
    /// Notes frees of one group.
    fn note(&self, h: &mut Handle<'_>, parts: &[Part]) -> Result<()> {
        let Some(g) = parts.first().map(|part| part.group) else { return Ok(()) };
        self.join(h, g)?;
        let own =
            |part: &&Part| is_metadata(&self.vol.geo, &self.groups, g, part.start, part.len.into());
        let wrong = parts.iter().find(own).map(|part| part.start);
        let good = parts.iter().filter(|part| wrong.is_none() || !own(part));
        self.add_pending(good.clone().map(|part| i64::from(part.run.len)).sum());
        let due = {
            let mut batch = self.free_batches.noted.local().lock();
            batch.parts.extend(good);
            batch.due()
        };
        if let Some(noted) = due {
            self.book_due(h, noted)?;
        }
        match wrong {
            None => Ok(()),
            Some(start) => Err(wrong_free(g, start, "belongs to the file system")),
        }
    }

    /// Books a batch. Blocks of groups that another thread has locked are left for later, unless
    /// there are many.
    fn book_due(&self, h: &mut Handle<'_>, mut noted: Vec<Part>) -> Result<()> {
        if noted.len() < MAX_RUNS {
            let is_busy = |part: &mut Part| {
                self.bitmaps.get(part.group.index()).is_some_and(|bitmap| bitmap.is_locked())
            };
            let busy: Vec<Part> = noted.extract_if(.., is_busy).collect();
            if !busy.is_empty() {
                self.free_batches.noted.local().lock().put_off(busy);
            }
        }
        let tid = h.tid();
        self.book_noted(tid, noted, &mut |buffer, parts| {
            clear(&mut h.write(buffer, Seal::NONE)?, parts);
            Ok(())
        })
    }

    /// Sees to it that the group's bitmap and descriptor are part of the handle's transaction.
    fn join(&self, h: &mut Handle<'_>, g: GroupNr) -> Result<()> {
        let tid = h.tid();
        if self.free_batches.has_joined(tid, g) {
            h.note_change();
            return Ok(());
        }
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        h.join(&buffer)?;
        self.groups.join(h, g)?;
        if let Some(joined) = self.free_batches.joined.get(g.index()) {
            joined.store(tid.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Books all that was noted: the transaction is being frozen.
    ///
    /// # Errors
    /// Those of the journal; `Io`.
    pub(super) fn freeze_batches(&self, out: &mut Freezer<'_>) -> Result<()> {
        let noted: Vec<Part> =
            self.free_batches.noted.iter().flat_map(|batch| batch.lock().take()).collect();
        let tid = out.tid();
        self.book_noted(tid, noted, &mut |buffer, parts| {
            clear(&mut out.write(buffer, Seal::NONE)?, parts);
            Ok(())
        })
    }

    fn book_noted(&self, tid: Tid, mut noted: Vec<Part>, write: &mut Clear<'_>) -> Result<()> {
        noted.sort_unstable_by_key(|part| (part.group, part.start));
        for parts in noted.chunk_by(|a, b| a.group == b.group) {
            let booked = self.book_group(tid, parts, write);
            // Booked frees are counted as pending separately.
            self.add_pending(-parts.iter().map(|part| i64::from(part.run.len)).sum::<i64>());
            match booked {
                Err(e @ Error::Corrupt(_)) => self.tell(&e),
                other => other?,
            }
        }
        Ok(())
    }

    fn book_group(&self, tid: Tid, parts: &[Part], write: &mut Clear<'_>) -> Result<()> {
        let Some(g) = parts.first().map(|part| part.group) else { return Ok(()) };
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_in_memory(g, Kind::Blocks)?;
        let (used, wrong) = used(g, parts, &buffer);
        if !used.is_empty() {
            self.groups.book_clusters(g, used.iter().map(|part| part.run.len).sum())?;
            write(&buffer, &used)?;
            self.defer(tid, g, used.iter().map(|part| part.run));
        }
        wrong.inspect_err(|error| self.disable_group(g, error))
    }

    /// Records a corruption that no caller gets as an error, and applies the error policy.
    fn tell(&self, error: &Error) {
        if self.vol.remarks.tells(Remark::Damage) {
            tracing::error!("{error}");
        }
        self.groups.note(error);
        self.vol.obey_error_policy(error);
    }
}
