//! Records in orders that kernels make with `data=writeback`, where a block changes its owner
//! within a commit, and in orders that no kernel makes.

use extant_engine::{Fs, NodeKind, OpenFlags, OpenOptions};
use extant_format::extent::Leaf;
use extant_format::jbd2::JournalSuperblock;
use extant_hostile::atlas::Atlas;
use extant_hostile::records::{self, CREATE, Record, UNLINK};
use extant_testkit::Memory;
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use std::collections::BTreeMap;
use std::sync::Arc;

const ARGS: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-N",
    "8192",
    "-O",
    "fast_commit,orphan_file",
    "-J",
    "size=8,fast_commit_size=1200",
];

/// Blocks of the files `a` and `b`.
const BLOCKS: u32 = 40;

/// An image with a log that ends in a full commit, and the inodes and blocks that records refer to.
struct Base {
    bytes: Vec<u8>,
    atlas: Atlas,
    inodes: BTreeMap<&'static str, u32>,
    /// The first block of `a`, and how many follow it.
    block: u64,
    len: u16,
    tid: u32,
}

fn options() -> OpenOptions {
    OpenOptions::new().memory(16 << 20).seed(1)
}

fn base(a_blocks: u32) -> Base {
    let image = Image::mke2fs(32 << 20, ARGS);
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &options()).expect("open");
    let root = fs.root().expect("root");
    let mut inodes = BTreeMap::new();
    let (mut block, mut len) = (0, 0);
    for name in ["a", "b", "dir"] {
        let what = if name == "dir" { NodeKind::Dir } else { NodeKind::File };
        let node = fs.create(&root, name.as_bytes(), 0o755, what).expect(name);
        inodes.insert(name, node.ino() as u32);
        if name == "a" {
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
            file.allocate(extant_engine::Falloc::Allocate, 0, u64::from(a_blocks) << 10)
                .expect("space");
            file.extents(0, u64::MAX, |extent| {
                (block, len) = (extent.physical >> 10, (extent.len >> 10) as u16);
                false
            })
            .expect("extents");
        }
    }
    drop(root);
    fs.unmount().expect("unmount");
    let fs = Fs::open_device(device.clone(), &options()).expect("open");
    fs.create(&fs.root().expect("root"), b"last", 0o644, NodeKind::File).expect("last");
    fs.sync().expect("sync");
    fs.crash();
    let seen = Fs::open_device(device.clone(), &options().read_only(true)).expect("open");
    let tid = seen.recovery().journal.expect("a log").end;
    drop(seen);
    let mut bytes = device.to_vec();
    let atlas = Atlas::of(&bytes);
    records::enable(&mut bytes, atlas.journal_block(0));
    Base { bytes, atlas, inodes, block, len, tid }
}

impl Base {
    fn leaf(&self, len: u16) -> Leaf {
        Leaf { lblk: 0, pblk: self.block, len, unwritten: false }
    }

    fn slot(&self, name: &str) -> Vec<u8> {
        self.bytes[self.atlas.slot(self.inodes[name]).bytes.clone()].to_vec()
    }

    /// Returns a record that sets the size of `name` in blocks of 1 KiB.
    fn sized(&self, name: &str, blocks: u32) -> Record {
        const SIZE: usize = 4;
        let mut slot = self.slot(name);
        slot[SIZE..SIZE + 4].copy_from_slice(&(blocks << 10).to_le_bytes());
        Record::inode(self.inodes[name], &slot[..160])
    }

    /// Opens the image with these records. Returns the bytes after the recovery.
    fn replay(&self, records: &[Record]) -> extant_engine::Result<Vec<u8>> {
        let mut image = self.bytes.clone();
        let sb = JournalSuperblock::parse(&image[self.atlas.journal_block(0)]).expect("a journal");
        let area: Vec<_> = sb
            .fast_commit_area()
            .expect("an area")
            .map(|at| self.atlas.journal_block(at))
            .collect();
        let mut blocks = vec![vec![0; 1024]; area.len()];
        let whole: Vec<Record> = [Record::head(self.tid)]
            .into_iter()
            .chain(records.to_vec())
            .chain([Record::tail()])
            .collect();
        records::write(&whole, self.tid, blocks.iter_mut().map(|block| &mut block[..]));
        area.iter().zip(&blocks).for_each(|(at, block)| image[at.clone()].copy_from_slice(block));
        let device = Arc::new(Memory::from_bytes(&image));
        let fs = Fs::open_device(device.clone(), &options())?;
        let read = fs.recovery().journal.expect("a log").fast_records;
        assert!(read >= whole.len() as u64, "{read} records");
        fs.unmount()?;
        Ok(device.to_vec())
    }

    #[track_caller]
    fn replays_clean(&self, records: &[Record]) -> Vec<u8> {
        let bytes = self.replay(records).unwrap_or_else(|e| panic!("{e}"));
        let image = Image::blank(bytes.len() as u64);
        std::fs::write(image.path(), &bytes).expect("an image");
        e2fsck::check(image.path()).assert_clean();
        bytes
    }
}

/// `a` loses its blocks, `b` gets them and loses them, too.
#[test]
fn a_block_may_be_let_go_twice() {
    let base = base(BLOCKS);
    let (a, b) = (base.inodes["a"], base.inodes["b"]);
    base.replays_clean(&[
        Record::del_range(a, 0..BLOCKS),
        Record::add_range(b, base.leaf(BLOCKS as u16)),
        Record::del_range(b, 0..BLOCKS),
    ]);
}

/// Both files that had the blocks lose their names.
#[test]
fn two_nameless_files_may_have_had_the_same_blocks() {
    let base = base(BLOCKS);
    let (a, b) = (base.inodes["a"], base.inodes["b"]);
    base.replays_clean(&[
        Record::name(UNLINK, 2, a, "a"),
        Record::add_range(b, base.leaf(BLOCKS as u16)),
        Record::name(UNLINK, 2, b, "b"),
    ]);
}

/// The blocks of the file that lost its name now belong to another file.
#[test]
fn blocks_of_a_nameless_file_may_have_a_new_owner() {
    let base = base(BLOCKS);
    let (a, b) = (base.inodes["a"], base.inodes["b"]);
    let bytes = base.replays_clean(&[
        Record::name(UNLINK, 2, a, "a"),
        Record::add_range(b, base.leaf(BLOCKS as u16 / 2)),
        base.sized("b", BLOCKS / 2),
    ]);
    let fs =
        Fs::open_device(Arc::new(Memory::from_bytes(&bytes)), &options().read_only(true)).unwrap();
    let file = fs
        .open_file(&fs.resolve("/b", extant_engine::Follow::No).unwrap(), OpenFlags::default())
        .unwrap();
    let mut seen = 0;
    file.extents(0, u64::MAX, |extent| {
        assert_eq!(extent.physical >> 10, base.block);
        seen += extent.len >> 10;
        true
    })
    .unwrap();
    assert_eq!(seen, u64::from(BLOCKS) / 2);
}

/// Thousands of directories are created between the record that takes the blocks from `a` and the
/// one that assigns them to `b`.
#[test]
fn a_large_replay_reuses_no_block_in_use() {
    const DIRS: u32 = 4400;
    let base = base(6000);
    let (a, b, slot) = (base.inodes["a"], base.inodes["b"], base.slot("dir"));
    let mut records = vec![Record::del_range(a, 0..base.len.into()), base.sized("a", 0)];
    // Down to those in whose group the blocks of `a` are.
    for ino in (200..200 + DIRS).rev().filter(|ino| *ino != base.inodes["dir"]) {
        records.push(Record::inode(ino, &slot[..160]));
        records.push(Record::name(CREATE, 2, ino, &format!("d{ino}")));
    }
    records.push(Record::add_range(b, base.leaf(base.len)));
    records.push(base.sized("b", base.len.into()));
    base.replays_clean(&records);
}
