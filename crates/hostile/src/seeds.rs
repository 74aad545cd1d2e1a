//! Images to damage: every feature set, filled with a tree, left clean or as after a power cut; and images that others damaged.

use crate::atlas::Atlas;
use extant::{Caller, Clock, Falloc, File, Fs, New, Node, OpenFlags, OpenOptions, Timestamp, XattrMode};
use extant_blocks::MemDevice;
use extant_testkit::image::FeatureSet;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::ffi::OsString;
use std::sync::Arc;

/// Who does everything.
pub const WHO: Caller = Caller { uid: 0, gid: 0, umask: 0 };

/// A good image.
pub struct Seed {
    /// How it was made.
    pub name: String,
    /// The image.
    pub bytes: Vec<u8>,
    /// Where everything is in it.
    pub atlas: Atlas,
}

/// Bytes of an image of a feature set: as small as `mke2fs` makes it.
fn bytes_of(set: &FeatureSet) -> u64 {
    match set.name {
        "64k" | "bigalloc" | "fast_commit" => 48 << 20,
        _ => 12 << 20,
    }
}

impl Seed {
    /// A filled image of a feature set. `crashed`: with a log to replay and orphans.
    pub fn make(set: &FeatureSet, crashed: bool) -> Seed {
        let image = set.make_sized(bytes_of(set)).bytes();
        let device = Arc::new(MemDevice::from_bytes(&image));
        // A claim of multiple mount protection takes seconds.
        let fs = Fs::open_device(device.clone(), &options().read_only(set.name == "mmp")).expect("a good image opens");
        if !fs.is_read_only() {
            let orphans = fill(&fs);
            fs.sync().expect("sync");
            if crashed {
                fs.crash();
            } else {
                drop(orphans);
                fs.unmount().expect("unmount");
            }
        }
        Seed::of(format!("{}{}", set.name, if crashed { " crashed" } else { "" }), device.to_vec())
    }

    /// A good image that somebody else made.
    pub fn of(name: String, bytes: Vec<u8>) -> Seed {
        let atlas = Atlas::of(&bytes);
        Seed { name, bytes, atlas }
    }
}

/// Damaged images that others keep, from the folder that `EXTANT_IMAGES` names, if it does: paths and contents. Some lie there as they
/// are, some compressed.
pub fn of_others() -> Vec<(String, Vec<u8>)> {
    let Some(folder) = std::env::var_os("EXTANT_IMAGES") else { return Vec::new() };
    let search: [OsString; 5] = [folder, "-type".into(), "f".into(), "-name".into(), "image*".into()];
    let found = run("find", &search).must_succeed().text();
    let image = |path: &str| match path.ends_with(".gz") {
        true => run("gzip", &["-dc", path]).must_succeed().stdout,
        false => std::fs::read(path).expect("an image"),
    };
    found.lines().map(|path| (path.to_owned(), image(path))).collect()
}

/// Time stands still, so that an image is made the same each time.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { sec: 1_750_000_000, nsec: 0 }
    }
}

/// As little memory and as few surprises as possible.
pub fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).seed(1).clock(Arc::new(Still))
}

/// Makes one of everything. Gives open files without names.
fn fill(fs: &Fs) -> Vec<File> {
    let root = fs.root().expect("root");
    let dir = fs.create(&WHO, &root, b"dir", 0o755, New::Dir).expect("mkdir");
    let sub = fs.create(&WHO, &dir, b"sub", 0o755, New::Dir).expect("mkdir");
    fs.create(&WHO, &sub, b"deep", 0o700, New::Dir).expect("mkdir");
    links(fs, &root, &dir);
    fragmented(fs, &root);
    for (n, len) in [0, 30, 150, 5000, 70_000].into_iter().enumerate() {
        write(fs, &sub, format!("file{n}").as_bytes(), &[(0, len)]);
    }
    for (n, len) in [10, 700, 3000, 20_000].into_iter().enumerate() {
        let node = write(fs, &dir, format!("attributes{n}").as_bytes(), &[(0, 100)]);
        let _ = fs.set_xattr(&node, b"user.short", b"value", XattrMode::Any);
        let _ = fs.set_xattr(&node, b"trusted.long", &vec![n as u8; len], XattrMode::Any);
    }
    fs.create(&WHO, &dir, b"short", 0o777, New::Symlink(b"sub/file2")).expect("symlink");
    fs.create(&WHO, &dir, b"long", 0o777, New::Symlink(&[b'l'; 300])).expect("symlink");
    fs.create(&WHO, &dir, b"fifo", 0o600, New::Special(extant::FileType::Fifo, (0, 0))).expect("mkfifo");
    orphans(fs, &root)
}

/// A directory of so many names that it has an index, of two levels where blocks are small.
fn links(fs: &Fs, root: &Node, dir: &Node) {
    let many = fs.create(&WHO, root, b"many", 0o755, New::Dir).expect("mkdir");
    let file = write(fs, dir, b"linked", &[(0, 10)]);
    for n in 0..600 {
        fs.link(&file, &many, format!("a rather long name of a link {n}").as_bytes()).expect("link");
    }
}

/// A file of so many extents that its tree has blocks.
fn fragmented(fs: &Fs, root: &Node) {
    let block = u64::from(fs.superblock().block_size());
    let pieces: Vec<_> = (0..120).map(|n| (n * 2 * block, 100)).collect();
    write(fs, root, b"fragmented", &pieces);
    let node = write(fs, root, b"allocated", &[(0, 100), (9 * block, 5)]);
    let file = open(fs, &node);
    let _ = file.allocate(Falloc::KeepSize, 0, 40 * block);
}

fn orphans(fs: &Fs, root: &Node) -> Vec<File> {
    let make = |n: u64| {
        let name = format!("orphan{n}");
        let file = open(fs, &write(fs, root, name.as_bytes(), &[(n * 5000, 3000)]));
        fs.unlink(root, name.as_bytes()).expect("unlink");
        file
    };
    (0..4).map(make).collect()
}

fn open(fs: &Fs, node: &Node) -> File {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() }).expect("open")
}

fn write(fs: &Fs, dir: &Node, name: &[u8], pieces: &[(u64, usize)]) -> Node {
    let node = fs.create(&WHO, dir, name, 0o644, New::File).expect("create");
    let file = open(fs, &node);
    for (offset, len) in pieces {
        let data = Rng::new(*offset).bytes(*len);
        assert_eq!(file.write_at(*offset, &data).expect("write"), data.len());
    }
    node
}
