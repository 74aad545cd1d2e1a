//! Inodes in the kernel's cache need not stay in the server's memory.

use extant_engine::{Fs, FsStats, OpenOptions};
use extant_fuse::{MountOptions, mount};
use extant_testkit::image::FeatureSet;
use nix::libc::O_PATH;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// More files than fit the smallest limit on memory.
const FILES: u64 = 20_000;

/// Files in a directory.
const WIDE: u64 = 500;

/// Files with an `O_PATH` descriptor.
const HELD: u64 = 400;

#[test]
fn inodes_in_the_kernels_cache_are_bounded_in_memory() {
    let image = FeatureSet::named("default").make_sized(512 << 20);
    let dir = image.scratch().dir("mnt");
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("the image opens");
    let ops = fs.operations().clone();
    // The kernel keeps inodes, but requests their attributes each time.
    let options = MountOptions { time_to_live: Duration::ZERO, ..MountOptions::default() };
    let mounted = mount(fs, &dir, &options).expect("mount");
    let path = |i: u64| -> PathBuf { dir.join(format!("d{}/f{i}", i / WIDE)) };
    let make = |i: u64| {
        if i.is_multiple_of(WIDE) {
            fs::create_dir(dir.join(format!("d{}", i / WIDE))).expect("mkdir");
        }
        File::create_new(path(i)).expect("create").metadata().expect("stat").ino()
    };
    let numbers: Vec<u64> = (0..FILES).map(make).collect();
    let mut open = File::options().read(true).write(true).open(path(3)).expect("open");
    open.write_all_at(b"still here", 0).expect("write");
    open.sync_all().expect("fsync");
    fs::remove_file(path(3)).expect("unlink");
    // The kernel cannot forget these, even under memory pressure.
    let named = |i| File::options().read(true).custom_flags(O_PATH).open(path(i)).expect("a path");
    let held: Vec<File> = (4..4 + HELD).map(named).collect();
    for (i, ino) in (4..FILES).zip(&numbers[4..]) {
        assert_eq!(fs::metadata(path(i)).expect("stat").ino(), *ino, "file {i}");
    }
    let stats = FsStats::of(&ops);
    assert!(
        stats.inodes_parked as u64 > HELD / 2,
        "{} inodes are remembered elsewhere",
        stats.inodes_parked
    );
    assert!(
        (stats.inodes_cached as u64) < FILES - 1000,
        "{} inodes in memory",
        stats.inodes_cached
    );
    let mut text = String::new();
    open.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), open.metadata().expect("fstat").nlink()), ("still here", 0));
    drop((open, held, ops));
    (4..FILES).step_by(7).for_each(|i| fs::remove_file(path(i)).expect("unlink"));
    mounted.unmount().expect("unmount");
    image.assert_clean();
}
