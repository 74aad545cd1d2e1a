//! Looks inside images: damaged ones, and the log.

use extant_blocks::{BlockDevice, MemDevice};
use extant_check::debug::{
    ContentPiece, InodeSlot, InspectOptions, Inspector, MapPart, TransactionState,
};
use extant_hostile::bombs::{share, share_extents, share_pointers};
use extant_hostile::mutate::mutate;
use extant_hostile::seeds::Seed;
use extant_testkit::rng::Rng;
use extant_testkit::{FEATURE_SETS, FeatureSet};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Inodes that are looked at one by one.
const MAX_INODES: u32 = 300;

fn seed(name: &str, crashed: bool) -> Seed {
    Seed::make(FeatureSet::named(name), crashed)
}

fn open(bytes: &[u8], as_is: bool) -> Option<Inspector> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    Inspector::open(device, None, InspectOptions { as_is, superblock: None }).ok()
}

/// Number of parts of the map of an inode, and of its problems.
fn map_of(inspector: &Inspector, slot: &InodeSlot) -> (usize, usize) {
    let (mut parts, mut problems) = (0, 0);
    inspector.map(slot, &mut |part| {
        parts += 1;
        problems += usize::from(matches!(part, MapPart::Problem(_)));
        ControlFlow::Continue(())
    });
    (parts, problems)
}

fn look_at_inode(inspector: &Inspector, slot: &InodeSlot) {
    map_of(inspector, slot);
    inspector.directory(slot, &mut |_| ControlFlow::Continue(()));
    let mut stored = 0;
    let read = inspector.content(slot, &mut |piece| {
        if let ContentPiece::Data(bytes) = piece {
            stored += bytes.len() as u64;
        }
        Ok(())
    });
    assert!(read.is_ok());
    let geometry = inspector.geometry();
    let most = geometry.blocks_count.saturating_mul(geometry.block_size.into());
    assert!(stored <= most, "inode {} has {stored} bytes", slot.ino);
    inspector.xattrs(slot);
    let _ = inspector.target(slot);
}

/// Looks at everything.
fn look(bytes: &[u8]) {
    for as_is in [false, true] {
        let Some(inspector) = open(bytes, as_is) else { continue };
        (0..inspector.group_count()).for_each(|group| drop(inspector.group(group)));
        inspector.superblocks(&mut |_| ControlFlow::Continue(()));
        let inodes = 1..=inspector.geometry().inodes_count.min(MAX_INODES);
        for ino in inodes.clone() {
            if let Ok(slot) = inspector.inode(ino) {
                look_at_inode(&inspector, &slot);
            }
        }
        inspector.free_space();
        let log = inspector.journal().ok();
        let wanted: BTreeSet<u32> = inodes.collect();
        let names = inspector.names(&wanted, true, log.as_ref());
        names.names.iter().for_each(|name| assert!(names.path(name).len() < 10_000));
        let blocks: BTreeSet<u64> = (0..2000).collect();
        inspector.owners(&blocks);
        inspector.each_map(None, &mut |_, _| ());
        blocks.iter().for_each(|block| drop(inspector.metadata_in(*block)));
        if let Some(log) = &log {
            for transaction in log.transactions() {
                log.revoked(transaction, &mut |_| ());
                transaction.blocks.iter().for_each(|copy| drop(log.content(copy)));
            }
        }
        let (deleted, _) = inspector.deleted_inodes();
        inspector.deleted_files(&deleted, log.as_ref(), &mut |file| {
            assert!(inspector.deleted_content(file, &mut |_| Ok(())).is_ok());
            ControlFlow::Continue(())
        });
        for path in [&b"/"[..], b"/..", b"/dir/../x", b"a/b/c"] {
            let _ = inspector.resolve(path);
        }
    }
}

#[test]
fn mutants_are_shown() {
    let quick = FEATURE_SETS.iter().filter(|set| !["mmp", "64k", "bigalloc"].contains(&set.name));
    for (number, set) in (0..).zip(quick) {
        let seed = Seed::make(set, number % 2 == 0);
        look(&seed.bytes);
        for round in 0..4 {
            let mut bytes = seed.bytes.clone();
            mutate(&mut bytes, &seed.atlas, &mut Rng::new(number * 100 + round));
            look(&bytes);
        }
        let mut bytes = seed.bytes.clone();
        share(&mut bytes, &seed.atlas, &mut Rng::new(number));
        look(&bytes);
        bytes.truncate(bytes.len() / 3);
        look(&bytes);
    }
}

/// Maps whose nodes and content lead to the same few blocks again and again.
#[test]
fn bombs_are_shown_once() {
    let seed = seed("default", false);
    let ino = *seed.atlas.inodes.last().expect("an inode");
    let mut bytes = seed.bytes.clone();
    share_extents(&mut bytes, &seed.atlas, ino, 100, 64);
    let inspector = open(&bytes, false).expect("an image");
    let slot = inspector.inode(ino).expect("an inode");
    let mut stored = 0;
    let problems = inspector.content(&slot, &mut |piece| {
        stored += if let ContentPiece::Data(bytes) = piece { bytes.len() } else { 0 };
        Ok(())
    });
    assert!(stored <= 65 * 4096 && problems.is_ok_and(|problems| problems.len() == 1));
    let mut bytes = seed.bytes.clone();
    share_pointers(&mut bytes, &seed.atlas, ino, &[100, 101], 1 << 30);
    let inspector = open(&bytes, false).expect("an image");
    let slot = inspector.inode(ino).expect("an inode");
    let (parts, problems) = map_of(&inspector, &slot);
    assert!(parts < 20_000 && problems > 0, "{parts} parts");
}

/// A tree whose lower node is the node itself.
#[test]
fn a_tree_that_leads_to_itself_ends() {
    let seed = seed("1k", false);
    let large = seed.atlas.inodes.iter().copied().find(|ino| {
        let inspector = open(&seed.bytes, false).expect("an image");
        inspector.inode(*ino).is_ok_and(|slot| slot.inode.is_regular() && slot.inode.size > 0)
    });
    let ino = large.expect("a file");
    let mut bytes = seed.bytes.clone();
    share_extents(&mut bytes, &seed.atlas, ino, 200, 1);
    let node = extant_hostile::bombs::spare(&seed.atlas);
    let at = seed.atlas.block(node);
    // Depth 1, one entry that leads to the node: the header is that of the root.
    let root = seed.atlas.read_inode(&bytes, ino).i_block;
    bytes[at.start..at.start + 60].copy_from_slice(&root);
    let inspector = open(&bytes, false).expect("an image");
    let slot = inspector.inode(ino).expect("an inode");
    let (parts, problems) = map_of(&inspector, &slot);
    assert!(parts < 20 && problems > 0, "{parts} parts, {problems} problems");
}

#[test]
fn transactions_are_those_of_a_recovery() {
    for name in ["default", "1k", "ext3", "no_csum"] {
        let seed = seed(name, true);
        let inspector = open(&seed.bytes, true).expect("an image");
        let log = inspector.journal().expect("a log");
        assert!(log.problems().is_empty(), "{:?}", log.problems());
        let state = |state| log.transactions().filter(|found| found.state == state).count();
        assert!(state(TransactionState::Pending) > 0, "{name}");
        // A recovery shows a block as of the newest transaction.
        let recovered = open(&seed.bytes, false).expect("an image");
        let mut compared = 0;
        for copy in log.transactions().flat_map(|found| &found.blocks) {
            let newest = log.copy_as_of(copy.block, None).expect("a copy");
            let (bytes, checksum) = log.content(&newest).expect("content");
            assert_ne!(checksum.name(), "wrong", "{name}: block {}", copy.block);
            assert!(recovered.block(copy.block).expect("a block") == bytes, "{name}");
            compared += 1;
        }
        assert!(compared > 3, "{name}");
    }
}
