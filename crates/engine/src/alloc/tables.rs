//! Zeroes the unused parts of inode tables, in the background, as the kernel does with
//! `init_itable`. A file system that was made without writing its tables has old bytes there, which
//! a checker could take for inodes once a descriptor is damaged.
//!
//! # Crashes
//! The device zeroes a table before the handle that marks it ends. The commit flushes the device
//! before its commit record, so a marked table is zero. After an earlier crash the table is zeroed
//! again.
//!
//! # Hostile images
//! Zeroing a table that overlaps other metadata would destroy that. The positions of all metadata
//! are therefore compared once before the first table is zeroed.

use super::Alloc;
use super::inodes::Group;
use crate::error::Result;
use crate::groups::Kind;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::group_desc::{GroupDesc, GroupFlags};
use extant_format::types::GroupNr;
use extant_sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Where zeroing goes on.
#[derive(Debug, Default)]
pub(super) struct Tables {
    next: AtomicU32,
    /// No two structures of the file system lie over each other.
    apart: AtomicBool,
}

impl Alloc {
    /// Zeroes the unused part of the next inode table that is not known to be zero there. False if
    /// none is left.
    ///
    /// # Errors
    /// The device's, and those of the journal.
    pub fn zero_next_table(&self) -> Result<bool> {
        let geo = &self.vol.geo;
        let unzeroed = |g: &u32| {
            self.groups.with(GroupNr(*g), |desc| !desc.flags.contains(GroupFlags::INODE_ZEROED))
        };
        // Those of groups that are not durable yet wait.
        let groups = self.space.shape.groups();
        let next = || (self.tables.next.load(Relaxed)..groups).find(unzeroed);
        // Without checksums of descriptors the mark has no meaning.
        let Some(g) = Some(geo).filter(|geo| geo.has_group_checksums()).and_then(|_| next()) else {
            return Ok(false);
        };
        self.check_apart()?;
        self.tables.next.store(g + 1, Relaxed);
        self.zero_table(GroupNr(g)).map(|()| true)
    }

    fn zero_table(&self, g: GroupNr) -> Result<()> {
        let mut h = self.vol.start(Self::ZERO_CREDITS)?;
        // No thread takes an inode of the group meanwhile, so none uses a block that is being
        // zeroed.
        let inodes = self.inodes.lock(g)?;
        let desc = self.groups.desc(g)?;
        self.check_unused(g, &desc)?;
        let (start, blocks) = self.unused_blocks(&inodes, &desc);
        let bits = self.vol.geo.block_bits;
        if blocks > 0 {
            self.vol.dev.write_zeroes(start << bits, blocks << bits)?;
            self.vol.journal.note_data_write();
        }
        self.groups.edit(&mut h, g, |desc| {
            desc.flags |= GroupFlags::INODE_ZEROED;
            Ok(())
        })
    }

    /// No group's metadata lies over another's. Looked at once: places do not change.
    fn check_apart(&self) -> Result<()> {
        if self.tables.apart.load(Relaxed) {
            return Ok(());
        }
        let geo = &self.vol.geo;
        let mut places = Vec::new();
        for g in (0..self.groups.count()).map(GroupNr) {
            let desc = self.groups.desc(g)?;
            let base = (geo.first_block_of_group(g).0, u64::from(geo.base_meta_blocks(g)));
            let table = (desc.inode_table, u64::from(geo.inode_table_blocks()));
            let own = [base, (desc.block_bitmap, 1), (desc.inode_bitmap, 1), table];
            places.extend(own.into_iter().filter(|(_, blocks)| *blocks > 0));
        }
        places.sort_unstable();
        let over = places
            .array_windows()
            .find(|[(start, blocks), (next, _)]| start.saturating_add(*blocks) > *next);
        if let Some([_, (block, _)]) = over {
            return Err(Corrupt::new("group descriptor")
                .field("metadata over metadata")
                .found(*block)
                .into());
        }
        self.tables.apart.store(true, Relaxed);
        Ok(())
    }

    /// A descriptor that calls slots unused which its bitmap has in use, or the file system's own,
    /// would cost them.
    fn check_unused(&self, g: GroupNr, desc: &GroupDesc) -> Result<()> {
        let (used, count) = (self.inodes.used_part(desc), self.vol.geo.inodes_per_group);
        let own = if g.0 == 0 { self.vol.geo.first_ino.saturating_sub(1) } else { 0 };
        let bits = self.groups.bitmap(g, Kind::Inodes)?;
        let in_use = bits.with(|bits| bitmap::find_next_one(bits, used as usize, count as usize));
        if in_use.is_some() || used < own {
            Err(Corrupt::new("group descriptor")
                .field("unused inodes")
                .found(count - used)
                .at_group(g)
                .into())
        } else {
            Ok(())
        }
    }

    /// Credits of zeroing: descriptor and superblock.
    const ZERO_CREDITS: u32 = 2;

    /// Returns the blocks of the table without a slot that was ever used: a block is zeroed before
    /// its first slot is used.
    fn unused_blocks(&self, group: &Group, desc: &GroupDesc) -> (u64, u64) {
        let geo = &self.vol.geo;
        let used = self.inodes.open_slots(group, desc).div_ceil(geo.inodes_per_block());
        let blocks = geo.inode_table_blocks().saturating_sub(used);
        (desc.inode_table + u64::from(used), blocks.into())
    }
}
