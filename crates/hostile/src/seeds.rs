//! Images to damage: all feature sets, filled with a tree, clean or as after a power cut; and
//! damaged images from outside.

use crate::atlas::Atlas;
use crate::records::{self, CREATE, Record, UNLINK};
use extant_blocks::MemDevice;
use extant_engine::{
    Clock, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, Timestamp, XattrMode,
};
use extant_format::extent::Leaf;
use extant_format::jbd2::JournalSuperblock;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::ffi::OsString;
use std::sync::Arc;

/// A valid image.
pub struct Seed {
    /// Description of its origin.
    pub name: String,
    /// The image.
    pub bytes: Vec<u8>,
    /// Locations of its structures.
    pub atlas: Atlas,
}

/// Returns the size in bytes of an image of a feature set, close to the minimum of `mke2fs`.
fn bytes_of(set: &FeatureSet) -> u64 {
    match set.name {
        "64k" | "bigalloc" | "fast_commit" => 48 << 20,
        _ => 12 << 20,
    }
}

impl Seed {
    /// Makes a filled image of a feature set; if `crashed`, with a log to replay and orphans.
    pub fn make(set: &FeatureSet, crashed: bool) -> Seed {
        let image = set.make_sized(bytes_of(set)).bytes();
        let device = Arc::new(MemDevice::from_bytes(&image));
        // Opening an image with multiple mount protection for writing takes seconds.
        let fs = Fs::open_device(device.clone(), &options().read_only(set.name == "mmp"))
            .expect("a good image opens");
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

    /// Wraps a valid image that was made elsewhere.
    pub fn of(name: String, bytes: Vec<u8>) -> Seed {
        let atlas = Atlas::of(&bytes);
        Seed { name, bytes, atlas }
    }
}

/// Arguments to `mke2fs` for a small image with an area of fast commits.
const FAST_COMMITS: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-O",
    "fast_commit,orphan_file",
    "-J",
    "size=2,fast_commit_size=64",
];

/// An image with full commits to replay, orphans, and two fast commits that follow: a file loses
/// its name, another gets one, and blocks move from one file to another.
pub fn with_fast_commits() -> Seed {
    let image = Image::mke2fs(12 << 20, FAST_COMMITS).bytes();
    let device = Arc::new(MemDevice::from_bytes(&image));
    let open = || Fs::open_device(device.clone(), &options()).expect("a good image opens");
    let fs = open();
    drop(fill(&fs));
    fs.unmount().expect("unmount");
    let fs = open();
    let named = Named::of(&fs);
    let orphans = orphans(&fs, &fs.root().expect("root"));
    fs.sync().expect("sync");
    fs.crash();
    drop(orphans);
    let reader =
        Fs::open_device(device.clone(), &options().read_only(true)).expect("a good image opens");
    let tid = reader.recovery().journal.expect("a log").end;
    drop(reader);
    let mut bytes = device.to_vec();
    let atlas = Atlas::of(&bytes);
    records::enable(&mut bytes, atlas.journal_block(0));
    let sb = JournalSuperblock::parse(&bytes[atlas.journal_block(0)]).expect("a journal");
    let area: Vec<_> =
        sb.fast_commit_area().expect("an area").map(|at| atlas.journal_block(at)).collect();
    let mut blocks = vec![vec![0; 1024]; area.len()];
    records::write(
        &named.records(&bytes, &atlas, tid),
        tid,
        blocks.iter_mut().map(|block| &mut block[..]),
    );
    area.iter().zip(&blocks).for_each(|(at, block)| bytes[at.clone()].copy_from_slice(block));
    Seed::of("fast commits".into(), bytes)
}

/// Objects that records of fast commits name.
struct Named {
    dir: u32,
    large: u32,
    small: u32,
    linked: u32,
    /// A free inode.
    unused: u32,
    /// The first extent of the large file.
    leaf: Leaf,
}

impl Named {
    fn of(fs: &Fs) -> Named {
        let node = |path: &str| fs.resolve(path, Follow::No).expect(path);
        let ino = |path: &str| node(path).ino() as u32;
        let mut leaf = Leaf { lblk: 0, pblk: 0, len: 0, unwritten: false };
        let large = fs.open_file(&node("/dir/sub/file4"), OpenFlags::default()).expect("open");
        let first = large.extents(0, u64::MAX, |extent| {
            (leaf.pblk, leaf.len) = (extent.physical >> 10, (extent.len >> 10) as u16);
            false
        });
        first.expect("extents");
        let unused = fs.superblock().inodes_count() - 1;
        let (large, small) = (ino("/dir/sub/file4"), ino("/dir/sub/file3"));
        Named { dir: ino("/dir"), large, small, linked: ino("/dir/linked"), unused, leaf }
    }

    fn records(&self, image: &[u8], atlas: &Atlas, tid: u32) -> Vec<Record> {
        const SIZE: usize = 4;
        let slot = |ino: u32| image[atlas.slot(ino).bytes.clone()][..160].to_vec();
        let sized = |ino: u32, blocks: u16| {
            let mut slot = slot(ino);
            slot[SIZE..SIZE + 4].copy_from_slice(&(u32::from(blocks) << 10).to_le_bytes());
            Record::inode(ino, &slot)
        };
        let (len, half) = (self.leaf.len, self.leaf.len / 2);
        let given = Leaf { pblk: self.leaf.pblk + u64::from(half), len: len - half, ..self.leaf };
        vec![
            Record::head(tid),
            Record::del_range(self.large, half.into()..1 << 20),
            sized(self.large, half),
            Record::name(UNLINK, self.dir, self.linked, "linked"),
            Record::tail(),
            Record::del_range(self.small, 0..1 << 20),
            Record::add_range(self.small, given),
            sized(self.small, len - half),
            Record::inode(self.unused, &slot(self.small)),
            Record::name(CREATE, self.dir, self.unused, "made by a fast commit"),
            Record::tail(),
        ]
    }
}

/// Returns paths and contents of damaged images from the folder in `EXTANT_IMAGES`, if set. Images
/// may be compressed.
pub fn of_others() -> Vec<(String, Vec<u8>)> {
    let Some(folder) = std::env::var_os("EXTANT_IMAGES") else { return Vec::new() };
    let search: [OsString; 5] =
        [folder, "-type".into(), "f".into(), "-name".into(), "image*".into()];
    let found = run("find", &search).must_succeed().text();
    let image = |path: &str| {
        if path.ends_with(".gz") {
            run("gzip", &["-dc", path]).must_succeed().stdout
        } else {
            std::fs::read(path).expect("an image")
        }
    };
    found.lines().map(|path| (path.to_owned(), image(path))).collect()
}

/// A clock that stands still, so that images are reproducible.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { sec: 1_750_000_000, nsec: 0 }
    }
}

/// Returns options with little memory and deterministic behavior.
pub fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).seed(1).clock(Arc::new(Still))
}

/// Makes one object of each kind. Returns open files without names.
fn fill(fs: &Fs) -> Vec<File> {
    let root = fs.root().expect("root");
    let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).expect("mkdir");
    let sub = fs.create(&dir, b"sub", 0o755, NodeKind::Dir).expect("mkdir");
    fs.create(&sub, b"deep", 0o700, NodeKind::Dir).expect("mkdir");
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
    fs.create(&dir, b"short", 0o777, NodeKind::Symlink(b"sub/file2")).expect("symlink");
    fs.create(&dir, b"long", 0o777, NodeKind::Symlink(&[b'l'; 300])).expect("symlink");
    fs.create(&dir, b"fifo", 0o600, NodeKind::Fifo).expect("mkfifo");
    orphans(fs, &root)
}

/// Fills a directory until it has an index, of two levels if blocks are small.
fn links(fs: &Fs, root: &Node, dir: &Node) {
    let many = fs.create(root, b"many", 0o755, NodeKind::Dir).expect("mkdir");
    let file = write(fs, dir, b"linked", &[(0, 10)]);
    for n in 0..600 {
        fs.link(&file, &many, format!("a rather long name of a link {n}").as_bytes())
            .expect("link");
    }
}

/// Makes a file with enough extents for a tree with blocks.
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
    let node = fs.create(dir, name, 0o644, NodeKind::File).expect("create");
    let file = open(fs, &node);
    for (offset, len) in pieces {
        let data = Rng::new(*offset).bytes(*len);
        assert_eq!(file.write_at(*offset, &data).expect("write"), data.len());
    }
    node
}
