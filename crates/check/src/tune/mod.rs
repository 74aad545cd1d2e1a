//! New values of the superblock's fields, and features with their structures, in a file system that
//! nothing has open: wholly or not at all.
//!
//! [`Tune::apply`] opens the file system, refuses one that must be recovered or repaired first,
//! computes the new superblock in memory, and writes it with its copies. For example, a new label
//! of a file system with copies in groups 1 and 3 changes three blocks.
//!
//! # Order of writes
//! With a journal, superblock and copies are one transaction ([`OfflineChanges`]). Without one, or
//! if its log is too small, the superblock is written alone and made durable: that write decides.
//! The copies follow. A power cut between leaves copies that are old, or torn, which nothing uses
//! while the superblock is valid; another call, or e2fsck, makes them equal.
//!
//! Features that are more than a mark of the superblock, and journals, have an order of their own
//! (module `features`). With a redo file ([`Tune::apply_with_redo`]) changes that no journal makes
//! whole are collected in memory, and written in place behind the record (module `redo`).
//!
//! [`OfflineChanges`]: extant_journal::offline::OfflineChanges
//!
//! # Invariants
//! - Nothing is written before all values are accepted.
//! - A new UUID never changes the seed of checksums: it keeps the old seed by `metadata_csum_seed`.
//!   Checksums that depend on the UUID in another way prevent a new one.

mod error;
mod features;
mod open;
mod redo;
mod undo;
mod values;
mod write;

pub use error::TuneError;
pub(crate) use open::Tunable;
pub(crate) use write::copy_of;

use extant_blocks::BlockDevice;
use extant_format::Superblock;
use extant_format::superblock::ErrorPolicy;
use features::{Purpose, Site, Wanted};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The blocks that only some users may use.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ReservedShare {
    /// A number of blocks, at most half of the file system.
    Blocks(u64),
    /// Percent of all blocks, 0 to 50.
    Percent(f64),
}

/// The size of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalSize {
    /// The one that follows from the size of the file system.
    Default,
    /// A number of bytes.
    Bytes(u64),
}

/// New values of fields; `None` leaves a field as it is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TuneChanges {
    /// The label, at most 16 bytes.
    pub label: Option<Vec<u8>>,
    /// The UUID.
    pub uuid: Option<[u8; 16]>,
    /// The reserved blocks.
    pub reserved: Option<ReservedShare>,
    /// The user that may use reserved blocks.
    pub reserved_uid: Option<u16>,
    /// The group that may use reserved blocks.
    pub reserved_gid: Option<u16>,
    /// The reaction to errors.
    pub errors: Option<ErrorPolicy>,
    /// Names of default mount options to set, or with `^` to clear, separated by commas.
    pub default_mount_options: Option<String>,
    /// The text of further mount options, at most 63 bytes.
    pub mount_options: Option<Vec<u8>>,
    /// The directory of the last mount, at most 63 bytes.
    pub last_mounted: Option<Vec<u8>>,
    /// Blocks of a RAID chunk.
    pub raid_stride: Option<u16>,
    /// Blocks of a RAID stripe.
    pub raid_stripe_width: Option<u32>,
    /// The hash of new indexes: 0 legacy, 1 half MD4, 2 TEA.
    pub hash_version: Option<u8>,
    /// Whether the file system is one for tests of development code.
    pub is_test: Option<bool>,
    /// The file system is marked as having errors, so that the next check is a whole one.
    pub asks_check: bool,
    /// Mounts until the next check; 0xFFFF for no limit.
    pub max_mount_count: Option<u16>,
    /// Mounts since the last check.
    pub mount_count: Option<u16>,
    /// Seconds between checks, 0 for no limit.
    pub check_interval: Option<u32>,
    /// The time of the last check, in seconds since 1970.
    pub last_check: Option<u64>,
    /// Names of features to set, or with `^` to clear, separated by commas. The names `extent` and
    /// `dir_index` also change files and directories that lack them.
    pub features: Option<String>,
    /// Directories are written anew, with indexes and without gaps.
    pub compacts_directories: bool,
    /// A journal of this size: a new one, or another length of that in the file system.
    pub journal_size: Option<JournalSize>,
    /// The number of the device that the journal moves to, 0 for that of an image file;
    /// [`Tune::new_journal`] has the device.
    pub journal_device: Option<u32>,
    /// Kinds of quota files to add, or with `^` to remove, separated by commas: `usrquota`,
    /// `grpquota`, `prjquota`.
    pub quota: Option<String>,
    /// Bytes of an inode, a power of two not below the present size. The new space is zero.
    pub inode_size: Option<u32>,
    /// Seconds between updates of the block of multi-mount protection, at most 300; 0 for the
    /// default of 5. Takes the feature `mmp`.
    pub mmp_update_interval: Option<u16>,
}

/// A change of the superblock of the file system on a device that nothing else has open.
pub struct Tune {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    new_journal: Option<Arc<dyn BlockDevice>>,
    threads: usize,
}

impl Tune {
    /// Makes a change on the whole device.
    pub fn new(device: Arc<dyn BlockDevice>) -> Tune {
        Tune { device, journal: None, new_journal: None, threads: 1 }
    }

    /// Sets the device of the journal, for file systems with an external one.
    #[must_use]
    pub fn journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(device);
        self
    }

    /// Sets the device that the journal moves to. It must have an empty journal without a file
    /// system, as `mkfs -O journal_dev` makes it.
    #[must_use]
    pub fn new_journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.new_journal = Some(device);
        self
    }

    /// Sets the number of threads that survey the file system for a change of its structures; 0
    /// counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Returns the names of the features that the changes switch, those to be cleared with a `^`.
    ///
    /// # Errors
    /// As [`Tune::apply`].
    pub fn switched_features(&self, changes: &TuneChanges) -> Result<Vec<String>, TuneError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let primary = &tunable.primary;
        Ok(Wanted::of(&primary.superblock, &primary.geometry, changes)?.names())
    }

    /// Makes the changes durable. Returns the new superblock.
    ///
    /// # Errors
    /// Values that are out of range; a file system that must be recovered or repaired first, that
    /// another host uses, or that has unknown features; features that are not switched, or for
    /// which free blocks are missing; those of the device and of the log. [`TuneError`] says
    /// whether anything was written.
    pub fn apply(&self, changes: &TuneChanges) -> Result<Superblock, TuneError> {
        self.make(changes, Purpose::Make)
    }

    fn make(&self, changes: &TuneChanges, purpose: Purpose) -> Result<Superblock, TuneError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let mut new = tunable.with_values(changes)?;
        let wanted = self.wanted(&tunable, changes)?;
        if wanted.is_none() {
            new.seal();
            if purpose == Purpose::Collect {
                tunable.write_in_place(&new)?;
            } else {
                tunable.write(&new)?;
            }
            return Ok(new);
        }
        self.site(&AtomicBool::new(false), purpose).make(changes, &wanted)
    }

    /// Returns the features and files that the changes ask for.
    fn wanted(&self, tunable: &Tunable<'_>, changes: &TuneChanges) -> Result<Wanted, TuneError> {
        let wanted = Wanted::of(&tunable.primary.superblock, &tunable.primary.geometry, changes)?;
        if changes.mmp_update_interval.is_some() && !wanted.has_mmp() {
            let why = "the file system has no multi-mount protection: `--features mmp` adds it";
            return Err(TuneError::Invalid(why.into()));
        }
        if changes.uuid.is_some() && !wanted.is_none() {
            let why = "a new UUID together with features: change it in a call of its own";
            return Err(TuneError::Unsupported(why.into()));
        }
        Ok(wanted)
    }

    fn site<'s>(&'s self, stop: &'s AtomicBool, purpose: Purpose) -> Site<'s> {
        let (device, threads) = (&self.device, self.threads);
        let (journal, new_journal) = (self.journal.as_ref(), self.new_journal.as_ref());
        Site { device, journal, new_journal, threads, stop, purpose }
    }
}

impl std::fmt::Debug for Tune {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tune").field("device", &self.device.name()).finish_non_exhaustive()
    }
}
