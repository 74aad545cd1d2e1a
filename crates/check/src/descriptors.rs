//! Copies of group descriptors, which replace damaged ones.
//!
//! Copies are old: their counts of free blocks and inodes are those of the last resize or check.
//! Places do not change with time.

use crate::finding::{Finding, FindingCode, FindingPlace};
use crate::reader::Reader;
use extant_format::inode::verify_inode;
use extant_format::{BlockNr, Geometry, GroupDesc, GroupFlags, GroupNr, Incompat, Inode, InodeNr};
use std::ops::Range;

/// Maximum number of copies that are read of a block of descriptors.
const MAX_COPIES: usize = 8;

/// Maximum number of groups with wrong checksums of which each is corrected. More have another
/// cause, such as a wrong UUID.
const MAX_CORRECTED: usize = 64;

/// The copies of a block of descriptors.
pub struct DescriptorCopies {
    blocks: Vec<Vec<u8>>,
}

impl DescriptorCopies {
    /// Reads the copies of a block of descriptors, those that can be read.
    pub fn read(reader: &Reader<'_>, index: u32) -> DescriptorCopies {
        let backups = reader.geometry.gdt_backups(index).take(MAX_COPIES);
        DescriptorCopies { blocks: backups.filter_map(|BlockNr(nr)| reader.block(nr)).collect() }
    }

    /// Returns a usable copy of the descriptor of a group, without statements about blocks and
    /// inodes that were never used: they may be in use since.
    pub fn find(&self, geometry: &Geometry, group: GroupNr) -> Option<GroupDesc> {
        let mut copy = self.find_as_is(geometry, group)?;
        forget_unused(&mut copy);
        Some(copy)
    }

    fn find_as_is(&self, geometry: &Geometry, group: GroupNr) -> Option<GroupDesc> {
        self.blocks.iter().find_map(|block| usable(block, geometry, group))
    }

    /// Returns whether a copy tells the same places and the same statements about blocks and inodes
    /// that were never used.
    fn agree(&self, desc: &GroupDesc, geometry: &Geometry, group: GroupNr) -> bool {
        let facts = |desc: &GroupDesc| (places(desc), desc.flags, desc.itable_unused);
        self.find_as_is(geometry, group).is_some_and(|copy| facts(&copy) == facts(desc))
    }
}

/// Returns the groups whose descriptors are in a block of descriptors.
pub fn groups_of(geometry: &Geometry, index: u32) -> impl Iterator<Item = GroupNr> + use<> {
    let first = index.saturating_mul(geometry.descs_per_block());
    let range: Range<u32> = first..first.saturating_add(geometry.descs_in_block(index));
    range.map(GroupNr)
}

/// A group, and a copy of its descriptor that has other places.
#[derive(Clone, Copy)]
pub struct ContestedGroup {
    group: GroupNr,
    copy: GroupDesc,
}

/// Returns the places of bitmaps and table.
fn places(desc: &GroupDesc) -> [u64; 3] {
    [desc.block_bitmap, desc.inode_bitmap, desc.inode_table]
}

/// Returns the number of blocks with descriptors of groups that begin on the device.
fn block_count(reader: &Reader<'_>) -> u32 {
    let last = (reader.group_count() as u32).checked_sub(1).map(GroupNr);
    last.map_or(0, |last| reader.geometry.desc_location(last).0.saturating_add(1))
}

/// Returns the groups whose copies have other places.
pub fn contested(reader: &Reader<'_>) -> Vec<ContestedGroup> {
    let geometry = &reader.geometry;
    let mut list = Vec::new();
    for index in 0..block_count(reader) {
        let Some(bytes) = reader.block(geometry.gdt_block(index).0) else { continue };
        let copies = DescriptorCopies::read(reader, index);
        for group in groups_of(geometry, index).filter(|group| reader.begins_on_device(*group)) {
            let (_, offset) = geometry.desc_location(group);
            let (Some(raw), Some(copy)) = (bytes.get(offset..), copies.find(geometry, group))
            else {
                continue;
            };
            let desc = GroupDesc::decode_unverified(raw, geometry);
            if places(&desc) != places(&copy) {
                list.push(ContestedGroup { group, copy });
            }
        }
    }
    list
}

/// Returns the first group with another place of its table, if there is no root directory where the
/// table is, and one where it would be without one flipped bit.
pub fn with_root(reader: &Reader<'_>) -> Option<ContestedGroup> {
    let geometry = &reader.geometry;
    let group = GroupNr(0);
    let (index, offset) = geometry.desc_location(group);
    let bytes = reader.block(geometry.gdt_block(index).0)?;
    let desc = GroupDesc::decode_unverified(bytes.get(offset..)?, geometry);
    let has_root = |desc: &GroupDesc| {
        let (_, index) = geometry.inode_location(InodeNr::ROOT).ok()?;
        let (block, offset) = geometry.inode_slot(index);
        let bytes = reader.block(desc.inode_table.checked_add(block.into())?)?;
        let slot = bytes.get(offset..)?.get(..geometry.inode_size.into())?;
        let inode = Inode::decode_unverified(slot, geometry, InodeNr::ROOT).ok()?;
        (inode.is_dir() && inode.links > 1 && inode.dtime == 0).then_some(())
    };
    if has_root(&desc).is_some() {
        return None;
    }
    let flipped = (0..32).map(|bit| GroupDesc { inode_table: desc.inode_table ^ 1 << bit, ..desc });
    let mut placed = flipped.filter(|desc| is_table_placed(desc, geometry, group));
    let copy = placed.find(|desc| has_root(desc).is_some())?;
    Some(ContestedGroup { group, copy })
}

/// Returns blocks of descriptors with the places of copies.
pub fn with_places(reader: &Reader<'_>, groups: &[ContestedGroup]) -> Vec<RestoredBlock> {
    let geometry = &reader.geometry;
    let mut blocks: Vec<RestoredBlock> = Vec::new();
    for ContestedGroup { group, copy } in groups {
        let (index, offset) = geometry.desc_location(*group);
        let BlockNr(nr) = geometry.gdt_block(index);
        if blocks.last().is_none_or(|block| block.nr != nr) {
            let Some(bytes) = reader.block(nr) else { continue };
            blocks.push(RestoredBlock { nr, bytes, groups: Vec::new() });
        }
        let Some(block) = blocks.last_mut() else { continue };
        let Some(raw) = block.bytes.get_mut(offset..) else { continue };
        let mut desc = GroupDesc::decode_unverified(raw, geometry);
        desc.block_bitmap = copy.block_bitmap;
        desc.inode_bitmap = copy.inode_bitmap;
        desc.inode_table = copy.inode_table;
        desc.encode(raw, geometry, *group);
        block.groups.push((*group, FindingCode::DescriptorField));
    }
    blocks
}

/// Returns the descriptor of a group in a block of descriptors, if it is usable: its checksum is
/// right, and its places and counts are possible.
pub fn usable(block: &[u8], geometry: &Geometry, group: GroupNr) -> Option<GroupDesc> {
    let (_, offset) = geometry.desc_location(group);
    let desc = GroupDesc::decode(block.get(offset..)?, geometry, group).ok()?;
    let counts = desc.free_clusters <= geometry.clusters_in_group(group)
        && desc.used_dirs <= geometry.inodes_per_group;
    (counts && is_placed(&desc, geometry, group)).then_some(desc)
}

/// Returns whether bitmaps and inode table lie in the file system, behind the descriptors, and in
/// their group where nothing allows another one.
fn is_placed(desc: &GroupDesc, geometry: &Geometry, group: GroupNr) -> bool {
    let bitmaps = [desc.block_bitmap, desc.inode_bitmap];
    bitmaps.into_iter().all(|block| is_part_placed(geometry, group, block, 1))
        && is_table_placed(desc, geometry, group)
}

/// Does as [`is_placed`], for the inode table.
fn is_table_placed(desc: &GroupDesc, geometry: &Geometry, group: GroupNr) -> bool {
    is_part_placed(geometry, group, desc.inode_table, geometry.inode_table_blocks().into())
}

fn is_part_placed(geometry: &Geometry, group: GroupNr, start: u64, len: u64) -> bool {
    let reserved = geometry.base_meta(GroupNr(0)).descriptors.end;
    let last = BlockNr(start.saturating_add(len).saturating_sub(1));
    let is_home = || {
        geometry.group_of_block(BlockNr(start)) == Some(group)
            && geometry.group_of_block(last) == Some(group)
    };
    geometry.data_range_valid(BlockNr(start), len)
        && start >= reserved
        && (geometry.incompat(Incompat::FLEX_BG) || is_home())
}

/// Makes a descriptor say that all bitmaps were written and all inodes may be in use.
pub fn forget_unused(desc: &mut GroupDesc) {
    desc.flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    desc.itable_unused = 0;
}

/// A block of descriptors in which copies replace the places of inode tables.
pub struct RestoredBlock {
    pub nr: u64,
    pub bytes: Vec<u8>,
    /// The groups, with the kinds of their damage.
    groups: Vec<(GroupNr, FindingCode)>,
}

impl RestoredBlock {
    /// A block of other metadata that leads to the log.
    pub fn plain(nr: u64, bytes: Vec<u8>) -> RestoredBlock {
        RestoredBlock { nr, bytes, groups: Vec::new() }
    }

    /// Returns the damage that the copies have removed.
    pub fn findings(&self) -> impl Iterator<Item = Finding> + use<'_> {
        self.groups.iter().map(|(group, code)| Finding::new(*code, FindingPlace::group(*group)))
    }
}

/// Returns the blocks of descriptors with impossible fields or wrong checksums, for which copies
/// have other places of inode tables. Bitmaps keep their places: the block that a copy names may be
/// a file's by now, which only a survey of all files tells.
pub fn restorable(reader: &Reader<'_>) -> Vec<RestoredBlock> {
    let damaged = (0..block_count(reader)).flat_map(|index| with_wrong_checksum(reader, index));
    let correctable = damaged.take(MAX_CORRECTED.saturating_add(1)).count() <= MAX_CORRECTED;
    (0..block_count(reader)).filter_map(|index| restore_block(reader, index, correctable)).collect()
}

fn with_wrong_checksum(reader: &Reader<'_>, index: u32) -> Vec<GroupNr> {
    let geometry = &reader.geometry;
    let Some(bytes) = reader.block(geometry.gdt_block(index).0) else { return Vec::new() };
    let groups = groups_of(geometry, index).filter(|group| reader.begins_on_device(*group));
    groups
        .filter(|group| {
            let raw = bytes.get(geometry.desc_location(*group).1..);
            raw.is_some_and(|raw| GroupDesc::verify_checksum(raw, geometry, *group).is_err())
        })
        .collect()
}

fn restore_block(reader: &Reader<'_>, index: u32, correctable: bool) -> Option<RestoredBlock> {
    let geometry = &reader.geometry;
    let BlockNr(nr) = geometry.gdt_block(index);
    let mut bytes = reader.block(nr)?;
    let mut groups: Vec<GroupNr> =
        groups_of(geometry, index).filter(|group| reader.begins_on_device(*group)).collect();
    groups.retain(|group| {
        let (_, offset) = geometry.desc_location(*group);
        let raw = bytes.get(offset..).unwrap_or(&[]);
        !is_table_placed(&GroupDesc::decode_unverified(raw, geometry), geometry, *group)
            || usable(&bytes, geometry, *group).is_none()
    });
    if groups.is_empty() {
        return None;
    }
    let copies = DescriptorCopies::read(reader, index);
    let mut restored = Vec::new();
    for group in &groups {
        let (_, offset) = geometry.desc_location(*group);
        if correctable && correct(&mut bytes, geometry, *group, &copies) {
            restored.push((*group, FindingCode::DescriptorChecksum));
            continue;
        }
        let copy = copies.find(geometry, *group);
        let (Some(copy), Some(raw)) = (copy, bytes.get_mut(offset..)) else { continue };
        let mut desc = GroupDesc::decode_unverified(raw, geometry);
        if !is_better(reader, *group, &copy, &desc) {
            continue;
        }
        if GroupDesc::verify_checksum(raw, geometry, *group).is_err() {
            forget_unused(&mut desc);
        }
        desc.inode_table = copy.inode_table;
        desc.encode(raw, geometry, *group);
        restored.push((*group, FindingCode::DescriptorField));
    }
    (!restored.is_empty()).then_some(RestoredBlock { nr, bytes, groups: restored })
}

/// Corrects one flipped bit of a descriptor with a wrong checksum, if just one explains that.
/// Returns whether it did. Several flipped bits may look like another one in 16 bits of a checksum:
/// without a copy that agrees, all inodes may be in use.
fn correct(
    block: &mut [u8],
    geometry: &Geometry,
    group: GroupNr,
    copies: &DescriptorCopies,
) -> bool {
    let (_, offset) = geometry.desc_location(group);
    let len = usize::from(geometry.desc_size);
    let is_right = |block: &[u8]| {
        let raw = block.get(offset..);
        raw.is_none_or(|raw| GroupDesc::verify_checksum(raw, geometry, group).is_ok())
    };
    if is_right(block) {
        return false;
    }
    let mut found = Vec::new();
    for (at, bit) in (0..len).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let place = offset.saturating_add(at);
        flip(block, place, bit);
        if is_right(block) && usable(block, geometry, group).is_some() {
            found.push((place, bit));
        }
        flip(block, place, bit);
    }
    if let [(place, bit)] = found[..] {
        flip(block, place, bit);
        if let Some(raw) = block.get_mut(offset..) {
            let mut desc = GroupDesc::decode_unverified(raw, geometry);
            if !copies.agree(&desc, geometry, group) {
                forget_unused(&mut desc);
                desc.encode(raw, geometry, group);
            }
        }
        return true;
    }
    false
}

fn flip(bytes: &mut [u8], at: usize, bit: u32) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
}

/// Returns whether a copy tells the right place of an inode table; `desc` is not usable.
fn is_better(reader: &Reader<'_>, group: GroupNr, copy: &GroupDesc, desc: &GroupDesc) -> bool {
    if !is_table_placed(desc, &reader.geometry, group) {
        return true;
    }
    let is_other = copy.inode_table != desc.inode_table;
    let has_own = has_inodes(reader, group, desc);
    is_other && (!has_own || has_inodes(reader, group, copy))
        || !has_own && !is_placed(desc, &reader.geometry, group)
}

/// Returns whether the first block of a table, which is possible, has inodes of the group. Without
/// checksums of inodes each one has.
fn has_inodes(reader: &Reader<'_>, group: GroupNr, desc: &GroupDesc) -> bool {
    let geometry = &reader.geometry;
    if !geometry.metadata_csum {
        return true;
    }
    let Some(block) = reader.block(desc.inode_table) else { return false };
    let slots = block.chunks_exact(geometry.inode_size.into());
    let mut inodes = (0..).map(|index| geometry.inode_at(group, index)).zip(slots);
    inodes.any(|(ino, slot)| {
        let inode = Inode::decode_unverified(slot, geometry, ino);
        inode.is_ok_and(|inode| inode.links > 0) && verify_inode(slot, geometry, ino).is_ok()
    })
}
