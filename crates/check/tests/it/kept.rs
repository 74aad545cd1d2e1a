//! Journals, logs, devices and files that look wrong and are not: a repair keeps them.

use crate::repairs::{Repaired, contents, objection, repair};
use extant_blocks::MemDevice;
use extant_check::repair::RepairLevel;
use extant_engine::{Fs, NodeKind};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::superblock::JournalBackup;
use extant_format::{Compat, Incompat, InodeNr, Superblock};
use extant_hostile::atlas::{Atlas, change_superblock};
use extant_hostile::seeds::{Seed, options};
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

const LEVELS: [RepairLevel; 2] = [RepairLevel::Safe, RepairLevel::Lossy];

/// The copy of the superblock in group 1, in blocks of 1 KiB.
const COPY_1K: usize = 8193 << 10;

/// The numbers of a device: together the number of a block.
const MAJOR: u32 = 9;
const MINOR: u32 = 3;

fn superblock(bytes: &[u8], at: usize) -> Superblock {
    Superblock::parse(&bytes[at..at + 1024]).expect("a superblock")
}

fn has_journal(bytes: &[u8], at: usize) -> bool {
    superblock(bytes, at).compat().contains(Compat::HAS_JOURNAL)
}

/// Adds a journal by tune2fs to a file system whose only copy remains old.
fn with_added_journal(how: &[&str]) -> Vec<u8> {
    let image = Image::mke2fs(24 << 20, &["-t", "ext2", "-b", "1024"]);
    image.leave_unjudged("its bytes are changed");
    let old = image.bytes();
    let path = image.path().as_os_str();
    let args: Vec<&OsStr> = how.iter().map(OsStr::new).chain([path]).collect();
    run("tune2fs", &args).must_succeed();
    let mut bytes = image.bytes();
    bytes[COPY_1K..COPY_1K + 1024].copy_from_slice(&old[COPY_1K..COPY_1K + 1024]);
    assert!(has_journal(&bytes, 1024) && !has_journal(&bytes, COPY_1K));
    bytes
}

/// Without its device, a journal remains, whether no copy tells of it or there is none.
#[test]
fn a_journal_whose_device_is_missing_remains() {
    let journal = Image::mke2fs(8 << 20, &["-b", "1024", "-O", "journal_dev"]);
    let on = Loop::attach(journal.path(), false);
    let named = format!("device={}", on.device().display());
    let one_group = Image::mke2fs(6 << 20, &["-t", "ext3", "-b", "1024", "-J", &named]);
    one_group.leave_unjudged("its log is on another device");
    let copies = with_added_journal(&["-J", &named]);
    drop(on);
    for bytes in [one_group.bytes(), copies] {
        for level in LEVELS {
            let Repaired::Refused(why) = repair(&bytes, level) else { panic!("{level:?}") };
            assert!(why.contains("journal"), "{why}");
        }
    }
}

/// A log without its mark is old: the file system was changed since.
#[test]
fn an_old_log_is_not_replayed() {
    for set in ["default", "ext3_1k"] {
        let seed = Seed::make(FeatureSet::named(set), true);
        let Repaired::Done(recovered) = repair(&seed.bytes, RepairLevel::Safe) else {
            panic!("{set}")
        };
        let device = Arc::new(MemDevice::from_bytes(&recovered));
        let fs = Fs::open_device(device.clone(), &options()).expect("a good image opens");
        let root = fs.root().expect("root");
        for n in 0..20 {
            let name = format!("newer{n}");
            fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).expect("mkdir");
        }
        fs.unmount().expect("unmount");
        let mut bytes = device.to_vec();
        let expected = contents(&bytes);
        for block in seed.atlas.journal_blocks() {
            bytes[block.clone()].copy_from_slice(&seed.bytes[block]);
        }
        let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Safe) else { panic!("{set}") };
        assert!(contents(&repaired) == expected, "{set}: content changed");
        assert_eq!(objection(&repaired), None, "{set}");
    }
}

/// The journal was added later than the copies, and the map in its inode is damaged.
#[test]
fn a_journal_that_no_copy_knows_is_replayed_by_its_second_map() {
    let device = Arc::new(MemDevice::from_bytes(&with_added_journal(&["-j"])));
    let fs = Fs::open_device(device.clone(), &options()).expect("a good image opens");
    let root = fs.root().expect("root");
    for n in 0..20 {
        let name = format!("new{n}");
        fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).expect("mkdir");
    }
    fs.sync().expect("sync");
    fs.crash();
    let bytes = device.to_vec();
    assert!(superblock(&bytes, 1024).incompat().contains(Incompat::RECOVER));
    let expected = contents(&bytes);
    assert!(expected.nodes.len() > 20);
    let atlas = Atlas::of(&bytes);
    let slot = atlas.slot(InodeNr::JOURNAL.0).bytes.start;
    // The first pointer; the one to the block of pointers; the mode.
    for (at, mask) in [(41, 4), (89, 4), (1, 0x40)] {
        let mut damaged = bytes.clone();
        damaged[slot + at] ^= mask;
        let Repaired::Done(repaired) = repair(&damaged, RepairLevel::Lossy) else {
            panic!("{at}: {:?}", repair(&damaged, RepairLevel::Lossy))
        };
        assert!(has_journal(&repaired, 1024), "{at}: no journal");
        assert!(contents(&repaired) == expected, "{at}: content changed");
        assert_eq!(objection(&repaired), None, "{at}");
    }
}

/// The numbers of a device look like a map.
#[test]
fn a_device_with_a_wrong_count_of_blocks_remains_a_device() {
    for set in ["default", "ext3_1k"] {
        let seed = Seed::make(FeatureSet::named(set), false);
        let device = Arc::new(MemDevice::from_bytes(&seed.bytes));
        let fs = Fs::open_device(device.clone(), &options()).expect("a good image opens");
        let root = fs.root().expect("root");
        let kinds = [
            (b"char", NodeKind::CharDevice(MAJOR, MINOR)),
            (b"disk", NodeKind::BlockDevice(MAJOR, MINOR)),
        ];
        let inos = kinds
            .map(|(name, kind)| fs.create(&root, name, 0o600, kind).expect("mknod").ino() as u32);
        fs.unmount().expect("unmount");
        let mut bytes = device.to_vec();
        let expected = contents(&bytes);
        let atlas = Atlas::of(&bytes);
        for ino in inos {
            atlas.change_inode(&mut bytes, ino, |inode| inode.blocks = 8);
        }
        for level in LEVELS {
            let Repaired::Done(repaired) = repair(&bytes, level) else { panic!("{set}") };
            assert!(contents(&repaired) == expected, "{set}: content changed");
            assert_eq!(objection(&repaired), None, "{set}");
        }
    }
}

/// A map of the journal that leads to a file: the second one in the superblock, or the only one.
#[test]
fn no_log_is_made_in_the_blocks_of_a_file() {
    for set in ["1k", "ext3_1k"] {
        let image = FeatureSet::named(set).make_sized(40 << 20);
        let mount = Mount::new(image.path(), "");
        std::fs::write(mount.join("file"), vec![7; 4 << 20]).expect("space");
        let ino = std::fs::metadata(mount.join("file")).expect("a file").ino() as u32;
        mount.unmount();
        let clean = image.bytes();
        let (expected, atlas) = (contents(&clean), Atlas::of(&clean));
        let file = atlas.read_inode(&clean, ino);
        let i_block: [u8; I_BLOCK_SIZE] = file.i_block;
        let backup = JournalBackup { i_block, size: file.size };
        // The log has lost its superblock.
        let mut in_superblock = clean.clone();
        in_superblock[atlas.journal_block(0)].fill(0);
        change_superblock(&mut in_superblock, |sb| sb.set_journal_backup(Some(&backup)));
        let mut in_inode = clean.clone();
        change_superblock(&mut in_inode, |sb| sb.set_journal_backup(None));
        atlas.change_inode(&mut in_inode, InodeNr::JOURNAL.0, |inode| {
            inode.i_block = i_block;
            inode.size = file.size;
        });
        for (place, bytes) in [("superblock", in_superblock), ("inode", in_inode)] {
            let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Lossy) else {
                panic!("{set}, {place}: {:?}", repair(&bytes, RepairLevel::Lossy))
            };
            assert!(contents(&repaired) == expected, "{set}, {place}: content changed");
            assert_eq!(objection(&repaired), None, "{set}, {place}");
        }
    }
}

/// A copy may be older than an unknown feature, which is no flipped bit if more is damaged.
#[test]
fn an_unknown_feature_that_no_copy_has_is_refused_beside_damage() {
    let seed = Seed::make(FeatureSet::named("ext2_1k"), false);
    let mut bytes = seed.bytes.clone();
    change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.incompat |= Incompat::from_bits_retain(1 << 30);
        sb.set_features(features);
    });
    let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Lossy) else { panic!("a flip") };
    assert!(contents(&repaired) == contents(&seed.bytes), "content changed");
    seed.atlas.change_inode(&mut bytes, InodeNr::ROOT.0, |inode| inode.links += 1);
    for level in LEVELS {
        assert!(matches!(repair(&bytes, level), Repaired::Refused(_)), "{level:?}");
    }
}
