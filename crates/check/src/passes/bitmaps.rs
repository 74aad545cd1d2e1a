//! Bitmaps and counts against the blocks and inodes in use.
//!
//! A bitmap that was never written is not read: its descriptor's flag stands for known bits.

use crate::claims::ClaimMap;
use crate::facts::Facts;
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace, Findings};
use crate::parallel::Workers;
use crate::volume::Volume;
use extant_format::group_desc::{init_block_bitmap, init_inode_bitmap};
use extant_format::{Geometry, GroupDesc, GroupFlags, GroupNr, bitmap};
use std::ops::Range;

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

/// Groups of one part of the work.
const PART: usize = 16;

/// Checks the bitmaps and counts of all groups. Returns the free clusters and inodes.
pub fn check(
    volume: &Volume<'_>,
    workers: Workers<'_>,
    in_use: InUse<'_>,
    findings: &mut Findings<'_>,
) -> Free {
    let mut free = Free::default();
    let groups = volume.groups.len();
    let work = |part: usize| {
        let first = part.saturating_mul(PART);
        check_groups(volume, first..first.saturating_add(PART).min(groups), in_use)
    };
    workers.run(groups.div_ceil(PART), work, |_, (list, own): (FindingList, Free)| {
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

fn check_groups(
    volume: &Volume<'_>,
    groups: Range<usize>,
    in_use: InUse<'_>,
) -> (FindingList, Free) {
    let (mut all, mut free) = (FindingList::default(), Free::default());
    let (mut used, mut bits) = (volume.reader.buffer(), volume.reader.buffer());
    for group in groups {
        let Some(state) = volume.groups.get(group) else { break };
        let (group, desc, list) = (GroupNr(group as u32), &state.desc, FindingList::default());
        let mut check = GroupCheck { volume, group, desc, bits: &mut bits, list };
        let own = check.all(in_use, &mut used);
        all.append(check.list);
        free.clusters = free.clusters.saturating_add(own.clusters);
        free.inodes = free.inodes.saturating_add(own.inodes);
    }
    (all, free)
}

/// A kind of bitmap, and the codes of its findings.
struct Kind {
    /// The flag of a bitmap that was never written, and a function that fills in its bits.
    uninit: GroupFlags,
    init: fn(&mut [u8], &Geometry, GroupNr, &GroupDesc),
    block: fn(&GroupDesc) -> u64,
    verify: fn(&GroupDesc, &[u8], &Geometry) -> extant_format::Result<()>,
    /// Number of bits before the padding.
    len: fn(&Geometry, GroupNr) -> u32,
    /// Coordinates of the object of a bit.
    place: fn(&Geometry, GroupNr, u32) -> FindingPlace,
    checksum: FindingCode,
    padding: FindingCode,
    marked_free: FindingCode,
    marked_used: FindingCode,
}

const BLOCKS: Kind = Kind {
    uninit: GroupFlags::BLOCK_UNINIT,
    init: init_block_bitmap,
    block: |desc| desc.block_bitmap,
    verify: GroupDesc::verify_block_bitmap,
    len: Geometry::clusters_in_group,
    place: |geometry, group, bit| {
        FindingPlace::group(group).block(geometry.block_of_bit(group, bit).0).field("clusters")
    },
    checksum: FindingCode::BlockBitmapChecksum,
    padding: FindingCode::BlockBitmapPadding,
    marked_free: FindingCode::BlockMarkedFree,
    marked_used: FindingCode::BlockMarkedUsed,
};

const INODES: Kind = Kind {
    uninit: GroupFlags::INODE_UNINIT,
    init: |bits, geometry, _, _| init_inode_bitmap(bits, geometry),
    block: |desc| desc.inode_bitmap,
    verify: GroupDesc::verify_inode_bitmap,
    len: |geometry, _| geometry.inodes_per_group,
    place: |geometry, group, bit| {
        let inode = FindingPlace::inode(geometry.inode_at(group, bit));
        FindingPlace { group: Some(group.0), ..inode }.field("inodes")
    },
    checksum: FindingCode::InodeBitmapChecksum,
    padding: FindingCode::InodeBitmapPadding,
    marked_free: FindingCode::InodeMarkedFree,
    marked_used: FindingCode::InodeMarkedUsed,
};

/// The check of a group.
struct GroupCheck<'g> {
    volume: &'g Volume<'g>,
    group: GroupNr,
    desc: &'g GroupDesc,
    /// Memory for a bitmap.
    bits: &'g mut [u8],
    list: FindingList,
}

impl GroupCheck<'_> {
    /// Checks bitmaps and counts; `used` is memory for another bitmap.
    fn all(&mut self, in_use: InUse<'_>, used: &mut [u8]) -> Free {
        let (desc, group) = (self.desc, self.group);
        in_use.claims.copy_group(group, used);
        let clusters = self.bitmap(&BLOCKS, used);
        used.fill(0);
        in_use.facts.mark_used(group, used, self.volume.reader.geometry.first_ino);
        let inodes = self.bitmap(&INODES, used);
        let counts = [
            (FindingCode::FreeClusters, desc.free_clusters, clusters),
            (FindingCode::FreeInodes, desc.free_inodes, inodes),
            (FindingCode::UsedDirs, desc.used_dirs, in_use.facts.dirs(group).into()),
        ];
        for (code, found, expected) in counts {
            if u64::from(found) != expected {
                let finding = Finding::new(code, FindingPlace::group(group));
                self.list.push(finding.values(found, expected));
            }
        }
        Free { clusters, inodes }
    }

    /// Compares a bitmap with the objects in use. Returns the number of the others.
    fn bitmap(&mut self, kind: &Kind, used: &[u8]) -> u64 {
        let (geometry, group) = (&self.volume.reader.geometry, self.group);
        let len = (kind.len)(geometry, group) as usize;
        if self.load(kind) {
            let end = self.bits.len().saturating_mul(8);
            if let Some(clear) = bitmap::find_next_zero(self.bits, len, end) {
                let place = FindingPlace::group(group).block((kind.block)(self.desc));
                self.list.push(Finding::new(kind.padding, place).found(clear as u64));
            }
            let sides =
                [(kind.marked_free, used, &*self.bits), (kind.marked_used, &*self.bits, used)];
            // Whole bytes first: usually there is no difference.
            let is_same = used.get(..len.div_ceil(8)) == self.bits.get(..len.div_ceil(8));
            for (code, one, other) in sides.into_iter().filter(|_| !is_same) {
                if let Some((bit, count)) = only_in(one, other, len) {
                    let place = (kind.place)(geometry, group, bit as u32);
                    self.list.push(Finding::new(code, place).found(count));
                }
            }
        }
        bitmap::count_zeros(used, 0..len) as u64
    }

    /// Fills `bits` with a bitmap. Returns whether its bits are known.
    fn load(&mut self, kind: &Kind) -> bool {
        let (reader, desc, block) = (&self.volume.reader, self.desc, (kind.block)(self.desc));
        if desc.has_flag(&reader.geometry, kind.uninit) {
            (kind.init)(self.bits, &reader.geometry, self.group, desc);
            return true;
        }
        let place = FindingPlace::group(self.group).block(block);
        if !self.volume.is_block(block) {
            return false;
        }
        if !reader.read(block, self.bits) {
            self.list.add(FindingCode::Unreadable, place);
            return false;
        }
        if let Err(error) = (kind.verify)(desc, self.bits, &reader.geometry) {
            self.list.push(Finding::corrupt(kind.checksum, place, &error));
        }
        true
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
