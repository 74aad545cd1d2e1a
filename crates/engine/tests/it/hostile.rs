//! Damaged directories and attributes: they may cost an error, and nothing else.

use extant_blocks::MemDevice;
use extant_engine::{Fs, Node, NodeKind, OpenOptions, XattrMode};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::rng::Rng;
use extant_testkit::{debugfs, e2fsck};
use std::sync::Arc;

/// Entries after which a listing counts as endless.
const ENDLESS: usize = 100_000;

fn open(bytes: &[u8]) -> Option<Fs> {
    Fs::open_device(Arc::new(MemDevice::from_bytes(bytes)), &OpenOptions::new().memory(64 << 20))
        .ok()
}

fn name(n: u64) -> Vec<u8> {
    format!("a name of some length {n}").into_bytes()
}

/// An image with a directory of `count` names, and the directory's blocks.
fn with_directory(set: &str, count: u64) -> (Vec<u8>, Vec<u64>, usize) {
    let set = FeatureSet::named(set);
    let image = set.make_sized(8 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let ops = fs.operations();
    let root = ops.root().unwrap();
    let dir = ops.create(&root, b"d", 0o755, NodeKind::Dir).unwrap();
    let file = ops.create(&root, b"f", 0o644, NodeKind::File).unwrap();
    for n in 0..count {
        ops.link(&file, &dir, &name(n)).unwrap();
    }
    drop((root, dir, file));
    fs.unmount().unwrap();
    let blocks = debugfs::read(image.path(), "blocks /d");
    let blocks = blocks.split_whitespace().map(|nr| nr.parse().unwrap()).collect();
    (image.bytes(), blocks, set.block_size as usize)
}

/// Runs every operation on directories. The results are ignored.
fn use_directory(fs: &Fs, rng: &mut Rng) {
    let ops = fs.operations();
    let (Ok(root), Ok(dir)) = (ops.root(), ops.resolve("/d", extant_engine::Follow::No)) else {
        return;
    };
    let Ok(file) = ops.resolve("/f", extant_engine::Follow::No) else { return };
    list(fs, &dir);
    for _ in 0..30 {
        let _ = ops.lookup(&dir, &name(rng.below(2000)));
        let _ = ops.link(&file, &dir, &name(2000 + rng.below(2000)));
        let _ = ops.unlink(&dir, &name(rng.below(4000)));
        let from = name(rng.below(2000));
        let _ = ops.rename(
            (&dir, &from),
            (&dir, &name(rng.below(4000))),
            extant_engine::RenameFlags::empty(),
        );
    }
    let _ = ops.create(&dir, b"sub", 0o755, NodeKind::Dir);
    list(fs, &dir);
    let _ = ops.rmdir(&root, b"d");
}

fn list(fs: &Fs, dir: &Node) {
    let (mut count, mut cookie) = (0, 0);
    loop {
        let before = cookie;
        let read = fs.operations().read_dir_from(dir, cookie, |entry| {
            assert!(entry.next > cookie, "reading goes on");
            cookie = entry.next;
            count += 1;
            count % 100 != 0
        });
        if read.is_err() || cookie == before {
            return;
        }
        assert!(count < ENDLESS, "a listing without end");
    }
}

/// Changes bytes where structures are: near the start of a block, or anywhere in it.
fn damage(image: &mut [u8], block: u64, size: usize, rng: &mut Rng) {
    for _ in 0..rng.between(1, 6) {
        let within = if rng.one_in(2) { 64 } else { size as u64 };
        let at = block as usize * size + rng.below(within) as usize;
        image[at] = match rng.below(4) {
            0 => 0,
            1 => 0xFF,
            2 => image[at] ^ 1 << rng.below(8),
            _ => rng.next_u64() as u8,
        };
    }
}

fn damaged_directories(set: &str, count: u64, rounds: u64) {
    let (clean, blocks, size) = with_directory(set, count);
    for seed in 0..rounds {
        let rng = &mut Rng::new(seed);
        let mut image = clean.clone();
        damage(&mut image, blocks[0], size, rng);
        let block = *rng.pick(&blocks);
        damage(&mut image, block, size, rng);
        if let Some(fs) = open(&image) {
            use_directory(&fs, rng);
            let _ = fs.unmount();
        }
    }
}

#[test]
fn damaged_trees() {
    damaged_directories("ext3_1k", 1500, 60);
    damaged_directories("1k", 1500, 20);
}

#[test]
fn damaged_leaves() {
    damaged_directories("ext2", 200, 60);
    damaged_directories("no_dir_index", 200, 20);
}

/// Swaps block numbers in an index, so that it has loops and shared children.
#[test]
fn trees_with_loops() {
    let (clean, blocks, size) = with_directory("ext3_1k", 1500);
    for seed in 0..60 {
        let rng = &mut Rng::new(seed);
        let mut image = clean.clone();
        for _ in 0..rng.between(1, 20) {
            // The entries of the root follow each other from byte 32; the block is in the second
            // half of each.
            let at = blocks[0] as usize * size + 32 + 8 * rng.below(60) as usize + 4;
            let child = rng.below(blocks.len() as u64 + 2) as u32;
            image[at..at + 4].copy_from_slice(&child.to_le_bytes());
        }
        if let Some(fs) = open(&image) {
            use_directory(&fs, rng);
            let _ = fs.unmount();
        }
    }
}

/// An image whose files have attributes in their inodes and blocks, and where both are, in bytes.
fn with_attributes(args: &[&str]) -> (Image, Vec<std::ops::Range<usize>>) {
    let image = Image::mke2fs(8 << 20, args);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let ops = fs.operations();
    let root = ops.root().unwrap();
    for n in 0..4u8 {
        let file = ops.create(&root, &[b'f', b'0' + n], 0o644, NodeKind::File).unwrap();
        ops.set_xattr(&file, b"user.small", &[n; 20], XattrMode::Any).unwrap();
        ops.set_xattr(&file, b"user.large", &[n / 2; 700], XattrMode::Any).unwrap();
        let _ = ops.set_xattr(&file, b"user.huge", &[n; 9000], XattrMode::Any);
    }
    drop(root);
    fs.unmount().unwrap();
    let size = 4096;
    let magic = [0, 0, 2, 0xEA];
    let bytes = image.bytes();
    let found = (0..bytes.len() - 4).step_by(4).filter(|at| bytes[*at..at + 4] == magic);
    let places = found.map(|at| at..at + if at % size == 0 { 400 } else { 96 }).collect();
    (image, places)
}

fn use_attributes(fs: &Fs, rng: &mut Rng) {
    let ops = fs.operations();
    let Ok(root) = ops.root() else { return };
    for n in 0..4u8 {
        let name = [b'f', b'0' + n];
        let Ok(file) = ops.lookup(&root, &name) else { continue };
        for name in ops.list_xattrs(&file).unwrap_or_default() {
            let _ = ops.get_xattr(&file, &name);
        }
        for name in [&b"user.small"[..], b"user.large", b"user.huge", b"user.new"] {
            let len = rng.below(1000) as usize;
            let _ = ops.set_xattr(&file, name, &vec![1; len], XattrMode::Any);
            if rng.one_in(3) {
                let _ = ops.remove_xattr(&file, name);
            }
        }
        drop(file);
        if rng.one_in(2) {
            let _ = ops.unlink(&root, &name);
        }
    }
}

#[test]
fn damaged_attributes() {
    let plain = ["ext4", "ext4,ea_inode", "ext2"]
        .map(|kind| kind.split_once(',').unwrap_or((kind, "filetype")));
    for (kind, feature) in plain {
        let features = format!("^metadata_csum,{feature}");
        let (image, places) = with_attributes(&["-t", kind, "-b", "4096", "-O", &features]);
        let clean = image.bytes();
        assert!(places.len() >= 2, "{kind}");
        for seed in 0..60 {
            let rng = &mut Rng::new(seed);
            let mut bytes = clean.clone();
            for _ in 0..rng.between(1, 4) {
                let place = rng.pick(&places).clone();
                let at = place.start + rng.below(place.len() as u64) as usize;
                bytes[at] = match rng.below(3) {
                    0 => 0xFF,
                    // Small numbers are inodes and lengths.
                    1 => rng.below(20) as u8,
                    _ => rng.next_u64() as u8,
                };
            }
            if let Some(fs) = open(&bytes) {
                use_attributes(&fs, rng);
                let _ = fs.unmount();
            }
        }
    }
}

#[test]
fn checksums_find_damaged_leaves() {
    let (clean, blocks, size) = with_directory("orphan_file", 1000);
    let mut image = clean;
    // A byte of a name, which no structure depends on.
    image[blocks[1] as usize * size + 9] ^= 1;
    let fs = open(&image).unwrap();
    let dir = fs.operations().resolve("/d", extant_engine::Follow::No).unwrap();
    let read = fs.operations().read_dir_from(&dir, 0, |_| true);
    assert!(matches!(read, Err(extant_engine::Error::Corrupt(_))), "{read:?}");
    drop(dir);
    fs.crash();
    let file = Image::blank(image.len() as u64);
    file.leave_unjudged("it is damaged");
    std::fs::write(file.path(), &image).unwrap();
    assert!(!e2fsck::check(file.path()).is_clean());
}

/// The blocks of an image that belong to the file system: bitmaps, the inode table, and the log.
fn system_blocks(image: &Image) -> Vec<u64> {
    let text = extant_testkit::tool::run("dumpe2fs", &[image.path().as_os_str().to_owned()])
        .text()
        .to_owned();
    let first = |line: &str, words: &str| {
        let at = line.split_once(words)?.1;
        at.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let group = text.lines().skip_while(|line| !line.starts_with("Group 1:"));
    let mut blocks: Vec<u64> = group
        .flat_map(|line| {
            ["Block bitmap at ", "Inode bitmap at ", "Inode table at "]
                .map(|words| first(line, words))
        })
        .flatten()
        .take(3)
        .collect();
    // Inside of the table, too.
    blocks.push(blocks[2] + 3);
    let log = debugfs::read(image.path(), "blocks <8>");
    blocks.extend(log.split_whitespace().filter_map(|nr| nr.parse::<u64>().ok()).step_by(200));
    blocks
}

#[test]
fn files_own_no_block_of_the_file_system() {
    for (kind, pointer) in [("ext4", 5), ("ext3", 0)] {
        let image = Image::mke2fs(32 << 20, &["-t", kind, "-b", "1024", "-O", "^resize_inode"]);
        image.leave_unjudged("a file owns a block of the file system");
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let file = fs.create(&fs.root().unwrap(), b"victim", 0o666, NodeKind::File).unwrap();
        fs.write_direct(&file, 0, &[7; 1024], false).unwrap();
        drop(file);
        fs.unmount().unwrap();
        let blocks = system_blocks(&image);
        assert!(blocks.len() > 6, "{kind}: {blocks:?}");
        for block in blocks {
            debugfs::write(
                image.path(),
                &format!("set_inode_field /victim block[{pointer}] {block}"),
            );
            let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
            let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
            let file = fs.resolve("/victim", extant_engine::Follow::No).unwrap();
            let refused = |error: extant_engine::Error| {
                assert!(
                    matches!(error, extant_engine::Error::Corrupt(_)),
                    "{kind}, {block}: {error}"
                )
            };
            refused(fs.read_direct(&file, 0, &mut [0; 1024]).unwrap_err());
            refused(fs.write_direct(&file, 0, &[9; 1024], false).unwrap_err());
            drop(file);
            fs.crash();
        }
    }
}

#[test]
fn attribute_blocks_are_no_blocks_of_the_file_system() {
    let image = Image::mke2fs(32 << 20, &["-b", "1024", "-O", "^resize_inode,^metadata_csum"]);
    image.leave_unjudged("an attribute block is a block of the file system");
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let file = fs.create(&fs.root().unwrap(), b"victim", 0o666, NodeKind::File).unwrap();
    fs.set_xattr(&file, b"user.large", &[7; 700], XattrMode::Any).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let stat = debugfs::read(image.path(), "stat /victim");
    let (_, place) = stat.split_once("File ACL: ").expect("an attribute block");
    let place: usize = place.split_whitespace().next().unwrap().parse().unwrap();
    assert_ne!(place, 0);
    // Blocks of the inode table and of the log; bitmaps cannot look like attributes.
    for block in system_blocks(&image).into_iter().skip(3) {
        debugfs::write(image.path(), &format!("set_inode_field /victim file_acl {block}"));
        let mut bytes = image.bytes();
        bytes.copy_within(place * 1024..(place + 1) * 1024, block as usize * 1024);
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let file = fs.resolve("/victim", extant_engine::Follow::No).unwrap();
        let refused = |error: extant_engine::Error| {
            assert!(matches!(error, extant_engine::Error::Corrupt(_)), "{block}: {error}")
        };
        refused(fs.get_xattr(&file, b"user.large").unwrap_err());
        refused(fs.set_xattr(&file, b"user.large", &[9; 700], XattrMode::Any).unwrap_err());
        drop(file);
        fs.crash();
    }
}

#[test]
fn names_do_not_lead_to_quota_files() {
    for field in ["usr_quota_inum", "grp_quota_inum", "prj_quota_inum", "orphan_file_inum"] {
        let features = "has_journal,^metadata_csum,quota,project,orphan_file";
        let image = Image::mke2fs(16 << 20, &["-I", "256", "-O", features]);
        image.leave_unjudged("a name leads to a file of the file system");
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let file = fs.create(&fs.root().unwrap(), b"f", 0o666, NodeKind::File).unwrap();
        let ino = file.ino();
        drop(file);
        fs.unmount().unwrap();
        debugfs::write(image.path(), &format!("set_super_value {field} {ino}"));
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        let found = fs.resolve("/f", extant_engine::Follow::No);
        assert!(matches!(found, Err(extant_engine::Error::Corrupt(_))), "{field}: {found:?}");
        assert!(fs.node(ino).is_err(), "{field}");
        fs.crash();
    }
}

/// A superblock may say that the journal's inode has an ordinary number. A name of it would let
/// users remove the log that is in use.
#[test]
fn names_do_not_lead_to_the_journal() {
    let image = Image::mke2fs(16 << 20, &["-I", "256", "-O", "has_journal,^metadata_csum"]);
    image.leave_unjudged("a name leads to the journal");
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let file = fs.create(&fs.root().unwrap(), b"f", 0o666, NodeKind::File).unwrap();
    let ino = file.ino();
    drop(file);
    fs.unmount().unwrap();
    debugfs::write(image.path(), &format!("copy_inode <8> <{ino}>"));
    debugfs::write(image.path(), &format!("set_super_value journal_inum {ino}"));
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let found = fs.resolve("/f", extant_engine::Follow::No);
    assert!(matches!(found, Err(extant_engine::Error::Corrupt(_))), "{found:?}");
    let root = fs.root().unwrap();
    fs.unlink(&root, b"f").expect_err("the log is in use");
    assert!(fs.node(ino).expect_err("the journal").is(extant_engine::Errno::Stale));
    drop(root);
    fs.crash();
}
