//! Growth of the file system while it is open.
//!
//! The file system grows in steps, each up to the last group that a block of descriptors has: from
//! 100 to 300 groups in three steps, with 128 descriptors in a block. The layout is that of
//! `extant_format::growth`, as it is for a file system that nothing has open.
//!
//! # Order of a step
//! 1. Bitmaps, inode tables, and copies of superblock and descriptors are written into the new
//!    groups, behind the end of the file system. The device is flushed.
//! 2. One transaction changes the superblock, the descriptors, the bitmap of a short last group,
//!    and the lists of the resize inode. The tables in memory have grown before; the geometry
//!    changes within the transaction's handle.
//! 3. When the transaction is durable, its blocks are written home, and space and inodes of the new
//!    groups become available.
//!
//! After the last step the copies in old groups are written.
//!
//! # Crashes
//! Until the commit of step 2 the old size counts. Nothing refers to bytes behind its end. From
//! then on the new one counts, and everything that it refers to is durable. The transaction has no
//! block behind the old end: none can be allocated there before it is durable. The superblock is
//! written home after all other blocks: e2fsck reads the descriptors that it counts before it
//! replays the log, and takes a copy of the old size if they are wrong. Copies of the
//! superblock may have the old size; programs read them only when the first one is lost.
//!
//! Without a journal a crash in step 2 leaves a file system that must be repaired, as each change
//! does.
//!
//! # Locking
//! The lock of freezing is held: one thread grows the file system at a time, and it does not while
//! a freeze lasts. Other operations go on. An interruption is looked for before each step and
//! between batches of new groups, where nothing is half done.

mod writes;

use super::Operations;
use crate::alloc::Alloc;
use crate::bounds::check_interrupt;
use crate::error::{Error, Result};
use crate::inode::{Inode, Step};
use extant_blocks::BlockDevice;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::features::Compat;
use extant_format::growth::{DescriptorPlaces, Growth, GrowthError, KeptBlocks, NewGroups};
use extant_format::indirect::{DIND, pointer};
use extant_format::types::{BlockNr, GroupNr, InodeNr};
use extant_journal::Seal;
use std::io::ErrorKind;
use std::ops::Range;

/// Credits of the superblock and of the resize inode with its list.
const OWN_CREDITS: u32 = 3;

/// A larger size, as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowTo {
    /// The length of the device, which others may have made longer.
    Device,
    /// A number of bytes.
    Bytes(u64),
    /// Bytes beyond the present size.
    MoreBytes(u64),
    /// A number of blocks.
    Blocks(u64),
}

/// The size of a file system, its own structures included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsSize {
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
}

impl FsSize {
    fn of(geometry: &Geometry) -> FsSize {
        let Geometry { block_size, blocks_count, inodes_count, .. } = *geometry;
        FsSize { block_size, blocks: blocks_count, inodes: inodes_count.into() }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }
}

impl Operations {
    /// As [`Operations::grow_to`], in bytes.
    ///
    /// # Errors
    /// As [`Operations::grow_to`].
    pub fn grow(&self, bytes: u64) -> Result<u64> {
        self.grow_to(GrowTo::Bytes(bytes))
    }

    /// Makes the file system as large as a size allows: whole clusters, without a last group that
    /// would be too short for its own tables. A shorter device is extended before. Reads, writes
    /// and all other operations go on meanwhile. Returns the bytes of the new size, which is the
    /// present one if that is not smaller.
    ///
    /// After an error, the file system has the old size, or that of a part of the growth. A device
    /// that was extended stays longer.
    ///
    /// # Errors
    /// `Invalid` for a size below the present one, beyond the limits of the format, or beyond a
    /// device that cannot be extended; `Unsupported` for a size or file system that can only grow
    /// while nothing has it open; EROFS; EINTR between two steps; `Corrupt`; `Io`.
    pub fn grow_to(&self, to: GrowTo) -> Result<u64> {
        self.alive()?;
        self.st().writable()?;
        let _one = self.freezing.exclude();
        // A freeze, or an unmount, may have come before.
        self.alive()?;
        self.st().writable()?;
        self.record_corruption(self.bytes_of(to).and_then(|bytes| self.grow_locked(bytes)))
    }

    /// Returns the present size.
    pub fn size(&self) -> FsSize {
        FsSize::of(&self.st().geo)
    }

    /// Returns the size that [`Operations::grow_to`] would reach if the device can have it.
    ///
    /// # Errors
    /// As [`Operations::grow_to`], as far as they depend on the size.
    pub fn planned_size(&self, to: GrowTo) -> Result<FsSize> {
        self.alive()?;
        self.st().writable()?;
        let bytes = self.bytes_of(to)?;
        Ok(FsSize::of(&self.target(bytes)?.geometry))
    }

    fn bytes_of(&self, to: GrowTo) -> Result<u64> {
        let present = self.size();
        Ok(match to {
            GrowTo::Device => self.st().mounted.refresh_len()?,
            GrowTo::Bytes(bytes) => bytes,
            GrowTo::MoreBytes(more) => present.bytes().saturating_add(more),
            GrowTo::Blocks(blocks) => blocks.saturating_mul(present.block_size.into()),
        })
    }

    /// Plans a size in bytes, which must not be below the present one.
    fn target(&self, bytes: u64) -> Result<Growth> {
        let present = self.size();
        let blocks = bytes >> self.st().geo.block_bits;
        if blocks < present.blocks {
            return Err(Error::Invalid(format!(
                "it has {} bytes, and gets smaller only while nothing has it open",
                present.bytes()
            )));
        }
        self.planned(blocks)
    }

    fn grow_locked(&self, bytes: u64) -> Result<u64> {
        let st = self.st();
        let bits = st.geo.block_bits;
        let last = self.target(bytes)?;
        if last.geometry.blocks_count == st.geo.blocks_count {
            return Ok(st.geo.blocks_count << bits);
        }
        self.extend_device(last.geometry.blocks_count << bits)?;
        let first = st.geo.groups_count.saturating_sub(1) / st.geo.descs_per_block();
        let mut grown = Ok(());
        st.journal.write_home_last(Some(st.groups.superblock_nr()));
        while grown.is_ok() && st.geo.blocks_count < last.geometry.blocks_count {
            let before = st.geo.blocks_count;
            let end = end_of_step(&st.geo).min(last.geometry.blocks_count);
            grown = self.planned(end).and_then(|growth| self.grow_step(growth));
            if st.geo.blocks_count == before {
                break;
            }
        }
        st.journal.write_home_last(None);
        // If changes have stopped, the size on the device is not known.
        if st.writable().is_ok() && !st.journal.is_aborted() {
            grown = grown.and(self.write_old_copies(first));
        }
        grown?;
        Ok(st.geo.blocks_count << bits)
    }

    fn planned(&self, blocks: u64) -> Result<Growth> {
        let st = self.st();
        let superblock = st.groups.superblock();
        Growth::new(&superblock, &st.geo, blocks, DescriptorPlaces::KeptBlocks).map_err(refused)
    }

    fn extend_device(&self, bytes: u64) -> Result<()> {
        let device = &self.st().mounted;
        // Others may have extended it. It is never cut.
        if device.refresh_len()? >= bytes {
            return Ok(());
        }
        device.set_len(bytes).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => Error::Invalid(format!(
                "{} has only {} bytes: make it larger first, a block device at any time, and \
                 partitions and disk images while nothing has them open",
                device.name(),
                device.len()
            )),
            _ => error.into(),
        })
    }

    /// Grows up to a block that the present descriptor blocks, or one more, have room for.
    fn grow_step(&self, mut growth: Growth) -> Result<()> {
        check_interrupt()?;
        let st = self.st();
        let old: Geometry = *st.geo;
        let mut groups = NewGroups::new(growth.geometry, old.groups_count).map_err(refused)?;
        growth.count_overhead(&groups, 0);
        let tail = Tail::of(&old, &growth.geometry);
        let lists = self.lists(&old, &growth.geometry)?;
        let credits = self.step_credits(&growth.geometry, lists.as_ref());
        if credits > st.journal.max_credits() {
            return Err(offline(
                "its journal is too small for the lists of the blocks that are kept for \
                 descriptors",
            ));
        }
        self.write_new_groups(&growth, &mut groups)?;
        let resize = lists.map(|lists| Ok::<_, Error>((Inode::load(st, InodeNr::RESIZE)?, lists)));
        let resize = resize.transpose()?;
        let mut tx = st.begin(credits)?;
        if let Some(tail) = &tail {
            tx.obtain(|h| st.alloc.open_tail(h, tail.group, &tail.clusters))?;
        }
        st.alloc.append_groups(growth.geometry.groups_count);
        tx.step(|step| {
            if let Some((inode, lists)) = &resize {
                lists.write(step)?;
                step.edit(inode)?.disk.blocks = lists.new.sectors();
            }
            st.groups.grow(step.handle(), &growth, &groups)?;
            if let Some(tail) = &tail {
                st.alloc.free_tail(step.handle(), tail.group, &tail.clusters)?;
            }
            Ok(())
        })?;
        drop(tx);
        st.journal.sync()?;
        // At once: the kernel counts the groups before it replays a log.
        st.journal.checkpoint_all()?;
        st.alloc.publish_groups();
        Ok(())
    }

    fn step_credits(&self, larger: &Geometry, lists: Option<&Lists>) -> u32 {
        let st = self.st();
        let desc_blocks = st.groups.changed_desc_blocks(larger).len();
        let lists = lists.map_or(0, |lists| lists.places().count());
        let blocks = u32::try_from(desc_blocks + lists).unwrap_or(u32::MAX);
        // The superblock is paid for by the last group, too.
        let tail = Alloc::TAIL_CREDITS;
        blocks.saturating_add(OWN_CREDITS + tail + st.owner_credits())
    }

    /// Returns the lists of the resize inode after a step, if they change. Reads and checks those
    /// before.
    fn lists(&self, old: &Geometry, new: &Geometry) -> Result<Option<Lists>> {
        let kept = [old, new].map(KeptBlocks::of);
        let [before, after] = kept;
        let same = !after.has_other_copies(&before) && old.desc_blocks == new.desc_blocks;
        if same || !old.compat(Compat::RESIZE_INODE) {
            return Ok(None);
        }
        after.check().map_err(refused)?;
        let st = self.st();
        let bad = |field: &'static str, block: u64| {
            let error = Corrupt::new("resize inode").field(field).found(block);
            Error::from(error.at_inode(InodeNr::RESIZE))
        };
        let inode = Inode::load(st, InodeNr::RESIZE)?;
        let list = u64::from(pointer(&inode.body().disk.i_block, DIND));
        let zone = st.groups.zone();
        if !old.data_range_valid(BlockNr(list), 1) || zone.holds_metadata(list..list + 1) {
            return Err(bad("double-indirect block", list));
        }
        // No descriptor may name a kept block as a bitmap or a part of a table.
        let kept = before.places();
        if zone.holds_metadata(kept.clone()) {
            return Err(bad("kept blocks in use", kept.start));
        }
        let block = st.cache.read::<Error>(list, |_| Ok(()))?;
        if block.read()[..] != before.list() {
            return Err(bad("list of kept blocks", list));
        }
        Ok(Some(Lists { block: list, before, new: after }))
    }
}

/// The clusters that a short last group gets.
struct Tail {
    group: GroupNr,
    clusters: Range<u32>,
}

impl Tail {
    fn of(old: &Geometry, new: &Geometry) -> Option<Tail> {
        let group = GroupNr(old.groups_count.saturating_sub(1));
        let clusters = old.clusters_in_group(group)..new.clusters_in_group(group);
        (!clusters.is_empty()).then_some(Tail { group, clusters })
    }
}

/// The lists of the resize inode, which change.
struct Lists {
    /// The inode's double-indirect block.
    block: u64,
    before: KeptBlocks,
    new: KeptBlocks,
}

impl Lists {
    /// Kept blocks with other copies than before.
    fn places(&self) -> impl Iterator<Item = u64> {
        let changed = self.new.has_other_copies(&self.before);
        self.new.places().filter(move |_| changed)
    }

    fn write(&self, step: &mut Step<'_>) -> Result<()> {
        let cache = &step.table().cache;
        for place in self.places() {
            let bytes = self.new.copies_of(place);
            step.write(&cache.fresh(place), Seal::NONE)?.copy_from_slice(&bytes);
        }
        let bytes = self.new.list();
        step.write(&cache.fresh(self.block), Seal::NONE)?.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Returns one behind the last block of a step: that of the last group with a descriptor in the
/// block that gets the next one.
fn end_of_step(geo: &Geometry) -> u64 {
    let per_block = geo.descs_per_block();
    let groups = (u64::from(geo.groups_count / per_block) + 1) * u64::from(per_block);
    let blocks = groups.saturating_mul(geo.blocks_per_group.into());
    blocks.saturating_add(geo.first_data_block.into())
}

/// Returns the error of a size that only a file system which nothing has open can get.
fn offline(why: &str) -> Error {
    Error::Unsupported(format!("{why}; unmount it, and run `extant resize` on its image or device"))
}

fn refused(error: GrowthError) -> Error {
    match error {
        GrowthError::Corrupt(corrupt) => corrupt.into(),
        GrowthError::Limit { .. } => Error::Invalid(error.to_string()),
        GrowthError::SmallGroups => Error::Unsupported(error.to_string()),
        _ => offline(&error.to_string()),
    }
}
