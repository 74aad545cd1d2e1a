//! The handover of a file system that clients use, from one process to another.
//!
//! The first process closes the file system, as an unmount does, but inodes that are held keep
//! their holds: those without a name are not freed, and their orphan records stay on the device.
//! For example, a FUSE kernel has looked up inode 12 three times, and has inode 13, which was
//! unlinked, open once. The table of holds is then (12, 3), (13, 1), and the record of inode 13
//! stays. The second process opens the file system with this table, finds the record, and gives
//! inode 13 its hold instead of freeing it.
//!
//! A crash in between is one of an unmounted file system with orphans: the next opening frees them.
//!
//! # Invariants
//! - No other program changes the file system in between. The image is not locked for a moment, so
//!   the table has the superblock as it was left: each writer changes its times. An adopting
//!   process that fails has changed it, too, but neither the time nor the number of mounts.

use super::Fs;
use crate::error::{Errno, Error, Result};
use crate::ops::Operations;
use extant_blocks::BlockDevice;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::InodeNr;

/// The inodes that clients of a file system hold, for the process that goes on with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldInodes {
    /// Numbers of inodes, and the number of holds of each.
    pub holds: Vec<(u64, u64)>,
    /// Numbers of inodes that had errors of writeback, with words that the next process reads.
    pub errors: Vec<(u64, u64)>,
    /// The superblock as it was left.
    pub superblock: Vec<u8>,
    /// Another opening has adopted the inodes since, and its process has failed before it served
    /// them. It has changed the superblock, but has not counted as a mount.
    pub tried: bool,
}

impl HeldInodes {
    /// Fails if another program has changed the file system since it was handed over.
    ///
    /// # Errors
    /// `Invalid`; `Io`.
    pub(super) fn check(&self, dev: &dyn BlockDevice) -> Result<()> {
        let found = superblock(dev)?;
        if found == self.superblock || self.tried && mounts(&found) == mounts(&self.superblock) {
            return Ok(());
        }
        Err(Error::Invalid("another program has changed the image meanwhile".into()))
    }
}

/// Returns the fields that each opening for writing changes which is no adoption: time and number
/// of mounts.
fn mounts(superblock: &[u8]) -> Option<(u64, u16)> {
    let superblock = Superblock::parse(superblock).ok()?;
    Some((superblock.mtime(), superblock.mnt_count()))
}

fn superblock(dev: &dyn BlockDevice) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    dev.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    Ok(bytes)
}

impl Fs {
    /// Prepares [`Fs::hand_over`], which then has little to do: makes all changes durable.
    ///
    /// # Errors
    /// Those of [`Fs::sync`]; `Aborted` after an error that stopped all changes. Nothing is changed
    /// then.
    pub fn prepare_hand_over(&self) -> Result<()> {
        if self.jobs.is_none() {
            return self.ops.alive();
        }
        if self.is_read_only() {
            return Err(Error::Aborted("an error stopped all changes".into()));
        }
        self.sync()
    }

    /// Closes the file system as [`Fs::unmount`] does, but leaves inodes that are held, also those
    /// without a name, to the opening that adopts them
    /// ([`OpenOptions::adopt`](crate::OpenOptions::adopt)). No caller may use the file system.
    ///
    /// # Errors
    /// Those of [`Fs::unmount`]. The file system is closed then, too.
    pub fn hand_over(mut self) -> Result<HeldInodes> {
        if !self.refuse_operations() {
            return Err(Errno::Stale.into());
        }
        self.ops.wait_for_writers();
        let has_jobs = self.stop_jobs();
        let mut held = self.ops.held_inodes();
        let closed = self.finish_after(has_jobs, Operations::drain_unheld);
        let left = superblock(&*self.ops.st().mounted);
        self.let_go();
        closed?;
        held.superblock = left?;
        Ok(held)
    }
}

impl Operations {
    /// Returns the inodes that are held. No caller may use the file system, and no job.
    fn held_inodes(&self) -> HeldInodes {
        let mut held = HeldInodes::default();
        let holds = self.vfs.inodes.all_holds().into_iter();
        held.holds = holds.map(|(ino, holds)| (ino.0.into(), holds)).collect();
        self.vfs.inodes.each_in_memory(|inode| {
            let word = inode.pages.error_word();
            held.errors.extend(Some((inode.ino.0.into(), word)).filter(|(_, word)| *word != 0));
        });
        held
    }

    /// Adds holds, before any inode is loaded.
    pub(super) fn adopt_holds(&self, held: &HeldInodes) {
        for (ino, holds) in &held.holds {
            if let Ok(ino) = u32::try_from(*ino) {
                self.vfs.inodes.add_holds(InodeNr(ino), *holds);
            }
        }
    }

    /// Takes errors of writeback over, of which descriptors were perhaps not told.
    pub(super) fn adopt_errors(&self, held: &HeldInodes) {
        for (ino, word) in &held.errors {
            // One that cannot be loaded fails each request.
            if let Ok(node) = self.node(*ino) {
                node.0.pages.set_error_word(*word);
            }
        }
    }
}
