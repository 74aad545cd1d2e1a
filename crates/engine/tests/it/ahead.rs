//! Inodes that are loaded before a caller asks for them.

use extant_engine::{Fs, Node, NodeKind, OpenOptions};
use extant_testkit::debugfs;
use extant_testkit::image::{FeatureSet, Image};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const DIRS: usize = 9;
const FILES: usize = 10;

fn name(prefix: &str, i: usize) -> Vec<u8> {
    format!("{prefix}{i}").into_bytes()
}

/// `/top/d0/f0` and so on.
fn tree() -> Image {
    let image = FeatureSet::named("orphan_file").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let make = |dir: &Node, name: &[u8], what| fs.create(dir, name, 0o755, what).expect("create");
    let top = make(&fs.root().expect("root"), b"top", NodeKind::Dir);
    for d in 0..DIRS {
        let dir = make(&top, &name("d", d), NodeKind::Dir);
        (0..FILES).for_each(|f| drop(make(&dir, &name("f", f), NodeKind::File)));
    }
    fs.unmount().expect("unmount");
    image
}

fn open(image: &Image, look_ahead: bool) -> (Fs, Node) {
    let options = OpenOptions::new().remember_names(false).look_ahead(look_ahead);
    let fs = Fs::open(image.path(), &options).expect("open");
    let top = fs.lookup(&fs.root().expect("root"), b"top").expect("top");
    (fs, top)
}

/// Waits for the prefetch thread.
#[track_caller]
fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn look_up(fs: &Fs, dir: &Node, files: std::ops::Range<usize>) {
    files.for_each(|f| drop(fs.lookup(dir, &name("f", f)).expect("a file")));
}

#[test]
fn the_second_lookup_in_a_directory_prefetches_its_inodes() {
    let image = tree();
    let (fs, top) = open(&image, true);
    let dir = fs.lookup(&top, b"d0").expect("d0");
    look_up(&fs, &dir, 0..1);
    assert_eq!(fs.stats().inodes_ahead, 0, "one name is no walk");
    look_up(&fs, &dir, 1..2);
    until("the other files are loaded", || fs.stats().inodes_ahead == FILES as u64 - 2);
    look_up(&fs, &dir, 0..FILES);
    assert_eq!(fs.stats().inodes_ahead_used, FILES as u64 - 2);
    // Another directory was asked for: the remaining directories are loaded, and as many of their
    // files as the budget for this use allows.
    fs.lookup(&top, b"d1").expect("d1");
    let all = (FILES - 2 + DIRS - 2 + 3 * FILES) as u64;
    until("directories and their files are loaded", || fs.stats().inodes_ahead == all);
    assert_eq!(fs.stats().inodes_ahead_used, FILES as u64 - 2);
    fs.unmount().expect("unmount");
}

#[test]
fn a_descending_listing_prefetches_subdirectories() {
    let image = tree();
    let (fs, top) = open(&image, true);
    let list = |dir: &Node| {
        let mut found = Vec::new();
        fs.read_dir_plus(dir, 0, |_, node| {
            found.push(node.cloned());
            true
        })
        .expect("list");
        found
    };
    list(&fs.root().expect("root"));
    list(&top);
    until("files of some directory are loaded", || fs.stats().inodes_ahead >= FILES as u64);
    let dirs = (0..DIRS).map(|d| fs.lookup(&top, &name("d", d)).expect("a directory"));
    assert!(dirs.map(|dir| list(&dir).len()).all(|len| len == FILES + 2));
    assert!(fs.stats().inodes_ahead_used >= FILES as u64);
    fs.unmount().expect("unmount");
}

#[test]
fn nothing_is_prefetched_unless_enabled() {
    let image = tree();
    let (fs, top) = open(&image, false);
    let before = fs.stats().inodes_cached;
    let dir = fs.lookup(&top, b"d0").expect("d0");
    look_up(&fs, &dir, 0..4);
    assert_eq!((fs.stats().inodes_ahead, fs.stats().inodes_cached), (0, before + 5));
    fs.unmount().expect("unmount");
}

#[test]
fn prefetch_skips_damaged_inodes() {
    let image = tree();
    let place = debugfs::read(image.path(), "imap /top/d0/f7");
    let number = |behind: &str, radix| {
        let digits = place.split_once(behind).expect("imap names it").1;
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        u64::from_str_radix(&digits[..end], radix).expect("a number")
    };
    let at = number("located at block ", 10) * 4096 + number("offset 0x", 16);
    let file = std::fs::File::options().write(true).open(image.path()).expect("the image");
    image.leave_unjudged("an inode is damaged");
    // The owner, whose change the checksum detects.
    file.write_all_at(&[0x5a, 0x5a], at + 2).expect("write");
    let (fs, top) = open(&image, true);
    let dir = fs.lookup(&top, b"d0").expect("d0");
    look_up(&fs, &dir, 0..2);
    until("the other files are loaded", || fs.stats().inodes_ahead == FILES as u64 - 3);
    look_up(&fs, &dir, 2..7);
    look_up(&fs, &dir, 8..FILES);
    assert!(fs.superblock().last_error().is_none(), "no caller asked for it");
    assert!(fs.lookup(&dir, b"f7").is_err());
    assert!(fs.superblock().last_error().is_some());
    drop(fs);
}
