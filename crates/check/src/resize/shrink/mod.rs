//! Smaller file systems: content behind the new end moves before it, and the rest is cut off.
//!
//! All changes are made in memory first, over the device ([`Cut`]): inodes of groups that go get
//! new numbers, files get new maps, bitmaps and counts follow. The result is surveyed like any file
//! system that is checked, and only one without a finding is written.
//!
//! # Order of writes
//! 1. A log with blocks behind the new end gets new ones: a transaction of its own, through the new
//!    log, of which the write of the journal's inode counts
//!    ([`OfflineChanges::commit_by_switch`]). The file system keeps its size.
//! 2. Copies of data and new structures go to free blocks. Nothing refers to them. A flush follows.
//!    If the changes of blocks in use exceed the log, as many inodes as it takes move first, in
//!    transactions of their own.
//! 3. All other changes of blocks in use are one transaction, of which the write of the superblock
//!    counts ([`OfflineChanges::commit_by_superblock`]): the kernel counts the groups before it
//!    replays a log, and must not count those that are gone.
//! 4. The image file is cut.
//!
//! Without a log, the record of a redo file is durable before step 3, with the checksums of all
//! blocks of step 2. Then the blocks of step 3 are written in place, all of them before the new
//! end, so that the record is of use also when the image file is cut.
//!
//! A power cut before step 3 leaves the old size, and one after it the new one. All files are there
//! in any case: the content of an inode stays where it is until the inode has moved.
//!
//! [`OfflineChanges::commit_by_switch`]:
//!     extant_journal::offline::OfflineChanges::commit_by_switch
//! [`OfflineChanges::commit_by_superblock`]:
//!     extant_journal::offline::OfflineChanges::commit_by_superblock
//!
//! # Invariants
//! - Nothing is written before the survey of the result has found nothing, and its transaction fits
//!   into the log, if there is one.
//! - Blocks behind the new end are only read.

mod cut;
mod moves;
mod names;

use crate::claims::ClaimMap;
use crate::difference::{Difference, FreeBlocks, SaveRedo, now};
use crate::parallel::Workers;
use crate::passes::superblocks::Primary;
use crate::redo::RedoRecord;
use crate::repair::{Draft, NewLog, Surveyor, WantedLog};
use crate::resize::ResizeError;
use crate::resize::target::Target;
use crate::tune::Tunable;
use cut::Cut;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::Superblock;
use extant_journal::Log;
use extant_journal::offline::{OfflineChanges, check_fit};
use moves::Copied;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bound on the changes in memory, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// Maximum number of steps.
const MAX_STEPS: usize = 256;

/// A change to a smaller size.
pub struct Shrinking<'s> {
    pub device: &'s Arc<dyn BlockDevice>,
    pub journal: Option<&'s Arc<dyn BlockDevice>>,
    pub threads: usize,
    pub stop: &'s AtomicBool,
}

/// The last step, with the superblock that it leaves; another step.
enum Next {
    Last(Superblock, Step),
    More(Step),
}

/// The record of a change without a log.
pub struct Saved<'s> {
    /// Makes it durable.
    pub save: &'s mut SaveRedo<'s>,
    /// Bytes of the device after the change.
    pub len: u64,
}

/// The write of a step that counts.
enum Decision {
    /// That of the superblock of the new size.
    Superblock,
    /// The commit record: the size stays.
    Record,
    /// That of the journal's inode, which gets another log.
    Journal(NewLog),
}

/// Changes in memory, to be written in one transaction.
pub struct Step {
    overlay: Arc<OverlayDevice>,
    copies: Vec<Copied>,
    difference: Difference,
    decision: Decision,
    /// The blocks that later steps write.
    later: Vec<u64>,
}

impl Shrinking<'_> {
    fn surveyor(&self) -> Surveyor<'_> {
        Surveyor { journal: self.journal, threads: self.threads, stop: self.stop }
    }

    /// Plans all steps to at most `blocks` blocks, in memory. Returns the superblock that the last
    /// one leaves, and the first step.
    ///
    /// # Errors
    /// A size that the content does not fit into, or that this file system cannot have; a file
    /// system with damage, or without a log that takes the change; those of the device.
    pub fn plan(&self, blocks: u64) -> Result<(Superblock, Step), ResizeError> {
        let mut first = match self.next(blocks)? {
            Next::Last(superblock, step) => return Ok((superblock, step)),
            Next::More(step) => step,
        };
        let mut device: Arc<dyn BlockDevice> = first.overlay.clone();
        for _ in 0..MAX_STEPS {
            // The overlays are stacked: each shows the file system after its step.
            match (Shrinking { device: &device, ..*self }).next(blocks)? {
                Next::Last(superblock, step) => {
                    first.later.extend(step.written());
                    return Ok((superblock, first));
                }
                Next::More(step) => {
                    first.later.extend(step.written());
                    device = step.overlay;
                }
            }
        }
        Err(ResizeError::Full("too much must move for its journal".into()))
    }

    /// Plans the next step.
    fn next(&self, blocks: u64) -> Result<Next, ResizeError> {
        let tunable = Tunable::open(self.device, self.journal)?;
        let target = Target::smaller(&tunable.primary, blocks)?;
        if is_beyond(&tunable, target.geometry.blocks_count) {
            return self.move_log(&tunable, &target).map(Next::More);
        }
        match self.cut(&tunable, &target) {
            Ok((superblock, step)) => Ok(Next::Last(superblock, step)),
            Err(ResizeError::TooLarge { .. }) => self.move_part(&tunable, &target).map(Next::More),
            Err(error) => Err(error),
        }
    }

    /// Plans to move as many inodes as the log takes, while the size stays.
    fn move_part(&self, tunable: &Tunable<'_>, target: &Target) -> Result<Step, ResizeError> {
        let log = tunable.log.as_ref().ok_or(ResizeError::NoJournal)?;
        // An inode changes the blocks of two slots, and directories.
        let mut most = (log.superblock().max_len() / 4).max(1) as usize;
        loop {
            let draft = self.draft(&tunable.primary);
            let cut = Cut { surveyor: self.surveyor(), draft: &draft, target };
            let copies = cut.make_part(most)?;
            let step = self.step(&draft, tunable, copies, Decision::Record)?;
            match step.check(log) {
                Err(ResizeError::TooLarge { .. }) if most > 1 => most /= 2,
                other => return other.map(|()| step),
            }
        }
    }

    /// Plans the smallest size that can be reached. Returns no step if that is the present one.
    ///
    /// # Errors
    /// Those of the device; a file system that cannot become smaller for a reason other than its
    /// content.
    pub fn plan_minimum(
        &self,
        old: &Superblock,
    ) -> Result<(Superblock, Option<Step>), ResizeError> {
        // The least size that can be reached, with its plan, and the largest one that cannot.
        let (mut best, mut least) = ((old.clone(), None), 0u64);
        while least.saturating_add(1) < best.0.blocks_count() {
            let blocks = least.midpoint(best.0.blocks_count());
            match self.plan(blocks) {
                Ok((superblock, step)) => best = (superblock, Some(step)),
                Err(error) if error.is_about_size() => least = blocks,
                Err(error) => return Err(error),
            }
        }
        Ok(best)
    }

    /// Makes the file system at most `blocks` blocks large, of which `planned` is the first step.
    pub fn apply(
        &self,
        blocks: u64,
        planned: &Step,
        saved: Option<Saved<'_>>,
    ) -> Result<(), ResizeError> {
        let open = || Tunable::open(self.device, self.journal);
        if let (None, Some(saved)) = (&open()?.log, saved) {
            return planned.write_with_redo(&open()?, self.threads, saved);
        }
        let write = |step: &Step| step.write(&open()?, self.threads);
        write(planned)?;
        if matches!(planned.decision, Decision::Superblock) {
            return Ok(());
        }
        loop {
            match self.next(blocks)? {
                Next::Last(_, step) => return write(&step),
                Next::More(step) => write(&step)?,
            }
        }
    }

    fn draft(&self, primary: &Primary) -> Draft {
        let size = primary.geometry.block_size as usize;
        Draft::new(Arc::new(OverlayDevice::new(self.device.clone(), size, MAX_BYTES)))
    }

    fn cut(
        &self,
        tunable: &Tunable<'_>,
        target: &Target,
    ) -> Result<(Superblock, Step), ResizeError> {
        let draft = self.draft(&tunable.primary);
        let copies = Cut { surveyor: self.surveyor(), draft: &draft, target }.make()?;
        let step = self.step(&draft, tunable, copies, Decision::Superblock)?;
        tunable.log.as_ref().map_or(Ok(()), |log| step.check(log))?;
        let superblock = self.surveyor().view(&draft)?.primary.superblock;
        Ok((superblock, step))
    }

    fn move_log(&self, tunable: &Tunable<'_>, target: &Target) -> Result<Step, ResizeError> {
        let draft = self.draft(&tunable.primary);
        let end = target.geometry.blocks_count;
        let mut claim = |claims: &ClaimMap| {
            claims.claim_all(end..tunable.primary.geometry.blocks_count);
        };
        let wanted = WantedLog { superblock: None, claim: &mut claim };
        let new = NewLog::plan(self.surveyor(), &draft, wanted)?;
        let step = self.step(&draft, tunable, Vec::new(), Decision::Journal(new))?;
        if let Some(log) = &tunable.log {
            step.check(log)?;
        }
        Ok(step)
    }

    fn step(
        &self,
        draft: &Draft,
        tunable: &Tunable<'_>,
        copies: Vec<Copied>,
        decision: Decision,
    ) -> Result<Step, ResizeError> {
        let geometry = tunable.primary.geometry;
        let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
        let mut bitmaps = FreeBlocks::new(&**self.device, geometry).verified();
        let mut is_new = |nr| bitmaps.is_free(nr);
        let (device, size) = (&**self.device, geometry.block_size);
        let difference = Difference::between(device, &draft.device, size, &own, &mut is_new)?;
        let (overlay, later) = (draft.device.clone(), Vec::new());
        Ok(Step { overlay, copies, difference, decision, later })
    }
}

impl Step {
    /// Returns the blocks that this step and the later ones write, but for those of the old log.
    pub fn written(&self) -> impl Iterator<Item = u64> + '_ {
        let copied = self.copies.iter().flat_map(|part| part.to..part.to.saturating_add(part.len));
        let log = match &self.decision {
            Decision::Journal(new) => Some(new.own_blocks()),
            _ => None,
        };
        let log = log.into_iter().flatten().flat_map(|(start, end)| start..end);
        self.difference.all().chain(copied).chain(log).chain(self.later.iter().copied())
    }

    /// Checks that a log takes the changes of blocks in use. A new log is as long as the old one.
    fn check(&self, log: &Log) -> Result<(), ResizeError> {
        match check_fit(log, self.difference.used.len()) {
            Err(extant_journal::Error::NoCredits { wanted, available }) => {
                Err(ResizeError::TooLarge { wanted, available })
            }
            other => other.map_err(ResizeError::Journal),
        }
    }

    fn write(&self, tunable: &Tunable<'_>, threads: usize) -> Result<(), ResizeError> {
        let device = &**tunable.device;
        let size = tunable.primary.geometry.block_size;
        let old = tunable.log.as_ref().ok_or(ResizeError::NoJournal)?;
        let used = self.difference.used_contents(&*self.overlay)?;
        let changes = OfflineChanges { device, blocks: &used, time: now() };
        changes.check(old)?;
        self.copy(device, size, threads)?;
        self.difference.write_new(device, &*self.overlay)?;
        device.flush()?;
        let new = match &self.decision {
            Decision::Superblock => return Ok(changes.commit_by_superblock(old)?),
            Decision::Record => return Ok(changes.commit(old)?),
            Decision::Journal(new) => new,
        };
        let log = new.format(tunable.device, &*self.overlay, size).map_err(ResizeError::Journal)?;
        let switch = used.iter().find(|(nr, _)| *nr == new.switch);
        let missing = || extant_format::Corrupt::new("journal inode").field("table");
        Ok(changes.commit_by_switch(&log, switch.ok_or_else(missing)?)?)
    }

    /// Makes the last step without a log, behind a record of it.
    fn write_with_redo(
        &self,
        tunable: &Tunable<'_>,
        threads: usize,
        saved: Saved<'_>,
    ) -> Result<(), ResizeError> {
        let device = &**tunable.device;
        let size = tunable.primary.geometry.block_size;
        self.copy(device, size, threads)?;
        self.difference.write_new(device, &*self.overlay)?;
        device.flush()?;
        let copied = self.copies.iter().flat_map(|part| part.to..part.to.saturating_add(part.len));
        let mut new: Vec<u64> = self.difference.new.iter().copied().chain(copied).collect();
        new.sort_unstable();
        new.dedup();
        let used = self.difference.used_contents(&*self.overlay)?;
        let redo = RedoRecord::of(device, &*self.overlay, (&new, used), size)?.cut_to(saved.len);
        (saved.save)(&redo)?;
        let changes = OfflineChanges { device, blocks: redo.used(), time: now() };
        changes.write_in_place(size).map_err(ResizeError::Partly)
    }

    /// Copies the contents of files to their new places, which are free.
    fn copy(&self, device: &dyn BlockDevice, size: u32, threads: usize) -> io::Result<()> {
        let pieces: Vec<_> = self.copies.iter().flat_map(|copied| pieces(copied, size)).collect();
        let (mut result, failed) = (Ok(()), AtomicBool::new(false));
        let work = |n| pieces.get(n).map_or(Ok(()), |piece| copy_piece(device, piece));
        Workers { threads, stop: &failed }.run(pieces.len(), work, |_, done: io::Result<()>| {
            if done.is_err() {
                // Relaxed: the flag publishes nothing else.
                failed.store(true, Ordering::Relaxed);
                result = done;
            }
        });
        result
    }
}

/// Bytes that are copied at once, from and to these offsets.
struct Piece {
    from: u64,
    to: u64,
    len: u64,
}

/// Divides copied blocks of `size` bytes.
fn pieces(copied: &Copied, size: u32) -> impl Iterator<Item = Piece> {
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(size));
    let (from, to, all) = (bytes(copied.from), bytes(copied.to), bytes(copied.len));
    (0..all).step_by(PIECE).map(move |done| Piece {
        from: from.saturating_add(done),
        to: to.saturating_add(done),
        len: all.saturating_sub(done).min(PIECE as u64),
    })
}

fn copy_piece(device: &dyn BlockDevice, piece: &Piece) -> io::Result<()> {
    let source = device.host_bytes().and_then(|bytes| bytes.skip(piece.from));
    let by_host = |source| device.copy_from_host(source, piece.to, piece.len);
    let done = source.map_or(Ok(0), by_host)?;
    let mut bytes = vec![0; piece.len.saturating_sub(done) as usize];
    if bytes.is_empty() {
        return Ok(());
    }
    device.read_exact_at(&mut bytes, piece.from.saturating_add(done))?;
    device.write_all_at(&bytes, piece.to.saturating_add(done))
}

/// Returns whether the log has blocks behind the new end.
fn is_beyond(tunable: &Tunable<'_>, end: u64) -> bool {
    let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
    own.iter().any(|(_, last)| *last > end)
}
