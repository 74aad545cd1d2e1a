//! Bitmaps and counts against the blocks and inodes in use.
//!
//! A bitmap that was never written is not read: its descriptor's flag stands for known bits.

use crate::claims::ClaimMap;
use crate::facts::{Facts, InodeState};
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace, Findings};
use crate::parallel::Workers;
use crate::volume::{Group, Volume};
use extant_format::group_desc::{GroupFlags, init_block_bitmap, init_inode_bitmap};
use extant_format::{GroupNr, InodeNr, bitmap};

/// The blocks and inodes in use.
#[derive(Clone, Copy)]
pub struct InUse<'u> {
    pub claims: &'u ClaimMap,
    pub facts: &'u Facts,
}

/// Free clusters and inodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free {
    clusters: u64,
    inodes: u64,
}

/// Checks the bitmaps and counts of all groups. Returns the free clusters and inodes.
pub fn check(
    volume: &Volume<'_>,
    workers: Workers<'_>,
    in_use: InUse<'_>,
    findings: &mut Findings<'_>,
) -> Free {
    let mut free = Free::default();
    let work = |group: usize| check_group(volume, GroupNr(group as u32), in_use);
    workers.run(volume.groups.len(), work, |_, (list, own): (FindingList, Free)| {
        findings.report_all(list);
        free.clusters = free.clusters.saturating_add(own.clusters);
        free.inodes = free.inodes.saturating_add(own.inodes);
    });
    free
}

/// Compares the superblock's counts. After a replay they are those of the last commit that changed
/// the superblock, and any mount counts again.
pub fn check_totals(volume: &Volume<'_>, replayed: bool, free: Free, findings: &mut Findings<'_>) {
    let (sb, bits) = (&volume.superblock, volume.reader.geometry.cluster_bits);
    let code = if replayed { FindingCode::StaleCount } else { FindingCode::SuperblockCount };
    let counts = [
        ("free blocks", sb.free_blocks_count() >> bits, free.clusters),
        ("free inodes", sb.free_inodes_count().into(), free.inodes),
    ];
    for (field, found, expected) in counts {
        if found != expected {
            let finding = Finding::new(code, FindingPlace::default().field(field));
            findings.report(finding.values(found, expected));
        }
    }
}

fn check_group(volume: &Volume<'_>, group: GroupNr, in_use: InUse<'_>) -> (FindingList, Free) {
    let mut list = FindingList::default();
    let geometry = &volume.reader.geometry;
    let Some(state) = volume.groups.get(group.index()) else { return (list, Free::default()) };
    let (mut used, mut bits) = (volume.reader.buffer(), volume.reader.buffer());
    let clusters = geometry.clusters_in_group(group) as usize;
    in_use.claims.copy_group(group, &mut used);
    if load_block_bitmap(volume, group, state, &mut bits, &mut list) {
        let place = FindingPlace::group(group).block(state.desc.block_bitmap);
        check_padding(&bits, clusters, FindingCode::BlockBitmapPadding, place, &mut list);
        compare_blocks(volume, group, &used, &bits, &mut list);
    }
    let free_clusters = bitmap::count_zeros(&used, 0..clusters) as u64;
    fill_inodes(volume, group, in_use.facts, &mut used);
    let inodes = geometry.inodes_per_group as usize;
    if load_inode_bitmap(volume, group, state, &mut bits, &mut list) {
        let place = FindingPlace::group(group).block(state.desc.inode_bitmap);
        check_padding(&bits, inodes, FindingCode::InodeBitmapPadding, place, &mut list);
        compare_inodes(volume, group, &used, &bits, &mut list);
    }
    let free_inodes = bitmap::count_zeros(&used, 0..inodes) as u64;
    let place = FindingPlace::group(group);
    let counts = [
        (FindingCode::FreeClusters, state.desc.free_clusters, free_clusters),
        (FindingCode::FreeInodes, state.desc.free_inodes, free_inodes),
        (FindingCode::UsedDirs, state.desc.used_dirs, in_use.facts.dirs(group).into()),
    ];
    for (code, found, expected) in counts {
        if u64::from(found) != expected {
            list.push(Finding::new(code, place).values(found, expected));
        }
    }
    (list, Free { clusters: free_clusters, inodes: free_inodes })
}

/// Fills `bits` with the inodes in use, those that are reserved included.
fn fill_inodes(volume: &Volume<'_>, group: GroupNr, facts: &Facts, bits: &mut [u8]) {
    bits.fill(0);
    for (index, fact) in facts.group(group).iter().enumerate() {
        if fact.state != InodeState::Unused {
            bitmap::set(bits, index);
        }
    }
    if group.0 == 0 {
        let reserved = volume.reader.geometry.first_ino.saturating_sub(1);
        bitmap::set_range(bits, 0..reserved as usize);
    }
}

/// Fills `bits` with the group's block bitmap. Returns whether its bits are known.
fn load_block_bitmap(
    volume: &Volume<'_>,
    group: GroupNr,
    state: &Group,
    bits: &mut [u8],
    list: &mut FindingList,
) -> bool {
    let (reader, desc) = (&volume.reader, &state.desc);
    if desc.has_flag(&reader.geometry, GroupFlags::BLOCK_UNINIT) {
        init_block_bitmap(bits, &reader.geometry, group, desc);
        return true;
    }
    let place = FindingPlace::group(group).block(desc.block_bitmap);
    if !volume.is_block(desc.block_bitmap) {
        return false;
    }
    if !reader.read(desc.block_bitmap, bits) {
        list.add(FindingCode::Unreadable, place);
        return false;
    }
    if let Err(error) = desc.verify_block_bitmap(bits, &reader.geometry) {
        list.push(Finding::corrupt(FindingCode::BlockBitmapChecksum, place, &error));
    }
    true
}

/// Fills `bits` with the group's inode bitmap. Returns whether its bits are known.
fn load_inode_bitmap(
    volume: &Volume<'_>,
    group: GroupNr,
    state: &Group,
    bits: &mut [u8],
    list: &mut FindingList,
) -> bool {
    let (reader, desc) = (&volume.reader, &state.desc);
    if desc.has_flag(&reader.geometry, GroupFlags::INODE_UNINIT) {
        init_inode_bitmap(bits, &reader.geometry);
        return true;
    }
    let place = FindingPlace::group(group).block(desc.inode_bitmap);
    if !volume.is_block(desc.inode_bitmap) {
        return false;
    }
    if !reader.read(desc.inode_bitmap, bits) {
        list.add(FindingCode::Unreadable, place);
        return false;
    }
    if let Err(error) = desc.verify_inode_bitmap(bits, &reader.geometry) {
        list.push(Finding::corrupt(FindingCode::InodeBitmapChecksum, place, &error));
    }
    true
}

/// Reports clear bits from `used` to the end of the bitmap's block.
fn check_padding(
    bits: &[u8],
    used: usize,
    code: FindingCode,
    place: FindingPlace,
    list: &mut FindingList,
) {
    let end = bits.len().saturating_mul(8);
    if let Some(clear) = bitmap::find_next_zero(bits, used, end) {
        list.push(Finding::new(code, place).found(clear as u64));
    }
}

/// Returns the first bit that is set in `one` and clear in `other`, and the number of such bits.
fn only_in(one: &[u8], other: &[u8], end: usize) -> Option<(usize, u64)> {
    let words = (0..end.div_ceil(64)).map(|index| {
        let left = end.saturating_sub(index.saturating_mul(64)).min(64) as u32;
        let mask = u64::MAX.checked_shr(64u32.saturating_sub(left)).unwrap_or(0);
        (index, bitmap::word(one, index) & !bitmap::word(other, index) & mask)
    });
    words.filter(|(_, word)| *word != 0).fold(None, |found, (index, word)| {
        let here = index.saturating_mul(64).saturating_add(word.trailing_zeros() as usize);
        let (first, count) = found.unwrap_or((here, 0u64));
        Some((first, count.saturating_add(word.count_ones().into())))
    })
}

fn compare_blocks(
    volume: &Volume<'_>,
    group: GroupNr,
    used: &[u8],
    bits: &[u8],
    list: &mut FindingList,
) {
    let geometry = &volume.reader.geometry;
    let end = geometry.clusters_in_group(group) as usize;
    let sides = [
        (FindingCode::BlockMarkedFree, only_in(used, bits, end)),
        (FindingCode::BlockMarkedUsed, only_in(bits, used, end)),
    ];
    for (code, differences) in sides {
        if let Some((bit, count)) = differences {
            let block = geometry.block_of_bit(group, bit as u32).0;
            let place = FindingPlace::group(group).block(block).field("clusters");
            list.push(Finding::new(code, place).found(count));
        }
    }
}

fn compare_inodes(
    volume: &Volume<'_>,
    group: GroupNr,
    used: &[u8],
    bits: &[u8],
    list: &mut FindingList,
) {
    let geometry = &volume.reader.geometry;
    let end = geometry.inodes_per_group as usize;
    let sides = [
        (FindingCode::InodeMarkedFree, only_in(used, bits, end)),
        (FindingCode::InodeMarkedUsed, only_in(bits, used, end)),
    ];
    for (code, differences) in sides {
        if let Some((bit, count)) = differences {
            let ino: InodeNr = geometry.inode_at(group, bit as u32);
            let place = FindingPlace { group: Some(group.0), ..FindingPlace::inode(ino) };
            list.push(Finding::new(code, place.field("inodes")).found(count));
        }
    }
}
