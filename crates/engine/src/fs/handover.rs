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
//! - No other program changes the file system in between: the first process keeps the device
//!   ([`Fs::device`]), and with it the lock of the image, which the second one shares
//!   ([`Fs::share_file`]). If the second one fails, the first one opens the same device again.
//! - A file system that was opened with holds leaves them when it is dropped: only an unmount frees
//!   inodes in spite of holders. So a process that fails before it serves changes nothing for the
//!   one before.

use super::Fs;
use crate::error::{Errno, Error, Result};
use crate::ops::Operations;
use extant_blocks::BlockDevice;
use extant_format::features::Incompat;
use extant_format::types::InodeNr;
use std::fs::File;
use std::sync::Arc;

/// The inodes that clients of a file system hold, for the process that goes on with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldInodes {
    /// Numbers of inodes, and the number of holds of each.
    pub holds: Vec<(u64, u64)>,
    /// Numbers of inodes that had errors of writeback, with words that the next process reads.
    pub errors: Vec<(u64, u64)>,
}

/// Largest number of holds of an inode that another process is believed.
const MAX_HOLDS: u64 = 1 << 40;

impl Fs {
    /// Prepares [`Fs::hand_over`], which then has little to do: makes all changes durable, and
    /// writes them home.
    ///
    /// # Errors
    /// `Unsupported` if another process cannot go on with the file system: its journal is on
    /// another device, or other hosts could claim it in between (MMP). Those of [`Fs::sync`];
    /// `Aborted` after an error that stopped all changes. Nothing is changed then.
    pub fn prepare_hand_over(&self) -> Result<()> {
        if self.external_log.is_some() {
            return Err(Error::Unsupported("handing over an external journal".into()));
        }
        if self.ops.st().groups.superblock().incompat().contains(Incompat::MMP) {
            let text = "handing over an image with MMP: another host could claim it in between";
            return Err(Error::Unsupported(text.into()));
        }
        if self.jobs.is_none() {
            return self.ops.alive();
        }
        if self.is_read_only() {
            return Err(Error::Aborted("an error stopped all changes".into()));
        }
        self.sync()
    }

    /// Returns the device, which outlives the file system then.
    ///
    /// # Errors
    /// `Io` if the file system is closed.
    pub fn device(&self) -> Result<Arc<dyn BlockDevice>> {
        Ok(self.ops.st().mounted.beneath()?)
    }

    /// Returns another descriptor of the file of the image, which shares its lock
    /// ([`BlockDevice::share_file`]).
    ///
    /// # Errors
    /// `Io` if the image is no file or disk.
    pub fn share_file(&self) -> Result<File> {
        Ok(self.ops.st().mounted.share_file()?)
    }

    /// Closes the file system as [`Fs::unmount`] does, but leaves inodes that are held, also those
    /// without a name, to the opening that adopts them
    /// ([`OpenOptions::adopt`](crate::OpenOptions::adopt)). No caller may use the file system.
    /// Returns the held inodes also if an error is returned, which is one of [`Fs::unmount`]: the
    /// next opening recovers the file system then.
    pub fn hand_over(mut self) -> (HeldInodes, Result<()>) {
        if !self.refuse_operations() {
            return (HeldInodes::default(), Err(Errno::Stale.into()));
        }
        self.ops.wait_for_writers();
        let has_jobs = self.stop_jobs();
        let held = self.ops.held_inodes();
        let closed = self.finish_after(has_jobs, Operations::drain_unheld);
        self.let_go();
        (held, closed)
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
                self.vfs.inodes.add_holds(InodeNr(ino), (*holds).min(MAX_HOLDS));
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
