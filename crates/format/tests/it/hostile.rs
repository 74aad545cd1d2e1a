//! Any bytes give a value or an error. In debug builds an overflow is a panic, so arithmetic is tested too.

use extant_format::features::{Features, Incompat, RoCompat};
use extant_format::group_desc::{GroupDesc, init_block_bitmap, init_inode_bitmap, mark_blocks};
use extant_format::inode::{Inode, verify_inode};
use extant_format::jbd2::{CommitBlock, FastCommitTags, JournalFormat, JournalSuperblock, RevokeRecords, Tags, escape};
use extant_format::mmp::Mmp;
use extant_format::types::{BlockNr, GroupNr, InodeNr, Timestamp};
use extant_format::{Compat, Geometry, Superblock, orphan};
use proptest::prelude::*;

fn base(block_log: u32) -> Superblock {
    let mut sb = Superblock::empty();
    sb.set_features(Features {
        compat: Compat::HAS_JOURNAL,
        incompat: Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::GDT_CSUM,
    });
    sb.set_desc_size(64);
    sb.set_log_block_size(block_log);
    sb.set_log_cluster_size(block_log);
    sb.set_first_data_block(u32::from(block_log == 0));
    sb.set_blocks_per_group(8192);
    sb.set_clusters_per_group(8192);
    sb.set_blocks_count(100_000);
    sb.set_inodes_per_group(1024);
    sb.set_inodes_count(13 * 1024);
    sb.set_inode_size(256);
    sb.set_first_ino(11);
    sb
}

/// Numbers that break things.
fn number() -> impl Strategy<Value = u32> {
    let powers = (0u32..32).prop_map(|n| 1 << n);
    prop_oneof![
        any::<u32>(),
        powers.clone(),
        powers.prop_map(|n| n - 1),
        0u32..20,
        (0u32..20).prop_map(|n| u32::MAX - n)
    ]
}

/// Places of the superblock that a geometry depends on.
fn place() -> impl Strategy<Value = usize> {
    let places: Vec<usize> =
        (0..0x30).chain(0x54..0x68).chain(0xCE..0xD0).chain(0xFC..0x108).chain([0x150, 0x174]).collect();
    prop_oneof![prop::sample::select(places), 0usize..1024]
}

fn damaged() -> impl Strategy<Value = Superblock> {
    let changes = prop::collection::vec((place(), number(), 1usize..5), 0..5);
    (0u32..7, changes, any::<[u32; 2]>()).prop_map(|(log, changes, masks)| {
        let mut bytes = base(log).encode();
        for (place, number, len) in changes {
            let end = (place + len).min(bytes.len());
            bytes[place..end].copy_from_slice(&number.to_le_bytes()[..end - place]);
        }
        bytes[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        let mut sb = Superblock::parse_unverified(&bytes).expect("the magic is right");
        let mut features = sb.features();
        features.incompat.toggle(Incompat::from_bits_retain(masks[0] & masks[1] & 0xFFF));
        features.ro_compat.toggle(RoCompat::from_bits_retain(masks[0] & !masks[1] & 0xFFF));
        sb.set_features(features);
        sb
    })
}

/// Calls everything that a geometry can answer.
fn ask(geo: &Geometry, block: u64, group: u32, ino: u32) {
    let (block, group, ino) = (BlockNr(block), GroupNr(group % geo.groups_count), InodeNr(ino));
    let _ = geo.group_and_bit(block);
    let _ = geo.data_range_valid(block, block.0);
    let _ = geo.inode_location(ino);
    let _ = (geo.super_block_of(group), geo.base_meta(group), geo.clusters_in_group(group));
    assert!(geo.base_meta_blocks(group) <= geo.blocks_in_group(group));
    assert_eq!(geo.group_of_block(geo.first_block_of_group(group)), Some(group));
    for index in [0, geo.desc_blocks - 1, group.0 / geo.descs_per_block()] {
        assert!(geo.gdt_backups(index).take(100).all(|block| block > geo.gdt_block(index)));
        assert!(geo.descs_in_block(index) > 0);
    }
    assert!(geo.super_groups().take(100).all(|group| geo.has_super(group)));
    let (_, offset) = geo.desc_location(group);
    assert!(offset + usize::from(geo.desc_size) <= geo.block_size as usize);
}

fn ask_descriptor(geo: &Geometry, bytes: &[u8], group: u32) {
    let group = GroupNr(group % geo.groups_count);
    let _ = GroupDesc::decode(bytes, geo, group);
    let desc = GroupDesc::decode_unverified(bytes, geo);
    let mut bits = vec![0; geo.block_size as usize];
    init_block_bitmap(&mut bits, geo, group, &desc);
    mark_blocks(&mut bits, geo, group, desc.inode_table, u64::MAX);
    let _ = desc.verify_block_bitmap(&bits, geo);
    init_inode_bitmap(&mut bits, geo);
    let mut again = bytes.to_vec();
    desc.encode(&mut again, geo, group);
    if bytes.len() >= usize::from(geo.desc_size) {
        assert_eq!(GroupDesc::decode_unverified(&again, geo), desc);
        assert!(GroupDesc::verify_checksum(&again, geo, group).is_ok());
    }
}

proptest! {
    #[test]
    fn superblocks(sb in damaged(), block in any::<u64>(), group in number(), ino in number(),
                   bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Superblock::parse(&sb.encode());
        let _ = (sb.journal_backup(), sb.first_error(), sb.last_error(), sb.volume_name(), sb.block_size());
        if let Ok(geo) = Geometry::new(&sb) {
            ask(&geo, block, group, ino);
            ask_descriptor(&geo, &bytes, group);
            let _ = verify_inode(&bytes, &geo, InodeNr(ino));
            let _ = Inode::decode(&bytes, &geo, InodeNr(ino));
            let inode = Inode::new(&geo, 0o100_644, Timestamp::new(1, 1));
            let mut slot = vec![0; geo.inode_size.into()];
            prop_assert!(inode.encode(&mut slot, &geo, InodeNr(ino)).is_ok());
            prop_assert_eq!(Inode::decode(&slot, &geo, InodeNr(ino)).unwrap(), inode);
        }
    }

    #[test]
    fn journal_blocks(mut bytes in prop::collection::vec(any::<u8>(), 0..1200), form in 0u32..8, magic in any::<bool>()) {
        if magic && bytes.len() >= 12 {
            bytes[..8].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4]);
        }
        if let Ok(sb) = JournalSuperblock::parse_unverified(&bytes) {
            let _ = (sb.fast_commit_area(), sb.log_end(), sb.users().len(), sb.format());
        }
        let _ = JournalSuperblock::parse(&bytes);
        let modes = [0u32, 1].map(|bit| form & 1 == bit);
        let mut sb = JournalSuperblock::new(1024, 100, [1; 16]);
        sb.set_incompat(extant_format::jbd2::JournalIncompat::from_bits_retain(form << 2 & 0x18 | u32::from(modes[0]) << 1));
        let format: JournalFormat = sb.format();
        prop_assert!(Tags::new(&bytes, &format).count() <= bytes.len());
        let _ = RevokeRecords::parse(&bytes, &format).map(|records| records.count());
        let _ = (format.verify_tail(&bytes), CommitBlock::parse(&bytes), CommitBlock::verify(&bytes, &format));
        prop_assert!(FastCommitTags::new(&bytes, 0).count() <= bytes.len());
        format.seal_tail(&mut bytes);
        escape(&mut bytes);
    }

    #[test]
    fn small_blocks(mut bytes in prop::collection::vec(any::<u8>(), 0..1200), slot in any::<usize>()) {
        let _ = Mmp::parse(&bytes, Some(1));
        let _ = orphan::verify(&bytes, 1, 2, true);
        prop_assert_eq!(orphan::used(&bytes).count() + orphan::count_zero(&bytes), orphan::slots(bytes.len()));
        orphan::put(&mut bytes, slot, 7);
        let _ = orphan::get(&bytes, slot);
        orphan::init(&mut bytes);
        orphan::seal_orphan_block(&mut bytes, 1, 2);
        Mmp::default().encode(&mut bytes, Some(3));
    }
}
