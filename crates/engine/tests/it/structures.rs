//! One damage after the other, each with its required result: an error that names the structure and
//! its place, or a file system that works without the damaged part.

use extant_blocks::MemDevice;
use extant_engine::{Errno, Error, Follow, Fs, NodeKind, OpenFlags, RenameFlags, Result};
use extant_format::error::Corrupt;
use extant_format::extent::{Node, NodeMut};
use extant_format::superblock::Superblock;
use extant_format::{BlockNr, InodeNr, RoCompat};
use extant_hostile::atlas::{Atlas, Kind, Piece, change_superblock};
use extant_hostile::drive::{Depth, survive};
use extant_hostile::seeds::{Seed, options};
use extant_testkit::image::FeatureSet;
use std::sync::Arc;

fn seed(set: &str, crashed: bool) -> Seed {
    Seed::make(FeatureSet::named(set), crashed)
}

fn open(image: &[u8], read_only: bool) -> Result<Fs> {
    Fs::open_device(Arc::new(MemDevice::from_bytes(image)), &options().read_only(read_only))
}

/// The corruption that an operation meets.
#[track_caller]
fn corrupt<T>(result: Result<T>) -> Corrupt {
    match result {
        Err(Error::Corrupt(corrupt)) => corrupt,
        Err(e) => panic!("another error: {e:?}"),
        Ok(_) => panic!("no error"),
    }
}

/// Opens the image and runs `f`. Returns the corruption that either reports.
#[track_caller]
fn met<T>(image: &[u8], f: impl FnOnce(&Fs) -> Result<T>) -> Corrupt {
    match open(image, true) {
        Ok(fs) => corrupt(f(&fs)),
        Err(e) => corrupt::<()>(Err(e)),
    }
}

#[track_caller]
fn assert_survives(image: &[u8]) {
    survive(image.to_vec(), 1, Depth::Write).unwrap();
}

/// The number of the inode at a path.
fn ino(seed: &Seed, path: &str) -> u32 {
    open(&seed.bytes, true).unwrap().resolve(path, Follow::No).unwrap().ino() as u32
}

fn generation(seed: &Seed, ino: u32) -> u32 {
    seed.atlas.read_inode(&seed.bytes, ino).generation
}

fn block_nr(atlas: &Atlas, piece: &Piece) -> u64 {
    piece.bytes.start as u64 / u64::from(atlas.geo.block_size)
}

fn pieces_of<'a>(seed: &'a Seed, path: &str, kind: Kind) -> Vec<&'a Piece> {
    let ino = ino(seed, path);
    let own = seed.atlas.blocks_of(ino, generation(seed, ino));
    own.into_iter().filter(|piece| piece.kind == kind).collect()
}

fn read_all(fs: &Fs, path: &str) -> Result<()> {
    let node = fs.resolve(path, Follow::No)?;
    let file = fs.open_file(&node, OpenFlags::default())?;
    let mut buffer = vec![0; 1 << 20];
    file.read_at(0, &mut buffer).map(|_| ())
}

fn list(fs: &Fs, path: &str) -> Result<()> {
    let dir = fs.resolve(path, Follow::No)?;
    fs.read_dir_from(&dir, 0, |_| true)
}

/// A byte of a piece changed, its checksum left.
fn flipped(seed: &Seed, piece: &Piece, at: usize) -> Vec<u8> {
    let mut image = seed.bytes.clone();
    image[piece.bytes.start + at] ^= 0x10;
    image
}

#[test]
fn bad_checksums_are_found_while_opening() {
    let seed = seed("orphan_file", false);
    let piece = |kind| seed.atlas.of_kind(kind).next().unwrap();
    // The name of the volume; free inodes; a time of the journal's inode; the journal's UUID.
    let found = corrupt(open(&flipped(&seed, piece(Kind::Superblock), 0x78), false));
    assert_eq!((found.what(), found.field_name()), ("superblock", Some("checksum")));
    let found = corrupt(open(&flipped(&seed, piece(Kind::Descriptor), 0xE), false));
    assert_eq!((found.field_name(), found.group().map(|g| g.0)), (Some("checksum"), Some(0)));
    let found = corrupt(open(&flipped(&seed, seed.atlas.slot(8), 0x10), false));
    assert_eq!((found.field_name(), found.inode()), (Some("checksum"), Some(InodeNr(8))));
    let found = corrupt(open(&flipped(&seed, piece(Kind::JournalSuperblock), 0x30), false));
    assert_eq!((found.what(), found.field_name()), ("journal superblock", Some("checksum")));
    // After a crash; a file that was closed is empty, and its blocks are read when they are needed.
    let mut crashed = flipped(&seed, piece(Kind::OrphanBlock), 8);
    change_superblock(&mut crashed, |sb| {
        let mut features = sb.features();
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
        sb.set_features(features);
    });
    let found = corrupt(open(&crashed, false));
    assert_eq!(found.field_name(), Some("checksum"));
    assert_eq!(found.block(), Some(BlockNr(block_nr(&seed.atlas, piece(Kind::OrphanBlock)))));
    // Readers need no orphans.
    assert!(open(&flipped(&seed, piece(Kind::OrphanBlock), 8), true).is_ok());
    for kind in [Kind::Superblock, Kind::Descriptor, Kind::JournalSuperblock, Kind::OrphanBlock] {
        assert_survives(&flipped(&seed, piece(kind), 0xE));
    }
}

#[test]
fn bad_checksums_are_found_by_operations() {
    let seed = seed("1k", false);
    let file = ino(&seed, "/dir/sub/file3");
    let found =
        met(&flipped(&seed, seed.atlas.slot(file), 0x10), |fs| read_all(fs, "/dir/sub/file3"));
    assert_eq!((found.field_name(), found.inode()), (Some("checksum"), Some(InodeNr(file))));

    let nodes = pieces_of(&seed, "/fragmented", Kind::ExtentBlock);
    let found = met(&flipped(&seed, nodes[0], 8), |fs| read_all(fs, "/fragmented"));
    assert_eq!(found.inode(), Some(InodeNr(ino(&seed, "/fragmented"))));
    assert_eq!(found.block(), Some(BlockNr(block_nr(&seed.atlas, nodes[0]))));

    // The root of the tree, and leaves: the second name of the first, a name of the others.
    let many = ino(&seed, "/many");
    for (n, piece) in pieces_of(&seed, "/many", Kind::Directory).into_iter().take(6).enumerate() {
        let found =
            met(&flipped(&seed, piece, if n == 0 { 0x1E } else { 12 }), |fs| list(fs, "/many"));
        assert_eq!(
            (found.inode(), found.block()),
            (Some(InodeNr(many)), Some(BlockNr(block_nr(&seed.atlas, piece))))
        );
    }

    let acl = seed.atlas.of_kind(Kind::XattrBlock).next().unwrap();
    let names = ["/dir/attributes0", "/dir/attributes1", "/dir/attributes2", "/dir/attributes3"];
    let image = flipped(&seed, acl, 0x3F0);
    let fs = open(&image, true).unwrap();
    let failed = names.iter().filter_map(|name| {
        let node = fs.resolve(name, Follow::No).unwrap();
        fs.get_xattr(&node, b"trusted.long").err().filter(|e| !e.is(Errno::NoData))
    });
    let found: Vec<Corrupt> = failed.map(|e| corrupt::<()>(Err(e))).collect();
    assert!(
        !found.is_empty()
            && found.iter().all(|e| e.block() == Some(BlockNr(block_nr(&seed.atlas, acl))))
    );
}

/// Groups whose bitmaps are wrong are not used, and the error is kept for the check to come.
#[test]
fn bad_checksums_of_bitmaps() {
    let seed = seed("1k", false);
    for kind in [Kind::BlockBitmap, Kind::InodeBitmap] {
        let mut image = seed.bytes.clone();
        let first = seed.atlas.of_kind(kind).next().unwrap();
        image[first.bytes.start + 100] ^= 1;
        let device = Arc::new(MemDevice::from_bytes(&image));
        let fs = Fs::open_device(device.clone(), &options()).unwrap();
        let root = fs.root().unwrap();
        for n in 0..20 {
            let node =
                fs.create(&root, format!("new{n}").as_bytes(), 0o644, NodeKind::File).unwrap();
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
            file.write_at(0, &[1; 5000]).unwrap();
            file.sync().unwrap();
        }
        assert!(fs.superblock().error_count() > 0, "{kind:?}");
        drop(root);
        fs.unmount().unwrap();
        let after = device.to_vec();
        assert_eq!(after[first.bytes.clone()], image[first.bytes.clone()], "{kind:?} was changed");
    }
}

#[test]
fn bad_checksums_in_the_log() {
    let seed = seed("default", true);
    let copies = |image: &[u8]| open(image, true).unwrap().recovery().journal.unwrap();
    let whole = copies(&seed.bytes);
    assert!(whole.transactions > 0 && whole.dropped.is_none(), "{whole:?}");

    let descriptor = seed.atlas.of_kind(Kind::JournalDescriptor).next().unwrap();
    let found = corrupt(open(&flipped(&seed, descriptor, 0x20), false));
    assert_eq!((found.what(), found.field_name()), ("journal descriptor", Some("checksum")));
    assert!(found.block().is_some());

    let copy = seed.atlas.of_kind(Kind::JournalCopy).next().unwrap();
    let found = corrupt(open(&flipped(&seed, copy, 100), false));
    assert!(found.block().is_some(), "{found}");

    // The log ends before a record that is wrong.
    let last = seed.atlas.of_kind(Kind::JournalCommit).last().unwrap();
    let image = flipped(&seed, last, 0x30);
    let found = copies(&image);
    assert_eq!(found.dropped, Some(extant_engine::journal::Dropped::CommitChecksum));
    assert_eq!(found.transactions + 1, whole.transactions);
    for piece in [descriptor, copy, last] {
        assert_survives(&flipped(&seed, piece, 100));
    }
}

/// Copies whose home is outside the file system, or in the log itself.
#[test]
fn logs_that_name_impossible_blocks() {
    let seed = seed("default", true);
    let descriptor = seed.atlas.of_kind(Kind::JournalDescriptor).next().unwrap().bytes.start;
    let log = block_nr(&seed.atlas, seed.atlas.of_kind(Kind::JournalSuperblock).next().unwrap());
    for bad in [seed.atlas.geo.blocks_count, u64::from(u32::MAX), u64::MAX >> 16, log, log + 3] {
        let mut image = seed.bytes.clone();
        seed.atlas.change_tags(&mut image, descriptor, |n, tag, _, _| {
            if n == 0 {
                tag.block = BlockNr(bad);
            }
        });
        for read_only in [true, false] {
            let found = corrupt(open(&image, read_only));
            assert_eq!(found.what(), "journal tag", "{bad}: {found}");
            assert!(found.block().is_some());
        }
    }
}

#[test]
fn extent_trees_with_loops_and_overlaps() {
    let seed = seed("1k", false);
    let ino = ino(&seed, "/fragmented");
    let nodes = pieces_of(&seed, "/fragmented", Kind::ExtentBlock);
    let (leaf, nr) = (nodes[nodes.len() - 1], block_nr(&seed.atlas, nodes[nodes.len() - 1]));
    let check = |image: &[u8], what: &str| {
        let found = met(image, |fs| read_all(fs, "/fragmented"));
        assert_eq!(found.inode(), Some(InodeNr(ino)), "{what}: {found}");
        assert_survives(image);
    };

    // A node that is its own child; the root has the depth to allow it.
    let mut image = seed.bytes.clone();
    seed.atlas.change_inode(&mut image, ino, |inode| {
        let mut root = NodeMut::open(&mut inode.i_block).unwrap();
        root.set_depth(3);
        let mut first = root.as_node().index(0).unwrap();
        first.child = nr;
        root.set_index(0, &first);
    });
    let mut node = NodeMut::init(&mut image[leaf.bytes.clone()], 2);
    assert!(node.set_indexes(&[extant_format::extent::Index { lblk: 0, child: nr }]));
    seed.atlas.seal(&mut image, leaf);
    check(&image, "a loop");

    // Extents that overlap each other, and ones that come too early for their place.
    let first = nodes
        .iter()
        .find(|piece| Node::parse(&seed.bytes[piece.bytes.clone()], None).unwrap().is_leaf())
        .unwrap();
    for change in [1u32, 400_000] {
        let mut image = seed.bytes.clone();
        let mut node = NodeMut::open(&mut image[first.bytes.clone()]).unwrap();
        let mut second = node.as_node().leaf(1).unwrap();
        second.lblk = if change == 1 { node.as_node().leaf(0).unwrap().lblk } else { change };
        node.set_leaf(1, &second);
        seed.atlas.seal(&mut image, first);
        check(&image, "an overlap");
    }

    // Blocks that are not there, or are the file system's own.
    for bad in [seed.atlas.geo.blocks_count, 0, (1 << 48) - 1] {
        let mut image = seed.bytes.clone();
        let mut node = NodeMut::open(&mut image[first.bytes.clone()]).unwrap();
        let mut second = node.as_node().leaf(1).unwrap();
        second.pblk = bad;
        node.set_leaf(1, &second);
        seed.atlas.seal(&mut image, first);
        check(&image, "an impossible block");
    }
}

#[test]
fn directory_entries_that_overrun() {
    for set in ["1k", "ext2", "inode_1024"] {
        let seed = seed(set, false);
        let dir = ino(&seed, "/dir");
        let leaf = match set {
            "inode_1024" => seed.atlas.slot(dir),
            _ => pieces_of_plain(&seed, dir),
        };
        // Record lengths of the first entry behind `..`: none, not aligned, less than the name
        // needs, behind the end.
        let at = if set == "inode_1024" { 0x28 + 4 + 4 } else { 24 + 4 };
        for bad in [0u16, 1, 7, 8, 0x7FF0, 0xFFFF] {
            let mut image = seed.bytes.clone();
            let place = leaf.bytes.start + at;
            image[place..place + 2].copy_from_slice(&bad.to_le_bytes());
            seed.atlas.seal(&mut image, leaf);
            let found = met(&image, |fs| list(fs, "/dir"));
            assert_eq!(found.inode(), Some(InodeNr(dir)), "{set} {bad}: {found}");
            assert_survives(&image);
        }
    }
}

/// The first block of a directory, where blocks have no seed to find them by.
fn pieces_of_plain(seed: &Seed, dir: u32) -> &Piece {
    let begins = |piece: &&Piece| {
        let bytes = &seed.bytes[piece.bytes.clone()];
        bytes[..4] == dir.to_le_bytes() && bytes[6] == 1 && bytes[8] == b'.'
    };
    seed.atlas.of_kind(Kind::Directory).find(begins).expect("the directory's first block")
}

/// Directories that are their own parents, or their children's children.
#[test]
fn directories_in_circles() {
    let seed = seed("1k", false);
    let [dir, sub, deep] = ["/dir", "/dir/sub", "/dir/sub/deep"].map(|path| ino(&seed, path));
    for (of, parent) in [
        (sub, deep),
        (deep, deep),
        (dir, deep),
        (sub, 8),
        (sub, 0),
        (sub, u32::MAX),
        (sub, ino(&seed, "/fragmented")),
    ] {
        let first = pieces_of_plain(&seed, of);
        let mut image = seed.bytes.clone();
        // The number in `..`, which follows `.`.
        image[first.bytes.start + 12..first.bytes.start + 16]
            .copy_from_slice(&parent.to_le_bytes());
        seed.atlas.seal(&mut image, first);
        let fs = open(&image, false).unwrap();
        let root = fs.root().unwrap();
        let many = fs.lookup(&root, b"many").unwrap();
        let inner = fs.resolve("/dir/sub/deep", Follow::No).unwrap();
        // A move into the circle asks for the way to the root.
        let moved = fs.rename((&root, b"many"), (&inner, b"moved"), RenameFlags::empty());
        if (of, parent) != (dir, deep) || moved.is_err() {
            corrupt(moved);
        }
        drop((root, many, inner));
        drop(fs);
        assert_survives(&image);
    }
    // A directory with two names, one of them below itself.
    let leaf = pieces_of_plain(&seed, sub);
    let bytes = &seed.bytes[leaf.bytes.clone()];
    let at = (24..bytes.len() - 8)
        .step_by(4)
        .find(|at| bytes[*at..*at + 4] == deep.to_le_bytes())
        .expect("the entry of deep");
    let mut image = seed.bytes.clone();
    image[leaf.bytes.start + at..][..4].copy_from_slice(&dir.to_le_bytes());
    seed.atlas.seal(&mut image, leaf);
    let fs = open(&image, false).unwrap();
    assert_eq!(
        fs.resolve("/dir/sub/deep/sub/deep/sub/file1", Follow::No).unwrap().ino() as u32,
        ino(&seed, "/dir/sub/file1")
    );
    let root = fs.root().unwrap();
    let inner = fs.resolve("/dir/sub/deep/sub", Follow::No).unwrap();
    assert!(fs.rename((&root, b"dir"), (&inner, b"moved"), RenameFlags::empty()).is_err());
    drop((root, inner));
    drop(fs);
    assert_survives(&image);
}

#[test]
fn orphan_lists_that_do_not_end() {
    let seed = seed("default", false);
    let names = ["/dir/sub/file1", "/dir/sub/file2", "/dir/sub/file3"];
    let [a, b, c] = names.map(|path| ino(&seed, path));
    let chains: [&[(u32, u32)]; 6] = [
        &[(a, a)],
        &[(a, b), (b, a)],
        &[(a, b), (b, c), (c, b)],
        &[(a, 2)],
        &[(a, u32::MAX)],
        &[(a, 8), (8, a)],
    ];
    for (n, chain) in chains.iter().enumerate() {
        let mut image = seed.bytes.clone();
        for (from, to) in *chain {
            seed.atlas.change_inode(&mut image, *from, |inode| inode.dtime = *to);
        }
        change_superblock(&mut image, |sb| sb.set_last_orphan(InodeNr(a)));
        if let Ok(fs) = open(&image, false) {
            // They have names: none of them may be freed.
            assert_eq!(fs.recovery().orphans.freed, 0, "chain {n}");
            names.iter().for_each(|name| read_all(&fs, name).unwrap());
            fs.unmount().unwrap();
        }
        assert_survives(&image);
    }
    // Reserved inodes, the root, and numbers that do not exist.
    for first in
        [2, 8, 1, 7, u32::MAX, seed.atlas.geo.inodes_count, seed.atlas.geo.inodes_count + 1]
    {
        let mut image = seed.bytes.clone();
        change_superblock(&mut image, |sb| sb.set_last_orphan(InodeNr(first)));
        if let Ok(fs) = open(&image, false) {
            assert_eq!(fs.recovery().orphans.freed, 0, "{first}");
            list(&fs, "/dir").unwrap();
            fs.unmount().unwrap();
        }
        assert_survives(&image);
    }
}

#[test]
fn absurd_superblocks() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 24] = [
        ("blocks count", |sb| sb.set_blocks_count(0)),
        ("inodes count", |sb| sb.set_blocks_count(1 << 40)),
        ("blocks count", |sb| sb.set_blocks_count(u64::MAX)),
        ("blocks per group", |sb| sb.set_blocks_per_group(0)),
        ("blocks per group", |sb| sb.set_blocks_per_group(u32::MAX)),
        ("inodes count", |sb| sb.set_blocks_per_group(1)),
        ("inodes per group", |sb| sb.set_inodes_per_group(0)),
        ("inodes per group", |sb| sb.set_inodes_per_group(u32::MAX)),
        ("inodes count", |sb| sb.set_inodes_count(0)),
        ("inodes count", |sb| sb.set_inodes_count(u32::MAX)),
        ("block size", |sb| sb.set_log_block_size(7)),
        ("block size", |sb| sb.set_log_block_size(u32::MAX)),
        ("cluster size", |sb| sb.set_log_cluster_size(9)),
        ("cluster size", |sb| sb.set_log_cluster_size(0)),
        ("inode size", |sb| sb.set_inode_size(0)),
        ("inode size", |sb| sb.set_inode_size(100)),
        ("inode size", |sb| sb.set_inode_size(0x8000)),
        ("descriptor size", |sb| sb.set_desc_size(0)),
        ("descriptor size", |sb| sb.set_desc_size(63)),
        ("descriptor size", |sb| sb.set_desc_size(0x8000)),
        ("first data block", |sb| sb.set_first_data_block(1 << 20)),
        ("first inode", |sb| sb.set_first_ino(0)),
        ("reserved descriptor blocks", |sb| sb.set_reserved_gdt_blocks(u16::MAX)),
        ("inode number", |sb| sb.set_journal_inum(InodeNr(u32::MAX))),
    ];
    let seed = seed("default", false);
    for (field, change) in changes {
        let mut image = seed.bytes.clone();
        change_superblock(&mut image, change);
        let found = corrupt(open(&image, false));
        assert!(found.to_string().contains(field), "{field}: {found}");
        assert!(open(&image, true).is_err() || field == "inode number", "{field}");
        assert_survives(&image);
    }
    let mut image = seed.bytes.clone();
    image[0x438] = 0;
    let found = corrupt(open(&image, true));
    assert_eq!((found.field_name(), found.expected_value()), (Some("magic"), Some(0xEF53)));
    assert!(corrupt(open(&vec![0; 1 << 20], true)).field_name() == Some("magic"));
    // Numbers without meaning for readers may have any value.
    let harmless: [Change; 3] = [
        |sb| sb.set_log_groups_per_flex(255),
        |sb| sb.set_want_extra_isize(9999),
        |sb| sb.set_r_blocks_count(u64::MAX),
    ];
    for change in harmless {
        let mut image = seed.bytes.clone();
        change_superblock(&mut image, change);
        assert_survives(&image);
    }
}

#[test]
fn tables_in_wrong_places() {
    let seed = seed("1k", false);
    let journal =
        block_nr(&seed.atlas, seed.atlas.of_kind(Kind::JournalSuperblock).next().unwrap());
    let last = seed.atlas.geo.blocks_count - 1;
    for (group, place) in [(0, 0), (0, last), (0, u64::MAX), (1, last + 1), (1, u64::MAX >> 20)] {
        let mut image = seed.bytes.clone();
        seed.atlas.change_group(&mut image, group, |desc| desc.inode_table = place);
        let found = corrupt(open(&image, false));
        assert_eq!(
            (found.field_name(), found.group().map(|g| g.0)),
            (Some("inode table"), Some(group)),
            "{place}"
        );
        assert_survives(&image);
    }
    for place in [1, 2, journal, last - 200] {
        let mut image = seed.bytes.clone();
        seed.atlas.change_group(&mut image, 0, |desc| desc.inode_table = place);
        assert!(open(&image, false).is_err(), "{place}");
        assert_survives(&image);
        let mut image = seed.bytes.clone();
        seed.atlas.change_group(&mut image, 1, |desc| {
            desc.block_bitmap = place;
            desc.inode_bitmap = place;
        });
        assert_survives(&image);
    }
}

#[test]
fn attribute_entries_that_overlap() {
    let seed = seed("no_csum", false);
    for piece in seed.atlas.of_kind(Kind::XattrBlock) {
        // The first entry is behind the header: its value's offset is 2 bytes into it, the size 8.
        for (at, value) in [(0x22, 0x20u16), (0x22, 4), (0x22, 0xFFF0), (0x28, 0xFFFF)] {
            let mut image = seed.bytes.clone();
            image[piece.bytes.start + at..][..2].copy_from_slice(&value.to_le_bytes());
            let fs = open(&image, true).unwrap();
            let nodes =
                (0..4).map(|n| fs.resolve(format!("/dir/attributes{n}"), Follow::No).unwrap());
            let failed = nodes.filter_map(|node| {
                fs.list_xattrs(&node).and_then(|_| fs.get_xattr(&node, b"trusted.long")).err()
            });
            let found: Vec<Corrupt> =
                failed.filter(|e| !e.is(Errno::NoData)).map(|e| corrupt::<()>(Err(e))).collect();
            assert!(!found.is_empty(), "{at:#x} {value:#x}");
            assert!(found.iter().all(|e| e.block().is_some() && e.inode().is_some()), "{found:?}");
            drop(fs);
            assert_survives(&image);
        }
    }
}

/// Impossible file sizes cost no memory or time.
#[test]
fn absurd_sizes_of_files() {
    let seed = seed("default", false);
    for path in ["/fragmented", "/dir", "/many", "/dir/long", "/dir/short"] {
        for size in [1 << 62, u64::from(u32::MAX), (1 << 44) - 1, 1, 0] {
            let mut image = seed.bytes.clone();
            seed.atlas.change_inode(&mut image, ino(&seed, path), |inode| inode.size = size);
            assert_survives(&image);
        }
    }
}

/// A bitmap that marks inodes in use as free: while they are in memory, their numbers are not given
/// to new files, and lookups of their names end.
#[test]
fn inode_bitmaps_that_lie() {
    for set in ["default", "no_csum", "orphan_file"] {
        let seed = seed(set, false);
        let bitmap = seed.atlas.of_kind(Kind::InodeBitmap).next().unwrap();
        let mut image = seed.bytes.clone();
        // The first bytes are those of the reserved inodes.
        image[bitmap.bytes.start + 2..bitmap.bytes.start + 8].fill(0);
        seed.atlas.seal(&mut image, bitmap);
        for number in 0..4 {
            survive(image.clone(), number, Depth::Write).unwrap();
        }
    }
}
