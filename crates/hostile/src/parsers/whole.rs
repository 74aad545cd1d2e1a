//! Parsers of structures of the whole file system: superblock, descriptors, bitmaps, MMP, orphans,
//! quotas.

use super::{block, number};
use extant_format::group_desc::{GroupDesc, init_block_bitmap, init_inode_bitmap, mark_blocks};
use extant_format::inode::Inode;
use extant_format::mmp::Mmp;
use extant_format::quota::{self, QuotaHeader, QuotaKind};
use extant_format::superblock::SUPERBLOCK_SIZE;
use extant_format::types::{BlockNr, GroupNr, InodeNr, Timestamp};
use extant_format::{Geometry, Superblock, bitmap, orphan};

/// Calls accessors of a geometry with these numbers.
fn ask(geo: &Geometry, block: u64, group: u32, ino: u32) {
    let (block, group, ino) = (BlockNr(block), GroupNr(group % geo.groups_count), InodeNr(ino));
    let _ = geo.group_and_bit(block);
    let _ = geo.data_range_valid(block, block.0);
    let _ = geo.inode_location(ino);
    let _ = (geo.super_block_of(group), geo.base_meta(group), geo.clusters_in_group(group));
    assert!(
        geo.base_meta_blocks(group) <= geo.blocks_in_group(group),
        "metadata lie in their group"
    );
    assert_eq!(geo.group_of_block(geo.first_block_of_group(group)), Some(group));
    for index in [0, geo.desc_blocks - 1, group.0 / geo.descs_per_block()] {
        assert!(
            geo.gdt_backups(index).take(100).all(|block| block > geo.gdt_block(index)),
            "copies come later"
        );
        assert!(geo.descs_in_block(index) > 0, "a block of descriptors has some");
    }
    assert!(
        geo.super_groups().take(100).all(|group| geo.has_super(group)),
        "groups with a superblock"
    );
    let (_, offset) = geo.desc_location(group);
    assert!(
        offset + usize::from(geo.desc_size) <= geo.block_size as usize,
        "a descriptor lies in its block"
    );
}

/// Combines the bytes with a valid superblock by exclusive or, so that a fuzzer changes single
/// fields.
pub(super) fn superblock(geo: &Geometry, bytes: &[u8]) {
    let mut good = super::kind(geo.block_size.trailing_zeros() as u8 - 10);
    let _ = Superblock::parse(&block(bytes, SUPERBLOCK_SIZE));
    let mut mixed = good.seal();
    mixed.iter_mut().zip(bytes).for_each(|(byte, change)| *byte ^= change);
    let Ok(sb) = Superblock::parse_unverified(&mixed) else { return };
    answers(sb, bytes.get(SUPERBLOCK_SIZE..).unwrap_or(&[]));
}

/// Calls accessors of a superblock, its geometry, and a descriptor and an inode of that geometry;
/// `rest` has the arguments and the bytes.
pub(super) fn answers(mut sb: Superblock, rest: &[u8]) {
    let sealed = sb.seal();
    let _ = Superblock::parse(&sealed);
    let _ =
        (sb.journal_backup(), sb.first_error(), sb.last_error(), sb.volume_name(), sb.block_size());
    let _ =
        (sb.features().names(), sb.state(), sb.error_policy(), sb.unsigned_hash(), sb.fs_seed());
    if let Ok(geo) = Geometry::new(&sb) {
        let (block, ino) = (number(rest), number(rest.get(8..).unwrap_or(&[])) as u32);
        ask(&geo, block, block as u32, (block >> 32) as u32);
        descriptor(&geo, rest);
        new_inode(&geo, InodeNr(ino));
    }
}

/// Checks that a new inode of a geometry fits its slot.
fn new_inode(geo: &Geometry, ino: InodeNr) {
    let inode = Inode::new(geo, 0o100_644, Timestamp::new(1, 1));
    let mut slot = vec![0; geo.inode_size.into()];
    inode.encode(&mut slot, geo, ino).expect("a new inode");
    assert_eq!(
        Inode::decode(&slot, geo, ino).expect("a sealed inode"),
        inode,
        "a new inode comes back"
    );
}

pub(super) fn descriptor(geo: &Geometry, bytes: &[u8]) {
    let group = GroupNr(number(bytes) as u32 % geo.groups_count);
    let _ = GroupDesc::decode(bytes, geo, group);
    let desc = GroupDesc::decode_unverified(bytes, geo);
    let mut bits = vec![0; geo.block_size as usize];
    init_block_bitmap(&mut bits, geo, group, &desc);
    mark_blocks(&mut bits, geo, group, desc.inode_table, u64::MAX);
    let _ = desc.verify_block_bitmap(&bits, geo);
    init_inode_bitmap(&mut bits, geo);
    let _ = desc.verify_inode_bitmap(&bits, geo);
    let mut again = block(bytes, bytes.len().max(usize::from(geo.desc_size)));
    let desc = GroupDesc::decode_unverified(&again, geo);
    desc.encode(&mut again, geo, group);
    assert_eq!(GroupDesc::decode_unverified(&again, geo), desc, "a descriptor comes back");
    assert!(GroupDesc::verify_checksum(&again, geo, group).is_ok(), "a descriptor is sealed");
}

/// Compares searches in bits with a search bit by bit.
pub(super) fn bits(_: &Geometry, bytes: &[u8]) {
    let [from, end, bits @ ..] = bytes else { return };
    let bits = &bits[..bits.len().min(40)];
    let (from, end) = (usize::from(*from) * 2, usize::from(*end) * 2);
    let inside = || (from..end.min(bits.len() * 8)).map(|n| (n, bits[n / 8] >> (n % 8) & 1 == 1));
    let zero = inside().find(|(_, set)| !set).map(|(n, _)| n);
    assert_eq!(bitmap::find_next_zero(bits, from, end), zero);
    assert_eq!(
        bitmap::find_next_one(bits, from, end),
        inside().find(|(_, set)| *set).map(|(n, _)| n)
    );
    let run = zero.map(|start| {
        start..start + inside().filter(|(n, _)| *n >= start).take_while(|(_, set)| !set).count()
    });
    assert_eq!(bitmap::next_zero_run(bits, from, end), run);
    assert_eq!(bitmap::count_ones(bits, from..end), inside().filter(|(_, set)| *set).count());
    assert_eq!(bitmap::count_zeros(bits, from..end), inside().filter(|(_, set)| !set).count());
    let mut changed = bits.to_vec();
    bitmap::set_range(&mut changed, from..end);
    assert!(inside().all(|(n, _)| bitmap::test(&changed, n)), "bits that were set");
    bitmap::clear_range(&mut changed, from..end);
    assert_eq!(bitmap::count_ones(&changed, from..end), 0);
    let outside = (0..bits.len() * 8).filter(|n| !(from..end).contains(n));
    assert!(
        outside.into_iter().all(|n| bitmap::test(&changed, n) == bitmap::test(bits, n)),
        "bits that were left alone"
    );
}

pub(super) fn mmp(_: &Geometry, bytes: &[u8]) {
    let _ = Mmp::parse(bytes, Some(1));
    if let Ok(mmp) = Mmp::parse(bytes, None) {
        let mut again = bytes.to_vec();
        mmp.encode(&mut again, Some(1));
        let again = Mmp::parse(&again, Some(1)).expect("a block that was written");
        // Names are text, and invalid text is replaced, so only the numbers are compared.
        let numbers = |mmp: &Mmp| (mmp.seq, mmp.time, mmp.check_interval);
        assert_eq!(numbers(&again), numbers(&mmp), "an MMP block comes back");
    }
}

pub(super) fn orphans(_: &Geometry, bytes: &[u8]) {
    let mut block = bytes.to_vec();
    let _ = orphan::verify(&block, 1, 2, true);
    assert_eq!(
        orphan::used(&block).count() + orphan::count_zero(&block),
        orphan::slots(block.len())
    );
    let slot = number(bytes) as usize;
    orphan::put(&mut block, slot, 7);
    assert_eq!(orphan::get(&block, slot), if slot < orphan::slots(block.len()) { 7 } else { 0 });
    orphan::init(&mut block);
    orphan::seal_orphan_block(&mut block, 1, 2);
    assert!(
        block.len() < 8 || orphan::verify(&block, 1, 2, true).is_ok(),
        "an orphan block is sealed"
    );
}

pub(super) fn quota(_: &Geometry, bytes: &[u8]) {
    for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
        if let Ok(header) = QuotaHeader::decode(bytes, kind, number(bytes) >> 32) {
            let mut again = bytes.to_vec();
            header.encode(&mut again, kind);
            assert_eq!(
                QuotaHeader::decode(&again, kind, u64::MAX).ok(),
                Some(header),
                "a header comes back"
            );
        }
    }
    let mut data = block(bytes, 1024);
    let header = quota::DataHeader::decode(&data);
    header.encode(&mut data);
    assert_eq!(quota::DataHeader::decode(&data), header);
    for (slot, record) in quota::records(&data.clone()) {
        quota::put_record(&mut data, slot, &record);
        assert!(
            quota::records(&data).any(|(at, again)| at == slot && again == record),
            "a record comes back"
        );
    }
    let _ = (
        quota::find(bytes, number(bytes) as u32),
        quota::free_slot(bytes),
        quota::free_slot(&data),
    );
    let _ = quota::pointer(bytes, number(bytes) as usize % 1000);
}
