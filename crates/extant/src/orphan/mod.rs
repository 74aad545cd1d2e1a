//! Orphan records: the orphan file's slots and the legacy list. Records only; processing them is `ops`' work.
//!
//! A record is added and removed within the handle that makes it necessary or unnecessary. With the feature
//! `orphan_file` slots are used first; a full file falls back to the list.

use crate::error::Result;
use crate::groups::Groups;
use crate::inode::Inode;
use crate::store::Store;
use crate::volume::Volume;
use extant_format::types::InodeNr;
use extant_journal::Handle;
use std::sync::Arc;

/// Both kinds of records.
#[derive(Debug)]
pub struct Orphans {}

impl Orphans {
    /// Reads and verifies the orphan file if there is one: `blocks` are its physical blocks in order, `seed` its
    /// inode's checksum seed.
    pub fn open(vol: &Arc<Volume>, groups: &Arc<Groups>, file: Option<(InodeNr, u32, Vec<u64>)>) -> Result<Orphans> {
        let _ = (vol, groups, file);
        todo!()
    }

    /// Records `inode` (idempotent). Costs at most [`Self::CREDITS`] credits.
    pub fn add(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let _ = (st, h, inode);
        todo!()
    }

    /// Removes the record (idempotent). `None` for the handle only forgets the memory state.
    pub fn remove(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let _ = (st, h, inode);
        todo!()
    }

    /// Credits of one add or remove.
    pub const CREDITS: u32 = 3;

    /// What the file names: (inode number, block, slot) of each non-zero slot. Read at open, for processing.
    pub fn recorded_in_file(&self) -> Vec<(InodeNr, u32, u32)> {
        todo!()
    }

    /// Head of the legacy list as the superblock has it; the chain continues in each inode's `dtime`.
    pub fn list_head(&self) -> Option<InodeNr> {
        todo!()
    }

    /// Zeroes the head of the list (a broken chain is cut), or one slot of the file that names nothing valid.
    pub fn drop_invalid(&self, st: &Store, h: &mut Handle<'_>, slot: Option<(u32, u32)>) -> Result<()> {
        let _ = (st, h, slot);
        todo!()
    }

    /// Whether no record is live.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
}
