//! Power cuts at each write: the tables are consistent, and flushed content is there.

use crate::full::FullDevice;
use crate::images::*;
use crate::writing::{change, try_change};
use extant_blocks::{BlockDevice, Event, MemDevice, RecordingDevice};
use extant_engine::{Fs, NodeKind, OpenFlags, OpenOptions};
use extant_qcow2::{Qcow2Device, create};
use extant_testkit::cuts::{each_cut, each_cut_between};
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Scratch, e2fsck};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A recorded history of a disk.
struct History {
    /// The image file before.
    before: Vec<u8>,
    events: Vec<Event>,
    /// The disk after each mark, with the bytes that changed since the one before.
    disks: Vec<(Vec<u8>, Vec<Range<usize>>)>,
}

fn mark(number: usize) -> Event {
    Event::Mark(number.to_string())
}

impl History {
    /// Records 60 changes of a disk by `step`, with a flush now and then. The image file lies on
    /// the device that `host` makes of the recording one.
    fn record(
        before: Vec<u8>,
        below: Option<&[u8]>,
        host: impl FnOnce(Arc<RecordingDevice<MemDevice>>) -> Arc<dyn BlockDevice>,
        step: &mut dyn FnMut(&Qcow2Device, &mut [u8], usize),
    ) -> History {
        let file = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let below = below.map(|base| Arc::new(MemDevice::from_bytes(base)) as Arc<dyn BlockDevice>);
        let device = Qcow2Device::open(host(file.clone()), below, false).unwrap();
        let mut model = content(&device);
        let mut disks = vec![(model.clone(), Vec::new())];
        file.mark("0");
        for number in 0..60 {
            let old = model.clone();
            step(&device, &mut model, number);
            // A discard may take content that reads as it did: its clusters are freed all the same.
            let first = old.iter().zip(&model).position(|(a, b)| a != b);
            let last = old.iter().zip(&model).rposition(|(a, b)| a != b);
            if let (Some((_, changed)), Some(first), Some(last)) = (disks.last_mut(), first, last) {
                changed.push(first..last + 1);
            }
            if number % 7 == 6 {
                device.flush().unwrap();
                file.mark(disks.len().to_string());
                disks.push((model.clone(), Vec::new()));
            }
        }
        drop(device);
        History { before, events: file.take_log(), disks }
    }

    /// Asserts of the state after each cut that the tables are consistent and flushed content is
    /// there, and that changes go on.
    fn assert_survives(&self, image: &Path, below: Option<&[u8]>) {
        each_cut(&self.before, &self.events, &mut |done, state| {
            fs::write(image, &state).unwrap();
            assert_consistent(image);
            let below = below.map(|base| Arc::new(MemDevice::from_bytes(base)) as _);
            let file = Arc::new(MemDevice::from_bytes(&state));
            let device = Qcow2Device::open(file.clone(), below, false).unwrap();
            assert_flushed(self, done, &content(&device));
            device.write_all_at(&[1; 5000], 3000).unwrap();
            device.flush().unwrap();
            drop(device);
            if done % 8 == 0 {
                fs::write(image, file.to_vec()).unwrap();
                assert_consistent(image);
            }
        });
    }
}

/// Asserts that content that was flushed before the cut is there, but where it changed later.
fn assert_flushed(history: &History, done: usize, disk: &[u8]) {
    let known = (0..history.disks.len()).rev();
    let durable = known.into_iter().find(|n| history.events[..done].contains(&mark(*n)));
    let (expected, changed) = &history.disks[durable.unwrap_or(0)];
    let mut open = vec![false; disk.len()];
    for range in changed {
        // Whole sectors are written.
        let (from, to) = (range.start & !511, (range.end + 511) & !511);
        open[from..to.min(disk.len())].fill(true);
    }
    let lost = (0..disk.len()).find(|at| !open[*at] && disk[*at] != expected[*at]);
    assert_eq!(lost, None, "after event {done}: flushed content is lost");
}

#[test]
fn a_power_cut_loses_nothing_that_was_flushed() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    let size = 40 << 10;
    let base = pattern(7, size - 3000);
    let raw = scratch.join("base.raw");
    fs::write(&raw, &base).unwrap();
    for (seed, options, overlays) in [
        (1, "cluster_size=512", false),
        (2, "cluster_size=512,refcount_bits=64", true),
        (3, "cluster_size=1k,refcount_bits=1", true),
    ] {
        if overlays {
            let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-o", options, "-b"];
            qemu(&[&create[..], &[text(&raw), text(&image), &size.to_string()]].concat());
        } else {
            empty(&image, options, size as u64);
        }
        let below = overlays.then_some(&base[..]);
        let mut rng = Rng::new(seed);
        let before = fs::read(&image).unwrap();
        let history = History::record(before, below, |file| file, &mut |device, model, _| {
            change(device, model, &mut rng, 9000);
        });
        history.assert_survives(&image, below);
        fs::remove_file(&image).unwrap();
    }
}

/// The refcount table moves to a longer place. The L1 table never does: a disk keeps its size.
#[test]
fn a_power_cut_while_the_refcount_table_moves_loses_nothing() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    // A table for 64 blocks, each for 64 clusters of 512 bytes: 2 MiB, which are nearly used up.
    let size = 1900 << 10;
    empty(&image, "cluster_size=512,refcount_bits=64", 3 << 20);
    let device = open(&image, false);
    device
        .write_all_at(&pattern(9, size).iter().map(|byte| byte | 1).collect::<Vec<u8>>(), 0)
        .unwrap();
    drop(device);
    let place = |bytes: &[u8]| bytes[48..60].to_vec();
    let before = fs::read(&image).unwrap();
    let mut rng = Rng::new(4);
    let history = History::record(before, None, |file| file, &mut |device, model, number| {
        let from = size + number * 3000;
        let data = rng.bytes(3000);
        device.write_all_at(&data, from as u64).unwrap();
        model[from..from + 3000].copy_from_slice(&data);
    });
    let moves = history.events.iter().filter(|event| match event {
        Event::Write { offset: 48, data } => **data != place(&history.before),
        _ => false,
    });
    assert_eq!(moves.count(), 1, "the header gets the new place once");
    history.assert_survives(&image, None);
}

#[test]
fn a_power_cut_of_a_full_disk_loses_nothing_that_was_flushed() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    for (seed, options) in [(5, "cluster_size=512"), (6, "cluster_size=4k,refcount_bits=64")] {
        empty(&image, options, 200 << 10);
        let (mut rng, mut refused) = (Rng::new(seed), 0);
        let before = fs::read(&image).unwrap();
        let host = |file| Arc::new(FullDevice::new(file).refilled(1)) as Arc<dyn BlockDevice>;
        let history = History::record(before, None, host, &mut |device, model, _| {
            refused += usize::from(try_change(device, model, &mut rng, 9000).is_err());
        });
        assert!(refused > 10, "{refused}");
        history.assert_survives(&image, None);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_file_system_on_an_overlay_survives_a_power_cut() {
    let scratch = Scratch::new();
    let base = FeatureSet::named("default").make_sized(16 << 20);
    let file = Arc::new(RecordingDevice::new(MemDevice::new(0)));
    let named = Some((text(base.path()).as_bytes(), "raw"));
    create(&*file, 16 << 20, named).unwrap();
    let before = file.inner().to_vec();
    file.take_log();
    let below = Arc::new(MemDevice::from_bytes(&base.bytes()));
    let overlay = Qcow2Device::open(file.clone(), Some(below), false).unwrap();
    let fs = Fs::open_device(Arc::new(overlay), &OpenOptions::new().seed(1)).unwrap();
    for number in 0..6u8 {
        let name = format!("file{number}");
        let root = fs.root().unwrap();
        let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let made = fs.open_file(&node, flags).unwrap();
        made.write_at(0, &vec![number + 1; 70_000]).unwrap();
        made.sync().unwrap();
        file.mark(name);
    }
    fs.unmount().unwrap();
    let events = file.take_log();
    let image = scratch.join("o.qcow2");
    // The superblock, at any place in the file, is written as a whole.
    each_cut_between(4096, &before, &events, &mut |done, state| {
        // Each check takes a while.
        if done % 9 != 0 && done != events.len() {
            return;
        }
        fs::write(&image, &state).unwrap();
        assert_consistent(&image);
        let raw = scratch.join("disk.img");
        fs::write(&raw, disk(&scratch, &image)).unwrap();
        e2fsck::recover(&raw).assert_clean();
        fs::remove_file(&raw).unwrap();
    });
}
