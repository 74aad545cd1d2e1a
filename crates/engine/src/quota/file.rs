//! A quota file: the positions of its blocks, lookups in its tree, and additions of records.
//!
//! # Invariants
//! - A record never moves and is never removed: an owner without usage and limits keeps its record.
//!   The tree is therefore read without a lock while another thread adds to it, which stores a
//!   record before it links it.
//! - Every block number in the file is checked before it is followed. A path has at most as many
//!   blocks as the tree has levels.
//!
//! # Locking
//! Threads that add records hold `growing` (level QuotaFile), which they take before the handle.

use super::owner::{Dquot, Grace};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::volume::Volume;
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::quota::{self, DataHeader, QuotaHeader, QuotaKind, QuotaRecord};
use extant_format::types::InodeNr;
use extant_journal::{Handle, Seal};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Level, Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Owners kept in memory, of each kind.
const KEPT: usize = 1 << 14;

/// Blocks of the file system that adding one record may change: header, the way through the tree,
/// the data block and the two that are beside it in its list, and a block by which the file grows.
pub const INSERT_CREDITS: u32 = 4 + quota::LEVELS as u32 + 1;

/// Quota blocks that adding one record may take.
const INSERT_BLOCKS: u64 = quota::LEVELS as u64;

/// Owners without a record that are believed: with more of them the file is given up.
const MAX_UNRECORDED: usize = 1024;

/// The file of one kind.
#[derive(Debug)]
pub struct QuotaFile {
    pub(super) kind: QuotaKind,
    /// The file's inode.
    pub ino: InodeNr,
    vol: Arc<Volume>,
    /// Where its blocks are, in order.
    blocks: RwLock<Vec<u64>>,
    /// Held by threads that add records.
    growing: Mutex<Growing>,
    grace: Mutex<Grace>,
    owners: Mutex<Owned>,
    /// Owners of inodes that have no record, though they should.
    unrecorded: Mutex<HashMap<u32, Arc<Dquot>>>,
    /// Nothing is counted any more.
    broken: AtomicBool,
}

/// The state that changes when the file grows.
#[derive(Debug)]
pub struct Growing {
    header: QuotaHeader,
    /// The file's inode, once it is needed.
    pub inode: Option<Arc<Inode>>,
}

/// Owners in memory.
#[derive(Debug, Default)]
struct Owned {
    by_id: HashMap<u32, Arc<Dquot>>,
    /// Counts those that were dropped: a load that overlaps with that may have read an old record.
    dropped: u64,
}

/// Where a quota block is: the file system's block, and the byte where it begins.
type Place = (u64, usize);

impl QuotaFile {
    /// A file that lies in `blocks`.
    ///
    /// # Errors
    /// `Corrupt` if the header cannot be right; `Io`.
    pub fn open(
        vol: &Arc<Volume>,
        kind: QuotaKind,
        ino: InodeNr,
        blocks: Vec<u64>,
    ) -> Result<QuotaFile> {
        let empty = QuotaHeader {
            block_grace: 0,
            inode_grace: 0,
            flags: 0,
            blocks: 0,
            free_block: 0,
            free_record: 0,
        };
        let mut file = QuotaFile {
            kind,
            ino,
            vol: vol.clone(),
            blocks: RwLock::new(Level::Leaf, blocks),
            growing: Mutex::new(Level::QuotaFile, Growing { header: empty, inode: None }),
            grace: Mutex::new(Level::Leaf, Grace { blocks: quota::GRACE, inodes: quota::GRACE }),
            owners: Mutex::new(Level::Quota, Owned::default()),
            unrecorded: Mutex::new(Level::Quota, HashMap::new()),
            broken: AtomicBool::new(false),
        };
        let capacity = file.capacity();
        let header = file.view(0, |block| QuotaHeader::decode(block, kind, capacity))?;
        let header = header.map_err(|e| e.at_inode(ino))?;
        file.grace = Mutex::new(
            Level::Leaf,
            Grace { blocks: header.block_grace, inodes: header.inode_grace },
        );
        file.growing = Mutex::new(Level::QuotaFile, Growing { header, inode: None });
        Ok(file)
    }

    /// Whether usage is counted.
    pub fn is_sound(&self) -> bool {
        // Relaxed: a thread that reads an old value updates a file that is not used any more.
        !self.broken.load(Ordering::Relaxed)
    }

    /// Ends the use of the file. Returns true for the first call.
    pub(super) fn disable(&self) -> bool {
        !self.broken.swap(true, Ordering::Relaxed)
    }

    /// For how long soft limits may be exceeded.
    pub fn grace(&self) -> Grace {
        *self.grace.lock()
    }

    /// Returns the lock of threads that add records.
    pub fn growing(&self) -> &Mutex<Growing> {
        &self.growing
    }

    /// Quota blocks that the file has room for.
    fn capacity(&self) -> u64 {
        self.blocks.read().len() as u64 * (self.vol.block_size() / quota::BLOCK) as u64
    }

    fn bad(&self, field: &'static str, found: u32) -> Corrupt {
        Corrupt::new(self.kind.file_name()).field(field).found(found).at_inode(self.ino)
    }

    fn place(&self, block: u32) -> Result<Place> {
        let per_block = self.vol.block_size() / quota::BLOCK;
        let (index, within) = (block as usize / per_block, block as usize % per_block);
        let pblk = self.blocks.read().get(index).copied();
        Ok((pblk.ok_or_else(|| self.bad("block", block))?, within * quota::BLOCK))
    }

    fn buffer(&self, pblk: u64) -> Result<Arc<Buffer>> {
        self.vol.cache.read::<Error>(pblk, |_| Ok(()))
    }

    /// Looks at a quota block.
    fn view<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (pblk, from) = self.place(block)?;
        let buffer = self.buffer(pblk)?;
        let bytes = buffer.read();
        Ok(f(bytes.get(from..from + quota::BLOCK).unwrap_or_default()))
    }

    /// Changes a quota block.
    fn change<R>(
        &self,
        h: &mut Handle<'_>,
        block: u32,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let (pblk, from) = self.place(block)?;
        let buffer = self.buffer(pblk)?;
        let mut bytes = h.write(&buffer, Seal::NONE)?;
        Ok(f(bytes.get_mut(from..from + quota::BLOCK).unwrap_or_default()))
    }

    /// A pointer of a tree block: `None` if it leads nowhere.
    fn follow(&self, block: u32, slot: usize) -> Result<Option<u32>> {
        let to = self.view(block, |bytes| quota::pointer(bytes, slot))?;
        match to {
            0 => Ok(None),
            // Neither the root nor the header is a child, and blocks behind the file have no
            // position.
            n if n > quota::ROOT => Ok(Some(n)),
            n => Err(self.bad("pointer", n).into()),
        }
    }

    /// The record of an owner and where it is; `None` if it has none.
    fn find(&self, id: u32) -> Result<Option<(QuotaRecord, Place)>> {
        let mut at = quota::ROOT;
        for level in 0..quota::LEVELS {
            match self.follow(at, quota::slot_of(id, level))? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        let found = self.view(at, |block| quota::find(block, id))?;
        let (slot, record) = found.ok_or_else(|| self.bad("no record of id", id))?;
        let (pblk, from) = self.place(at)?;
        Ok(Some((record, (pblk, from + quota::record_at(slot)))))
    }

    /// The owner, read if it is not in memory; `None` if it has no record.
    pub(super) fn owner(&self, id: u32) -> Result<Option<Arc<Dquot>>> {
        loop {
            let before = {
                let owners = self.owners.lock();
                if let Some(known) = owners.by_id.get(&id) {
                    return Ok(Some(known.clone()));
                }
                owners.dropped
            };
            let Some((record, place)) = self.find(id)? else { return Ok(None) };
            let mut owners = self.owners.lock();
            if owners.dropped == before {
                let fresh = || Arc::new(Dquot::new(&record, place));
                let known = owners.by_id.entry(id).or_insert_with(fresh).clone();
                owners.bound();
                return Ok(Some(known));
            }
        }
    }

    /// An owner of inodes that has no record, and whether it is met for the first time; `None` if
    /// there are too many of them.
    pub(super) fn without_record(&self, id: u32) -> Option<(Arc<Dquot>, bool)> {
        let mut all = self.unrecorded.lock();
        if all.len() >= MAX_UNRECORDED && !all.contains_key(&id) {
            return None;
        }
        let mut first = false;
        let owner = all.entry(id).or_insert_with(|| {
            first = true;
            Arc::new(Dquot::unrecorded(id))
        });
        Some((owner.clone(), first))
    }

    /// Whether an owner was found to have no record, though it should.
    pub(super) fn is_without_record(&self, id: u32) -> bool {
        self.unrecorded.lock().contains_key(&id)
    }

    /// Whether the file has to grow before a record can be added.
    pub fn is_full(&self, growing: &Growing) -> bool {
        u64::from(growing.header.blocks) + INSERT_BLOCKS > self.capacity()
    }

    /// How many blocks of the file system it has.
    pub fn len(&self) -> u32 {
        u32::try_from(self.blocks.read().len()).unwrap_or(u32::MAX)
    }

    /// The file has another block, zeroed, within the handle.
    pub fn add_block(&self, h: &mut Handle<'_>, pblk: u64) -> Result<()> {
        let buffer = self.vol.cache.fresh(pblk);
        h.write(&buffer, Seal::NONE)?.fill(0);
        self.blocks.write().push(pblk);
        Ok(())
    }

    /// Gives an owner a record, if it has none.
    ///
    /// # Errors
    /// `Corrupt` if the tree or a list cannot be right; `Io`.
    pub fn insert(&self, growing: &mut Growing, h: &mut Handle<'_>, id: u32) -> Result<()> {
        let mut way = vec![quota::ROOT];
        for level in 0..quota::LEVELS {
            let at = way.last().copied().unwrap_or(quota::ROOT);
            match self.follow(at, quota::slot_of(id, level))? {
                Some(next) if growing.header.has(next) => way.push(next),
                Some(next) => return Err(self.bad("pointer", next).into()),
                None => break,
            }
        }
        if way.len() > quota::LEVELS {
            return Ok(());
        }
        let _held = self.hold_for_insert(&growing.header, &way)?;
        // Memory follows when all is done.
        let header = &mut { growing.header };
        let mut child = self.add_record(header, h, id)?;
        // From the bottom to the top: a concurrent reader finds the path once it is complete.
        for level in (way.len()..quota::LEVELS).rev() {
            let block = self.take_block(header, h)?;
            self.change(h, block, |bytes| {
                quota::put_pointer(bytes, quota::slot_of(id, level), child)
            })?;
            child = block;
        }
        let (at, level) = (way.last().copied().unwrap_or(quota::ROOT), way.len() - 1);
        self.change(h, at, |bytes| quota::put_pointer(bytes, quota::slot_of(id, level), child))?;
        self.store_header(header, h)?;
        growing.header = *header;
        Ok(())
    }

    /// Reads the blocks that [`Self::insert`] changes below the blocks of `way`, checks the lists
    /// of free ones, and keeps all in memory: afterwards nothing fails halfway.
    fn hold_for_insert(&self, header: &QuotaHeader, way: &[u32]) -> Result<Vec<Arc<Buffer>>> {
        let next = |block| {
            let next = self.view(block, DataHeader::decode)?.next;
            self.check_link(header, next).map(|()| next)
        };
        let mut blocks = vec![0];
        blocks.extend_from_slice(way);
        // Behind the last block in use.
        blocks.extend(header.blocks..header.blocks.saturating_add(INSERT_BLOCKS as u32));
        if header.free_record != 0 {
            blocks.extend([header.free_record, next(header.free_record)?]);
        }
        let mut free = header.free_block;
        for _ in 0..INSERT_BLOCKS {
            if free == 0 {
                break;
            }
            blocks.push(free);
            free = next(free)?;
        }
        blocks.into_iter().map(|block| self.buffer(self.place(block)?.0)).collect()
    }

    /// Sets for how long soft limits may be exceeded.
    pub(super) fn set_grace(
        &self,
        growing: &mut Growing,
        h: &mut Handle<'_>,
        grace: Grace,
    ) -> Result<()> {
        (growing.header.block_grace, growing.header.inode_grace) = (grace.blocks, grace.inodes);
        self.store_header(&growing.header, h)?;
        *self.grace.lock() = grace;
        Ok(())
    }

    fn store_header(&self, header: &QuotaHeader, h: &mut Handle<'_>) -> Result<()> {
        self.change(h, 0, |bytes| header.encode(bytes, self.kind))
    }

    /// A zeroed quota block.
    fn take_block(&self, header: &mut QuotaHeader, h: &mut Handle<'_>) -> Result<u32> {
        let block = match header.free_block {
            0 => {
                let next = header.blocks;
                header.blocks += 1;
                next
            }
            first => {
                let next = self.view(first, DataHeader::decode)?.next;
                self.check_link(header, next)?;
                header.free_block = next;
                first
            }
        };
        self.change(h, block, |bytes| bytes.fill(0))?;
        Ok(block)
    }

    fn check_link(&self, header: &QuotaHeader, block: u32) -> Result<()> {
        if block == 0 || header.has(block) { Ok(()) } else { Err(self.bad("list", block).into()) }
    }

    /// Stores an owner's record in a data block, which leaves the list of those with a free record
    /// when it has none.
    fn add_record(&self, header: &mut QuotaHeader, h: &mut Handle<'_>, id: u32) -> Result<u32> {
        let block = match header.free_record {
            0 => self.take_block(header, h)?,
            first => first,
        };
        let (mut own, free) =
            self.view(block, |bytes| (DataHeader::decode(bytes), quota::free_slot(bytes)))?;
        let slot = free.filter(|_| usize::from(own.used) < quota::RECORDS && own.next != block);
        let slot = slot.ok_or_else(|| self.bad("block with a free record", block))?;
        self.check_link(header, own.next)?;
        header.free_record = block;
        own.used += 1;
        // A full block leaves the list, and its successor becomes the head.
        if usize::from(own.used) == quota::RECORDS {
            header.free_record = own.next;
            if own.next != 0 {
                self.change(h, own.next, |bytes| {
                    DataHeader { prev: 0, ..DataHeader::decode(bytes) }.encode(bytes);
                })?;
            }
            (own.next, own.prev) = (0, 0);
        }
        let record = QuotaRecord { id, ..QuotaRecord::default() };
        self.change(h, block, |bytes| {
            own.encode(bytes);
            quota::put_record(bytes, slot, &record);
        })?;
        Ok(block)
    }

    /// All owners that have a record, in the order of the file. Each block is looked at once,
    /// however often a tree that is not one leads to it.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(super) fn ids(&self) -> Result<Vec<u32>> {
        let capacity = usize::try_from(self.capacity()).unwrap_or(usize::MAX);
        let mut seen = vec![false; capacity];
        let mut level = vec![quota::ROOT];
        for _ in 0..quota::LEVELS {
            let mut next = Vec::new();
            for block in level {
                let children: Vec<u32> = self.view(block, |bytes| {
                    (0..256).map(|slot| quota::pointer(bytes, slot)).collect()
                })?;
                for child in children.into_iter().filter(|child| *child != 0) {
                    let new =
                        seen.get_mut(child as usize).ok_or_else(|| self.bad("pointer", child))?;
                    if !std::mem::replace(new, true) {
                        next.push(child);
                    }
                }
            }
            level = next;
        }
        let mut ids = Vec::new();
        for block in level {
            ids.extend(self.view(block, |bytes| {
                quota::records(bytes).map(|(_, r)| r.id).collect::<Vec<_>>()
            })?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Marks an owner with its record in `block` dirty in the handle's transaction; true if it was
    /// not. Costs a credit at most.
    ///
    /// # Errors
    /// Those of the journal.
    pub(super) fn mark(
        &self,
        h: &mut Handle<'_>,
        owner: &Dquot,
        block: &Arc<Buffer>,
    ) -> Result<bool> {
        let tid = h.tid();
        if owner.is_dirty_in(tid) {
            return Ok(false);
        }
        h.join(block)?;
        // Both racers hold a handle of `tid`, so freeze cannot run before the first has listed the
        // owner.
        Ok(owner.dirty_tid.swap(tid.0, Ordering::AcqRel) != tid.0)
    }

    /// The block of an owner's record.
    pub(super) fn record_block(&self, owner: &Dquot) -> Result<Arc<Buffer>> {
        self.buffer(owner.place.0)
    }
}

impl Owned {
    /// Drops unused owners if there are too many: their records are in cached blocks or on the
    /// device.
    fn bound(&mut self) {
        if self.by_id.len() <= KEPT {
            return;
        }
        let before = self.by_id.len();
        // A changed owner has a further reference until its record is written. An owner that was
        // just looked up has two references.
        self.by_id.retain(|_, owner| Arc::strong_count(owner) > 1 || !owner.is_plain());
        self.dropped += u64::from(self.by_id.len() < before);
    }
}
