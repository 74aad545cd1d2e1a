//! Flipped bits in facts that have copies, or that follow from others: no file is lost.

use crate::oracle::damages;
use crate::repairs::{Repaired, contents, objection, repair};
use extant_check::repair::RepairLevel;
use extant_format::{GroupDesc, InodeNr, Superblock};
use extant_hostile::seeds::Seed;
use extant_testkit::{FeatureSet, Image};

/// Offset of the superblock on the device.
const START: usize = 1024;

/// Bytes of the superblock that have a meaning, without the checksum.
const FIELDS: usize = 0x284;

/// Bytes of an inode that each file system has.
const OLD_INODE: usize = 128;

/// One image in so many is judged by e2fsck and the kernel, too.
const JUDGED: usize = 16;

/// Repairs an image with some flipped bits, given as bytes behind `start` and masks.
fn repair_flipped(seed: &Seed, start: usize, flips: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = seed.bytes.clone();
    flips.iter().for_each(|(at, mask)| bytes[start + at] ^= mask);
    match repair(&bytes, RepairLevel::Lossy) {
        Repaired::Done(repaired) => repaired,
        other => panic!("{flips:?}: {other:?}"),
    }
}

/// With a wrong checksum, no field is believed that a copy contradicts. Otherwise a larger number
/// of the first ordinary inode, for example, would make reserved inodes of all others.
#[test]
fn a_flipped_bit_of_the_superblock_costs_no_file() {
    for (crashed, step) in [(false, 3), (true, 7)] {
        let seed = Seed::make(FeatureSet::named("1k"), crashed);
        let expected = contents(&seed.bytes);
        for at in (0..FIELDS).step_by(step) {
            let flips = [(at, 1 << (at % 8))];
            let repaired = repair_flipped(&seed, START, &flips);
            assert!(contents(&repaired) == expected, "{flips:?}: content changed");
            if at % (step * JUDGED) == 0 {
                assert_eq!(objection(&repaired), None, "{flips:?}");
            }
        }
    }
}

/// A descriptor with a wrong checksum names another table, or has a bitmap in a table: the copies
/// tell where the inodes are.
#[test]
fn a_flipped_bit_of_a_descriptor_costs_no_file() {
    let seed = Seed::make(FeatureSet::named("1k"), false);
    let geometry = seed.atlas.geo;
    let start = geometry.gdt_block(0).index() * geometry.block_size as usize;
    flip_each(&seed, start, (2 * usize::from(geometry.desc_size), 5));
}

/// Flips one bit in each of `len` bytes, the next one `turn` further, and repairs each image.
fn flip_each(seed: &Seed, start: usize, (len, turn): (usize, usize)) {
    let expected = contents(&seed.bytes);
    for at in 0..len {
        let flips = [(at, 1 << (at * turn % 8))];
        let repaired = repair_flipped(seed, start, &flips);
        assert!(contents(&repaired) == expected, "{flips:?}: content changed");
        assert_eq!(objection(&repaired), None, "{flips:?}");
    }
}

/// Size and flags of the resize inode, with a wrong checksum beside them.
#[test]
fn a_flipped_bit_of_the_resize_inode_is_repaired() {
    let seed = Seed::make(FeatureSet::named("1k"), false);
    let geometry = seed.atlas.geo;
    let (_, index) = geometry.inode_location(InodeNr::RESIZE).expect("an inode");
    let (block, offset) = geometry.inode_slot(index);
    let at = geometry.gdt_block(0).index() * geometry.block_size as usize;
    let desc = GroupDesc::decode_unverified(&seed.bytes[at..], &geometry);
    let table = (desc.inode_table + u64::from(block)) as usize * geometry.block_size as usize;
    flip_each(&seed, table + offset, (OLD_INODE, 3));
}

/// The flipped bits are in the UUID or in the feature of checksums, besides others.
#[test]
fn a_copy_is_found_although_its_names_are_flipped() {
    let seed = Seed::make(FeatureSet::named("1k"), false);
    let expected = contents(&seed.bytes);
    let (uuid, checksums, first_inode, blocks) = ((111, 128), (101, 4), (85, 8), (4, 1));
    for flips in [
        &[uuid][..],
        &[uuid, first_inode],
        &[uuid, blocks],
        &[checksums],
        &[checksums, first_inode],
        &[(101, 8), (184, 2)],
    ] {
        let repaired = repair_flipped(&seed, START, flips);
        assert!(contents(&repaired) == expected, "{flips:?}: content changed");
        assert_eq!(objection(&repaired), None, "{flips:?}");
    }
}

/// Groups may have fewer inodes than are reserved.
#[test]
fn groups_of_few_inodes_are_no_damage() {
    let image = Image::mke2fs(300 << 20, &["-t", "ext4", "-N", "16"]);
    assert_eq!(damages(&image.bytes(), true), [""; 0]);
}

/// Without a copy and a checksum, an impossible number of the first ordinary inode is reset.
#[test]
fn an_impossible_first_inode_is_reset() {
    let seed = Seed::make(FeatureSet::named("ext3"), false);
    let mut bytes = seed.bytes.clone();
    let mut sb = Superblock::parse(&bytes[START..2 * START]).expect("a superblock");
    sb.set_first_ino(sb.inodes_count() + 1);
    bytes[START..2 * START].copy_from_slice(&sb.seal());
    assert!(damages(&bytes, true).iter().any(|line| line.contains("first inode")));
    let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Lossy) else { panic!("refused") };
    assert!(contents(&repaired) == contents(&seed.bytes), "content changed");
    assert_eq!(objection(&repaired), None);
}
