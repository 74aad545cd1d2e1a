//! Logs of the kernel, and recovery of our logs by the kernel and e2fsck.

use crate::bench::content;
use extant_blocks::{BlockDevice, Cache, FileDevice, OpenOptions};
use extant_journal::recovery::{self, Outcome};
use extant_journal::{Config, Error, Handle, Journal, Log, LogExtent, LogFeatures, LogPlace, Seal};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::tree::{Plan, Shape};
use extant_testkit::{debugfs, dumpe2fs, e2fsck, tool};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Returns the extents of `file` according to debugfs.
fn extents(image: &Path, file: &str) -> Vec<LogExtent> {
    let mapping = debugfs::stat(image, file).mapping;
    let mut extents: Vec<LogExtent> = mapping.split(", ").filter_map(extent).collect();
    extents.sort_by_key(|extent| extent.logical);
    extents
}

/// Parses `(0-10):100-110` or `(11):200`. Blocks of the map itself have a name instead of a number.
fn extent(text: &str) -> Option<LogExtent> {
    let (logical, physical) = text.trim().trim_start_matches('(').split_once("):")?;
    let first = |range: &str| range.split('-').next().and_then(|number| number.parse::<u64>().ok());
    let last =
        |range: &str| range.split('-').next_back().and_then(|number| number.parse::<u64>().ok());
    let (start, end) = (first(logical)?, last(logical)?);
    Some(LogExtent {
        logical: start as u32,
        physical: first(physical)?,
        len: (end - start + 1) as u32,
    })
}

pub struct Fs {
    pub device: Arc<dyn BlockDevice>,
    pub log: Log,
    pub blocks: u64,
    pub block_size: u32,
    /// The block of the journal superblock.
    pub journal: u64,
}

fn device(path: &Path) -> Arc<dyn BlockDevice> {
    let device: FileDevice = OpenOptions::new(path).open().unwrap();
    Arc::new(device)
}

fn open(image: &Path) -> Fs {
    let header = dumpe2fs::header(image);
    let (blocks, block_size) = (header.number("Block count"), header.number("Block size") as u32);
    on(device(image), &extents(image, "<8>"), (blocks, block_size))
}

/// Opens the log of the image on a device.
fn on(device: Arc<dyn BlockDevice>, places: &[LogExtent], (blocks, block_size): (u64, u32)) -> Fs {
    let log = Log::open(Arc::clone(&device), places, block_size, LogPlace::Inside).unwrap();
    Fs { device, log, blocks, block_size, journal: places[0].physical }
}

/// Opens the log of an image in memory.
pub fn open_device(device: Arc<dyn BlockDevice>) -> Fs {
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).unwrap();
    let image = Image::holding(&bytes);
    image.leave_unjudged("it is judged where it was made");
    let header = dumpe2fs::header(image.path());
    let sizes = (header.number("Block count"), header.number("Block size") as u32);
    on(device, &extents(image.path(), "<8>"), sizes)
}

/// Makes files and removes many of them again, so that there are revokes, and leaves the last
/// changes to the journal.
fn busy(mount: &Mount) {
    Plan::random(1, &Shape { privileged: false, ..Shape::small() }).apply(&mount.join("a"));
    mount.sync();
    for directory in 0..6 {
        let path = mount.join(format!("d{directory}"));
        fs::create_dir(&path).unwrap();
        (0..150).for_each(|n| {
            fs::write(path.join(format!("a longer name of a file, number {n}")), [7; 3]).unwrap()
        });
    }
    mount.sync();
    for directory in 0..5 {
        fs::remove_dir_all(mount.join(format!("d{directory}"))).unwrap();
    }
    mount.sync();
    fs::create_dir(mount.join("after")).unwrap();
    (0..40).for_each(|n| fs::write(mount.join(format!("after/{n}")), content(n, 5)).unwrap());
}

/// A file of three bytes that is on the medium.
const SYNCED: &str = "d5/a longer name of a file, number 3";

/// Makes an image on which the kernel stopped during operations.
fn left_by_the_kernel(set: &str, options: &str, how: Shutdown) -> Image {
    let image = FeatureSet::named(set).make();
    let mount = Mount::new(image.path(), options);
    fs::create_dir(mount.join("a")).unwrap();
    busy(&mount);
    mount.crash(how);
    image
}

/// Compares two images except for superblocks, which another program's recovery may write besides
/// the replay.
fn same_but_for_superblocks(ours: &Path, theirs: &Path, fs: &Fs) {
    let (ours, theirs) = (fs::read(ours).unwrap(), fs::read(theirs).unwrap());
    assert_eq!(ours.len(), theirs.len());
    let size = fs.block_size as usize;
    for (nr, (a, b)) in ours.chunks(size).zip(theirs.chunks(size)).enumerate() {
        let own = nr as u64 == fs.journal;
        let superblock = (nr * size..nr * size + size).contains(&1024);
        let equal =
            if superblock { a[2048 % size..] == b[2048 % size..] || size == 1024 } else { a == b };
        assert!(equal || own, "block {nr} differs");
    }
}

/// Replays with e2fsck and with this crate, and compares all bytes.
fn agrees_with_e2fsck(image: &Image) -> Outcome {
    let theirs = image.copy();
    let printed =
        tool::run("e2fsck", &["-fy", "-E", "journal_only", &theirs.path().display().to_string()]);
    assert!(printed.code <= 1, "{printed}");
    let fs = open(image.path());
    let replay = recovery::scan(&fs.log, fs.blocks).unwrap();
    let outcome = replay.apply(&*fs.device).unwrap();
    fs.device.flush().unwrap();
    same_but_for_superblocks(image.path(), theirs.path(), &fs);
    drop(fs);
    e2fsck::recover(image.path()).assert_clean();
    outcome
}

#[test]
fn logs_of_the_kernel_are_replayed_as_by_e2fsck() {
    for (set, options) in [
        ("default", ""),
        ("1k", ""),
        ("no_csum", ""),
        ("no_64bit", ""),
        ("ext3", ""),
        ("default", "data=journal"),
        ("no_csum", "journal_checksum"),
        ("no_csum", "data=writeback,journal_async_commit"),
        ("default", "data=writeback,journal_async_commit"),
    ] {
        let outcome = agrees_with_e2fsck(&left_by_the_kernel(set, options, Shutdown::FlushLog));
        assert!(outcome.transactions > 1 && outcome.blocks > 10, "{set} {options}: {outcome:?}");
    }
}

#[test]
fn an_image_copied_under_the_kernel_is_replayed_as_by_e2fsck() {
    let image = FeatureSet::named("1k").make();
    let mount = Mount::new(image.path(), "");
    fs::create_dir(mount.join("a")).unwrap();
    busy(&mount);
    let copy = image.copy();
    busy_again(&mount);
    let later = image.copy();
    mount.unmount();
    agrees_with_e2fsck(&copy);
    agrees_with_e2fsck(&later);
}

fn busy_again(mount: &Mount) {
    fs::remove_dir_all(mount.join("after")).unwrap();
    (0..300).for_each(|n| fs::write(mount.join(format!("again {n}")), [1; 5]).unwrap());
    mount.sync();
}

#[test]
fn fast_commits_are_found_and_left_to_the_file_system() {
    let image = FeatureSet::named("fast_commit").make();
    let mount = Mount::new(image.path(), "commit=300");
    fs::write(mount.join("first"), "1").unwrap();
    mount.sync();
    fs::write(mount.join("second"), "2").unwrap();
    fs::File::open(mount.join("second")).unwrap().sync_all().unwrap();
    mount.crash(Shutdown::NoFlushLog);
    let fs = open(image.path());
    assert!(fs.log.has_fast_commit());
    let replay = recovery::scan(&fs.log, fs.blocks).unwrap();
    let records = replay.fast_commits().iter().count();
    assert!(records > 3 && replay.outcome().fast_records == records as u64);
    assert!(matches!(replay.apply(&*fs.device), Err(Error::Unsupported(_))));
}

#[test]
fn an_external_log_is_replayed() {
    let journal = Image::mke2fs(8 << 20, &["-b", "4096", "-O", "journal_dev"]);
    let journal_loop = Loop::attach(journal.path(), false);
    let name = journal_loop.device().display().to_string();
    let image =
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &format!("device={name}")]);
    image.leave_unjudged("its log is on another device, with which it is checked below");
    let mount = Mount::new(image.path(), "");
    fs::create_dir(mount.join("a")).unwrap();
    busy(&mount);
    mount.crash(Shutdown::FlushLog);
    drop(journal_loop);
    let (fs_device, log_device) = (device(image.path()), device(journal.path()));
    let place = [LogExtent { logical: 0, physical: 0, len: 2048 }];
    let log = Log::open(Arc::clone(&log_device), &place, 4096, LogPlace::External).unwrap();
    assert_eq!(log.superblock().users().len(), 1);
    let (log, outcome) = recovery::recover(log, &*fs_device, fs_device.len() / 4096).unwrap();
    assert!(outcome.transactions > 1, "{outcome:?}");
    // Writes to the log for the kernel to replay: the superblock still requires recovery.
    let file = extents(image.path(), SYNCED)[0].physical;
    let cache = Cache::new(Arc::clone(&fs_device), 4096, 1 << 20);
    let writer = Journal::open(Config::new(Arc::clone(&cache), Some(log))).unwrap();
    writer.start(1).unwrap().write(&cache.fresh(file), Seal::NONE).unwrap().fill(b'x');
    writer.sync().unwrap();
    writer.crash();
    drop((writer, cache, fs_device, log_device));
    let journal_loop = Loop::attach(journal.path(), false);
    let name = journal_loop.device().display().to_string();
    let mount = Mount::new(image.path(), &format!("journal_path={name}"));
    assert_eq!(fs::read(mount.join(SYNCED)).unwrap(), b"xxx");
    mount.unmount();
    let printed = tool::run("e2fsck", &["-fn", "-j", &name, &image.path().display().to_string()]);
    assert!(printed.code == 0, "{printed}");
}

const FILE_BLOCKS: u32 = 300;

/// Makes a clean image with a file whose blocks a journal may change harmlessly. Returns the image
/// and the file's extents.
fn image_with_a_file(set: &FeatureSet) -> (Image, Vec<LogExtent>) {
    let image = set.make();
    let mount = Mount::new(image.path(), "");
    let bytes = vec![1; (FILE_BLOCKS * set.block_size) as usize];
    fs::write(mount.join("file"), bytes).unwrap();
    mount.unmount();
    let file = extents(image.path(), "file");
    (image, file)
}

fn place(file: &[LogExtent], logical: u32) -> u64 {
    let extent = file.iter().rfind(|extent| extent.logical <= logical).unwrap();
    extent.physical + u64::from(logical - extent.logical)
}

struct Writer<'a> {
    cache: Arc<Cache>,
    file: &'a [LogExtent],
    expected: Vec<Vec<u8>>,
    size: usize,
}

impl Writer<'_> {
    fn change(&mut self, handle: &mut Handle<'_>, logical: u32, version: u64) {
        let nr = place(self.file, logical);
        let bytes: Vec<u8> = content(nr, version).into_iter().cycle().take(self.size).collect();
        let buffer = self.cache.fresh(nr);
        handle.write(&buffer, Seal::NONE).unwrap().copy_from_slice(&bytes);
        self.expected[logical as usize] = bytes;
    }
}

/// Fills the log several times, revokes, writes data over the revoked blocks, and crashes.
fn write_and_crash(image: &Image, set: &FeatureSet, file: &[LogExtent]) -> Vec<Vec<u8>> {
    let fs = open(image.path());
    let cache = Cache::new(Arc::clone(&fs.device), set.block_size as usize, 4 << 20);
    let mut config = Config::new(Arc::clone(&cache), Some(fs.log));
    let header = dumpe2fs::header(image.path());
    config.features = LogFeatures {
        checksums: Some(header.features().contains("metadata_csum")),
        bit64: header.features().contains("64bit"),
    };
    let journal = Journal::open(config).unwrap();
    let size = set.block_size as usize;
    let mut writer =
        Writer { cache, file, expected: vec![vec![1; size]; FILE_BLOCKS as usize], size };
    for round in 0..40u64 {
        let mut handle = journal.start(100).unwrap();
        (0..100).for_each(|n| {
            writer.change(&mut handle, (round as u32 * 37 + n) % 299, round * 7 + u64::from(n))
        });
        drop(handle);
        journal.sync().unwrap();
    }
    assert!(journal.stats().tail_moves > 0);
    let freed = 20;
    let mut handle = journal.start(120).unwrap();
    (0..freed).for_each(|logical| writer.change(&mut handle, logical, 1000));
    drop(handle);
    journal.sync().unwrap();
    let mut handle = journal.start(10).unwrap();
    (0..freed).for_each(|logical| handle.revoke(place(file, logical), 1).unwrap());
    writer.change(&mut handle, 299, 5);
    drop(handle);
    journal.sync().unwrap();
    for logical in 0..freed {
        let bytes = vec![logical as u8 + 100; size];
        fs.device.write_all_at(&bytes, place(file, logical) * size as u64).unwrap();
        writer.expected[logical as usize] = bytes;
    }
    journal.crash();
    assert!(journal.stats().escapes > 5);
    writer.expected
}

fn written_by_us(name: &str) -> (Image, Vec<u8>) {
    let set = FeatureSet::named(name);
    let (image, file) = image_with_a_file(set);
    let expected = write_and_crash(&image, set, &file).concat();
    debugfs::write(image.path(), "feature needs_recovery");
    (image, expected)
}

const SETS: [&str; 5] = ["default", "1k", "no_csum", "no_64bit", "ext3"];

#[test]
fn e2fsck_replays_our_log() {
    for set in SETS {
        let (image, expected) = written_by_us(set);
        e2fsck::recover(image.path()).assert_clean();
        assert!(debugfs::read_bytes(image.path(), "cat file") == expected, "{set}");
    }
}

#[test]
fn the_kernel_replays_our_log() {
    for set in SETS {
        let (image, expected) = written_by_us(set);
        let mount = Mount::new(image.path(), "");
        assert!(fs::read(mount.join("file")).unwrap() == expected, "{set}");
        let missing = fs::read(mount.join("no such file")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        mount.unmount();
        image.assert_clean();
    }
}
