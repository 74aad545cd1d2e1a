//! Trees and images of the tests.

use extant_blocks::OpenOptions;
use extant_format::Timestamp;
use extant_image::{
    Attributes, BuildOptions, ContentSource, DataRange, EntryKind, FileContent, FreeSpace,
    ImageFacts, ImageSize, OpenContent, SourceId, Tree, plan,
};
use extant_testkit::Image;
use std::io;
use std::sync::Arc;

/// A source whose content at position `p` is a sequence that depends on `p`.
pub struct Numbers;

struct Sequence(u64);

impl ContentSource for Numbers {
    fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        Ok(Box::new(Sequence(position)))
    }
}

impl OpenContent for Sequence {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (offset..).zip(buf).for_each(|(n, byte)| *byte = byte_at(self.0, n));
        Ok(())
    }
}

/// Returns byte `n` of the content at a position; never 0.
pub fn byte_at(position: u64, n: u64) -> u8 {
    ((position.wrapping_mul(31) + n.wrapping_mul(7) + n / 4096) % 255 + 1) as u8
}

/// Attributes of this mode, with a time that tells their order.
pub fn attributes(mode: u16) -> Attributes {
    Attributes {
        mode,
        uid: 1000,
        gid: 70_000,
        mtime: Timestamp::new(1_600_000_000 + i64::from(mode), 0),
        ..Attributes::default()
    }
}

pub fn add(tree: &mut Tree, path: &str, kind: EntryKind) {
    tree.add(path.as_bytes(), &attributes(0o644), kind).unwrap();
}

pub fn whole(source: SourceId, position: u64, size: u64) -> EntryKind {
    EntryKind::File(FileContent::Whole { source, position, size })
}

/// A tree with something of each kind.
pub fn every_kind() -> Tree {
    let mut tree = Tree::new();
    tree.add(b"", &attributes(0o751), EntryKind::Directory).unwrap();
    let source = tree.add_source(Arc::new(Numbers));
    for (n, size) in
        [0, 1, 59, 60, 61, 128, 129, 4095, 4096, 4097, 70_000, 1_500_000].into_iter().enumerate()
    {
        add(&mut tree, &format!("sizes/{size}"), whole(source, n as u64, size));
    }
    for len in [1, 59, 60, 61, 1000] {
        add(&mut tree, &format!("links/{len}"), EntryKind::Symlink(vec![b'x'; len]));
    }
    add(&mut tree, "dev/null", EntryKind::CharDevice(1, 3));
    add(&mut tree, "dev/large", EntryKind::BlockDevice(259, 300_000));
    add(&mut tree, "dev/fifo", EntryKind::Fifo);
    add(&mut tree, "dev/socket", EntryKind::Socket);
    add(&mut tree, "deep/a/b/c/d/e/f/g", EntryKind::Directory);
    tree.add(b"bytes/\xFF\xFE\x01", &attributes(0o4711), EntryKind::Directory).unwrap();
    tree.hard_link(b"deep/a/second name", b"sizes/4097").unwrap();
    for n in 0..300 {
        add(&mut tree, &format!("many/a name of some length {n}"), whole(source, n, n * 11));
    }
    let piece = |n: u64| DataRange { start: n * 40_960 + 100, len: 4097, position: 9, skip: n };
    let ranges = (0..20).map(piece).collect();
    let sparse = FileContent::Sparse { source, size: 1 << 30, ranges };
    add(&mut tree, "sparse", EntryKind::File(sparse));
    add(&mut tree, "hole", EntryKind::File(FileContent::Zeroes { size: 5 << 20 }));
    add_attributes(&mut tree);
    tree
}

/// Adds files with extended attributes: in the inode, in blocks that are shared, and both.
fn add_attributes(tree: &mut Tree) {
    let mut with = |path: String, xattrs: Vec<(&str, usize)>| {
        let xattrs = xattrs.into_iter().map(|(name, len)| (name.into(), vec![b'v'; len]));
        let attributes = Attributes { xattrs: xattrs.collect(), ..attributes(0o600) };
        let content = FileContent::Bytes(b"content".to_vec());
        tree.add(path.as_bytes(), &attributes, EntryKind::File(content)).unwrap();
    };
    for n in 0..5 {
        with(format!("xattrs/small {n}"), vec![("user.a", 3)]);
        with(format!("xattrs/shared {n}"), vec![("user.long", 500), ("security.x", 10)]);
        with(format!("xattrs/own {n}"), vec![("user.long", 300 + n), ("trusted.t", 0)]);
    }
}

/// Options of file systems that are the same each time.
pub fn options(block_size: u32, features: &str) -> BuildOptions {
    let mut options = BuildOptions::default();
    options.mkfs.block_size = Some(block_size);
    options.mkfs.seed = Some(7);
    options.mkfs.time = Some(Timestamp::new(1_700_000_000, 0));
    options.mkfs.apply_features(features).unwrap();
    options.size = ImageSize::Exact { free: FreeSpace::Bytes(1 << 20), inodes_free: 10 };
    options
}

/// Builds an image in a file.
#[track_caller]
pub fn built(tree: &Tree, options: &BuildOptions) -> (Image, ImageFacts) {
    let plan = plan(tree, options).unwrap();
    let image = Image::blank(plan.facts().bytes);
    let device = OpenOptions::new(image.path()).open().unwrap();
    let facts = plan.write_to(&device).unwrap();
    assert_eq!(facts, plan.facts());
    (image, facts)
}
