//! The memory of a runtime, shared by many file systems. The engine's counters show its division.

use extant_engine::{File, Fs, NodeKind, OpenFlags, OpenOptions, Runtime};
use extant_testkit::Memory;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 256 * MIB;

/// For events that come at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn open(runtime: &Runtime) -> Fs {
    let options = OpenOptions::new().runtime(runtime).commit_interval(Duration::from_millis(50));
    Fs::create(Arc::new(Memory::new(48 << 20)), &Default::default(), &options).unwrap()
}

/// A file of so many MiB, each of which has bytes of its number.
fn file(fs: &Fs, name: &str, mib: u64) -> File {
    let root = fs.root().unwrap();
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    for n in 0..mib {
        assert_eq!(file.write_at(n * MIB, &vec![n as u8; MIB as usize]).unwrap(), MIB as usize);
    }
    file
}

fn read(file: &File) {
    let mut buf = vec![0; MIB as usize];
    for n in 0..file.len() / MIB {
        assert_eq!(file.read_at(n * MIB, &mut buf).unwrap(), buf.len());
        assert!(buf.iter().all(|&byte| byte == n as u8), "MiB {n}");
    }
}

/// Bytes of pages and metadata blocks.
fn cached(fs: &Fs) -> u64 {
    let stats = fs.stats();
    stats.pages.bytes + stats.cache.bytes
}

/// Reads files until the bounds on their pages meet a condition.
fn read_until(busy: &[(&Fs, &File)], met: impl Fn(&[u64]) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        busy.iter().for_each(|(_, file)| read(file));
        let limits: Vec<u64> = busy.iter().map(|(fs, _)| fs.stats().pages.limit).collect();
        if met(&limits) {
            return;
        }
        assert!(Instant::now() < end, "bounds on pages: {limits:?}");
    }
}

#[test]
fn fifty_file_systems_share_one_bound_by_demand() {
    let runtime = Runtime::builder().memory(TOTAL).build().unwrap();
    let all: Vec<Fs> = (0..50).map(|_| open(&runtime)).collect();
    let files: Vec<File> = all.iter().map(|fs| file(fs, "small", 3)).collect();
    all.iter().for_each(|fs| fs.sync().unwrap());
    files.iter().for_each(read);
    assert!(runtime.stats().memory <= TOTAL);

    // One that is busy alone gets the memory of the idle ones: 60 MiB, half of it for pages.
    let large = file(&all[0], "large", 20);
    read_until(&[(&all[0], &large)], |limits| limits[0] > 20 * MIB);
    // A second one comes to the same share, and takes it from the first one.
    let other = file(&all[1], "large", 20);
    read_until(&[(&all[0], &large), (&all[1], &other)], |limits| {
        limits[1] >= 12 * MIB && limits[0] <= 24 * MIB
    });
    assert!(runtime.stats().memory <= TOTAL);

    // The idle ones have given their pages back.
    let end = Instant::now() + PATIENCE;
    while all.iter().map(cached).sum::<u64>() > TOTAL {
        assert!(Instant::now() < end, "{:?}", all.iter().map(cached).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(50));
    }
    for (fs, file) in all.iter().zip(&files) {
        assert!(fs.stats().pages.limit >= 2 * MIB, "the minimum");
        read(file);
    }
    drop((files, large, other));
    all.into_iter().for_each(|fs| fs.unmount().unwrap());
    assert_eq!(runtime.stats().memory, 0, "each share comes back");
}

#[test]
fn a_file_system_with_a_seed_keeps_its_own_bound() {
    let runtime = Runtime::builder().memory(TOTAL).build().unwrap();
    let options = OpenOptions::new().runtime(&runtime).seed(1);
    let fs = Fs::create(Arc::new(Memory::new(32 << 20)), &Default::default(), &options).unwrap();
    assert_eq!((runtime.stats().memory, fs.stats().pages.limit), (0, 32 * MIB));
    fs.unmount().unwrap();
}
