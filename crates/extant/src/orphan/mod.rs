//! Orphan records: the orphan file's slots and the legacy list. Records only; processing them is `ops`' work.
//!
//! A record is added and removed within the handle that makes it necessary or unnecessary. With the feature
//! `orphan_file` slots are used first; a full file falls back to the list.
//!
//! # Locking
//! Callers hold the inode's `rw` lock for writing, or are the only ones that know the inode: nobody else changes the same
//! inode's record meanwhile. Of an inode's and the list's lock (both Orphan) one is held at a time.

mod file;
mod list;

use crate::error::Result;
use crate::groups::Groups;
use crate::inode::{Inode, OrphanAt};
use crate::store::Store;
use crate::volume::Volume;
use extant_format::types::InodeNr;
use extant_journal::Handle;
use file::OrphanFile;
use list::OrphanList;
use std::sync::Arc;

/// Both kinds of records.
#[derive(Debug)]
pub struct Orphans {
    groups: Arc<Groups>,
    file: Option<OrphanFile>,
    list: OrphanList,
}

impl Orphans {
    /// Credits of one add or remove: the superblock (or a block of the orphan file) and two inodes.
    pub const CREDITS: u32 = 3;

    /// Reads and verifies the orphan file if there is one: `file` is its inode number, its inode's checksum seed and its
    /// physical blocks in order.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn open(vol: &Arc<Volume>, groups: &Arc<Groups>, file: Option<(InodeNr, u32, Vec<u64>)>) -> Result<Orphans> {
        let file = match file {
            Some((ino, seed, blocks)) => Some(OrphanFile::open(vol, ino, seed, &blocks)?),
            None => None,
        };
        Ok(Orphans { groups: groups.clone(), file, list: OrphanList::default() })
    }

    /// Records `inode` (idempotent). Costs at most [`Self::CREDITS`] credits.
    ///
    /// # Errors
    /// Those of the journal, and `Io`; the inode is not recorded then.
    pub fn add(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        if *inode.orphan.lock() != OrphanAt::None {
            return Ok(());
        }
        let slot = match &self.file {
            Some(file) => file.add(st, h, inode.ino)?,
            None => None,
        };
        let at = match slot {
            Some(at) => at,
            None => {
                self.list.add(st, h, inode)?;
                OrphanAt::List
            }
        };
        *inode.orphan.lock() = at;
        Ok(())
    }

    /// Removes the record (idempotent). Costs at most [`Self::CREDITS`] credits.
    ///
    /// # Errors
    /// Those of the journal, and `Io`; the inode is still recorded then.
    pub fn remove(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let at = *inode.orphan.lock();
        match (at, &self.file) {
            (OrphanAt::None, _) => return Ok(()),
            (OrphanAt::File { block, slot }, Some(file)) => file.clear(st, h, block, slot)?,
            (OrphanAt::File { .. }, None) => {}
            (OrphanAt::List, _) => self.list.remove(st, h, inode)?,
        }
        *inode.orphan.lock() = OrphanAt::None;
        Ok(())
    }

    /// Ties a record that was found at open to its inode, so that [`Self::remove`] finds it.
    pub fn adopt(&self, inode: &Arc<Inode>, at: OrphanAt) {
        if at == OrphanAt::List {
            self.list.adopt(inode);
        }
        *inode.orphan.lock() = at;
    }

    /// What the file names: inode number, block and slot of each record.
    pub fn recorded_in_file(&self) -> Vec<(InodeNr, u32, u32)> {
        self.file.as_ref().map_or_else(Vec::new, OrphanFile::records)
    }

    /// Head of the legacy list as the superblock has it; the chain continues in each inode's `dtime`.
    pub fn list_head(&self) -> Option<InodeNr> {
        let head = self.groups.with_superblock(|sb| sb.last_orphan());
        (head != InodeNr::NONE).then_some(head)
    }

    /// Zeroes the head of the list (a broken chain is cut), or one slot of the file that names nothing valid.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn drop_invalid(&self, st: &Store, h: &mut Handle<'_>, slot: Option<(u32, u32)>) -> Result<()> {
        match (slot, &self.file) {
            (Some((block, slot)), Some(file)) => file.clear(st, h, block, slot),
            (Some(_), None) => Ok(()),
            (None, _) => st.groups.edit_superblock(h, |sb| sb.set_last_orphan(InodeNr::NONE)),
        }
    }

    /// Whether no record is live.
    pub fn is_empty(&self) -> bool {
        self.list_head().is_none() && self.file.as_ref().is_none_or(OrphanFile::is_empty)
    }
}
