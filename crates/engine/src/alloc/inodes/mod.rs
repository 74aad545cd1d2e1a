//! Allocation and frees of inode numbers.
//!
//! Numbers are taken and freed in memory, without a lock ([`bits`]). Bitmaps and counts are made
//! from it once for each transaction, at freeze.
//!
//! # Invariants
//! - A group is in memory from its first change in a transaction until that freezes, at least. A
//!   thread that changes it joins its bitmap and its descriptor to the transaction first, and holds
//!   a handle meanwhile. Freeze therefore sees all changes of its transaction, and none of the
//!   next.
//! - The unused part of a table is its tail. It is opened chunk by chunk, in order, with the group
//!   locked: the blocks of a chunk are zeroed before a number of it is taken.
//! - A group's value in `free` is exact after each freeze that changed the group. In between it is
//!   0 only if no number was free at some moment: a thread that finds none stores 0 and searches
//!   all chunks again; a thread that frees a number checks for a 0 afterwards. All four accesses
//!   are sequentially consistent, so one of the threads sees the other's change.

mod bits;
mod freeze;

use super::Alloc;
use super::orlov;
use crate::bounds::Remark;
use crate::error::{Errno, Error, Result};
use crate::groups::{Bitmap, Groups, Kind, less};
use crate::volume::Volume;
use bits::Bits;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::group_desc::{GroupDesc, GroupFlags};
use extant_format::types::{FileType, GroupNr, InodeNr};
use extant_journal::{Handle, Seal};
use extant_space::Index;
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{
    GrowingTable, Level, Mutex, MutexGuard, Sharded, ShardedCounter, Swap, SwapRead,
};
use std::ops::Range;
use std::sync::Arc;

/// How often all groups are looked at while some inode is free: others may free and take them
/// meanwhile.
const SWEEPS: u32 = 4;

/// The number of groups whose chunks a shard of threads remembers.
const REMEMBERED: usize = 8;

/// The inodes of all groups.
#[derive(Debug)]
pub(super) struct Inodes {
    vol: Arc<Volume>,
    groups: Arc<Groups>,
    places: GrowingTable<Place>,
    /// Free inodes of each group; 0 for a group that is not used any more.
    pub free: Index,
    /// The chunks that each shard of threads has: a group's number, and one more than the chunk's.
    mine: Sharded<[AtomicU64; REMEMBERED]>,
    /// Groups that the running transaction changed, more than once perhaps.
    changed: Sharded<Mutex<Vec<GroupNr>>>,
    /// Groups in memory.
    loaded: Mutex<Vec<GroupNr>>,
    /// Numbers that were freed in the running transaction and may be taken in the next.
    going: ShardedCounter,
}

/// A group's numbers.
#[derive(Debug)]
struct Place {
    lock: Mutex<Group>,
    bits: Swap<Bits>,
}

impl Place {
    fn new() -> Place {
        Place { lock: Mutex::new(Level::Group, Group::default()), bits: Swap::default() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Group {
    /// The owner of each chunk: the index of a shard of threads plus one, or 0 for none. Empty
    /// while no chunk has an owner.
    owners: Vec<u8>,
    /// Slots at the start of the table that hold inodes or zeroes, once that was looked at.
    opened: u32,
    /// The bitmap cannot be trusted.
    bad: bool,
}

/// Where an inode number is wanted.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// The directory that names it, or the owner of an attribute's value.
    pub parent: InodeNr,
    /// A directory there goes to a group of its own, far from its parent.
    pub spread: bool,
}

impl Alloc {
    /// Credits of [`Self::new_inode`] and [`Self::free_inode`]: bitmap, descriptor, superblock, a
    /// chunk's blocks of the table.
    pub const INODE_CREDITS: u32 = 3 + bits::BLOCKS;

    /// Takes an inode number: Orlov for directories, the parent's group for the rest. Initialises
    /// the group's bitmap or table part if it was uninitialised. The slot is the caller's to fill.
    ///
    /// # Errors
    /// ENOSPC if no inode is free; `Io`.
    pub fn new_inode(
        &self,
        h: &mut Handle<'_>,
        near: NewInode,
        ftype: FileType,
    ) -> Result<InodeNr> {
        let (home, _) = self.vol.geo.inode_location(near.parent)?;
        let dir = ftype == FileType::Directory;
        if dir
            && let Some(g) = self.directory_group(near, home)
            && let Some(ino) = self.inodes.take(h, g, dir)?
        {
            return Ok(ino);
        }
        if let Some(ino) = self.inodes.take(h, home, dir)? {
            return Ok(ino);
        }
        self.inodes.take_elsewhere(h, home, dir)
    }

    /// Where a new directory should go.
    fn directory_group(&self, near: NewInode, home: GroupNr) -> Option<GroupNr> {
        let view =
            orlov::View { geo: &self.vol.geo, groups: &self.groups, free: &self.inodes.free };
        if near.spread { view.spread(self.vol.rng.next_u32()) } else { view.near(home) }
    }

    /// Takes this inode number, if it is free: replay finds it named. The slot is the caller's to
    /// fill.
    ///
    /// # Errors
    /// `Corrupt` if there is no such number, or the group's bitmap is wrong; `Io`.
    pub fn take_inode(&self, h: &mut Handle<'_>, ino: InodeNr, ftype: FileType) -> Result<()> {
        self.inodes.take_this(h, ino, ftype == FileType::Directory)
    }

    /// Credits of [`Self::take_inode`]: the table may have to be initialised up to the number.
    pub fn take_inode_credits(&self, ino: InodeNr) -> u32 {
        let Ok((g, index)) = self.vol.geo.inode_location(ino) else { return 0 };
        let used = self.groups.with(g, |desc| self.inodes.used_part(desc));
        let (first, last) =
            (self.vol.geo.inode_slot(used.min(index)).0, self.vol.geo.inode_slot(index).0);
        Self::INODE_CREDITS + (last - first)
    }

    /// Frees an inode number, which may be taken again when the running transaction has frozen.
    /// With `unwritten`, its slot on disk was never marked as used, so it may be taken at once.
    ///
    /// # Errors
    /// `Corrupt` if it is free already, or the group's bitmap or counts are wrong; `Io`.
    pub fn free_inode(
        &self,
        h: &mut Handle<'_>,
        ino: InodeNr,
        ftype: FileType,
        unwritten: bool,
    ) -> Result<()> {
        self.inodes.free(h, ino, ftype == FileType::Directory, unwritten)
    }

    /// Whether the number is in use; false for numbers that do not exist.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap is wrong; `Io`.
    pub fn inode_in_use(&self, ino: InodeNr) -> Result<bool> {
        self.inodes.in_use(ino)
    }

    /// Returns the number of slots at the start of a group's table that were ever used.
    ///
    /// # Errors
    /// `Corrupt` if the descriptor is wrong.
    pub fn used_slots(&self, group: GroupNr) -> Result<u32> {
        Ok(self.inodes.used_part(&self.groups.desc(group)?))
    }

    /// Returns whether freed numbers wait for the next commit.
    pub fn inodes_pending(&self) -> bool {
        self.inodes.going.sum() > 0
    }
}

impl Inodes {
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> Inodes {
        let places = (0..groups.count()).map(|_| Place::new()).collect();
        let free = Index::new(
            (0..groups.count()).map(|g| groups.with(GroupNr(g), |desc| desc.free_inodes)),
        );
        Inodes {
            vol,
            groups,
            places,
            free,
            mine: Sharded::default(),
            changed: Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new())),
            loaded: Mutex::new(Level::Leaf, Vec::new()),
            going: ShardedCounter::default(),
        }
    }

    /// Appends groups to the tables, up to so many. No number of theirs is taken before
    /// [`Self::publish_groups`]. No two threads may do this at once.
    pub fn append_groups(&self, groups: u32) {
        let new = (groups as usize).saturating_sub(self.places.len());
        self.places.append((0..new).map(|_| Place::new()));
        self.free.append_zeroes(groups.saturating_sub(self.free.len()));
    }

    /// Makes the numbers of the groups from `first` on available.
    pub fn publish_groups(&self, first: u32) {
        for g in first..self.groups.count() {
            self.free.set(g, self.groups.with(GroupNr(g), |desc| desc.free_inodes));
        }
    }

    fn place(&self, g: GroupNr) -> Result<&Place> {
        let none = || Corrupt::new("group number").found(g.0);
        self.places.get(g.index()).ok_or_else(|| none().into())
    }

    pub fn lock(&self, g: GroupNr) -> Result<MutexGuard<'_, Group>> {
        Ok(self.place(g)?.lock.lock())
    }

    /// Takes a number in any group but `home`: in its flexible group, then at growing distances,
    /// then anywhere.
    pub fn take_elsewhere(&self, h: &mut Handle<'_>, home: GroupNr, dir: bool) -> Result<InodeNr> {
        let count = self.groups.count();
        for g in orlov::probes(&self.vol.geo, home, count) {
            if let Some(ino) = self.take(h, g, dir)? {
                return Ok(ino);
            }
        }
        for _ in 0..SWEEPS {
            if let Some(ino) = self.sweep(h, home, dir)? {
                return Ok(ino);
            }
            if self.groups.free_inodes() == 0 {
                break;
            }
        }
        Err(Errno::NoSpc.into())
    }

    /// Takes a number in the first group from `home` on that has one.
    fn sweep(&self, h: &mut Handle<'_>, home: GroupNr, dir: bool) -> Result<Option<InodeNr>> {
        for range in [home.0..self.groups.count(), 0..home.0] {
            let mut at = range.start;
            while let Some(g) = self.free.find(at..range.end, 1) {
                if let Some(ino) = self.take(h, GroupNr(g), dir)? {
                    return Ok(Some(ino));
                }
                at = g + 1;
            }
        }
        Ok(None)
    }

    /// Takes a number in the group; `None` if it has none, or is not usable.
    pub fn take(&self, h: &mut Handle<'_>, g: GroupNr, dir: bool) -> Result<Option<InodeNr>> {
        if self.free.get(g.0) == 0 {
            return Ok(None);
        }
        match self.take_in(h, g, dir) {
            Err(Error::Corrupt(error)) => {
                self.disable(g, error)?;
                Ok(None)
            }
            other => other,
        }
    }

    /// Gives a group up.
    fn disable(&self, g: GroupNr, error: Corrupt) -> Result<()> {
        if self.vol.remarks.tells(Remark::Group) {
            tracing::error!("group {g} gives no inodes any more: {error}");
        }
        let mut group = self.lock(g)?;
        group.bad = true;
        self.free.set(g.0, 0);
        drop(group);
        self.groups.note(&error.into());
        Ok(())
    }

    fn take_in(&self, h: &mut Handle<'_>, g: GroupNr, dir: bool) -> Result<Option<InodeNr>> {
        let memory = self.memory(h, g)?;
        let Some(bits) = memory.get() else { return Ok(None) };
        if bits.lies {
            let found = self.groups.with(g, |desc| desc.free_inodes);
            return Err(Corrupt::new("inode bitmap")
                .field("free inodes")
                .found(found)
                .at_group(g)
                .into());
        }
        self.join(h, g, bits)?;
        let mine = self.chunk_of(g).and_then(|chunk| bits.claim(chunk));
        let taken =
            mine.map_or_else(|| self.claim_elsewhere(h, g, bits), |index| Ok(Some(index)))?;
        let Some(index) = taken else { return Ok(None) };
        self.count(h, g, dir, true)?;
        Ok(Some(self.vol.geo.inode_at(g, index)))
    }

    /// A number was taken or freed. Its group has joined the transaction, so only lying counts are
    /// an error.
    fn count(&self, h: &mut Handle<'_>, g: GroupNr, dir: bool, taken: bool) -> Result<()> {
        if dir {
            self.groups.edit(h, g, |desc| {
                if taken {
                    desc.used_dirs += 1;
                    Ok(())
                } else {
                    less(&mut desc.used_dirs, 1, "directories", g)
                }
            })?;
        }
        self.groups.count_inode(taken);
        Ok(())
    }

    /// The group's numbers, loaded if need be.
    fn memory(&self, h: &mut Handle<'_>, g: GroupNr) -> Result<SwapRead<Bits>> {
        let place = self.place(g)?;
        let memory = place.bits.load();
        if memory.get().is_some() {
            return Ok(memory);
        }
        let _group = place.lock.lock();
        if place.bits.load().get().is_none() {
            let buffer = self.groups.bitmap_block(h, g, Kind::Inodes)?;
            let geo = &self.vol.geo;
            let reserved = if g.0 == 0 { geo.first_ino.saturating_sub(1) } else { 0 };
            let free = self.groups.with(g, |desc| desc.free_inodes);
            let size = bits::chunk_size(geo.inodes_per_block());
            place.bits.store(Some(Arc::new(Bits::new(
                buffer,
                size,
                geo.inodes_per_group,
                reserved,
                free,
            ))));
            self.loaded.lock().push(g);
        }
        Ok(place.bits.load())
    }

    /// Makes the group part of the handle's transaction.
    fn join(&self, h: &mut Handle<'_>, g: GroupNr, bits: &Bits) -> Result<()> {
        let tid = h.tid().0;
        if bits.tid.load(Ordering::Acquire) == tid {
            h.note_change();
            return Ok(());
        }
        self.groups.bitmap_changed(h, g, Kind::Inodes)?;
        h.join(&bits.buffer)?;
        // Of two that race to here both hold a handle of `tid`, so freeze waits for the push.
        if bits.tid.swap(tid, Ordering::AcqRel) != tid {
            self.changed.local().lock().push(g);
        }
        Ok(())
    }

    fn remembered(&self, g: GroupNr) -> &AtomicU64 {
        &self.mine.local()[g.0 as usize % REMEMBERED]
    }

    /// The chunk of the group that this thread's shard has.
    fn chunk_of(&self, g: GroupNr) -> Option<u32> {
        let word = self.remembered(g).load(Ordering::Relaxed);
        (word >> 32 == u64::from(g.0)).then_some(word as u32)?.checked_sub(1)
    }

    fn remember(&self, g: GroupNr, chunk: u32) {
        self.remembered(g).store(u64::from(g.0) << 32 | u64::from(chunk + 1), Ordering::Relaxed);
    }

    /// Takes a number from another chunk than this thread's, which becomes this thread's.
    fn claim_elsewhere(&self, h: &mut Handle<'_>, g: GroupNr, bits: &Bits) -> Result<Option<u32>> {
        let mut group = self.lock(g)?;
        if group.bad {
            return Ok(None);
        }
        if let Some(index) = self.claim_in(h, g, &mut group, bits)? {
            return Ok(Some(index));
        }
        self.free.set(g.0, 0);
        // A number that was freed meanwhile may lie before the chunks that the search looks at.
        bits.look_at_all();
        let found = self.claim_in(h, g, &mut group, bits)?;
        if found.is_some() {
            self.free.set(g.0, 1);
        }
        Ok(found)
    }

    /// Takes a number from the first chunk without an owner that has one, or else from the first
    /// chunk that has one.
    fn claim_in(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        group: &mut Group,
        bits: &Bits,
    ) -> Result<Option<u32>> {
        // There are at most 128 shards.
        let me = self.mine.local_index() as u8 + 1;
        group.owners.resize(bits.chunks() as usize, 0);
        for owned_too in [false, true] {
            for chunk in (bits.next()..bits.chunks()).filter(|chunk| bits.has_free(*chunk)) {
                let owner = group.owners.get(chunk as usize).copied().unwrap_or(0);
                if !owned_too && owner != 0 && owner != me {
                    continue;
                }
                self.open_chunk(h, g, group, bits.first_of(chunk)..bits.first_of(chunk + 1))?;
                if let Some(index) = bits.claim(chunk) {
                    self.change_owner(g, group, chunk, me);
                    return Ok(Some(index));
                }
            }
        }
        Ok(None)
    }

    /// Leaves the hints of all groups in memory behind their chunks ([`Bits::pass_all`]).
    #[cfg(test)]
    pub fn pass_all(&self) {
        for place in self.places.iter() {
            if let Some(bits) = place.bits.load().get() {
                bits.pass_all();
            }
        }
    }

    fn change_owner(&self, g: GroupNr, group: &mut Group, chunk: u32, me: u8) {
        if let Some(before) =
            self.chunk_of(g).and_then(|chunk| group.owners.get_mut(chunk as usize))
            && *before == me
        {
            *before = 0;
        }
        if let Some(owner) = group.owners.get_mut(chunk as usize) {
            *owner = me;
        }
        self.remember(g, chunk);
    }

    /// Zeroes those blocks of the table that a chunk lies in and that were never used.
    fn open_chunk(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        group: &mut Group,
        chunk: Range<u32>,
    ) -> Result<()> {
        // The descriptor is read once: the used part of the table then grows by chunks opened here.
        if group.opened == 0 {
            group.opened = self.open_slots(group, &self.groups.desc(g)?);
        }
        if chunk.start > group.opened {
            let error = Corrupt::new("inode bitmap")
                .field("inodes in the part never used")
                .found(chunk.start);
            return Err(error.expected(group.opened).at_group(g).into());
        }
        while group.opened < chunk.end.min(self.vol.geo.inodes_per_group) {
            self.open_block(h, g, group, group.opened)?;
        }
        Ok(())
    }

    fn open_block(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        group: &mut Group,
        first: u32,
    ) -> Result<()> {
        let (block, _) = self.vol.geo.inode_slot(first);
        let buffer = self.vol.cache.fresh(self.groups.inode_table(g) + u64::from(block));
        // A fresh block has zeroes.
        drop(h.write(&buffer, Seal::NONE)?);
        group.opened = first.saturating_add(self.vol.geo.inodes_per_block());
        Ok(())
    }

    /// Slots at the table's start that hold inodes or zeroes, in whole blocks.
    pub fn open_slots(&self, group: &Group, desc: &GroupDesc) -> u32 {
        self.used_part(desc)
            .next_multiple_of(self.vol.geo.inodes_per_block().max(1))
            .max(group.opened)
    }

    fn take_this(&self, h: &mut Handle<'_>, ino: InodeNr, dir: bool) -> Result<()> {
        let (g, index) = self.vol.geo.inode_location(ino)?;
        let memory = self.memory(h, g)?;
        let Some(bits) = memory.get() else { return Ok(()) };
        if bits.in_use(index) {
            return Ok(());
        }
        self.join(h, g, bits)?;
        let mut group = self.lock(g)?;
        let desc = self.groups.desc(g)?;
        while self.open_slots(&group, &desc) <= index {
            let first = self.open_slots(&group, &desc);
            self.open_block(h, g, &mut group, first)?;
        }
        if bits.claim_this(index) { self.count(h, g, dir, true) } else { Ok(()) }
    }

    /// Slots at the table's start that were used before.
    pub fn used_part(&self, desc: &GroupDesc) -> u32 {
        let geo = &self.vol.geo;
        if !geo.has_group_checksums() {
            geo.inodes_per_group
        } else if desc.has_flag(geo, GroupFlags::INODE_UNINIT) {
            0
        } else {
            geo.inodes_per_group.saturating_sub(desc.itable_unused)
        }
    }

    fn free(&self, h: &mut Handle<'_>, ino: InodeNr, dir: bool, at_once: bool) -> Result<()> {
        let (g, index) = self.vol.geo.inode_location(ino)?;
        let memory = self.memory(h, g)?;
        let bits =
            memory.get().filter(|bits| bits.in_use(index) && ino.0 >= self.vol.geo.first_ino);
        let Some(bits) = bits else { return Err(not_in_use(g, ino)) };
        self.join(h, g, bits)?;
        self.count(h, g, dir, false)?;
        let was_used = if at_once { bits.release(index) } else { bits.release_later(index) };
        if !was_used {
            // Another thread frees it, too: this transaction must not be committed.
            return Err(not_in_use(g, ino));
        }
        if !at_once {
            self.going.add(1);
        } else if self.free.get(g.0) == 0 {
            self.found_free(g)?;
        }
        Ok(())
    }

    /// A group that was full has a free number.
    fn found_free(&self, g: GroupNr) -> Result<()> {
        let group = self.lock(g)?;
        if !group.bad {
            self.free.set(g.0, 1);
        }
        Ok(())
    }

    fn in_use(&self, ino: InodeNr) -> Result<bool> {
        let Ok((g, index)) = self.vol.geo.inode_location(ino) else { return Ok(false) };
        let place = self.place(g)?;
        if let Some(bits) = place.bits.load().get() {
            return Ok(bits.in_use(index));
        }
        let _group = place.lock.lock();
        if let Some(bits) = place.bits.load().get() {
            return Ok(bits.in_use(index));
        }
        if self.groups.with(g, |desc| desc.has_flag(&self.vol.geo, GroupFlags::INODE_UNINIT)) {
            return Ok(false);
        }
        let bitmap: Bitmap = self.groups.bitmap(g, Kind::Inodes)?;
        Ok(bitmap.with(|bits| bitmap::test(bits, index as usize)))
    }
}

fn not_in_use(g: GroupNr, ino: InodeNr) -> Error {
    let error = Corrupt::new("inode bitmap").field("freed inode is free or reserved");
    error.at_inode(ino).at_group(g).into()
}
