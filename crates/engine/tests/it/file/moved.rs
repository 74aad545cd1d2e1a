//! Power cuts while ranges are collapsed and inserted. A file whose map has few extents is in its
//! old or its new state. Otherwise each block is at its old place or at its new one.

use super::model::{allocate, read_all};
use extant_blocks::{Event, RecordingDevice};
use extant_engine::{Falloc, File, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::Memory;
use extant_testkit::rng::Rng;
use extant_testkit::{Ending, FeatureSet, Image, e2fsck};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 1024;

/// A device's states after power cuts, and the file's content after each operation.
struct Scene {
    base: Vec<u8>,
    events: Vec<Event>,
    versions: Vec<Vec<u8>>,
}

/// Writes every second block with its number; the others are holes.
fn scattered(file: &File, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks * BLOCK];
    for i in (0..blocks).step_by(2) {
        let block = &mut bytes[i * BLOCK..(i + 1) * BLOCK];
        block.fill(1 + (i % 250) as u8);
        block[..8].copy_from_slice(&format!("{i:08}").into_bytes());
        file.write_at((i * BLOCK) as u64, block).unwrap();
    }
    file.set_len((blocks * BLOCK) as u64).unwrap();
    bytes
}

fn record(set: &str, blocks: usize, steps: &[(Falloc, usize, usize)]) -> Scene {
    let image = FeatureSet::named(set).make_sized(8 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let node = fs.create(&fs.root().unwrap(), b"file", 0o644, NodeKind::File).unwrap();
    let write = OpenFlags { write: true, ..Default::default() };
    let bytes = scattered(&fs.open_file(&node, write).unwrap(), blocks);
    drop(node);
    fs.unmount().unwrap();
    let base = image.bytes();
    let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(&base))));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let file = fs.open_file(&fs.resolve("/file", Follow::No).unwrap(), write).unwrap();
    let mut versions = vec![bytes];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Commits come whenever they can.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        let _ending = Ending(&done);
        for (how, at, len) in steps {
            file.allocate(*how, (at * BLOCK) as u64, (len * BLOCK) as u64).unwrap();
            let mut bytes = versions.last().unwrap().clone();
            allocate(&mut bytes, *how, at * BLOCK, len * BLOCK);
            versions.push(bytes);
        }
    });
    fs.sync().unwrap();
    drop(file);
    fs.crash();
    Scene { base, events: device.log(), versions }
}

/// Cuts the power at random moments, with all writes before, or with those that a flush covered.
fn each_state(scene: &Scene, count: usize, check: impl Fn(&[u8])) {
    let mut rng = Rng::new(9);
    for _ in 0..count {
        let cut = rng.below(scene.events.len() as u64 + 1) as usize;
        let flushed =
            scene.events[..cut].iter().rposition(|e| matches!(e, Event::Flush)).unwrap_or(0);
        let kept = if rng.one_in(2) { cut } else { flushed };
        let device = Arc::new(Memory::from_bytes(&scene.base));
        scene.events[..kept].iter().for_each(|event| event.apply(&device).unwrap());
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        let node = fs.resolve("/file", Follow::No).unwrap();
        let file = fs.open_file(&node, OpenFlags::default()).unwrap();
        check(&read_all(&file));
        drop((file, node));
        fs.unmount().unwrap();
        if rng.one_in(4) {
            let image = Image::blank(0);
            std::fs::write(image.path(), device.to_vec()).unwrap();
            e2fsck::check(image.path()).assert_clean();
        }
    }
}

#[test]
fn a_range_is_moved_wholly_or_not_at_all() {
    let steps: Vec<_> =
        (0..150).flat_map(|_| [(Falloc::Collapse, 1, 2), (Falloc::Insert, 2, 3)]).collect();
    for set in ["1k", "meta_bg"] {
        let scene = record(set, 8, &steps);
        each_state(&scene, 150, |found| {
            assert!(
                scene.versions.iter().any(|version| version == found),
                "{set}: neither old nor new"
            );
        });
    }
}

/// More extents than a transaction of a small log can move.
#[test]
fn of_very_many_extents_each_block_is_at_its_old_or_its_new_place() {
    const BLOCKS: usize = 600;
    for (how, at, len) in [(Falloc::Collapse, 11, 20), (Falloc::Insert, 11, 20)] {
        let scene = record("1k", BLOCKS, &[(how, at, len)]);
        let (old, new) = (&scene.versions[0], &scene.versions[1]);
        let block =
            |bytes: &[u8], i: usize| bytes.get(i * BLOCK..(i + 1) * BLOCK).map(<[u8]>::to_vec);
        each_state(&scene, 40, |found| {
            assert!(
                found[..at * BLOCK] == old[..at * BLOCK],
                "bytes before the range have changed"
            );
            assert!(found.len() == old.len() || found.len() == new.len());
            for i in (0..BLOCKS)
                .step_by(2)
                .filter(|i| *i >= at + len || how == Falloc::Insert && *i >= at)
            {
                let to = if how == Falloc::Insert { i + len } else { i - len };
                let own = block(old, i);
                assert!(block(found, i) == own || block(found, to) == own, "block {i} is lost");
            }
        });
    }
}
