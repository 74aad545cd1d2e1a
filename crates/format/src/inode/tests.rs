use super::*;
use crate::features::Features;
use crate::superblock::Superblock;
use proptest::prelude::*;

pub(crate) fn geometry(inode_size: u16, ro_compat: RoCompat) -> Geometry {
    let mut sb = Superblock::empty();
    sb.set_features(Features { ro_compat, incompat: Incompat::EXTENTS, ..Features::default() });
    sb.set_checksum_type(1);
    sb.set_log_block_size(2);
    sb.set_log_cluster_size(2);
    sb.set_blocks_count(32768);
    sb.set_blocks_per_group(32768);
    sb.set_clusters_per_group(32768);
    sb.set_inodes_per_group(1024);
    sb.set_inodes_count(1024);
    sb.set_inode_size(inode_size);
    sb.set_first_ino(11);
    sb.set_uuid([9; 16]);
    Geometry::new(&sb).unwrap()
}

fn sample(geo: &Geometry) -> Inode {
    Inode {
        uid: 70_000,
        gid: 80_000,
        size: 0x12_3456_7890,
        links: 3,
        blocks: 0x1_0000_0008,
        flags: InodeFlags::EXTENTS,
        atime: Timestamp::new(5_000_000_000, 1),
        ctime: Timestamp::new(-5, 2),
        mtime: Timestamp::new(7, 3),
        crtime: Some(Timestamp::new(8, 4)),
        generation: 0xDEAD_BEEF,
        file_acl: 0x1234_5678_9ABC,
        version: 0x1_0000_0002,
        projid: 42,
        ..Inode::new(geo, 0o100_644, NOW)
    }
}

const NOW: Timestamp = Timestamp::new(1_700_000_000, 5);

const ALL: RoCompat = RoCompat::METADATA_CSUM.union(RoCompat::HUGE_FILE);

#[test]
fn round_trip_keeps_fields_and_attribute_area() {
    let geo = geometry(256, ALL);
    let inode = sample(&geo);
    let mut slot = vec![0u8; 256];
    slot[200..].fill(0x55);
    inode.encode(&mut slot, &geo, InodeNr(12)).unwrap();
    assert_eq!(Inode::decode(&slot, &geo, InodeNr(12)).unwrap(), inode);
    assert!(slot[200..].iter().all(|byte| *byte == 0x55));
    assert!(Inode::decode(&slot, &geo, InodeNr(13)).is_err());
    slot[255] ^= 1;
    assert!(Inode::decode(&slot, &geo, InodeNr(12)).is_err());
}

#[test]
fn small_slots_have_no_extra_fields() {
    let geo = geometry(128, ALL);
    let inode = sample(&geo);
    let mut slot = vec![0u8; 128];
    inode.encode(&mut slot, &geo, InodeNr(12)).unwrap();
    let read = Inode::decode(&slot, &geo, InodeNr(12)).unwrap();
    assert_eq!(read.atime, Timestamp::new(i32::MAX.into(), 0));
    assert_eq!((read.projid, read.crtime, read.extra_isize), (0, None, 0));
    assert!(read.xattr_area(&geo).is_empty());
}

#[test]
fn block_counts_take_the_smallest_form() {
    let geo = geometry(256, ALL);
    let mut slot = vec![0u8; 256];
    let mut inode = sample(&geo);
    for blocks in [1, (1 << 48) - 1, 1 << 48, ((1 << 48) - 1) * 8] {
        inode.blocks = blocks;
        inode.encode(&mut slot, &geo, InodeNr(12)).unwrap();
        let read = Inode::decode(&slot, &geo, InodeNr(12)).unwrap();
        assert_eq!((read.blocks, read.flags), (blocks, InodeFlags::EXTENTS));
    }
    inode.blocks = 1 << 51;
    assert!(inode.encode(&mut slot, &geo, InodeNr(12)).is_err());
    inode.blocks = 1 << 32;
    let plain = geometry(256, RoCompat::empty());
    assert!(inode.encode(&mut slot, &plain, InodeNr(12)).is_err());
}

#[test]
fn extra_sizes_that_do_not_fit_are_refused() {
    let geo = geometry(256, RoCompat::empty());
    let mut slot = vec![0u8; 256];
    for extra in [2u16, 132, 0xFFFF] {
        crate::bytes::put_le16(&mut slot, 0x80, extra);
        assert!(Inode::decode(&slot, &geo, InodeNr(12)).is_err());
    }
    crate::bytes::put_le16(&mut slot, 0x80, 128);
    assert!(Inode::decode(&slot, &geo, InodeNr(12)).is_ok());
    assert!(Inode::decode(&slot[..255], &geo, InodeNr(12)).is_err());
}

/// A slot may end between the seconds of a creation time and its parts, or before.
#[test]
fn a_new_inode_is_read_as_it_was_made() {
    let now = Timestamp::new(1 << 32, 123_456_789);
    for extra in [4, 8, 12, 16, 20, 24, 28, 32] {
        let geo = Geometry { want_extra_isize: extra, ..geometry(256, RoCompat::empty()) };
        let made = Inode::new(&geo, 0o100_644, now);
        assert_eq!(made.extra_isize, extra);
        let mut slot = vec![0; 256];
        made.encode(&mut slot, &geo, InodeNr(12)).expect("encode");
        assert_eq!(Inode::decode(&slot, &geo, InodeNr(12)).expect("decode"), made);
    }
}

#[test]
fn devices_have_two_forms() {
    let geo = geometry(256, RoCompat::empty());
    assert_eq!(Inode::new(&geo, 0o100_600, NOW).rdev(), None);
    let mut inode = Inode::new(&geo, 0o020_600, NOW);
    for device in [(8, 1), (255, 255), (256, 0), (1, 300), (0xFFF, 0xF_FFFF)] {
        inode.set_rdev(device);
        assert_eq!(inode.rdev(), Some(device));
    }
}

#[test]
fn short_links_lie_in_the_inode() {
    let geo = geometry(256, RoCompat::empty());
    let mut inode = Inode::new(&geo, 0o120_777, NOW);
    assert!(inode.set_fast_symlink(&[b'a'; 59]));
    assert_eq!(inode.fast_symlink(&geo), Some(&[b'a'; 59][..]));
    assert!(!inode.set_fast_symlink(&[b'a'; 60]));
    inode.blocks = 8;
    assert_eq!(inode.fast_symlink(&geo), None);
    inode.file_acl = 100;
    assert!(inode.fast_symlink(&geo).is_some());
}

#[test]
fn where_values_have_inodes_the_size_and_the_flags_tell_short_links() {
    let mut geo = geometry(256, RoCompat::empty());
    geo.features.incompat.insert(Incompat::EA_INODE);
    let mut inode = Inode::new(&geo, 0o120_777, NOW);
    inode.blocks = 16;
    for len in 1..=59 {
        assert!(inode.set_fast_symlink(&vec![b'a'; len]));
        assert_eq!(inode.fast_symlink(&geo), Some(&vec![b'a'; len][..]));
    }
    inode.flags.insert(InodeFlags::EXTENTS);
    assert!(!inode.is_fast_symlink(&geo));
    inode.flags.remove(InodeFlags::EXTENTS);
    for size in [0, 60, 300] {
        inode.size = size;
        assert!(!inode.is_fast_symlink(&geo), "{size}");
    }
    assert!(!Inode { size: 5, ..Inode::new(&geo, 0o100_600, NOW) }.is_fast_symlink(&geo));
}

#[test]
fn attribute_values_count_their_users() {
    let geo = geometry(256, RoCompat::empty());
    let mut inode = Inode::new(&geo, 0o100_600, NOW);
    let mut slot = vec![0u8; 256];
    inode.set_ea_refcount(0x8000_0001_F000_0002);
    inode.set_ea_hash(0xFEED_FACE);
    inode.encode(&mut slot, &geo, InodeNr(12)).unwrap();
    let read = Inode::decode(&slot, &geo, InodeNr(12)).unwrap();
    assert_eq!((read.ea_refcount(), read.ea_hash()), (0x8000_0001_F000_0002, 0xFEED_FACE));
}

proptest! {
    #[test]
    fn any_slot_is_read_and_written_back(
        bytes in prop::collection::vec(any::<u8>(), 256),
        small in any::<bool>(),
    ) {
        let geo = geometry(if small { 128 } else { 256 }, RoCompat::HUGE_FILE);
        if let Ok(inode) = Inode::decode_unverified(&bytes, &geo, InodeNr(5)) {
            let mut slot = bytes.clone();
            if inode.encode(&mut slot, &geo, InodeNr(5)).is_ok() {
                prop_assert_eq!(Inode::decode(&slot, &geo, InodeNr(5)).unwrap(), inode);
            }
        }
    }
}
