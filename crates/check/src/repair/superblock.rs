//! The superblock, and the search for a copy of it.

use super::RepairError;
use super::draft::Round;
use crate::finding::Finding;
use extant_blocks::BlockDevice;
use extant_format::superblock::SUPERBLOCK_SIZE;
use extant_format::{Compat, Features, Geometry, GroupNr, Incompat, InodeNr, RoCompat, Superblock};

/// Bytes at the start of the device in which copies of unusual layouts are looked for.
const MAX_SEARCH: u64 = 256 << 20;

/// Distance of the places that are looked at, in bytes: the smallest block.
const STEP: u64 = 1024;

/// Bytes that are read at once.
const CHUNK: u64 = 1 << 20;

/// Maximum number of places of copies that are compared with one.
const MAX_COMPARED: usize = 8;

/// Returns whether both tell of the same layout.
pub fn is_same_layout(one: &Superblock, other: &Superblock) -> bool {
    let layout = |sb: &Superblock| {
        let blocks = (sb.log_block_size(), sb.blocks_count(), sb.blocks_per_group());
        (blocks, sb.inodes_per_group(), sb.inode_size(), sb.incompat().bits() & !4, sb.desc_size())
    };
    layout(one) == layout(other)
}

/// Returns whether both tell the same facts: everything but counts, times, states, names, and
/// features that a kernel adds without a change of the copies.
pub fn has_same_facts(one: &Superblock, other: &Superblock) -> bool {
    let features = |sb: &Superblock| {
        let mut features = sb.features();
        features.compat.remove(Compat::EXT_ATTR);
        features.incompat.remove(Incompat::RECOVER);
        features.ro_compat.remove(RoCompat::LARGE_FILE | RoCompat::ORPHAN_PRESENT);
        (features, sb.raw().rev_level, sb.uuid(), sb.raw().checksum_type, sb.checksum_seed())
    };
    let groups = |sb: &Superblock| {
        let raw = sb.raw();
        let clusters = (raw.log_cluster_size, raw.clusters_per_group, raw.first_data_block);
        let table = (raw.reserved_gdt_blocks, raw.first_meta_bg, raw.log_groups_per_flex);
        (clusters, table, raw.inodes_count, raw.first_ino, raw.backup_bgs)
    };
    let inodes = |sb: &Superblock| {
        let raw = sb.raw();
        let journal = (raw.journal_inum, raw.journal_dev, raw.journal_uuid);
        let quota = (raw.usr_quota_inum, raw.grp_quota_inum, raw.prj_quota_inum);
        (journal, quota, raw.orphan_file_inum, raw.mmp_block)
    };
    let names = |sb: &Superblock| {
        let raw = sb.raw();
        (raw.hash_seed, raw.def_hash_version, raw.encoding, raw.encoding_flags)
    };
    is_same_layout(one, other)
        && features(one) == features(other)
        && groups(one) == groups(other)
        && inodes(one) == inodes(other)
        && names(one) == names(other)
}

/// Returns the superblock that lies at a byte of the device, if it is a copy for that place.
fn copy_at(bytes: &[u8], offset: u64) -> Option<Superblock> {
    let mut copy = Superblock::parse_unverified(bytes).ok()?;
    copy.verify_checksum().ok()?;
    let geometry = Geometry::new(&copy).ok()?;
    let group = (offset >> geometry.block_bits).checked_sub(geometry.first_data_block.into())?;
    let group = GroupNr(u32::try_from(group.checked_div(geometry.blocks_per_group.into())?).ok()?);
    let place = geometry.super_block_of(group)?.0.checked_mul(geometry.block_size.into())?;
    if group.0 == 0 || place != offset || copy.rev_level() > 1 {
        return None;
    }
    copy.set_block_group_nr(0);
    Some(copy)
}

/// Returns a superblock in which one flipped bit makes the checksum right, which then tells which
/// bit that is: a checksum of 32 bits is different for each.
pub fn corrected(primary: &Superblock) -> Option<Superblock> {
    let mut bytes = primary.as_bytes().to_vec();
    (0..SUPERBLOCK_SIZE).flat_map(|at| (0..8).map(move |bit| (at, 1u8 << bit))).find_map(
        |(at, mask)| {
            let byte = bytes.get_mut(at)?;
            *byte ^= mask;
            let flipped = Superblock::parse_unverified(&bytes).ok().filter(|sb| {
                sb.has_checksum() && sb.verify_checksum().is_ok() && Geometry::new(sb).is_ok()
            });
            *bytes.get_mut(at)? ^= mask;
            flipped
        },
    )
}

/// Returns a superblock whose features exclude each other without the one that can be missed.
pub fn without_contradictions(mut sb: Superblock) -> Option<Superblock> {
    let mut features = sb.features();
    if !features.incompat.contains(Incompat::META_BG) {
        return None;
    }
    if features.compat.contains(Compat::RESIZE_INODE) {
        features.compat.remove(Compat::RESIZE_INODE);
        sb.set_reserved_gdt_blocks(0);
    } else {
        features.incompat.remove(Incompat::META_BG);
        sb.set_first_meta_bg(0);
    }
    sb.set_features(features);
    Geometry::new(&sb).is_ok().then_some(sb)
}

/// Returns the bytes where copies lie in groups of the usual size, for each size of blocks.
fn usual_places() -> impl Iterator<Item = u64> {
    [1u64, 3, 5, 7, 9, 25, 27, 49].into_iter().flat_map(|group| {
        (10..=16).map(move |bits: u32| {
            let size = 1u64 << bits;
            let first = u64::from(bits == 10);
            size.saturating_mul(8).saturating_mul(group).saturating_add(first).saturating_mul(size)
        })
    })
}

/// Finds a valid copy of the superblock, with this UUID if one is given: at the places of usual
/// layouts, then anywhere in the first [`MAX_SEARCH`] bytes.
///
/// Copies of an earlier file system may lie in blocks that the present one does not use. For
/// example, one in blocks of 1 KiB has its first copy at byte 8193 KiB, in group 0 of a later one
/// in blocks of 4 KiB. The file system that was made last is the present one.
pub fn find_copy(device: &dyn BlockDevice, uuid: Option<[u8; 16]>) -> Option<Superblock> {
    let is_wanted = |copy: &Superblock| uuid.is_none_or(|uuid| copy.uuid() == uuid);
    let copies = usual_places().filter_map(|offset| read_copy(device, offset));
    let copies: Vec<Superblock> = copies.filter(is_wanted).collect();
    let intact = copies.iter().filter(|copy| !is_overwritten(device, copy)).cloned();
    // A change of the UUID that was interrupted leaves copies that contradict each other.
    newest(intact).or_else(|| newest(copies.into_iter())).or_else(|| search(device, &is_wanted))
}

/// Returns the copies of the file system of a primary superblock that may be damaged, first those
/// that most others agree with.
pub fn copies_of(device: &dyn BlockDevice, primary: &Superblock) -> Vec<Superblock> {
    let own = Geometry::new(primary).into_iter().flat_map(|geometry| {
        let groups = geometry.super_groups().skip(1).take(MAX_COMPARED);
        groups.filter_map(move |group| {
            geometry.super_block_of(group)?.0.checked_mul(geometry.block_size.into())
        })
    });
    let mut offsets: Vec<u64> = own.chain(usual_places()).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let read = offsets.into_iter().filter_map(|offset| read_copy(device, offset));
    let mut copies: Vec<Superblock> = read
        .filter(|copy| is_of(copy, primary) && !is_overwritten(device, copy))
        .take(MAX_COMPARED)
        .collect();
    if copies.is_empty() && Geometry::new(primary).is_err() {
        copies.extend(search(device, &|copy| is_of(copy, primary)));
    }
    let all = copies.clone();
    let others = |copy: &Superblock| all.iter().filter(|all| !has_same_facts(all, copy)).count();
    copies.sort_by_cached_key(others);
    copies
}

/// Returns whether a copy is of the file system of a primary superblock, one of which is damaged.
fn is_of(copy: &Superblock, primary: &Superblock) -> bool {
    copy.uuid() == primary.uuid()
        || copy.mkfs_time() == primary.mkfs_time()
        || is_same_layout(copy, primary)
}

fn read_copy(device: &dyn BlockDevice, offset: u64) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, offset).ok()?;
    copy_at(&bytes, offset)
}

/// Returns the copy of the superblock in a block of its file system, of any size of blocks.
pub fn copy_in_block(device: &dyn BlockDevice, block: u64) -> Option<Superblock> {
    (0..=6).find_map(|log| {
        let offset = block.checked_mul(1024 << log)?;
        read_copy(device, offset).filter(|copy| copy.log_block_size() == log)
    })
}

/// Returns the copy of the file system that was made last; the first one of several.
fn newest(copies: impl Iterator<Item = Superblock>) -> Option<Superblock> {
    copies.reduce(|best, copy| if copy.mkfs_time() > best.mkfs_time() { copy } else { best })
}

/// Returns whether a place of another copy of the same file system holds that of another one, which
/// was made later or on a part of the device, whatever its time.
fn is_overwritten(device: &dyn BlockDevice, copy: &Superblock) -> bool {
    let Ok(geometry) = Geometry::new(copy) else { return true };
    let places = geometry.super_groups().skip(1).take(MAX_COMPARED);
    let offsets = places.filter_map(|group| {
        geometry.super_block_of(group)?.0.checked_mul(geometry.block_size.into())
    });
    let mut others = offsets.filter_map(|offset| read_copy(device, offset));
    others.any(|other| other.uuid() != copy.uuid())
}

fn search(device: &dyn BlockDevice, is_wanted: &dyn Fn(&Superblock) -> bool) -> Option<Superblock> {
    let end = device.len().min(MAX_SEARCH);
    let mut chunk = vec![0; CHUNK as usize];
    for start in (0..end).step_by(CHUNK as usize) {
        let len = end.saturating_sub(start).min(CHUNK) as usize;
        let Some(chunk) = chunk.get_mut(..len) else { continue };
        if device.read_exact_at(chunk, start).is_err() {
            continue;
        }
        for (nr, piece) in (0u64..).zip(chunk.chunks_exact(STEP as usize)) {
            let offset = start.saturating_add(nr.saturating_mul(STEP));
            if let Some(copy) = copy_at(piece, offset).filter(is_wanted) {
                return Some(copy);
            }
        }
    }
    None
}

/// The first ordinary inode in revision 0.
const OLD_FIRST_INO: u32 = 11;

/// The extra size of inodes that covers all fields.
const EXTRA_ISIZE: u16 = 32;

impl Round<'_> {
    /// Returns the usual inode of a quota file if it is a file, and none without the feature.
    fn usual(&self, ino: InodeNr) -> InodeNr {
        let has_quota = self.geometry().ro_compat(RoCompat::QUOTA);
        let is_file = has_quota && self.inode(ino).is_ok_and(|inode| inode.is_regular());
        if is_file { ino } else { InodeNr::NONE }
    }

    /// Sets fields of the superblock to possible values, and seals it.
    pub fn repair_superblock(&self, found: &[Finding]) -> Result<(), RepairError> {
        let room = self.geometry().inode_size.saturating_sub(128) & !3;
        let fields: Vec<&str> = found.iter().filter_map(|finding| finding.place.field).collect();
        let now = u64::from(self.now);
        self.draft.edit_super(|sb| {
            for field in fields {
                match field {
                    "required extra inode size" => sb.set_min_extra_isize(EXTRA_ISIZE.min(room)),
                    "wanted extra inode size" => sb.set_want_extra_isize(EXTRA_ISIZE.min(room)),
                    "first inode" => sb.set_first_ino(OLD_FIRST_INO),
                    "reserved blocks" => sb.set_r_blocks_count(sb.blocks_count() / 20),
                    "last mount" => sb.set_mtime(now),
                    "last write" => sb.set_wtime(now),
                    "clusters per group" => sb.set_clusters_per_group(sb.blocks_per_group()),
                    "user quota inode" => sb.set_usr_quota_inum(self.usual(InodeNr::USER_QUOTA)),
                    "group quota inode" => sb.set_grp_quota_inum(self.usual(InodeNr::GROUP_QUOTA)),
                    "project quota inode" => sb.set_prj_quota_inum(InodeNr::NONE),
                    "descriptor size" => sb.set_desc_size(0),
                    "metadata_csum_seed" => {
                        let mut features = sb.features();
                        features.incompat.remove(Incompat::CSUM_SEED);
                        sb.set_features(features);
                    }
                    "extent" => {
                        let mut features = sb.features();
                        features.incompat.insert(Incompat::EXTENTS);
                        sb.set_features(features);
                    }
                    "large_file" => add_ro_compat(sb, RoCompat::LARGE_FILE),
                    _ => {}
                }
            }
        })
    }
}

/// Adds a feature.
pub fn add_ro_compat(sb: &mut Superblock, feature: RoCompat) {
    sb.add_features(Features { ro_compat: feature, ..Features::default() });
}
