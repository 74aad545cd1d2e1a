//! The interface of the orphan file's slots. With the feature `designs` measurements put other
//! designs behind it.

use crate::error::Result;
use extant_blocks::Cache;
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal};
use std::fmt;
use std::sync::Arc;

/// A slot of the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAt {
    /// Index of the block in the file, less than 2^16.
    pub block: u32,
    /// Slot within the block, less than 2^16.
    pub slot: u32,
}

/// Keeps inode numbers in slots. The engine has one design; others exist to be measured.
pub trait OrphanSlots: fmt::Debug + Send + Sync {
    /// Records an inode within the handle. `None`: there is no slot, and the list is to be used.
    ///
    /// # Errors
    /// Those of the journal; nothing is recorded then.
    fn add(&self, h: &mut Handle<'_>, ino: InodeNr) -> Result<Option<SlotAt>>;

    /// Empties a slot within the handle.
    ///
    /// # Errors
    /// Those of the journal, and `Io`; the record stays then.
    fn clear(&self, h: &mut Handle<'_>, at: SlotAt) -> Result<()>;

    /// All records that the file has when it is opened.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn records(&self) -> Result<Vec<(InodeNr, SlotAt)>>;

    /// Whether no record is live.
    fn is_empty(&self) -> bool;

    /// Returns how many slots and blocks searches tried in vain.
    fn retries(&self) -> u64 {
        0
    }

    /// Writes the changes of a transaction's handles into its blocks. No handle may be open.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    fn freeze(&self, out: &mut Freezer<'_>) -> Result<()>;
}

/// The position of the orphan file, and the parameters of its blocks.
#[derive(Clone, Debug)]
pub struct OrphanBlocks {
    /// Its inode.
    pub ino: InodeNr,
    /// Cached blocks of the device.
    pub cache: Arc<Cache>,
    /// Its physical blocks in order.
    pub blocks: Vec<u64>,
    /// Checksum seed of its inode.
    pub seed: u32,
    /// Whether blocks carry checksums.
    pub metadata_csum: bool,
    /// Whether threads record in parts of the file of their own. Otherwise the place of a record
    /// depends on the calls only.
    pub spread: bool,
}

impl OrphanBlocks {
    /// How a changed block is sealed.
    pub fn seal(&self) -> Seal {
        if self.metadata_csum {
            Seal { f: extant_format::orphan::seal_orphan_block, seed: self.seed }
        } else {
            Seal::NONE
        }
    }
}
