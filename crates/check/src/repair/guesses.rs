//! Superblocks that may be meant, where no copy tells: values that follow from other fields, and
//! features that other fields speak for.

use super::facts::{Fact, differing};
use crate::reader::Reader;
use extant_blocks::BlockDevice;
use extant_format::{
    Compat, Feature, Geometry, GroupDesc, GroupNr, Incompat, InodeNr, RoCompat, Superblock,
};

/// The first ordinary inode that all programs make.
const FIRST_INO: u32 = 11;

/// Sizes of inodes that programs make by default.
const INODE_SIZES: [u16; 2] = [256, 128];

/// Features whose absence or presence no other field may tell.
const FEATURES: [Feature; 4] = [
    Feature::Incompat(Incompat::FILETYPE),
    Feature::RoCompat(RoCompat::GDT_CSUM),
    Feature::RoCompat(RoCompat::SPARSE_SUPER),
    Feature::Incompat(Incompat::FLEX_BG),
];

/// Returns facts to try, each with a superblock that has it.
pub fn guesses(device: &dyn BlockDevice, sb: &Superblock) -> Vec<(Fact, Superblock)> {
    let of_device = reserved(device, sb).into_iter().chain(length(device, sb));
    let all = numbers(sb).into_iter().chain(of_device).chain(features(sb));
    all.flat_map(|source| {
        differing(sb, &source).into_iter().map(move |fact| (fact, source.clone()))
    })
    .collect()
}

/// Returns whether a superblock names the device of a journal. One flipped bit does not.
pub fn names_device(sb: &Superblock) -> bool {
    u128::from_ne_bytes(sb.journal_uuid()).count_ones() > 1 || sb.journal_dev().count_ones() > 1
}

fn edited(sb: &Superblock, edit: impl FnOnce(&mut Superblock)) -> Superblock {
    let mut edited = sb.clone();
    edit(&mut edited);
    edited
}

/// Returns superblocks with a number that follows from others.
fn numbers(sb: &Superblock) -> Vec<Superblock> {
    let mut list = Vec::new();
    if sb.rev_level() != 1 && sb.features() != Default::default() {
        list.push(edited(sb, |sb| sb.set_rev_level(1)));
    }
    let has_bigalloc = sb.ro_compat().contains(RoCompat::BIGALLOC);
    if !has_bigalloc && sb.log_cluster_size() != sb.log_block_size() {
        list.push(edited(sb, |sb| {
            sb.set_log_block_size(sb.log_cluster_size());
            sb.set_first_data_block(u32::from(sb.log_cluster_size() == 0));
        }));
        list.push(edited(sb, |sb| sb.set_log_cluster_size(sb.log_block_size())));
    }
    let first = u32::from(sb.log_block_size() == 0 && !has_bigalloc);
    if sb.first_data_block() != first {
        list.push(edited(sb, |sb| sb.set_first_data_block(first)));
    }
    if !has_bigalloc && sb.clusters_per_group() != sb.blocks_per_group() {
        list.push(edited(sb, |sb| sb.set_blocks_per_group(sb.clusters_per_group())));
    }
    let blocks = sb.blocks_count().saturating_sub(sb.first_data_block().into());
    let groups = blocks.div_ceil(u64::from(sb.blocks_per_group().max(1)));
    let groups = u32::try_from(groups).unwrap_or(u32::MAX).max(1);
    let inodes = groups.checked_mul(sb.inodes_per_group());
    if inodes != Some(sb.inodes_count()) {
        list.extend(inodes.map(|inodes| edited(sb, |sb| sb.set_inodes_count(inodes))));
        let each = sb.inodes_count().checked_div(groups).unwrap_or(0);
        list.push(edited(sb, |sb| sb.set_inodes_per_group(each)));
    }
    if !INODE_SIZES.contains(&sb.inode_size()) {
        let sizes = INODE_SIZES.iter().map(|size| edited(sb, |sb| sb.set_inode_size(*size)));
        list.extend(sizes);
    }
    if sb.first_ino() != FIRST_INO {
        list.push(edited(sb, |sb| sb.set_first_ino(FIRST_INO)));
    }
    let has_journal = sb.compat().contains(Compat::HAS_JOURNAL);
    if has_journal && sb.journal_inum() == InodeNr::NONE && !names_device(sb) {
        list.push(edited(sb, |sb| sb.set_journal_inum(InodeNr::JOURNAL)));
    }
    if sb.creator_os() != 0 {
        list.push(edited(sb, |sb| sb.set_creator_os(0)));
    }
    list
}

/// Returns the superblock with as many reserved descriptor blocks as lie between the descriptors
/// and the bitmaps of group 0.
fn reserved(device: &dyn BlockDevice, sb: &Superblock) -> Option<Superblock> {
    let without = edited(sb, |sb| sb.set_reserved_gdt_blocks(0));
    let geometry = Geometry::new(&without).ok()?;
    let bytes = Reader::new(device, geometry).block(geometry.gdt_block(0).0)?;
    let desc = GroupDesc::decode_unverified(&bytes, &geometry);
    let lowest = desc.block_bitmap.min(desc.inode_bitmap);
    let between = lowest.checked_sub(geometry.base_meta(GroupNr(0)).descriptors.end)?;
    let between = u16::try_from(between).ok()?;
    let differs = between != sb.reserved_gdt_blocks();
    differs.then(|| edited(sb, |sb| sb.set_reserved_gdt_blocks(between)))
}

/// Returns the superblock with as many blocks as the device has.
fn length(device: &dyn BlockDevice, sb: &Superblock) -> Option<Superblock> {
    let size = u64::from(sb.block_size());
    let blocks = device.len().checked_div(size)?;
    (blocks < sb.blocks_count()).then(|| {
        edited(sb, |sb| {
            sb.raw_mut().blocks_count_lo.set(blocks as u32);
            sb.raw_mut().blocks_count_hi.set((blocks >> 32) as u32);
        })
    })
}

/// Returns superblocks with one feature more or less.
fn features(sb: &Superblock) -> Vec<Superblock> {
    let has = |ino: InodeNr| ino != InodeNr::NONE;
    let has_journal = has(sb.journal_inum()) || names_device(sb);
    let quota = has(sb.usr_quota_inum()) || has(sb.grp_quota_inum());
    let told = [
        (Feature::Compat(Compat::HAS_JOURNAL), has_journal),
        (Feature::RoCompat(RoCompat::QUOTA), quota),
        (Feature::Compat(Compat::ORPHAN_FILE), has(sb.orphan_file_inum())),
        (Feature::Incompat(Incompat::MMP), sb.mmp_block().0 != 0),
        (Feature::Incompat(Incompat::CASEFOLD), sb.encoding() != 0),
    ];
    let features = sb.features();
    let told = told.into_iter().filter(|(feature, on)| features.has(*feature) != *on);
    let untold = FEATURES.into_iter().map(|feature| (feature, !features.has(feature)));
    told.chain(untold)
        .map(|(feature, on)| {
            edited(sb, |sb| {
                let mut features = features;
                features.set(feature, on);
                sb.set_features(features);
            })
        })
        .collect()
}
