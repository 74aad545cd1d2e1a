//! Syncs: their waits, their cost, their errors, and their promise that no change from before their
//! beginning is lost.

use crate::crash::{EXT4, INLINE, Stage, record, sweep};
use extant_blocks::{Event, Fault, FaultDevice, Op, RecordingDevice};
use extant_engine::{Fs, Node, NodeKind, OpenFlags, OpenOptions, Operations};
use extant_testkit::rng::Rng;
use extant_testkit::{Ending, FeatureSet, Memory};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Recorder = Arc<RecordingDevice<Memory>>;

/// Options without commits and writeback by timer.
fn quiet() -> OpenOptions {
    OpenOptions::new().commit_interval(Duration::from_secs(3600))
}

fn recorded(feature_set: &str) -> (Recorder, Fs) {
    let image = FeatureSet::named(feature_set).make_sized(32 << 20);
    let device = Arc::new(RecordingDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    (device, fs)
}

fn create(fs: &Operations, dir: &Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).unwrap()
}

fn open(fs: &Arc<Operations>, node: &Node) -> extant_engine::File {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() }).unwrap()
}

fn flushes(device: &Recorder) -> usize {
    device.log().iter().filter(|event| **event == Event::Flush).count()
}

#[test]
fn a_clean_file_system_is_synced_without_a_look_at_the_device() {
    let (device, fs) = recorded("default");
    let root = fs.root().unwrap();
    for i in 0..300 {
        let node = create(&fs, &root, &format!("f{i}"));
        open(&fs, &node).write_at(0, &[1; 5000]).unwrap();
    }
    fs.sync().unwrap();
    let (before, stats) = (device.take_log().len(), fs.stats().journal);
    assert!(before > 0);
    for _ in 0..100 {
        fs.sync().unwrap();
    }
    assert!(device.log().is_empty());
    assert_eq!(fs.stats().journal, stats, "no thread waited, committed or flushed");
    let pages = fs.stats().pages;
    assert_eq!((pages.dirty, pages.dirty_files, pages.writeback_files), (0, 0, 0));
    assert!(pages.bytes > 300 * 5000);
    fs.unmount().unwrap();
}

#[test]
fn bytes_overwritten_in_place_are_flushed_once() {
    let (device, fs) = recorded("default");
    let root = fs.root().unwrap();
    let (a, b) = (create(&fs, &root, "a"), create(&fs, &root, "b"));
    for node in [&a, &b] {
        open(&fs, node).write_at(0, &[1; 40_960]).unwrap();
    }
    fs.sync().unwrap();
    // Within a tick of the clock no time is renewed: no transaction covers the second write.
    for offset in [0, 4096] {
        fs.write_direct(&a, offset, &[2; 4096], false).unwrap();
    }
    fs.sync_node(&a, false).unwrap();
    fs.write_direct(&a, 8192, &[3; 4096], false).unwrap();
    device.take_log();
    let commits = fs.stats().journal.commits;
    fs.sync_node(&b, false).unwrap();
    fs.sync_node(&root, false).unwrap();
    assert_eq!(flushes(&device), 0, "durable data need no flush, though another file does");
    fs.sync_node(&a, true).unwrap();
    let once = flushes(&device);
    assert!(once >= 1);
    fs.sync_node(&a, true).unwrap();
    assert_eq!(flushes(&device), once);
    assert!(fs.stats().journal.commits <= commits + 1);
    fs.unmount().unwrap();
}

#[test]
fn an_fsync_writes_no_other_file() {
    let (device, fs) = recorded("default");
    let root = fs.root().unwrap();
    let (a, b) = (create(&fs, &root, "a"), create(&fs, &root, "b"));
    open(&fs, &a).write_at(0, &[0xaa; 8192]).unwrap();
    let other = open(&fs, &b);
    other.write_at(0, &[0xbb; 40_960]).unwrap();
    fs.sync_node(&a, false).unwrap();
    let wrote = |byte: u8| {
        device.log().iter().any(
            |event| matches!(event, Event::Write { data, .. } if data.starts_with(&[byte; 512])),
        )
    };
    assert!(wrote(0xaa) && !wrote(0xbb));
    fs.sync().unwrap();
    assert!(wrote(0xbb));
    drop(other);
    fs.unmount().unwrap();
}

/// Returns the number of requests to write back `files` files of one block, and the order of their
/// blocks on the device.
fn requests_of_small_files(files: u32) -> usize {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let device = Arc::new(RecordingDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    let root = fs.root().unwrap();
    let mut content = [0xd5; 4096];
    for i in 0..files {
        content[16..20].copy_from_slice(&i.to_ne_bytes());
        open(&fs, &create(&fs, &root, &format!("f{i}"))).write_at(0, &content).unwrap();
    }
    device.take_log();
    fs.sync().unwrap();
    let data =
        |event: &Event| matches!(event, Event::Write { data, .. } if data.starts_with(&[0xd5; 16]));
    let requests = device.log().iter().filter(|event| data(event)).count();
    for i in 0..files {
        let node = fs.lookup(&root, format!("f{i}").as_bytes()).unwrap();
        let mut found = [0; 4096];
        fs.read_direct(&node, 0, &mut found).unwrap();
        content[16..20].copy_from_slice(&i.to_ne_bytes());
        assert_eq!(found, content, "file {i}");
    }
    fs.unmount().unwrap();
    requests
}

#[test]
fn small_files_are_written_back_together() {
    let files = 1500;
    let requests = requests_of_small_files(files);
    assert!(requests * 100 <= files as usize, "{requests} requests of {files} files");
}

/// Files of all sizes, holes and overwritten parts, written back by several threads at once within
/// little memory.
#[test]
fn parallel_batches_write_correct_content() {
    for name in ["default", "1k", "bigalloc"] {
        let image = FeatureSet::named(name).make_sized(256 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).unwrap();
        let root = fs.root().unwrap();
        let make = |thread: u64| {
            let mut rng = Rng::new(thread);
            let mut made = Vec::new();
            for i in 0..40 {
                let node = create(&fs, &root, &format!("t{thread}n{i}"));
                let file = open(&fs, &node);
                let size = *rng.pick(&[1usize, 4096, 5000, 70_000, 1 << 20]);
                let mut bytes = vec![0; size];
                for _ in 0..rng.between(1, 3) {
                    let at = rng.below(size as u64) as usize;
                    let part = rng.bytes(size - at);
                    file.write_at(at as u64, &part).unwrap();
                    bytes[at..].copy_from_slice(&part);
                }
                if rng.one_in(8) {
                    fs.sync().unwrap();
                }
                made.push((node, bytes));
            }
            made
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn({
                        let make = &make;
                        move || make(thread)
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        fs.sync().unwrap();
        for (node, bytes) in &made {
            let mut found = vec![0; bytes.len() + 1];
            assert_eq!(fs.read_direct(node, 0, &mut found).unwrap(), bytes.len());
            assert!(found[..bytes.len()] == bytes[..], "{name}: inode {}", node.ino());
        }
        let pages = fs.stats().pages;
        assert!(pages.dirty == 0 && pages.bytes <= pages.limit, "{pages:?}");
        drop(made);
        fs.unmount().unwrap();
        extant_testkit::e2fsck::check(image.path()).assert_clean();
    }
}

/// An append allocates the block behind the last one: its commit logs the changed blocks, and no
/// others.
#[test]
fn an_append_with_fsync_logs_only_changed_blocks() {
    let (device, fs) = recorded("default");
    let root = fs.root().unwrap();
    let node = create(&fs, &root, "log");
    let file = open(&fs, &node);
    let append = |i: u64| {
        file.write_at(i * 4096, &[1; 4096]).unwrap();
        file.sync().unwrap();
    };
    (0..20).for_each(append);
    let before = fs.stats().journal;
    device.take_log();
    (20..30).for_each(append);
    let after = fs.stats().journal;
    assert_eq!(after.commits - before.commits, 10);
    // The inode's block of the table, the bitmap, the descriptor; a descriptor of the log, the
    // commit record.
    assert!(after.log_blocks - before.log_blocks <= 50, "{before:?} {after:?}");
    assert!(after.flushes - before.flushes <= 20);
    // The data, the log up to the commit record, the record.
    let writes = device.log().iter().filter(|event| matches!(event, Event::Write { .. })).count();
    assert!(writes <= 30, "{writes} writes");
    drop(file);
    fs.unmount().unwrap();
}

/// Syncs of many threads at once share their walks and commits.
#[test]
fn syncs_at_the_same_time_share_commits() {
    let (_, fs) = recorded("default");
    let root = fs.root().unwrap();
    let threads = 32;
    let barrier = std::sync::Barrier::new(threads);
    let before = fs.stats().journal.commits;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fs, root, barrier) = (&fs, &root, &barrier);
            scope.spawn(move || {
                let node = create(fs, root, &format!("t{thread}"));
                open(fs, &node).write_at(0, &[1; 4096]).unwrap();
                barrier.wait();
                fs.sync().unwrap();
            });
        }
    });
    let commits = fs.stats().journal.commits - before;
    assert!(
        commits < threads as u64,
        "{commits} commits for {threads} syncs of the changes before the first"
    );
    fs.unmount().unwrap();
}

#[test]
fn each_open_file_and_sync_report_a_dying_device() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    let root = fs.root().unwrap();
    let nodes: Vec<Node> = (0..20).map(|i| create(&fs, &root, &format!("f{i}"))).collect();
    let files: Vec<_> = nodes.iter().map(|node| (open(&fs, node), open(&fs, node))).collect();
    for (file, _) in &files {
        file.write_at(0, &[1; 4096]).unwrap();
    }
    fs.sync().unwrap();
    let mut bad = 0..0;
    files[7]
        .0
        .extents(0, 4096, |e| {
            bad = e.physical..e.physical + 4096;
            true
        })
        .unwrap();
    for (file, _) in &files {
        file.write_at(0, &[2; 4096]).unwrap();
    }
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(bad));
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    device.heal();
    fs.sync().unwrap();
    for (i, (first, second)) in files.iter().enumerate() {
        for file in [first, second] {
            let told = file.sync().map_err(|e| e.errno());
            assert_eq!(told, if i == 7 { Err(5) } else { Ok(()) }, "file {i}");
            file.sync().unwrap();
            let mut byte = [0];
            file.read_at(0, &mut byte).unwrap();
            assert_eq!(
                byte[0],
                if i == 7 { 1 } else { 2 },
                "file {i}: only pages that could not be written are lost"
            );
        }
    }
    drop(files);
    fs.unmount().unwrap();
}

/// Data of a closed file are lost because another writer needs the memory. The next sync reports
/// the loss, once.
#[test]
fn the_next_sync_reports_a_loss_of_closed_files() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    let node = create(&fs, &fs.root().unwrap(), "f");
    let write = |byte| open(&fs, &node).write_at(0, &[byte; 4096]).unwrap();
    write(1);
    fs.sync().unwrap();
    let mut place = 0..0;
    let found = |e: &extant_engine::Extent| {
        place = e.physical..e.physical + 4096;
        true
    };
    open(&fs, &node).extents(0, 4096, found).unwrap();
    write(2);
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(place));
    assert_eq!(fs.write_direct(&node, 0, &[3; 4096], false).unwrap_err().errno(), 5);
    device.heal();
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    fs.sync().unwrap();
    fs.unmount().unwrap();
}

/// Files that threads made and did not change again, with their promised content.
struct Made<'a> {
    stage: &'a mut Stage,
    stable: BTreeMap<String, Vec<u8>>,
}

/// Threads create, truncate and unlink files while others sync. Changes from before the beginning
/// of a sync are durable when it ends.
fn race(stage: &mut Stage) {
    const THREADS: u64 = 3;
    let fs = stage.fs.operations().clone();
    let root = stage.root();
    let made = Mutex::new(Made { stage, stable: BTreeMap::new() });
    let (done, synced) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let changers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let (fs, root, made, synced) = (&fs, &root, &made, &synced);
                    move || change(fs, root, made, thread, synced)
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let before = made.lock().unwrap().stable.clone();
                    fs.sync().unwrap();
                    synced.fetch_add(1, Ordering::AcqRel);
                    let made = made.lock().unwrap();
                    for (path, data) in before {
                        if made.stable.get(&path) == Some(&data) {
                            made.stage.holds(&path, data);
                        }
                    }
                }
            });
        }
        let _ending = Ending(&done);
        changers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn change(
    fs: &Arc<Operations>,
    root: &Node,
    made: &Mutex<Made<'_>>,
    thread: u64,
    synced: &AtomicU64,
) {
    let mut rng = Rng::new(thread + 77);
    let forget = |path: &str| {
        let mut made = made.lock().unwrap();
        made.stable.remove(path);
        made.stage.forget(path);
    };
    for i in 0..60 {
        // However fast the changes are, syncs come between them.
        while synced.load(Ordering::Acquire) < i / 4 {
            std::thread::yield_now();
        }
        let name = format!("t{thread}n{}", i % 25);
        let path = format!("/{name}");
        let len = rng.between(1, 9000) as usize;
        let mut data = rng.bytes(len);
        forget(&path);
        match fs.lookup(root, name.as_bytes()) {
            Ok(node) if rng.one_in(2) => {
                let file = open(fs, &node);
                file.set_len(rng.below(3000)).unwrap();
                file.write_at(0, &data).unwrap();
                data.resize(data.len().max(file.len() as usize), 0);
                // The bytes that the truncate left behind the new bytes are not known here.
                file.set_len(len as u64).unwrap();
                data.truncate(len);
            }
            Ok(_) => {
                fs.unlink(root, name.as_bytes()).unwrap();
                continue;
            }
            Err(_) => {
                let node = create(fs, root, &name);
                open(fs, &node).write_at(0, &data).unwrap();
            }
        }
        made.lock().unwrap().stable.insert(path, data);
    }
}

#[test]
fn changes_before_a_sync_survive_a_power_cut() {
    for setup in [EXT4, INLINE] {
        sweep(&format!("syncs on {}", setup.name), &record(setup, false, race), 120, 1);
    }
}
