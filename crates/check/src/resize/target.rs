//! The superblock and the geometry of a new size.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

use super::ResizeError;
use super::groups::least_blocks;
use crate::passes::superblocks::Primary;
use extant_format::{Compat, Geometry, GroupNr, Incompat, Superblock};

/// The superblock and the geometry of a new size. Counts of free blocks and inodes are old.
#[derive(Clone, Debug)]
pub struct Target {
    pub superblock: Superblock,
    pub geometry: Geometry,
}

impl Target {
    /// Finds the largest size of at most `blocks` blocks, and at least the present one.
    pub fn new(old: &Primary, blocks: u64) -> Result<Target, ResizeError> {
        let geometry = &old.geometry;
        // The present end may lie within a cluster.
        let cut = blocks >> geometry.cluster_bits << geometry.cluster_bits;
        let mut blocks = cut.max(geometry.blocks_count);
        loop {
            check_limits(geometry, blocks)?;
            let target = Target::of(old, blocks)?;
            let last = GroupNr(target.geometry.groups_count - 1);
            let is_new = last.0 >= geometry.groups_count;
            let short = u64::from(target.geometry.blocks_in_group(last));
            if !is_new || short >= least_blocks(&target.geometry) {
                return Ok(target);
            }
            blocks = target.geometry.first_block_of_group(last).0.max(geometry.blocks_count);
        }
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
        superblock.set_blocks_count(blocks);
        superblock.set_inodes_count((groups * u64::from(geometry.inodes_per_group)) as u32);
        leave_descriptors(&mut superblock, geometry, groups);
        let copies = geometry.backup_bgs;
        superblock.set_backup_bgs(copies.map(|nr| if u64::from(nr) < groups { nr } else { 0 }));
        let geometry = set_reserved(&mut superblock, old, blocks)?;
        Ok(Target { superblock, geometry })
    }

    fn of(old: &Primary, blocks: u64) -> Result<Target, ResizeError> {
        let geometry = &old.geometry;
        let mut superblock = old.superblock.clone();
        let groups = group_count(geometry, blocks);
        superblock.set_blocks_count(blocks);
        superblock.set_inodes_count((groups * u64::from(geometry.inodes_per_group)) as u32);
        place_descriptors(&mut superblock, geometry, groups)?;
        let geometry = set_reserved(&mut superblock, old, blocks)?;
        Ok(Target { superblock, geometry })
    }
}

/// Sets the reserved blocks to the same share of all. Returns the geometry.
fn set_reserved(
    superblock: &mut Superblock,
    old: &Primary,
    blocks: u64,
) -> Result<Geometry, ResizeError> {
    let share = u128::from(old.superblock.r_blocks_count()) * u128::from(blocks);
    let share = share / u128::from(old.geometry.blocks_count);
    superblock.set_r_blocks_count(share.min(u128::from(blocks)) as u64);
    Ok(Geometry::new(superblock)?)
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

fn bytes(geometry: &Geometry, blocks: u64) -> u64 {
    blocks.saturating_mul(geometry.block_size.into())
}

fn group_count(geometry: &Geometry, blocks: u64) -> u64 {
    let data = blocks - u64::from(geometry.first_data_block);
    data.div_ceil(geometry.blocks_per_group.into())
}

fn check_limits(geometry: &Geometry, blocks: u64) -> Result<(), ResizeError> {
    let refuse = |most: u64, why: &str| {
        let most = bytes(geometry, most);
        Err(ResizeError::Size(format!("it cannot have more than {most} bytes: {why}")))
    };
    if !geometry.incompat(Incompat::BIT64) && blocks > u64::from(u32::MAX) {
        return refuse(u32::MAX.into(), "more than 2^32 blocks need the feature 64bit");
    }
    let groups = u64::from(u32::MAX / geometry.inodes_per_group);
    let most = u64::from(geometry.first_data_block) + groups * u64::from(geometry.blocks_per_group);
    if blocks > most {
        return refuse(most, "it would have more than 2^32 inodes");
    }
    Ok(())
}

/// Finds places for the descriptors of so many groups: those that the old blocks cannot have lie in
/// the new groups. The blocks that the resize inode keeps are not used for them: see the head of
/// the module.
fn place_descriptors(
    superblock: &mut Superblock,
    old: &Geometry,
    groups: u64,
) -> Result<(), ResizeError> {
    let needed = groups.div_ceil(old.descs_per_block().into());
    let has_inode = old.compat(Compat::RESIZE_INODE);
    // Pointers of the resize inode have 32 bits.
    let wide = has_inode && superblock.blocks_count() > u64::from(u32::MAX);
    if old.has_meta_bg() || needed == u64::from(old.desc_blocks) && !wide {
        return Ok(());
    }
    if old.has_bigalloc() && (has_inode || old.reserved_gdt_blocks > 0) {
        return Err(ResizeError::Size(format!(
            "it would have {groups} groups, with more than {} blocks of descriptors; this is not \
             supported with bigalloc and resize_inode",
            old.desc_blocks
        )));
    }
    let mut features = superblock.features();
    features.compat.remove(Compat::RESIZE_INODE);
    features.incompat.insert(Incompat::META_BG);
    superblock.upgrade_revision();
    superblock.set_features(features);
    superblock.set_first_meta_bg(old.desc_blocks);
    superblock.set_reserved_gdt_blocks(0);
    Ok(())
}
