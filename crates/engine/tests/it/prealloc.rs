//! Preallocation seen from outside: places of files' blocks, and exact free space.

use extant_blocks::{BlockDevice, Event, RecordingDevice};
use extant_engine::{Errno, Error, Falloc, File, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::Memory;
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Image, dumpe2fs, e2fsck};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn create(fs: &Fs, name: &str, direct: bool) -> File {
    let root = fs.root().unwrap();
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
    fs.open_file(&node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
}

/// Physical and logical start, and length, of each extent in bytes.
fn extents(file: &File) -> Vec<(u64, u64, u64)> {
    let mut found = Vec::new();
    file.extents(0, u64::MAX, |e| {
        found.push((e.physical, e.logical, e.len));
        true
    })
    .unwrap();
    found
}

/// Returns the number of parts that neither follow the part before on the device nor keep its
/// distance.
fn pieces(file: &File) -> usize {
    let apart = |a: &(u64, u64, u64), b: &(u64, u64, u64)| {
        b.0 != a.0 + a.2 && b.0.wrapping_sub(a.0) != b.1.wrapping_sub(a.1)
    };
    let all = extents(file);
    all.windows(2).filter(|pair| apart(&pair[0], &pair[1])).count() + usize::from(!all.is_empty())
}

fn open(set: &str, bytes: u64) -> (Image, Fs) {
    let image = FeatureSet::named(set).make_sized(bytes);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    (image, fs)
}

fn close(image: &Image, fs: Fs) {
    let free = fs.usage().free;
    fs.unmount().unwrap();
    image.assert_clean();
    let dump = dumpe2fs::header(image.path());
    assert_eq!(
        dump.number("Free blocks"),
        free,
        "free blocks on the device and before the unmount"
    );
}

/// Files that grow in turns by small writes lie in few pieces each.
#[test]
fn interleaved_appenders_get_contiguous_files() {
    for (set, direct, writers, most) in [
        ("default", true, 4, 3),
        ("default", true, 64, 5),
        ("default", false, 64, 3),
        ("1k", true, 64, 8),
        ("bigalloc_1k", true, 4, 5),
        ("ext3", true, 16, 6),
    ] {
        let (image, fs) = open(set, 512 << 20);
        let files: Vec<File> =
            (0..writers).map(|i| create(&fs, &format!("f{i}"), direct)).collect();
        for turn in 0..512u64 {
            for (i, file) in files.iter().enumerate() {
                assert_eq!(file.write_at(turn * 4096, &[i as u8; 4096]).unwrap(), 4096);
            }
        }
        files.iter().for_each(|file| file.sync().unwrap());
        let counts: Vec<usize> = files.iter().map(pieces).collect();
        let (worst, sum) = (counts.iter().max().unwrap(), counts.iter().sum::<usize>());
        println!("{set} direct {direct}: {writers} writers, {worst} pieces at most, {sum} in all");
        assert!(*worst <= most, "{set} direct {direct}: {counts:?}");
        drop(files);
        assert_eq!(fs.stats().prealloc.live, 0);
        close(&image, fs);
    }
}

/// The same by as many threads as files.
#[test]
fn parallel_appenders_get_contiguous_files() {
    let (image, fs) = open("default", 512 << 20);
    let files: Vec<File> = (0..16).map(|i| create(&fs, &format!("f{i}"), true)).collect();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                for turn in 0..1024u64 {
                    assert_eq!(file.write_at(turn * 8192, &[7; 8192]).unwrap(), 8192);
                }
            });
        }
    });
    let counts: Vec<usize> = files.iter().map(pieces).collect();
    assert!(counts.iter().all(|n| *n <= 9), "{counts:?}");
    drop(files);
    close(&image, fs);
}

/// A file that is filled at random lies as if it had been written in order.
#[test]
fn a_random_fill_is_in_order_on_the_device() {
    for (set, direct) in
        [("default", true), ("default", false), ("1k", true), ("bigalloc_1k", true)]
    {
        let (image, fs) = open(set, 256 << 20);
        let file = create(&fs, "f", direct);
        let mut order: Vec<u64> = (0..4096).collect();
        let mut rng = Rng::new(5);
        (1..order.len()).for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
        for at in order {
            file.write_at(at * 4096, &[at as u8; 4096]).unwrap();
        }
        file.sync().unwrap();
        let count = pieces(&file);
        println!("{set} direct {direct}: {count} pieces");
        assert!(count <= 24, "{set} direct {direct}: {count} pieces");
        drop(file);
        close(&image, fs);
    }
}

/// Scattered pages that are written back together are adjacent on the device.
#[test]
fn sparse_pages_are_packed() {
    let (image, fs) = open("default", 256 << 20);
    let file = create(&fs, "f", false);
    let mut rng = Rng::new(6);
    for _ in 0..4000 {
        file.write_at(rng.below(1 << 30) & !1023, &[1; 1024]).unwrap();
    }
    file.sync().unwrap();
    let (count, all) = (pieces(&file), extents(&file).len());
    assert!(all > 3000 && count <= 20, "{count} pieces, {all} extents");
    drop(file);
    close(&image, fs);
}

/// Small files that are created in sequence are adjacent, independently of other writers.
#[test]
fn small_files_lie_together() {
    for direct in [true, false] {
        let (image, fs) = open("default", 256 << 20);
        let large = create(&fs, "large", direct);
        let small: Vec<File> = (0..200)
            .map(|i| {
                let file = create(&fs, &format!("s{i}"), direct);
                file.write_at(0, &[1; 2048]).unwrap();
                large.write_at(i * 65536, &[2; 65536]).unwrap();
                file
            })
            .collect();
        fs.sync().unwrap();
        let mut places: Vec<u64> = small.iter().map(|file| extents(file)[0].0 / 4096).collect();
        places.sort_unstable();
        let spread = places.last().unwrap() - places[0];
        assert!(spread < 512, "200 files of a block spread over {spread} blocks");
        assert!(pieces(&large) <= 4, "{:?}", extents(&large));
        assert!(fs.stats().prealloc.small_hits > 190);
        drop((small, large));
        close(&image, fs);
    }
}

/// Preallocated space counts as free, and is released on demand.
#[test]
fn preallocated_space_is_not_lost() {
    let (image, fs) = open("default", 64 << 20);
    let before = fs.usage().free;
    let files: Vec<File> = (0..8).map(|i| create(&fs, &format!("f{i}"), true)).collect();
    for file in &files {
        file.write_at(0, &[1; 300_000]).unwrap();
    }
    let held = fs.stats().prealloc;
    assert!(held.live >= 8 && held.blocks > 0, "{held:?}");
    assert_eq!(fs.usage().free, before - 8 * 74);
    let hog = create(&fs, "hog", true);
    let mut at = 0;
    while let Ok(n @ 1..) = hog.write_at(at, &[2; 40_000]) {
        at += n as u64;
    }
    let left = fs.usage();
    assert!(left.available < 10, "ENOSPC with {left:?}");
    assert_eq!(fs.stats().prealloc.blocks, 0);
    drop((files, hog));
    close(&image, fs);
}

/// Preallocations end with their purpose.
#[test]
fn each_change_of_a_file_releases_its_preallocations() {
    let (image, fs) = open("default", 64 << 20);
    let free = fs.usage().free;
    let file = create(&fs, "f", true);
    let live = || fs.stats().prealloc.live;
    let grow = || {
        let at = file.len();
        file.write_at(at, &[1; 200_000]).unwrap();
        assert_eq!(live(), 1);
    };
    grow();
    file.set_len(100_000).unwrap();
    assert_eq!(live(), 0);
    for how in [Falloc::Punch, Falloc::Collapse, Falloc::Insert, Falloc::Zero, Falloc::Allocate] {
        grow();
        file.allocate(how, 8192, 4096).unwrap();
        assert_eq!(live(), 0, "{how:?}");
    }
    grow();
    let reader = fs.open_file(file.node(), OpenFlags::default()).unwrap();
    let second =
        fs.open_file(file.node(), OpenFlags { write: true, ..Default::default() }).unwrap();
    drop((reader, second));
    assert_eq!(live(), 1, "other closes change nothing");
    fs.unlink(&fs.root().unwrap(), b"f").unwrap();
    grow();
    drop(file);
    assert_eq!(live(), 0);
    fs.unmount().unwrap();
    image.assert_clean();
    assert_eq!(dumpe2fs::header(image.path()).number("Free blocks"), free);
}

/// A file that was closed with dirty pages keeps its preallocations until these are written.
#[test]
fn a_closed_file_keeps_nothing_once_it_is_written() {
    let (image, fs) = open("default", 64 << 20);
    for i in 0..3 {
        let file = create(&fs, &format!("f{i}"), false);
        file.write_at(0, &[1; 300_000]).unwrap();
        file.sync_data().unwrap();
        assert!(fs.stats().prealloc.live > 0);
        file.write_at(300_000, &[1; 50_000]).unwrap();
        drop(file);
    }
    fs.sync().unwrap();
    assert_eq!(fs.stats().prealloc.live, 0);
    close(&image, fs);
}

const SMALL_FS: u64 = 24 << 20;

/// Threads append, cut, punch and remove while there is hardly any space.
fn crowd(fs: &Fs, seed: u64, rounds: u64) {
    let full = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let full = &full;
            scope.spawn(move || {
                let mut rng = Rng::new(seed * 100 + thread);
                let mut file = create(fs, &format!("t{thread}"), thread % 2 == 0);
                for round in 0..rounds {
                    let wrote = match rng.below(8) {
                        0..=3 => file.write_at(
                            file.len(),
                            &vec![thread as u8; 1 + rng.below(400_000) as usize],
                        ),
                        _ => file.write_at(
                            rng.below(8 << 20),
                            &vec![thread as u8; 1 + rng.below(3000) as usize],
                        ),
                    };
                    match wrote {
                        Ok(_) => {}
                        Err(Error::Posix(Errno::NoSpc)) => full.store(true, Ordering::Relaxed),
                        Err(e) => panic!("{e}"),
                    }
                    let room = |e: Error| assert!(e.is(Errno::NoSpc), "{e}");
                    match rng.below(100) {
                        0 => file.set_len(rng.below(1 << 20)).unwrap_or_else(room),
                        1 => file
                            .allocate(Falloc::Punch, rng.below(1 << 20), 100_000)
                            .unwrap_or_else(room),
                        2 => {
                            let name = format!("t{thread}");
                            fs.unlink(&fs.root().unwrap(), name.as_bytes()).unwrap();
                            let _ = file.write_at(file.len(), &[9; 10_000]);
                            file = create(fs, &format!("t{thread}"), round % 2 == 0);
                        }
                        3 => file.sync().unwrap_or_else(room),
                        _ => {}
                    }
                }
            });
        }
    });
    assert!(full.load(Ordering::Relaxed), "the file system was never full");
}

#[test]
fn a_full_file_system_stays_exact() {
    for (seed, set) in
        ["default", "1k", "bigalloc_1k", "ext3_1k", "inline_data"].into_iter().enumerate()
    {
        let (image, fs) = open(set, SMALL_FS);
        crowd(&fs, seed as u64 + 1, 300);
        fs.sync().unwrap();
        close(&image, fs);
    }
}

/// Power cuts while files with preallocations are open: no preallocation is on the device.
#[test]
fn a_power_cut_loses_no_space() {
    for (seed, set) in ["default", "1k", "bigalloc_1k", "ext3_1k"].into_iter().enumerate() {
        let base = FeatureSet::named(set).make_sized(SMALL_FS).bytes();
        let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(&base))));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        let files: Vec<File> = (0..6).map(|i| create(&fs, &format!("f{i}"), i % 2 == 0)).collect();
        let mut rng = Rng::new(seed as u64);
        for step in 0..60 {
            let file = &files[rng.below(6) as usize];
            file.write_at(file.len(), &vec![1; 1 + rng.below(60_000) as usize]).unwrap();
            file.write_at(rng.below(4 << 20), &[2; 2000]).unwrap();
            if step % 7 == 0 {
                file.sync().unwrap();
            }
        }
        assert!(fs.stats().prealloc.live > 0);
        fs.sync().unwrap();
        fs.crash();
        drop(files);
        let events: Vec<Event> = device.log();
        for _ in 0..6 {
            let cut = rng.below(events.len() as u64 + 1) as usize;
            let state = Memory::from_bytes(&base);
            events[..cut].iter().for_each(|event| event.apply(&state).unwrap());
            let image = Image::blank(SMALL_FS);
            std::fs::write(image.path(), state.to_vec()).unwrap();
            let verdict = e2fsck::recover(image.path());
            assert!(verdict.is_clean(), "{set}, cut {cut}: {verdict:?}");
            let fs = Fs::open_device(Arc::new(state) as Arc<dyn BlockDevice>, &OpenOptions::new())
                .unwrap();
            let _ = fs.resolve("/f0", Follow::No);
            let free = fs.usage().free;
            fs.unmount().unwrap();
            assert_eq!(
                dumpe2fs::header(image.path()).number("Free blocks"),
                free,
                "{set}, cut {cut}"
            );
        }
    }
}
