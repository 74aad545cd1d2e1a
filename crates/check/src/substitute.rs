//! Copies of the superblock and of group descriptors in place of damaged ones, in memory, so that a
//! damaged image can be read.
//!
//! For example, the first MiB of an image was overwritten. Its superblock and all descriptors come
//! from group 1 then, and all files whose content and inodes lie elsewhere can be read.
//!
//! Copies are old: their counts of free blocks and inodes are those of the last resize or check.
//! Places do not change with time, and only places matter to readers.

use crate::passes::superblocks::Primary;
use crate::reader::Reader;
use crate::repair::{RepairError, choose_superblock};
use crate::view::Source;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{
    BlockNr, Compat, Corrupt, Geometry, GroupDesc, GroupFlags, GroupNr, Incompat, Superblock,
};
use std::fmt;
use std::sync::Arc;

/// Bound on the replaced blocks, in bytes: the descriptors of 128 TiB in blocks of 4 KiB.
const MAX_BYTES: usize = 64 << 20;

/// Copies of a block of descriptors that are read at most.
const MAX_COPIES: usize = 8;

/// The superblock that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Super {
    Intact,
    /// The primary one, whose checksum is wrong: no copy has another layout.
    Believed,
    Copied,
}

/// A device whose damaged superblock and descriptors are replaced by copies. Nothing is written to
/// the device below it.
#[derive(Debug)]
pub struct Substitutes {
    device: Arc<dyn BlockDevice>,
    superblock: Super,
    descriptors: u64,
    missing: u64,
}

impl Substitutes {
    /// Looks for damage that copies can replace. `journal` is the external journal, if there is
    /// one.
    ///
    /// # Errors
    /// [`RepairError::NoSuperblock`] if neither the superblock nor a copy is usable, a corruption
    /// for a descriptor without a usable copy, and those of the device.
    pub fn of(
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Substitutes, RepairError> {
        let (mut superblock, is_copy) = choose_superblock(&**device)?;
        let geometry = Geometry::new(&superblock)?;
        let len = geometry.blocks_count.saturating_mul(geometry.block_size.into());
        let missing = len.saturating_sub(device.len());
        let size = geometry.block_size as usize;
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size, MAX_BYTES));
        let read = match superblock.verify_checksum() {
            _ if is_copy => Super::Copied,
            Ok(()) => Super::Intact,
            Err(_) => Super::Believed,
        };
        if read != Super::Intact {
            overlay.write_all_at(&superblock.encode(), SUPERBLOCK_OFFSET)?;
        }
        let descriptors = replace_descriptors(&overlay, &geometry)?;
        if is_copy && needs_recovery(&overlay, journal, &superblock, geometry) {
            mark(&mut superblock);
            overlay.write_all_at(&superblock.encode(), SUPERBLOCK_OFFSET)?;
        }
        Ok(Substitutes { device: overlay, superblock: read, descriptors, missing })
    }

    /// Returns the device to read from. It is as long as the damaged one, which may be too short.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// Returns whether nothing was replaced and nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.superblock == Super::Intact && self.descriptors == 0 && self.missing == 0
    }
}

/// Lists replaced and missing parts.
impl fmt::Display for Substitutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let superblock = match self.superblock {
            Super::Intact => None,
            Super::Believed => Some("the superblock is used in spite of its checksum".to_owned()),
            Super::Copied => Some("the superblock is replaced by a copy".to_owned()),
        };
        let descriptors = (self.descriptors > 0).then(|| {
            format!("{} of the group descriptors are replaced by copies", self.descriptors)
        });
        let missing =
            (self.missing > 0).then(|| format!("the last {} bytes are missing", self.missing));
        let parts: Vec<_> = [superblock, descriptors, missing].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Returns whether the log has changes. A copy of the superblock does not tell.
fn needs_recovery(
    device: &Arc<OverlayDevice>,
    journal: Option<&Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    geometry: Geometry,
) -> bool {
    let device: Arc<dyn BlockDevice> = device.clone();
    let primary = Primary { superblock: superblock.clone(), geometry };
    let has_journal = superblock.compat().contains(Compat::HAS_JOURNAL);
    let source = Source { device: &device, journal, as_is: true };
    let log = has_journal.then(|| source.open_log(&primary).ok().flatten()).flatten();
    log.is_some_and(|log| log.needs_recovery())
}

fn mark(superblock: &mut Superblock) {
    let mut features = superblock.features();
    features.incompat.insert(Incompat::RECOVER);
    superblock.set_features(features);
}

/// Replaces damaged descriptors. Returns their number.
fn replace_descriptors(device: &OverlayDevice, geometry: &Geometry) -> Result<u64, RepairError> {
    let reader = Reader::new(device, *geometry);
    let mut replaced = 0u64;
    for index in 0..geometry.desc_blocks {
        let BlockNr(nr) = geometry.gdt_block(index);
        let mut block = reader.block(nr).unwrap_or_else(|| reader.buffer());
        let first = index.saturating_mul(geometry.descs_per_block());
        let groups = (first..first.saturating_add(geometry.descs_in_block(index))).map(GroupNr);
        let bad: Vec<GroupNr> =
            groups.filter(|group| descriptor(&block, geometry, *group).is_none()).collect();
        if bad.is_empty() {
            continue;
        }
        let backups = geometry.gdt_backups(index).take(MAX_COPIES);
        let copies: Vec<Vec<u8>> = backups.filter_map(|BlockNr(nr)| reader.block(nr)).collect();
        for group in bad {
            let copy = copies.iter().find_map(|copy| descriptor(copy, geometry, group));
            let lost = || Corrupt::new("group descriptor, and all its copies").at_group(group);
            let copy = copy.ok_or_else(lost)?;
            let (_, offset) = geometry.desc_location(group);
            let slot = block.get_mut(offset..).ok_or_else(lost)?;
            without_shortcuts(copy).encode(slot, geometry, group);
            replaced = replaced.saturating_add(1);
        }
        device.write_all_at(&block, nr.saturating_mul(geometry.block_size.into()))?;
    }
    Ok(replaced)
}

/// Returns the descriptor of a group in a block of descriptors, if it is usable.
fn descriptor(block: &[u8], geometry: &Geometry, group: GroupNr) -> Option<GroupDesc> {
    let (_, offset) = geometry.desc_location(group);
    let desc = GroupDesc::decode(block.get(offset..)?, geometry, group).ok()?;
    let table = u64::from(geometry.inode_table_blocks());
    let reserved = geometry.base_meta(GroupNr(0)).descriptors.end;
    let parts = [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)];
    let is_placed =
        |(start, len)| geometry.data_range_valid(BlockNr(start), len) && start >= reserved;
    let counts = desc.free_clusters <= geometry.clusters_in_group(group)
        && desc.used_dirs <= geometry.inodes_per_group;
    (counts && parts.into_iter().all(is_placed)).then_some(desc)
}

/// Returns a copy without statements about unused inodes, which may be in use since.
fn without_shortcuts(mut desc: GroupDesc) -> GroupDesc {
    desc.flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    desc.itable_unused = 0;
    desc
}
