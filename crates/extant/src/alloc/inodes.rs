//! Inode numbers: found, booked and freed.
//!
//! # Invariants
//! - `next` of a group is at most the first clear bit of its bitmap.
//! - What was never used of a table is its tail; the first number taken there is the tail's first. So a table block of the
//!   tail is zeroed when its first slot is taken, before anybody reads it.

use super::Alloc;
use super::orlov;
use crate::error::{Errno, Error, Result};
use crate::groups::{Bitmap, Groups, Kind, less};
use crate::inode::Inode;
use crate::volume::Volume;
use extant_blocks::Buffer;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::group_desc::{GroupDesc, GroupFlags};
use extant_format::types::{FileType, GroupNr, InodeNr};
use extant_journal::{Handle, Seal};
use extant_space::Index;
use extant_sync::{Level, Mutex, MutexGuard};
use std::sync::Arc;

/// How often all groups are looked at while some inode is free: others may free and take them meanwhile.
const SWEEPS: u32 = 4;

/// The inodes of all groups.
#[derive(Debug)]
pub(super) struct Inodes {
    vol: Arc<Volume>,
    groups: Arc<Groups>,
    slots: Box<[Mutex<Group>]>,
    /// Free inodes of each group; 0 for a group that is not used any more.
    pub free: Index,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    /// Where to look for a clear bit.
    next: u32,
    /// The bitmap cannot be trusted.
    bad: bool,
}

impl Alloc {
    /// Credits of [`Self::new_inode`] and [`Self::free_inode`]: bitmap, descriptor, superblock, a block of the table.
    pub const INODE_CREDITS: u32 = 4;

    /// Takes an inode number: Orlov for directories, the parent's group for the rest. Books it in the bitmap, the
    /// descriptor and the counts, initialises the group's bitmap or table part if it was uninitialised. The slot is the
    /// caller's to fill.
    ///
    /// # Errors
    /// ENOSPC if no inode is free; `Io`.
    pub fn new_inode(&self, h: &mut Handle<'_>, parent: &Inode, ftype: FileType) -> Result<InodeNr> {
        let (home, _) = self.vol.geo.inode_location(parent.ino)?;
        let dir = ftype == FileType::Directory;
        if dir
            && let Some(g) = self.directory_group(parent, home)
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
    fn directory_group(&self, parent: &Inode, home: GroupNr) -> Option<GroupNr> {
        let top = parent.ino == InodeNr::ROOT || parent.body().flags.contains(orlov::TOPDIR);
        let view = orlov::View { geo: &self.vol.geo, groups: &self.groups, free: &self.inodes.free };
        if top { view.spread(self.vol.rng.next_u32()) } else { view.near(home) }
    }

    /// Takes this inode number, if it is free: replay finds it named. The slot is the caller's to fill.
    ///
    /// # Errors
    /// `Corrupt` if there is no such number, or the group's bitmap or counts are wrong; `Io`.
    pub fn take_inode(&self, h: &mut Handle<'_>, ino: InodeNr, ftype: FileType) -> Result<()> {
        self.inodes.take_this(h, ino, ftype == FileType::Directory)
    }

    /// Credits of [`Self::take_inode`]: the table may have to be initialised up to the number.
    pub fn take_inode_credits(&self, ino: InodeNr) -> u32 {
        let Ok((g, index)) = self.vol.geo.inode_location(ino) else { return 0 };
        let used = self.groups.with(g, |desc| self.inodes.used_part(desc));
        let (first, last) = (self.vol.geo.inode_slot(used.min(index)).0, self.vol.geo.inode_slot(index).0);
        Self::INODE_CREDITS + (last - first)
    }

    /// Frees an inode number.
    ///
    /// # Errors
    /// `Corrupt` if it is free already, or the group's bitmap or counts are wrong; `Io`.
    pub fn free_inode(&self, h: &mut Handle<'_>, ino: InodeNr, ftype: FileType) -> Result<()> {
        self.inodes.free(h, ino, ftype == FileType::Directory)
    }

    /// Whether the inode bitmap has the number; false for numbers that do not exist.
    ///
    /// # Errors
    /// `Corrupt` if the bitmap is wrong; `Io`.
    pub fn inode_in_use(&self, ino: InodeNr) -> Result<bool> {
        self.inodes.in_use(ino)
    }
}

impl Inodes {
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> Inodes {
        let slots = (0..groups.count()).map(|_| Mutex::new(Level::Group, Group::default())).collect();
        let free = Index::new((0..groups.count()).map(|g| groups.with(GroupNr(g), |desc| desc.free_inodes)));
        Inodes { vol, groups, slots, free }
    }

    pub fn lock(&self, g: GroupNr) -> Result<MutexGuard<'_, Group>> {
        let none = || Corrupt::new("group number").found(g.0);
        Ok(self.slots.get(g.index()).ok_or_else(none)?.lock())
    }

    /// Takes a number in any group but `home`: in its flexible group, then at growing distances, then anywhere.
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
        let mut group = self.lock(g)?;
        if group.bad || self.free.get(g.0) == 0 {
            return Ok(None);
        }
        match self.take_locked(h, g, &mut group, dir) {
            Err(Error::Corrupt(error)) => {
                self.disable(g, &mut group, error);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Gives a group up.
    fn disable(&self, g: GroupNr, group: &mut Group, error: Corrupt) {
        tracing::error!("group {g} gives no inodes any more: {error}");
        group.bad = true;
        self.free.set(g.0, 0);
        self.groups.note(&error.into());
    }

    fn take_locked(&self, h: &mut Handle<'_>, g: GroupNr, group: &mut Group, dir: bool) -> Result<InodeNr> {
        let geo = &self.vol.geo;
        let used_part = self.used_part(&self.groups.desc(g)?);
        let buffer = self.groups.bitmap_block(h, g, Kind::Inodes)?;
        let clear = bitmap::find_next_zero(&buffer.read(), self.first(g, group), geo.inodes_per_group as usize);
        let full =
            || Corrupt::new("inode bitmap").field("free inodes").found(0u32).expected(self.free.get(g.0)).at_group(g);
        let index = clear.ok_or_else(full)? as u32;
        if index > used_part {
            let error = Corrupt::new("inode bitmap").field("inodes in the part never used").found(index);
            return Err(error.expected(used_part).at_group(g).into());
        }
        self.init_table_block(h, g, index, used_part)?;
        self.book_bit(h, g, &buffer, index, dir)?;
        group.next = index + 1;
        Ok(geo.inode_at(g, index))
    }

    fn take_this(&self, h: &mut Handle<'_>, ino: InodeNr, dir: bool) -> Result<()> {
        let (g, index) = self.vol.geo.inode_location(ino)?;
        let _group = self.lock(g)?;
        let used_part = self.used_part(&self.groups.desc(g)?);
        let buffer = self.groups.bitmap_block(h, g, Kind::Inodes)?;
        if bitmap::test(&buffer.read(), index as usize) {
            return Ok(());
        }
        for at in used_part..=index {
            self.init_table_block(h, g, at, used_part)?;
        }
        self.book_bit(h, g, &buffer, index, dir)
    }

    /// Sets a bit that is clear, and counts it.
    fn book_bit(&self, h: &mut Handle<'_>, g: GroupNr, buffer: &Arc<Buffer>, index: u32, dir: bool) -> Result<()> {
        self.groups.bitmap_changed(h, g, Kind::Inodes)?;
        let left = self.groups.edit(h, g, |desc| self.book(desc, g, index, dir))?;
        bitmap::set(&mut h.write(buffer, Seal::NONE)?, index as usize);
        self.free.set(g.0, left);
        Ok(())
    }

    /// The first index to look at: behind the reserved inodes.
    fn first(&self, g: GroupNr, group: &Group) -> usize {
        let reserved = if g.0 == 0 { self.vol.geo.first_ino.saturating_sub(1) } else { 0 };
        group.next.max(reserved) as usize
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

    /// Zeroes the block of the table that a slot of the part never used lies in, if that is its first slot to be used.
    fn init_table_block(&self, h: &mut Handle<'_>, g: GroupNr, index: u32, used_part: u32) -> Result<()> {
        let (block, offset) = self.vol.geo.inode_slot(index);
        if index < used_part || offset != 0 {
            return Ok(());
        }
        let table = self.groups.inode_table(g);
        let buffer = self.vol.cache.fresh(table + u64::from(block));
        h.write(&buffer, Seal::NONE)?.fill(0);
        Ok(())
    }

    /// Counts a number in the descriptor. Gives the free inodes that are left.
    fn book(&self, desc: &mut GroupDesc, g: GroupNr, index: u32, dir: bool) -> Result<u32> {
        less(&mut desc.free_inodes, 1, "free inodes", g)?;
        desc.used_dirs += u32::from(dir);
        let behind = self.vol.geo.inodes_per_group.saturating_sub(index + 1);
        desc.itable_unused = desc.itable_unused.min(behind);
        Ok(desc.free_inodes)
    }

    fn free(&self, h: &mut Handle<'_>, ino: InodeNr, dir: bool) -> Result<()> {
        let (g, index) = self.vol.geo.inode_location(ino)?;
        let mut group = self.lock(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Inodes)?;
        let used = bitmap::test(&buffer.read(), index as usize);
        if !used || ino.0 < self.vol.geo.first_ino {
            let error = Corrupt::new("inode bitmap").field("freed inode is free or reserved");
            return Err(error.at_inode(ino).at_group(g).into());
        }
        self.groups.bitmap_changed(h, g, Kind::Inodes)?;
        let left = self.groups.edit(h, g, |desc| self.unbook(desc, g, dir))?;
        bitmap::clear(&mut h.write(&buffer, Seal::NONE)?, index as usize);
        group.next = group.next.min(index);
        if !group.bad {
            self.free.set(g.0, left);
        }
        Ok(())
    }

    fn unbook(&self, desc: &mut GroupDesc, g: GroupNr, dir: bool) -> Result<u32> {
        if desc.free_inodes >= self.vol.geo.inodes_per_group {
            let error = Corrupt::new("group descriptor").field("free inodes").found(desc.free_inodes);
            return Err(error.at_group(g).into());
        }
        less(&mut desc.used_dirs, u32::from(dir), "directories", g)?;
        desc.free_inodes += 1;
        Ok(desc.free_inodes)
    }

    fn in_use(&self, ino: InodeNr) -> Result<bool> {
        let Ok((g, index)) = self.vol.geo.inode_location(ino) else { return Ok(false) };
        let _group = self.lock(g)?;
        if self.groups.with(g, |desc| desc.has_flag(&self.vol.geo, GroupFlags::INODE_UNINIT)) {
            return Ok(false);
        }
        let bitmap: Bitmap = self.groups.bitmap(g, Kind::Inodes)?;
        Ok(bitmap.with(|bits| bitmap::test(bits, index as usize)))
    }
}
