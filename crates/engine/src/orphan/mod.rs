//! Orphan records: the orphan file's slots and the legacy list. Records only; processing them is
//! `ops`' work.
//!
//! A record is added and removed within the handle that makes it necessary or unnecessary, so both
//! are in the same transaction. The caller writes the number of links. With the feature
//! `orphan_file` slots are used first; a full file falls back to the list. For example, `unlink` of
//! an open file stores its inode number in a free slot; the last close frees the inode and empties
//! the slot.
//!
//! # Locking
//! Callers must hold the inode's `rw` lock for writing, or have the only reference to the inode: no
//! other thread may change the same inode's record meanwhile. Slots have no lock; the list has one
//! for each of its parts.

#[cfg(feature = "designs")]
pub mod designs;
mod file;
mod list;
mod slots;

pub use slots::{OrphanBlocks, OrphanSlots, SlotAt};

use crate::error::Result;
use crate::inode::{Inode, InodeTable, OrphanAt, Step};

use extant_format::types::InodeNr;
use extant_journal::Freezer;
use extant_sync::ShardedCounter;
#[cfg(not(feature = "designs"))]
use file::OrphanFile;
use list::OrphanList;
use std::sync::Arc;

/// The slots: those of the file, or of a design that is measured.
#[cfg(not(feature = "designs"))]
type FileSlots = OrphanFile;
#[cfg(feature = "designs")]
type FileSlots = Box<dyn OrphanSlots>;

/// Both kinds of records.
#[derive(Debug)]
pub struct Orphans {
    slots: Option<FileSlots>,
    list: OrphanList,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    added: ShardedCounter,
    listed: ShardedCounter,
    removed: ShardedCounter,
}

/// Counters of orphan records since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanStats {
    /// Records added.
    pub added: u64,
    /// Those of them that went to the legacy list.
    pub listed: u64,
    /// Records removed.
    pub removed: u64,
    /// Slots, or whole blocks of slots, that a search for an empty one tried in vain.
    pub retries: u64,
}

/// The orphan records found at open.
#[derive(Debug, Default)]
pub struct Found {
    /// The orphan file, if there is one.
    pub file: Option<OrphanBlocks>,
    /// Records may be live in the file.
    pub live: bool,
    /// Head of the list as the superblock has it.
    pub head: InodeNr,
}

impl Orphans {
    /// Credits of one add or remove: the superblock (or a block of the orphan file) and two inodes.
    pub const CREDITS: u32 = 3;

    /// Reads and verifies the orphan file if records may be live in it.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    #[cfg(not(feature = "designs"))]
    pub fn open(found: Found) -> Result<Orphans> {
        let open = |place| OrphanFile::open(place, found.live);
        let slots = found.file.map(open).transpose()?;
        let list = OrphanList::new(found.head);
        Ok(Orphans { slots, list, counters: Counters::default() })
    }

    /// Opens the records of the chosen design.
    #[cfg(feature = "designs")]
    pub fn open(found: Found) -> Result<Orphans> {
        let (slots, list) = designs::open(found)?;
        Ok(Orphans { slots, list, counters: Counters::default() })
    }

    /// Records `inode` (idempotent). Costs at most [`Self::CREDITS`] credits.
    ///
    /// # Errors
    /// Those of the journal, and `Io`; the inode is not recorded then.
    pub fn add(&self, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
        if inode.orphan.get() != OrphanAt::None {
            return Ok(());
        }
        let slot = match &self.slots {
            Some(slots) => slots.add(step.handle(), inode.ino)?,
            None => None,
        };
        let at = match slot {
            Some(at) => place(at),
            None => {
                self.counters.listed.add(1);
                self.list.add(step, inode)?
            }
        };
        self.counters.added.add(1);
        inode.orphan.set(at);
        Ok(())
    }

    /// Removes the record (idempotent). Costs at most [`Self::CREDITS`] credits.
    ///
    /// # Errors
    /// Those of the journal, and `Io`; the inode is still recorded then.
    pub fn remove(&self, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
        match inode.orphan.get() {
            OrphanAt::None => return Ok(()),
            OrphanAt::File { block, slot } => {
                self.clear(step, SlotAt { block: block.into(), slot: slot.into() })?
            }
            OrphanAt::List { part } => self.list.remove(step, inode, part)?,
        }
        self.counters.removed.add(1);
        inode.orphan.set(OrphanAt::None);
        Ok(())
    }

    fn clear(&self, step: &mut Step<'_>, at: SlotAt) -> Result<()> {
        self.slots.as_ref().map_or(Ok(()), |slots| slots.clear(step.handle(), at))
    }

    /// Writes the changes of handles into the inodes' bodies and the file's blocks. Must run before
    /// inodes and the superblock are written into their blocks. No handle may be open.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn freeze(&self, table: &InodeTable, out: &mut Freezer<'_>) -> Result<()> {
        self.list.freeze(table, out)?;
        self.slots.as_ref().map_or(Ok(()), |slots| slots.freeze(out))
    }

    /// Connects a record that was found at open with its inode, so that [`Self::remove`] finds it:
    /// the one at `slot`, or the head of the unread list.
    pub fn adopt(&self, inode: &Arc<Inode>, slot: Option<SlotAt>) {
        let at = slot.map_or_else(|| self.list.adopt(inode), place);
        inode.orphan.set(at);
    }

    /// Returns the inodes that the file records, with their slots.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn recorded_in_file(&self) -> Result<Vec<(InodeNr, SlotAt)>> {
        self.slots.as_ref().map_or_else(|| Ok(Vec::new()), |slots| slots.records())
    }

    /// Returns the head of the legacy list at open that was not adopted yet. The chain continues in
    /// each inode's `dtime`.
    pub fn unread(&self) -> Option<InodeNr> {
        Some(self.list.unread()).filter(|head| *head != InodeNr::NONE)
    }

    /// Drops an invalid record: one slot of the file, or the unread list.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn drop_invalid(&self, step: &mut Step<'_>, slot: Option<SlotAt>) -> Result<()> {
        match slot {
            Some(at) => self.clear(step, at),
            None => self.list.cut(step),
        }
    }

    /// Whether no record is live.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.slots.as_ref().is_none_or(|slots| slots.is_empty())
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> OrphanStats {
        let sum = |counter: &ShardedCounter| u64::try_from(counter.sum()).unwrap_or(0);
        let Counters { added, listed, removed } = &self.counters;
        OrphanStats {
            added: sum(added),
            listed: sum(listed),
            removed: sum(removed),
            retries: self.slots.as_ref().map_or(0, |slots| slots.retries()),
        }
    }
}

/// The kinds of numbers that an inode has room for: a block has less than 2^14 slots, the file at
/// most 2^16 blocks.
fn place(at: SlotAt) -> OrphanAt {
    OrphanAt::File { block: at.block as u16, slot: at.slot as u16 }
}
