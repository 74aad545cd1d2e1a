//! Flipped bits in facts that have copies, or that follow from others: no file is lost.

use crate::oracle::damages;
use crate::repairs::{Repaired, contents, objection, repair};
use extant_blocks::MemDevice;
use extant_check::repair::RepairLevel;
use extant_engine::{Follow, Fs};
use extant_format::{GroupDesc, Incompat, InodeFlags, InodeNr, Superblock};
use extant_hostile::atlas::Kind;
use extant_hostile::seeds::{Seed, options};
use extant_testkit::cuts::RecentStates;
use extant_testkit::{FeatureSet, Image};
use std::ops::Range;
use std::sync::Arc;

/// Offset of the superblock on the device.
const START: usize = 1024;

/// Bytes of the superblock that have a meaning, without the checksum.
const FIELDS: usize = 0x284;

/// The features in it.
const FEATURES: Range<usize> = 92..104;

/// The first byte of the incompatible ones.
const INCOMPAT: usize = 96;

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
        // A bit without a meaning, and without a checksum.
        Repaired::Clean => bytes,
        other => panic!("{flips:?}: {other:?}"),
    }
}

/// With a wrong checksum, no field is believed that a copy contradicts. Otherwise a larger number
/// of the first ordinary inode, for example, would make reserved inodes of all others.
#[test]
fn a_flipped_bit_of_the_superblock_costs_no_file() {
    for (name, crashed, step) in [
        ("1k", false, 3),
        ("1k", true, 7),
        // Without checksums copies tell, or the image itself where there is none.
        ("ext2_1k", false, 3),
        ("ext3_1k", false, 7),
        ("ext3_1k", true, 11),
        ("ext2", false, 11),
        ("uninit_bg", false, 13),
    ] {
        let seed = Seed::make(FeatureSet::named(name), crashed);
        let expected = contents(&seed.bytes);
        let has_copies = seed.atlas.geo.groups_count > 1;
        let mut recent = RecentStates::default();
        for at in (0..FIELDS).step_by(step) {
            // An unknown feature may be a real one, if no copy contradicts.
            if !has_copies && FEATURES.contains(&at) {
                continue;
            }
            let flips = [(at, 1 << (at % 8))];
            let repaired = repair_flipped(&seed, START, &flips);
            if recent.is_new(&repaired) {
                assert!(contents(&repaired) == expected, "{name}, {flips:?}: content changed");
            }
            if at % (step * JUDGED) == 0 {
                assert_eq!(objection(&repaired), None, "{name}, {flips:?}");
            }
        }
    }
}

/// A descriptor names another table, or has a bitmap in a table: the checksum, the copies or the
/// root directory tell where the inodes are.
#[test]
fn a_flipped_bit_of_a_descriptor_costs_no_file() {
    for set in ["1k", "default", "uninit_bg", "ext2_1k", "ext3", "no_flex_bg"] {
        let seed = Seed::make(FeatureSet::named(set), false);
        let geometry = seed.atlas.geo;
        let start = geometry.gdt_block(0).index() * geometry.block_size as usize;
        let groups = usize::try_from(geometry.groups_count.min(2)).expect("a number");
        flip_each(&seed, start, (groups * usize::from(geometry.desc_size), 5));
    }
}

/// The hashes of values depend on the UUID, which a copy has.
#[test]
fn a_flipped_bit_of_the_uuid_costs_no_attribute() {
    let args = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,ea_inode"];
    let set = FeatureSet { name: "values", args, ..*FeatureSet::named("ea_inode") };
    let seed = Seed::make(&set, false);
    let repaired = repair_flipped(&seed, START, &[(117, 16)]);
    assert!(contents(&repaired) == contents(&seed.bytes), "content changed");
    assert_eq!(objection(&repaired), None);
}

/// Flips one bit in each of `len` bytes, the next one `turn` further, and repairs each image.
/// An image that several repairs give is judged once.
fn flip_each(seed: &Seed, start: usize, (len, turn): (usize, usize)) {
    let expected = contents(&seed.bytes);
    let mut recent = RecentStates::default();
    for at in 0..len {
        let flips = [(at, 1 << (at * turn % 8))];
        let repaired = repair_flipped(seed, start, &flips);
        if !recent.is_new(&repaired) {
            continue;
        }
        let name = &seed.name;
        assert!(contents(&repaired) == expected, "{name}, {flips:?}: content changed");
        assert_eq!(objection(&repaired), None, "{name}, {flips:?}");
    }
}

/// Size and flags of the resize inode, with a wrong checksum beside them.
#[test]
fn a_flipped_bit_of_the_resize_inode_is_repaired() {
    for name in ["1k", "default", "bigalloc", "ext2_1k"] {
        let seed = Seed::make(FeatureSet::named(name), false);
        let geometry = seed.atlas.geo;
        let (_, index) = geometry.inode_location(InodeNr::RESIZE).expect("an inode");
        let (block, offset) = geometry.inode_slot(index);
        let at = geometry.gdt_block(0).index() * geometry.block_size as usize;
        let desc = GroupDesc::decode_unverified(&seed.bytes[at..], &geometry);
        let table = (desc.inode_table + u64::from(block)) as usize * geometry.block_size as usize;
        flip_each(&seed, table + offset, (OLD_INODE, 3));
    }
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

/// The directory with all others, and a file.
const DIR: &str = "dir";
const FILE: &str = "fragmented";

/// Returns the inode of a name of a seed.
fn ino_of(seed: &Seed, name: &str) -> u32 {
    let device = Arc::new(MemDevice::from_bytes(&seed.bytes));
    let fs = Fs::open_device(device, &options().read_only(true)).expect("a good image opens");
    fs.resolve(format!("/{name}"), Follow::No).expect("a name").ino() as u32
}

/// Bits of the type of a directory and of a file: their content tells the right one.
#[test]
fn a_flipped_bit_of_a_type_costs_no_file() {
    for set in ["default", "ext2_1k", "ext3_1k"] {
        let seed = Seed::make(FeatureSet::named(set), false);
        let expected = contents(&seed.bytes);
        for name in [DIR, FILE] {
            let slot = seed.atlas.slot(ino_of(&seed, name)).bytes.start;
            // The high byte of the mode.
            for bit in 4..8 {
                let repaired = repair_flipped(&seed, slot, &[(1, 1 << bit)]);
                assert!(contents(&repaired) == expected, "{set}, {name}, {bit}: content changed");
                assert_eq!(objection(&repaired), None, "{set}, {name}, {bit}");
            }
        }
    }
}

/// A flag of encryption without a context means nothing.
#[test]
fn a_flag_of_encryption_costs_no_file() {
    for set in ["default", "ext3_1k"] {
        let seed = Seed::make(FeatureSet::named(set), false);
        let mut bytes = seed.bytes.clone();
        let ino = ino_of(&seed, FILE);
        seed.atlas.change_inode(&mut bytes, ino, |inode| inode.flags |= InodeFlags::ENCRYPT);
        let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Lossy) else { panic!("{set}") };
        assert!(contents(&repaired) == contents(&seed.bytes), "{set}: content changed");
        assert_eq!(objection(&repaired), None, "{set}");
    }
}

/// A log with transactions is replayed although its mark is lost: a checksum tells of that, or a
/// loss of data is agreed to.
#[test]
fn a_log_without_its_mark_is_replayed() {
    for (set, level) in [("default", RepairLevel::Safe), ("ext3_1k", RepairLevel::Lossy)] {
        let seed = Seed::make(FeatureSet::named(set), true);
        let mut bytes = seed.bytes.clone();
        bytes[START + INCOMPAT] ^= Incompat::RECOVER.bits() as u8;
        let Repaired::Done(repaired) = repair(&bytes, level) else { panic!("{set}") };
        assert!(contents(&repaired) == contents(&seed.bytes), "{set}: content changed");
        assert_eq!(objection(&repaired), None, "{set}");
    }
}

/// One damaged copy in the log leaves all others.
#[test]
fn a_damaged_copy_in_the_log_leaves_the_others() {
    let seed = Seed::make(FeatureSet::named("default"), true);
    let (all, mut least) = (contents(&seed.bytes).nodes.len(), usize::MAX);
    for copy in seed.atlas.of_kind(Kind::JournalCopy).step_by(3) {
        let repaired = repair_flipped(&seed, copy.bytes.start, &[(100, 1)]);
        assert_eq!(objection(&repaired), None, "{copy:?}");
        least = least.min(contents(&repaired).nodes.len());
    }
    assert!(least > all / 2, "{least} of {all}");
}

/// The superblock has a copy of the journal's map, with which the log is replayed.
#[test]
fn a_flipped_bit_of_the_map_of_the_journal_costs_no_file() {
    for (set, at) in [("ext3_1k", 85), ("ext3_1k", 41), ("default", 40), ("default", 53)] {
        let seed = Seed::make(FeatureSet::named(set), true);
        let slot = seed.atlas.slot(InodeNr::JOURNAL.0).bytes.start;
        let repaired = repair_flipped(&seed, slot, &[(at, 4)]);
        assert!(contents(&repaired) == contents(&seed.bytes), "{set}, {at}: content changed");
        assert_eq!(objection(&repaired), None, "{set}, {at}");
    }
}
