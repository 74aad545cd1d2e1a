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
//!   into the log.
//! - Blocks behind the new end are only read.

mod cut;
mod moves;
mod names;

use crate::claims::ClaimMap;
use crate::difference::{Difference, FreeBlocks, now};
use crate::passes::superblocks::Primary;
use crate::repair::{Draft, NewLog, Surveyor, WantedLog};
use crate::resize::ResizeError;
use crate::resize::target::Target;
use crate::tune::Tunable;
use cut::Cut;
use extant_blocks::{BlockDevice, OverlayDevice, Plug};
use extant_format::Superblock;
use extant_journal::Log;
use extant_journal::offline::{OfflineChanges, check_fit};
use moves::Copied;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bound on the changes in memory, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Bytes that are copied at once.
const PIECE: u64 = 8 << 20;

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
        let first = match self.next(blocks)? {
            Next::Last(superblock, step) => return Ok((superblock, step)),
            Next::More(step) => step,
        };
        let mut device: Arc<dyn BlockDevice> = first.overlay.clone();
        for _ in 0..MAX_STEPS {
            // The overlays are stacked: each shows the file system after its step.
            match (Shrinking { device: &device, ..*self }).next(blocks)? {
                Next::Last(superblock, _) => return Ok((superblock, first)),
                Next::More(step) => device = step.overlay,
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
    pub fn apply(&self, blocks: u64, planned: &Step) -> Result<(), ResizeError> {
        let write = |step: &Step| step.write(&Tunable::open(self.device, self.journal)?);
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
        let log = tunable.log.as_ref().ok_or(ResizeError::NoJournal)?;
        let draft = self.draft(&tunable.primary);
        let copies = Cut { surveyor: self.surveyor(), draft: &draft, target }.make()?;
        let step = self.step(&draft, tunable, copies, Decision::Superblock)?;
        step.check(log)?;
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
        Ok(Step { overlay: draft.device.clone(), copies, difference, decision })
    }
}

impl Step {
    /// Checks that a log takes the changes of blocks in use. A new log is as long as the old one.
    fn check(&self, log: &Log) -> Result<(), ResizeError> {
        match check_fit(log, self.difference.used.len()) {
            Err(extant_journal::Error::NoCredits { wanted, available }) => {
                Err(ResizeError::TooLarge { wanted, available })
            }
            other => other.map_err(ResizeError::Journal),
        }
    }

    fn write(&self, tunable: &Tunable<'_>) -> Result<(), ResizeError> {
        let device = &**tunable.device;
        let size = tunable.primary.geometry.block_size;
        let old = tunable.log.as_ref().ok_or(ResizeError::NoJournal)?;
        let used = self.difference.used_contents(&*self.overlay)?;
        let changes = OfflineChanges { device, blocks: &used, time: now() };
        changes.check(old)?;
        self.copy(device, size)?;
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

    /// Copies the contents of files to their new places, which are free.
    fn copy(&self, device: &dyn BlockDevice, size: u32) -> Result<(), ResizeError> {
        let size = u64::from(size);
        let most = PIECE.checked_div(size).unwrap_or(1).max(1);
        for copied in &self.copies {
            for done in (0..copied.len).step_by(most as usize) {
                let blocks = copied.len.saturating_sub(done).min(most);
                let mut bytes = vec![0; blocks.saturating_mul(size) as usize];
                let at = |start: u64| start.saturating_add(done).saturating_mul(size);
                device.read_exact_at(&mut bytes, at(copied.from))?;
                let mut plug = Plug::new(device);
                plug.add(at(copied.to), bytes);
                plug.finish()?;
            }
        }
        Ok(())
    }
}

/// Returns whether the log has blocks behind the new end.
fn is_beyond(tunable: &Tunable<'_>, end: u64) -> bool {
    let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
    own.iter().any(|(_, last)| *last > end)
}
