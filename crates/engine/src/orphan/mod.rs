//! Orphan records: the orphan file's slots and the legacy list. Records only; processing them is
//! `ops`' work.
//!
//! A record is added and removed within the handle that makes it necessary or unnecessary: they are
//! in the same transaction. The number of links itself is its caller's to write. With the feature
//! `orphan_file` slots are used first; a full file falls back to the list.
//!
//! # Locking
//! Callers hold the inode's `rw` lock for writing, or are the only ones that know the inode: nobody
//! else changes the same inode's record meanwhile. Slots have no lock; the list has one for each of
//! its parts.

mod design;
mod file;
mod list;

pub use design::{OrphanBlocks, OrphanDesign, OrphanSlots, SlotAt};

use crate::error::Result;
use crate::inode::{Inode, InodeTable, OrphanAt, Step};

use extant_format::types::InodeNr;
use extant_journal::Freezer;
use extant_sync::ShardedCounter;
use file::OrphanFile;
use list::OrphanList;
use std::sync::Arc;

/// Both kinds of records.
#[derive(Debug)]
pub struct Orphans {
    slots: Option<Box<dyn OrphanSlots>>,
    list: OrphanList,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    added: ShardedCounter,
    listed: ShardedCounter,
    removed: ShardedCounter,
}

/// What was done with orphan records since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanStats {
    /// Records added.
    pub added: u64,
    /// Those of them that went to the legacy list.
    pub listed: u64,
    /// Records removed.
    pub removed: u64,
}

/// What opening knows of orphan records.
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
    pub fn open(found: Found, design: Option<&OrphanDesign>) -> Result<Orphans> {
        let slots = match design {
            Some(design) => (design.slots)(found.file)?,
            None => match found.file {
                Some(place) => {
                    Some(Box::new(OrphanFile::open(place, found.live)?) as Box<dyn OrphanSlots>)
                }
                None => None,
            },
        };
        let list = OrphanList::new(found.head, design.and_then(|design| design.list_parts));
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

    /// Writes what handles changed into the inodes' bodies and the file's blocks. Runs before
    /// inodes and the superblock are written into theirs; no handle is open.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn freeze(&self, table: &InodeTable, out: &mut Freezer<'_>) -> Result<()> {
        self.list.freeze(table, out)?;
        self.slots.as_ref().map_or(Ok(()), |slots| slots.freeze(out))
    }

    /// Ties a record that was found at open to its inode, so that [`Self::remove`] finds it: the
    /// one at `slot`, or the head of what is not read of the list.
    pub fn adopt(&self, inode: &Arc<Inode>, slot: Option<SlotAt>) {
        let at = slot.map_or_else(|| self.list.adopt(inode), place);
        inode.orphan.set(at);
    }

    /// What the file names.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn recorded_in_file(&self) -> Result<Vec<(InodeNr, SlotAt)>> {
        self.slots.as_ref().map_or_else(|| Ok(Vec::new()), |slots| slots.records())
    }

    /// Head of what was on the legacy list at open and was not adopted yet; the chain continues in
    /// each inode's `dtime`.
    pub fn unread(&self) -> Option<InodeNr> {
        Some(self.list.unread()).filter(|head| *head != InodeNr::NONE)
    }

    /// Drops a record that names nothing valid: one slot of the file, or what is not read of the
    /// list.
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

    /// What was done so far.
    pub fn stats(&self) -> OrphanStats {
        let sum = |counter: &ShardedCounter| u64::try_from(counter.sum()).unwrap_or(0);
        let Counters { added, listed, removed } = &self.counters;
        OrphanStats { added: sum(added), listed: sum(listed), removed: sum(removed) }
    }
}

/// The kinds of numbers that an inode has room for: a block has less than 2^14 slots, the file at
/// most 2^16 blocks.
fn place(at: SlotAt) -> OrphanAt {
    OrphanAt::File { block: at.block as u16, slot: at.slot as u16 }
}
