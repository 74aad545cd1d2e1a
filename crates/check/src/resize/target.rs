//! The superblock and the geometry of a new size.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

use super::ResizeError;
use crate::passes::superblocks::Primary;
use extant_format::growth::{DescriptorPlaces, Growth, group_count, least_blocks, set_size};
use extant_format::{Compat, Geometry, GroupNr, Superblock};

/// The superblock and the geometry of a new size. Counts of free blocks and inodes are old.
#[derive(Clone, Debug)]
pub struct Target {
    pub superblock: Superblock,
    pub geometry: Geometry,
}

impl Target {
    /// Finds the largest size of at most `blocks` blocks, and at least the present one.
    pub fn new(old: &Primary, blocks: u64) -> Result<Target, ResizeError> {
        let places = DescriptorPlaces::NewGroups;
        let Growth { superblock, geometry } =
            Growth::new(&old.superblock, &old.geometry, blocks, places)?;
        Ok(Target { superblock, geometry })
    }

    /// Finds the largest size of at most `blocks` blocks, which are fewer than the present ones.
    pub fn smaller(old: &Primary, blocks: u64) -> Result<Target, ResizeError> {
        let geometry = &old.geometry;
        let mut blocks = blocks >> geometry.cluster_bits << geometry.cluster_bits;
        loop {
            if blocks <= u64::from(geometry.first_data_block) {
                return Err(ResizeError::Full("no block is left for its own structures".into()));
            }
            let target = Target::cut(old, blocks)?;
            let last = GroupNr(target.geometry.groups_count - 1);
            let short = u64::from(target.geometry.blocks_in_group(last));
            if last.0 == 0 || short >= least_blocks(&target.geometry) {
                return Ok(target);
            }
            blocks = target.geometry.first_block_of_group(last).0;
        }
    }

    fn cut(old: &Primary, blocks: u64) -> Result<Target, ResizeError> {
        let geometry = &old.geometry;
        let mut superblock = old.superblock.clone();
        let groups = group_count(geometry, blocks);
        set_size(&mut superblock, geometry, blocks);
        leave_descriptors(&mut superblock, geometry, groups);
        let copies = geometry.backup_bgs;
        superblock.set_backup_bgs(copies.map(|nr| if u64::from(nr) < groups { nr } else { 0 }));
        let geometry = Geometry::new(&superblock)?;
        Ok(Target { superblock, geometry })
    }
}

/// Leaves descriptor blocks of so many groups. The resize inode keeps the others.
fn leave_descriptors(superblock: &mut Superblock, old: &Geometry, groups: u64) {
    let needed = groups.div_ceil(old.descs_per_block().into()) as u32;
    if old.has_meta_bg() {
        superblock.set_first_meta_bg(old.first_meta_bg.min(needed));
    } else if old.compat(Compat::RESIZE_INODE) {
        let kept = u32::from(old.reserved_gdt_blocks) + (old.desc_blocks - needed);
        superblock.set_reserved_gdt_blocks(kept.min(old.block_size / 4) as u16);
    }
}
