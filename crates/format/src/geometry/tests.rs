use super::*;
use crate::types::BlockNr;

fn plain(blocks: u64, block_log: u32) -> Superblock {
    let mut sb = Superblock::empty();
    sb.set_features(Features {
        incompat: Incompat::EXTENTS | Incompat::FILETYPE,
        ro_compat: RoCompat::SPARSE_SUPER,
        ..Features::default()
    });
    sb.set_log_block_size(block_log);
    sb.set_log_cluster_size(block_log);
    sb.set_first_data_block(u32::from(block_log == 0));
    sb.set_blocks_count(blocks);
    sb.set_blocks_per_group(8192 << block_log);
    sb.set_clusters_per_group(8192 << block_log);
    sb.set_inodes_per_group(1024);
    let groups = (blocks - u64::from(sb.first_data_block())).div_ceil(8192 << block_log);
    sb.set_inodes_count(groups as u32 * 1024);
    sb.set_inode_size(256);
    sb.set_first_ino(11);
    sb
}

#[test]
fn groups_of_a_small_file_system() {
    let geo = Geometry::new(&plain(100_000, 0)).unwrap();
    assert_eq!(geo.groups_count, 13);
    assert_eq!(geo.blocks_in_group(GroupNr(12)), 100_000 - 1 - 12 * 8192);
    assert_eq!(geo.blocks_in_group(GroupNr(13)), 0);
    assert_eq!(geo.group_of_block(BlockNr(0)), None);
    assert_eq!(geo.group_of_block(BlockNr(8192)), Some(GroupNr(0)));
    assert_eq!(geo.group_of_block(BlockNr(8193)), Some(GroupNr(1)));
    assert_eq!(geo.group_of_block(BlockNr(100_000)), None);
    let copies: Vec<u32> = geo.super_groups().map(GroupNr::get).collect();
    assert_eq!(copies, [0, 1, 3, 5, 7, 9]);
    assert!(copies.iter().all(|group| geo.has_super(GroupNr(*group))));
    assert_eq!(geo.gdt_block(0), BlockNr(2));
    assert_eq!(geo.gdt_backups(0).next(), Some(BlockNr(8194)));
}

#[test]
fn super_groups_agree_with_has_super() {
    let geo = Geometry::new(&plain(3_000_000, 0)).unwrap();
    let walked: Vec<_> = geo.super_groups().collect();
    let tested: Vec<_> =
        (0..geo.groups_count).map(GroupNr).filter(|group| geo.has_super(*group)).collect();
    assert_eq!(walked, tested);
}

#[test]
fn inodes_are_found_in_their_table() {
    let geo = Geometry::new(&plain(100_000, 2)).unwrap();
    assert_eq!(geo.inode_location(InodeNr(1025)).unwrap(), (GroupNr(1), 0));
    assert_eq!(geo.inode_at(GroupNr(1), 0), InodeNr(1025));
    assert_eq!(geo.inode_slot(17), (1, 256));
    assert!(geo.inode_location(InodeNr(0)).is_err());
    assert!(geo.inode_location(InodeNr(geo.inodes_count + 1)).is_err());
}

#[test]
fn hostile_numbers_are_refused() {
    type Break = fn(&mut Superblock);
    let cases: [Break; 12] = [
        |sb| sb.set_log_block_size(7),
        |sb| sb.set_log_cluster_size(9),
        |sb| sb.set_blocks_per_group(0),
        |sb| sb.set_blocks_per_group(u32::MAX),
        |sb| sb.set_inodes_per_group(0),
        |sb| sb.set_inodes_per_group(1 << 20),
        |sb| sb.set_inode_size(100),
        |sb| sb.set_inode_size(0),
        |sb| sb.set_first_data_block(1),
        |sb| sb.set_blocks_count(0),
        |sb| sb.set_inodes_count(5),
        |sb| sb.set_reserved_gdt_blocks(5000),
    ];
    for (number, damage) in cases.into_iter().enumerate() {
        let mut sb = plain(100_000, 2);
        damage(&mut sb);
        assert!(Geometry::new(&sb).is_err(), "case {number}");
    }
}

/// A search through all of 2^32 groups would take minutes.
#[test]
fn copies_end_at_the_first_meta_group() {
    let mut sb = plain(1 << 20, 0);
    sb.set_features(Features {
        incompat: Incompat::EXTENTS | Incompat::FILETYPE | Incompat::META_BG | Incompat::BIT64,
        ..Features::default()
    });
    sb.set_desc_size(1024);
    sb.set_first_meta_bg(7);
    let groups = u32::MAX - 1;
    sb.set_inodes_per_group(1);
    sb.set_inode_size(1024);
    sb.set_inodes_count(groups);
    sb.set_blocks_count(1 + u64::from(groups) * 8192);
    let geo = Geometry::new(&sb).unwrap();
    for index in 0..7 {
        assert_eq!(geo.gdt_backups(index).count(), 6);
    }
}

#[test]
fn meta_groups_hold_their_own_descriptors() {
    let mut sb = plain(3_000_000, 0);
    let mut features = sb.features();
    features.incompat |= Incompat::META_BG;
    sb.set_features(features);
    let geo = Geometry::new(&sb).unwrap();
    assert_eq!(geo.descs_per_block(), 32);
    assert_eq!(geo.gdt_block(0), BlockNr(2));
    assert_eq!(geo.gdt_block(1), geo.first_block_of_group(GroupNr(32)));
    let backups: Vec<_> = geo.gdt_backups(1).collect();
    let expected = [33, 63].map(|group| geo.first_block_of_group(GroupNr(group)));
    assert_eq!(backups, expected);
    assert_eq!(geo.base_meta_blocks(GroupNr(34)), 0);
    assert_eq!(geo.base_meta_blocks(GroupNr(49)), 1);
    let most = (0..geo.groups_count).map(|g| geo.base_meta_blocks(GroupNr(g))).max().unwrap();
    assert!(u64::from(most) <= geo.most_base_meta_blocks());
}
