//! Power cuts during recovery: the next recovery starts from the beginning, and leads to the same
//! state.

use super::examine::{Bench, Case, Depth};
use super::scene::{Promise, Setup, Stage, record, setup};
use super::states::{Part, Walk};
use extant_blocks::{BlockDevice, Event, RecordingDevice, SparseDevice, replay};
use extant_engine::{Falloc, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::rng::Rng;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Many small groups, so that freeing one file takes several transactions.
const GROUPS: Setup = Setup {
    bytes: 24 << 20,
    ..setup(
        "many groups",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "256",
            "-N",
            "2048",
            "-O",
            "orphan_file",
            "-J",
            "size=1",
        ],
    )
};

/// An orphan file of two blocks, which hold 254 numbers each.
const FEW_SLOTS: Setup = Setup {
    bytes: 6 << 20,
    ..setup(
        "small orphan file",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "1024",
            "-O",
            "orphan_file",
            "-E",
            "orphan_file_size=2",
            "-J",
            "size=1",
        ],
    )
};

/// Cuts the recovery of the image that `work` leaves at `times` places.
fn cut_recovery(setup: Setup, times: usize, work: impl FnOnce(&mut Stage)) {
    let scene = record(setup, false, work);
    let mut walk = Walk::new(&scene.base.pages, &scene.events);
    while walk.step().is_some() {}
    let mut rng = Rng::new(7);
    let state = walk.state(Part::All, &mut rng);
    let mut bench = Bench::new();
    let case = Case { state: &state, setup, durable: walk.promised(&scene), tagged: false };
    let depth = Depth { go_on: true, e2fsck: true, kernel: true, again: times };
    bench.examine(case, depth, &mut rng).unwrap_or_else(|why| panic!("{}: {why}", setup.name));
    println!("{}: {:?}", setup.name, bench.tally);
    assert!(
        bench.tally.again as usize >= times.min(20),
        "{}: the recovery is too short",
        setup.name
    );
}

#[test]
fn a_large_file_without_a_name_is_freed_however_often_the_power_fails() {
    for log_data in [false, true] {
        cut_recovery(Setup { log_data, ..GROUPS }, 40, |stage| {
            let root = stage.root();
            let node = stage.write(&root, "gone", 0, &[1; 10]);
            let held = stage
                .fs
                .open_file(&node, OpenFlags { write: true, ..Default::default() })
                .expect("open");
            // Every other block, so that the map has many blocks, too.
            for at in (0..9000).step_by(2) {
                held.write_at(at << 10, &[at as u8; 1024]).expect("write");
            }
            held.sync().expect("fsync");
            stage.fs.unlink(&root, b"gone").expect("unlink");
            stage.fs.sync().expect("sync");
            stage.promise("/gone", Promise::Gone);
            std::mem::forget(held);
        });
    }
}

#[test]
fn a_truncate_is_finished_however_often_the_power_fails() {
    cut_recovery(GROUPS, 30, |stage| {
        let root = stage.root();
        let data: Vec<u8> = (0..8 << 20).map(|at: u32| (at >> 10) as u8).collect();
        let node = stage.write(&root, "cut", 0, &data);
        stage.sync_file(&node, "/cut", &data);
        stage.forget("/cut");
        let file = stage
            .fs
            .open_file(&node, OpenFlags { write: true, ..Default::default() })
            .expect("open");
        file.set_len(1500).expect("truncate");
        stage.sync_file(&node, "/cut", &data[..1500]);
    });
}

/// Enough groups that a truncate takes several transactions.
const MANY_GROUPS: Setup = Setup { name: "very many groups", bytes: 96 << 20, ..GROUPS };

/// A power cut between the transactions of a truncate: the next recovery completes the truncate,
/// and the file keeps nothing behind its end.
#[test]
fn a_truncate_goes_on_after_a_cut_between_its_transactions() {
    const LEFT: usize = 1500;
    let scene = record(MANY_GROUPS, false, |stage| {
        let root = stage.root();
        let node = stage.write(&root, "cut", 0, &[1; LEFT]);
        let file = stage
            .fs
            .open_file(&node, OpenFlags { write: true, ..Default::default() })
            .expect("open");
        (0..60).for_each(|n| file.allocate(Falloc::Allocate, n << 20, 1 << 20).expect("space"));
        // States after the first promise are examined.
        let other = stage.write(&root, "other", 0, b"other");
        stage.sync_file(&other, "/other", b"other");
        file.set_len(LEFT as u64).expect("truncate");
        stage.sync_file(&node, "/cut", &[1; LEFT]);
    });
    let (mut walk, mut rng, mut bench) =
        (Walk::new(&scene.base.pages, &scene.events), Rng::new(3), Bench::new());
    while let Some(cut) = walk.step() {
        let durable = walk.promised(&scene);
        if durable.is_empty() {
            continue;
        }
        let state = walk.state(Part::All, &mut rng);
        let case = Case { state: &state, setup: MANY_GROUPS, durable, tagged: false };
        let examined = bench.recover(case, true).and_then(|recovered| {
            // The others are as in all tests.
            let inside = recovered.truncated();
            let depth = Depth {
                go_on: inside,
                e2fsck: inside,
                kernel: false,
                again: if inside { 4 } else { 0 },
            };
            bench.look(case, recovered, depth, &mut rng)
        });
        examined.unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
    }
    assert!(bench.tally.truncated > 0, "it was cut within one transaction");
}

#[test]
fn orphans_of_file_and_list_are_freed_however_often_the_power_fails() {
    cut_recovery(FEW_SLOTS, 60, |stage| {
        let root = stage.root();
        let open = |n: u32| {
            let name = format!("f{n}");
            let node = stage.write(&root, &name, 0, &[n as u8; 700]);
            let file = stage.fs.open_file(&node, OpenFlags::default()).expect("open");
            stage.fs.unlink(&root, name.as_bytes()).expect("unlink");
            stage.promise(&format!("/{name}"), Promise::Gone);
            file
        };
        let held: Vec<_> = (0..600).map(open).collect();
        stage.fs.sync().expect("sync");
        let recorded = stage.fs.superblock().last_orphan();
        assert!(recorded.0 != 0, "the list is not used");
        std::mem::forget(held);
    });
}

/// Bytes of the largest file.
const LARGE: u64 = 10 << 30;

/// Size of large file systems in bytes, on devices that store only pages with other bytes than
/// zero.
const LARGE_IMAGE: u64 = 12 << 30;

fn large_options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).seed(1).commit_interval(Duration::from_secs(3600))
}

/// A file system with a large open file that lost its name.
fn large_orphan() -> SparseDevice {
    let image = Image::mke2fs(
        LARGE_IMAGE,
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file", "-J", "size=4", "-N", "1024"],
    );
    let file = large_options().device(image.path()).expect("an image");
    let device = Arc::new(SparseDevice::copy_of(&*file).expect("a copy"));
    let fs = Fs::open_device(device.clone(), &large_options()).expect("open");
    let root = fs.root().expect("root");
    let node = fs.create(&root, b"gone", 0o644, NodeKind::File).expect("create");
    let held = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    held.allocate(Falloc::Allocate, 0, LARGE).expect("space");
    (0..100).for_each(|n| {
        assert_eq!(held.write_at(n * (LARGE / 100), &[7; 5000]).expect("write"), 5000)
    });
    fs.unlink(&root, b"gone").expect("unlink");
    fs.sync().expect("sync");
    std::mem::forget(held);
    drop((root, node));
    fs.crash();
    device.fork()
}

/// Opens and closes the file system. Returns the number of free blocks.
fn recovered(device: Arc<dyn BlockDevice>) -> u64 {
    let fs = Fs::open_device(device, &large_options()).expect("open");
    assert!(fs.resolve("/gone", Follow::No).is_err());
    let free = fs.usage().free;
    fs.unmount().expect("unmount");
    free
}

#[test]
fn ten_gibibytes_without_a_name_are_freed_however_often_the_power_fails() {
    let left = large_orphan();
    let recording = Arc::new(RecordingDevice::new(left.fork()));
    let free = recovered(recording.clone());
    assert!(free > LARGE >> 12, "{free} blocks are free");
    let (events, mut rng) = (recording.take_log(), Rng::new(3));
    let step = events.len().div_ceil(24);
    for cut in (0..events.len()).step_by(step) {
        let flushed =
            events[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
        let lost = events[flushed..cut].iter().filter(|_| rng.one_in(2));
        let state = Arc::new(left.fork());
        replay(events[..flushed].iter().chain(lost), &*state).expect("memory");
        assert_eq!(recovered(state.clone()), free, "cut at {cut} of {}", events.len());
        if cut / step % 8 == 3 {
            assert_clean(&state);
        }
    }
}

fn assert_clean(device: &SparseDevice) {
    let image = Image::blank(device.len());
    let file = std::fs::File::options().write(true).open(image.path()).expect("an image");
    let (mut at, mut buf) = (0, vec![0; 1 << 16]);
    while let Some(data) = device.next_data(at).expect("memory") {
        for from in (data.start..data.end).step_by(buf.len()) {
            let part = &mut buf[..(data.end - from).min(1 << 16) as usize];
            device.read_exact_at(part, from).expect("memory");
            file.write_all_at(part, from).expect("room");
        }
        at = data.end;
    }
    e2fsck::check(image.path()).assert_clean();
}
