//! Another size of a file system that nothing has open.
//!
//! [`Resize::plan`] computes the new superblock and reads only. [`ResizePlan::apply`] makes the
//! change, with the length of an image file. A smaller size moves content (module `shrink`). Growth
//! extends the device before if it can and must. For example, a file system of two groups, of which
//! the second has 5,000 of 32,768 blocks, grows to four groups: the bitmap of group 1 loses its
//! padding, and groups 2 and 3 get descriptors, bitmaps and inode tables.
//!
//! # Descriptors of more groups
//! Where the table needs another block, the file system gets `meta_bg`: further descriptor blocks
//! lie in the groups that they describe, and nothing has to move. The kernel's growth of a mounted
//! file system does the same in the end. Before that it uses the blocks that `resize_inode` keeps
//! behind each copy of the superblock. These have another content while the old size counts, so
//! no single write could make the new one count. They become free.
//!
//! # Order of writes in growth
//! 1. Bitmaps, inode tables, copies of superblock and descriptors in the new groups. They lie
//!    behind the end of the file system, where nothing refers to them. Descriptors of new groups
//!    in old descriptor blocks, which the old superblock does not count. A flush follows.
//! 2. All changes of old blocks in one transaction, of which the write of the superblock counts
//!    ([`OfflineChanges::commit_by_superblock`]).
//!
//! Without a log, or with one that is too small, the blocks of step 2 are written in place. The
//! superblock, which is the last of them, is marked as not cleanly unmounted before the first:
//! after a power cut between, a repair makes the old size valid again, or a redo file the new one
//! ([`ResizePlan::apply_with_redo`]). Its record is durable before the mark, and after the device
//! is extended, so that it is of the new length. It has the checksums of all blocks of step 1 but
//! inode tables.
//!
//! [`OfflineChanges::commit_by_superblock`]:
//!     extant_journal::offline::OfflineChanges::commit_by_superblock
//!
//! # Invariants
//! - Nothing is written before the new size is accepted, and all structures that change are valid.
//! - Content that the old size uses is not overwritten, but by growth without a usable log.

mod changes;
mod error;
mod groups;
mod shrink;
mod step;
mod target;
mod undo;

pub use error::ResizeError;

use crate::difference::SaveRedo;
use crate::redo::RedoRecord;
use crate::tune::{Tunable, TuneError};
use extant_blocks::BlockDevice;
use extant_format::Superblock;
use shrink::Shrinking;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use step::Step;
use target::Target;

/// A change of the size of the file system on a device that nothing else has open.
pub struct Resize {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    threads: usize,
    stop: Arc<AtomicBool>,
}

/// The size that a file system is to have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// So many bytes.
    Bytes(u64),
    /// So many bytes more than it has.
    MoreBytes(u64),
    /// So many of its blocks.
    Blocks(u64),
}

/// A new size that the file system can have.
pub struct ResizePlan {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    threads: usize,
    stop: Arc<AtomicBool>,
    old: Superblock,
    new: Superblock,
    /// The first step to a smaller size.
    step: Option<shrink::Step>,
}

impl Resize {
    /// Makes a change of the file system that begins at the start of the device.
    pub fn new(device: Arc<dyn BlockDevice>) -> Resize {
        let stop = Arc::new(AtomicBool::new(false));
        Resize { device, journal: None, threads: 1, stop }
    }

    /// Sets the device of the journal, for file systems with an external one.
    #[must_use]
    pub fn journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(device);
        self
    }

    /// Sets the number of threads that survey a file system before it gets smaller; 0 counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets a flag that ends a plan early.
    #[must_use]
    pub fn interrupt(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = flag;
        self
    }

    /// Plans a change to at most this size: whole clusters, without a last group that would be too
    /// short for its own tables. Only reads.
    ///
    /// # Errors
    /// A size below that of the content, or beyond the limits of the format; a file system that
    /// must be recovered or repaired first, that another host uses, or that has unknown features;
    /// those of the device.
    pub fn plan(&self, size: NewSize) -> Result<ResizePlan, ResizeError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let old = tunable.primary.superblock.clone();
        let bits = tunable.primary.geometry.block_bits;
        let blocks = match size {
            NewSize::Bytes(bytes) => bytes >> bits,
            NewSize::MoreBytes(bytes) => (bytes >> bits).saturating_add(old.blocks_count()),
            NewSize::Blocks(blocks) => blocks,
        };
        let (new, step) = if blocks < old.blocks_count() {
            let (new, step) = self.shrinking().plan(blocks)?;
            (new, Some(step))
        } else {
            (Target::new(&tunable.primary, blocks)?.superblock, None)
        };
        Ok(self.planned(old, new, step))
    }

    /// Plans the smallest size that can be reached. Each size below is refused. Only reads.
    ///
    /// # Errors
    /// Those of [`Resize::plan`].
    pub fn plan_minimum(&self) -> Result<ResizePlan, ResizeError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let old = tunable.primary.superblock.clone();
        let (new, step) = self.shrinking().plan_minimum(&old)?;
        Ok(self.planned(old, new, step))
    }

    fn planned(&self, old: Superblock, new: Superblock, step: Option<shrink::Step>) -> ResizePlan {
        let (device, journal) = (self.device.clone(), self.journal.clone());
        let (threads, stop) = (self.threads, self.stop.clone());
        ResizePlan { device, journal, threads, stop, old, new, step }
    }

    fn shrinking(&self) -> Shrinking<'_> {
        let (device, journal) = (&self.device, self.journal.as_ref());
        Shrinking { device, journal, threads: self.threads, stop: &self.stop }
    }
}

impl ResizePlan {
    /// Returns the superblock of the present size.
    pub fn before(&self) -> &Superblock {
        &self.old
    }

    /// Returns a superblock of the new size. The numbers of free blocks and inodes in it are those
    /// of the present size.
    pub fn planned(&self) -> &Superblock {
        &self.new
    }

    /// Returns whether the file system has the new size already.
    pub fn is_done(&self) -> bool {
        self.old.blocks_count() == self.new.blocks_count()
    }

    /// Returns the bytes of the new size.
    pub fn bytes(&self) -> u64 {
        bytes_of(&self.new)
    }

    /// Makes the file system as large as planned. A shorter device is extended before, and a longer
    /// image file is cut when the file system has become smaller, if it ended with the old one.
    /// Returns the new superblock.
    ///
    /// # Errors
    /// Those of [`Resize::plan`]; a smaller size without a journal; those of the device and of the
    /// log. [`ResizeError`] says whether anything was changed.
    pub fn apply(&self) -> Result<Superblock, ResizeError> {
        self.make(None)
    }

    /// Changes the size as [`ResizePlan::apply`] does. Without a journal that makes the change
    /// whole, `save` must make the record durable, by which [`finish_redo`](crate::finish_redo)
    /// completes the change after a power cut; without that nothing is changed. A larger device is
    /// extended before, and a smaller image file cut afterwards, also by that call. With such a
    /// journal `save` is not called.
    ///
    /// # Errors
    /// As [`ResizePlan::apply`]; those of `save`. After [`ResizeError::Partly`] the record
    /// completes the change.
    pub fn apply_with_redo(
        &self,
        save: &mut dyn FnMut(&RedoRecord<'_>) -> io::Result<()>,
    ) -> Result<Superblock, ResizeError> {
        self.make(Some(save))
    }

    fn make(&self, save: Option<&mut SaveRedo<'_>>) -> Result<Superblock, ResizeError> {
        if self.is_done() {
            return Ok(self.old.clone());
        }
        if let Some(step) = &self.step {
            return self.shrink(step, save);
        }
        let before = self.device.len();
        if before < self.bytes() {
            self.device.set_len(self.bytes())?;
        }
        // A record is of the new length, and must not lose it.
        let mut is_saved = false;
        let grown = match save {
            Some(save) => self.grow(Some(&mut |record: &RedoRecord<'_>| {
                save(record)?;
                is_saved = true;
                Ok(())
            })),
            None => self.grow(None),
        };
        if grown.is_err() && !is_saved && before < self.bytes() && self.is_unchanged() {
            // The length is no part of the file system: a failure changes no result.
            let _ = self.device.set_len(before);
        }
        grown
    }

    fn shrink(
        &self,
        step: &shrink::Step,
        save: Option<&mut SaveRedo<'_>>,
    ) -> Result<Superblock, ResizeError> {
        let (device, journal) = (&self.device, self.journal.as_ref());
        let shrinking = Shrinking { device, journal, threads: self.threads, stop: &self.stop };
        // Bytes behind the old end belong to something else, such as the footer of a disk format.
        let is_cut = device.len() <= bytes_of(&self.old);
        let len = if is_cut { self.bytes() } else { device.len() };
        shrinking.apply(
            self.new.blocks_count(),
            step,
            save.map(|save| shrink::Saved { save, len }),
        )?;
        let superblock = Tunable::open(device, journal)?.primary.superblock;
        if is_cut {
            // The length is no part of the file system: a failure changes no result.
            let _ = device.set_len(bytes_of(&superblock));
        }
        Ok(superblock)
    }

    fn grow(&self, save: Option<&mut SaveRedo<'_>>) -> Result<Superblock, ResizeError> {
        let open = || Tunable::open(&self.device, self.journal.as_ref());
        let tunable = open()?;
        let target = Target::new(&tunable.primary, self.new.blocks_count())?;
        Step::new(&tunable, target)?.apply(save)?;
        Ok(open()?.primary.superblock)
    }

    /// Returns whether the device has the old size without a transaction to replay.
    fn is_unchanged(&self) -> bool {
        let tunable = Tunable::open(&self.device, self.journal.as_ref());
        tunable.is_ok_and(|tunable| {
            tunable.primary.superblock.blocks_count() == self.old.blocks_count()
        })
    }
}

fn bytes_of(superblock: &Superblock) -> u64 {
    superblock.blocks_count().saturating_mul(superblock.block_size().into())
}

impl std::fmt::Debug for Resize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resize").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ResizePlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("ResizePlan");
        out.field("device", &self.device.name()).field("bytes", &self.bytes());
        out.finish_non_exhaustive()
    }
}

impl From<TuneError> for ResizeError {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::NeedsRecovery => ResizeError::NeedsRecovery,
            TuneError::HasErrors => ResizeError::HasErrors,
            TuneError::InUse => ResizeError::InUse,
            TuneError::Invalid(why) | TuneError::Unsupported(why) => ResizeError::Unsupported(why),
            TuneError::Corrupt(corrupt) => ResizeError::Corrupt(corrupt),
            TuneError::Io(error) => ResizeError::Io(error),
            TuneError::Journal(error) | TuneError::Partly(_, error) => ResizeError::Journal(error),
            TuneError::Apply(error) => ResizeError::Apply(error),
            // Not from the opening of a file system.
            other => ResizeError::Unsupported(other.to_string()),
        }
    }
}
