//! Images of trees with everything, for many kinds of file systems.

use crate::helpers::{Numbers, add, attributes, built, byte_at, every_kind, options, whole};
use extant_format::Timestamp;
use extant_image::{
    Attributes, BuildOptions, DataRange, EntryKind, FileContent, FreeSpace, ImageSize, Tree,
    TreeEntry, mkfs, plan,
};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::tree::{Kind, Manifest};
use extant_testkit::{Image, debugfs, e2fsck};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

fn preset(preset: mkfs::Preset, block_size: u32) -> BuildOptions {
    let mut options = options(block_size, "");
    options.mkfs.preset = preset;
    options
}

/// Returns all kinds of file systems by name, and whether the kernel mounts them.
fn every_set() -> Vec<(&'static str, BuildOptions, bool)> {
    let mut clusters = options(1024, "bigalloc");
    clusters.mkfs.cluster_size = Some(8192);
    let mut small = options(1024, "");
    small.mkfs.inode_size = Some(128);
    let mut large = options(4096, "inline_data");
    large.mkfs.inode_size = Some(1024);
    vec![
        ("default", options(4096, ""), true),
        ("1k", options(1024, ""), true),
        ("64k", options(65536, "^has_journal"), false),
        ("inline_data", options(4096, "inline_data"), true),
        ("inline_data, large inodes", large, true),
        ("no checksums", options(1024, "^metadata_csum,^64bit"), true),
        ("uninit_bg", options(1024, "^metadata_csum,uninit_bg"), true),
        ("no journal", options(4096, "^has_journal"), true),
        ("no flex_bg", options(1024, "^flex_bg"), true),
        ("no dir_index", options(1024, "^dir_index"), true),
        ("no filetype", options(4096, "^filetype"), true),
        ("no ext_attr", options(1024, "^ext_attr"), true),
        ("bigalloc", options(4096, "bigalloc"), true),
        ("bigalloc 1k", clusters, true),
        ("small inodes", small, true),
        ("ea_inode", options(4096, "ea_inode"), true),
        ("meta_bg", options(1024, "meta_bg,^resize_inode"), true),
        ("ext2", preset(mkfs::Preset::Ext2, 1024), true),
        ("ext3", preset(mkfs::Preset::Ext3, 4096), true),
    ]
}

/// Returns the manifest that the kernel's walk of an image must give.
fn expected(tree: &Tree) -> BTreeMap<Vec<u8>, TreeEntry> {
    tree.walk().map(|entry| (entry.path.clone(), entry)).collect()
}

fn kind_of(kind: &EntryKind) -> Kind {
    match kind {
        EntryKind::Directory => Kind::Directory,
        EntryKind::File(_) => Kind::File,
        EntryKind::Symlink(_) => Kind::Symlink,
        EntryKind::CharDevice(..) => Kind::CharDevice,
        EntryKind::BlockDevice(..) => Kind::BlockDevice,
        EntryKind::Fifo => Kind::Fifo,
        _ => Kind::Socket,
    }
}

/// Compares a mounted image with its tree, in every attribute.
#[track_caller]
fn assert_same(tree: &Tree, mount: &Mount, whole_seconds: bool) {
    let mut found = Manifest::walk(mount.path());
    if tree.entry(b"lost+found").is_none() {
        found = found.without("lost+found");
    }
    let mut found = found.nodes;
    let root = fs::metadata(mount.path()).unwrap();
    assert_eq!(root.mode() & 0o7777, u32::from(tree.entry(b"").unwrap().attributes.mode));
    found.remove(&b""[..]);
    found.remove(&b"."[..]);
    for (path, entry) in expected(tree) {
        let shown = String::from_utf8_lossy(&path).into_owned();
        let node = found.remove(&path).unwrap_or_else(|| panic!("{shown} is missing"));
        let attributes = &entry.attributes;
        assert_eq!(node.kind, kind_of(&entry.kind), "{shown}");
        assert_eq!(node.mode & 0o7777, u32::from(attributes.mode) & 0o7777, "{shown}");
        assert_eq!((node.uid, node.gid), (attributes.uid, attributes.gid), "{shown}");
        let nanoseconds = if whole_seconds { 0 } else { attributes.mtime.nsec };
        assert_eq!(node.mtime, (attributes.mtime.sec, nanoseconds), "{shown}");
        let xattrs: BTreeMap<_, _> = attributes.xattrs.iter().cloned().collect();
        assert_eq!(node.xattrs, xattrs, "{shown}");
        match &entry.kind {
            EntryKind::Directory => continue,
            EntryKind::Symlink(target) => assert_eq!(node.target, *target, "{shown}"),
            EntryKind::CharDevice(major, minor) | EntryKind::BlockDevice(major, minor) => {
                assert_eq!(node.rdev, (*major, *minor), "{shown}")
            }
            _ => {}
        }
        assert_eq!(node.nlink, u64::from(entry.links), "{shown}");
        if let EntryKind::File(content) = &entry.kind {
            assert_content(tree, mount, &path, content, node.hash);
        }
    }
    assert!(found.is_empty(), "{:?}", found.keys());
}

fn assert_content(tree: &Tree, mount: &Mount, path: &[u8], content: &FileContent, hash: u64) {
    let on_disk = mount.path().join(OsStr::from_bytes(path));
    if let FileContent::Sparse { size, .. } | FileContent::Zeroes { size } = content {
        let taken = fs::metadata(&on_disk).unwrap();
        assert_eq!(taken.size(), *size);
        assert!(*size == 0 || taken.blocks() * 512 < size / 2, "{on_disk:?}");
    }
    let bytes = tree.read(path).unwrap();
    assert_eq!(extant_testkit::tree::content_hash(&bytes), hash, "{on_disk:?}");
}

#[test]
fn images_of_all_kinds_equal_their_trees() {
    let tree = every_kind();
    for (name, options, mounts) in every_set() {
        println!("{name}");
        let (image, _) = built(&tree, &options);
        e2fsck::check(image.path()).assert_clean();
        if mounts {
            let mount = Mount::new(image.path(), "ro");
            let whole_seconds = options.mkfs.inode_size == Some(128);
            assert_same(&tree, &mount, whole_seconds);
            mount.unmount();
        }
    }
}

#[test]
fn threads_change_no_byte() {
    let tree = every_kind();
    let image = |threads| {
        let mut options = options(4096, "inline_data");
        options.threads = threads;
        built(&tree, &options).0.bytes()
    };
    let one = image(1);
    assert!(one == image(4) && one == image(0));
}

/// A large file is copied in parts, which begin within runs and at their borders.
#[test]
fn threads_copy_parts_of_large_files() {
    const MB: u64 = 1 << 20;
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Numbers));
    add(&mut tree, "whole", whole(source, 3, 34 * MB + 17));
    let piece = |n: u64| DataRange { start: n * 5 * MB + 100, len: 3 * MB, position: n, skip: n };
    let ranges = (0..9).map(piece).collect();
    let sparse = FileContent::Sparse { source, size: 64 * MB, ranges };
    add(&mut tree, "sparse", EntryKind::File(sparse));
    let ext3 = preset(mkfs::Preset::Ext3, 4096);
    for mut options in [options(4096, ""), ext3, options(4096, "bigalloc")] {
        let images = [1, 3].map(|threads| {
            options.threads = threads;
            built(&tree, &options).0
        });
        assert!(images[0].bytes() == images[1].bytes());
        e2fsck::check(images[0].path()).assert_clean();
        let mount = Mount::new(images[0].path(), "ro");
        for (path, content) in expected(&tree) {
            let EntryKind::File(content) = content.kind else { continue };
            let bytes = fs::read(mount.join(OsStr::from_bytes(&path))).unwrap();
            assert!(bytes == tree.read(&path).unwrap(), "{content:?}");
        }
        mount.unmount();
    }
}

#[test]
fn order_of_entries_changes_no_byte() {
    let names = ["a", "b/x", "b/y", "c", "b/z/1", "d"];
    let image = |names: &[&str]| {
        let mut tree = Tree::new();
        let source = tree.add_source(Arc::new(Numbers));
        for name in names {
            add(&mut tree, name, whole(source, name.len() as u64, 5000));
        }
        built(&tree, &options(4096, "")).0.bytes()
    };
    let mut turned = names;
    turned.reverse();
    assert!(image(&names) == image(&turned));
}

#[test]
fn large_directories_have_hash_trees() {
    let mut tree = Tree::new();
    for n in 0..100_000 {
        let path = format!("d/a file with a name of medium length {n}");
        tree.add(path.as_bytes(), &attributes(0o600), EntryKind::Fifo).unwrap();
    }
    for (block_size, features) in [(4096, ""), (1024, "large_dir,^metadata_csum")] {
        let (image, _) = built(&tree, &options(block_size, features));
        e2fsck::check(image.path()).assert_clean();
        let mount = Mount::new(image.path(), "");
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 100_000);
        for n in (0..100_000).step_by(997) {
            let name = format!("d/a file with a name of medium length {n}");
            fs::symlink_metadata(mount.join(&name)).unwrap();
            fs::remove_file(mount.join(&name)).unwrap();
            fs::write(mount.join(format!("d/another {n}")), "x").unwrap();
        }
        mount.unmount();
        e2fsck::check(image.path()).assert_clean();
    }
}

#[test]
fn names_that_exceed_a_tree_need_a_feature() {
    let mut tree = Tree::new();
    for n in 0..150_000 {
        let path = format!("d/{n:0>150}");
        tree.add(path.as_bytes(), &attributes(0o600), EntryKind::Fifo).unwrap();
    }
    let error = extant_image::plan(&tree, &options(1024, "")).unwrap_err().to_string();
    assert!(error.starts_with("d: ") && error.contains("large_dir"), "{error}");
}

#[test]
fn subdirectories_beyond_the_count_of_links_are_stored() {
    let mut tree = Tree::new();
    for n in 0..65_000 {
        add(&mut tree, &format!("d/{n}"), EntryKind::Directory);
    }
    let (image, _) = built(&tree, &options(4096, "inline_data"));
    e2fsck::check(image.path()).assert_clean();
    let mount = Mount::new(image.path(), "ro");
    assert_eq!(fs::metadata(mount.join("d")).unwrap().nlink(), 1);
    mount.unmount();
    let error = extant_image::plan(&tree, &options(4096, "^dir_nlink")).unwrap_err().to_string();
    assert!(error.contains("dir_nlink"), "{error}");
}

#[test]
fn large_attributes_have_inodes_of_their_own() {
    let mut tree = Tree::new();
    for n in 0..1500 {
        let xattrs = vec![
            (b"user.large".to_vec(), vec![b'l'; 65_536]),
            (b"user.medium".to_vec(), vec![b'm'; 3000]),
            (b"user.same".to_vec(), vec![b'l'; 65_536]),
        ];
        let attributes = Attributes { xattrs, ..attributes(0o600) };
        let content = FileContent::Bytes(vec![b'c'; n]);
        tree.add(format!("f{n}").as_bytes(), &attributes, EntryKind::File(content)).unwrap();
    }
    let (image, _) = built(&tree, &options(4096, "ea_inode"));
    e2fsck::check(image.path()).assert_clean();
    let mount = Mount::new(image.path(), "ro");
    assert_same(&tree, &mount, false);
    mount.unmount();
    let error = extant_image::plan(&tree, &options(4096, "")).unwrap_err().to_string();
    assert!(error.starts_with("f0: ") && error.contains("ea_inode"), "{error}");
}

#[test]
fn files_of_many_extents_and_of_a_tebibyte_are_mapped() {
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Numbers));
    let range = |n: u64| extant_image::DataRange {
        start: n * 12_288,
        len: 4096,
        position: 3,
        skip: n * 4096,
    };
    let ranges = (0..10_000).map(range).collect();
    let many = FileContent::Sparse { source, size: 10_000 * 12_288, ranges };
    add(&mut tree, "many", EntryKind::File(many));
    let last = extant_image::DataRange { start: (1 << 40) - 10, len: 10, position: 4, skip: 0 };
    let large = FileContent::Sparse { source, size: 1 << 40, ranges: vec![last] };
    add(&mut tree, "large", EntryKind::File(large));
    for block_size in [1024, 4096] {
        let (image, _) = built(&tree, &options(block_size, ""));
        e2fsck::check(image.path()).assert_clean();
        let mount = Mount::new(image.path(), "ro");
        use std::os::unix::fs::FileExt;
        let file = fs::File::open(mount.join("large")).unwrap();
        let mut bytes = [0; 11];
        file.read_exact_at(&mut bytes, (1 << 40) - 11).unwrap();
        let data: Vec<u8> = (0..10).map(|n| byte_at(4, n)).collect();
        assert_eq!((bytes[0], &bytes[1..]), (0, &data[..]));
        assert!(fs::read(mount.join("many")).unwrap() == tree.read(b"many").unwrap());
        drop(file);
        mount.unmount();
    }
}

#[test]
fn times_keep_their_range_and_nanoseconds() {
    let mut tree = Tree::new();
    for (name, sec) in [("before", -2_000_000_000), ("epoch", 0), ("late", 10_000_000_000)] {
        let mtime = Timestamp::new(sec, 123_456_789);
        let attributes = Attributes { mtime, ..attributes(0o600) };
        tree.add(name.as_bytes(), &attributes, EntryKind::Fifo).unwrap();
    }
    let (image, _) = built(&tree, &options(4096, ""));
    e2fsck::check(image.path()).assert_clean();
    let mount = Mount::new(image.path(), "ro");
    assert_same(&tree, &mount, false);
    mount.unmount();
}

#[test]
fn lost_and_found_has_its_content() {
    let mut tree = Tree::new();
    tree.add(b"", &attributes(0o751), EntryKind::Directory).unwrap();
    let source = tree.add_source(Arc::new(Numbers));
    let xattrs = vec![("user.long".into(), vec![b'v'; 500])];
    let found = Attributes { xattrs, ..attributes(0o700) };
    tree.add(b"lost+found", &found, EntryKind::Directory).unwrap();
    add(&mut tree, "a/file", whole(source, 0, 5000));
    for entries in [0, 3, 2000] {
        for n in 0..entries {
            add(&mut tree, &format!("lost+found/#{n}"), whole(source, n, n * 7));
        }
        if entries > 0 {
            add(&mut tree, "lost+found/below/below", EntryKind::Fifo);
            tree.hard_link(b"second", b"lost+found/#1").unwrap();
        }
        let quota = ("quota", options(1024, "quota"), true);
        for (name, mut options, mounts) in every_set().into_iter().chain([quota]) {
            if entries != 3 && !["default", "1k", "no dir_index", "ext2", "quota"].contains(&name) {
                continue;
            }
            println!("{name}, {entries} entries");
            options.size = ImageSize::Exact { free: FreeSpace::Bytes(0), inodes_free: 0 };
            let (image, facts) = built(&tree, &options);
            e2fsck::check(image.path()).assert_clean();
            let mut smaller = options.clone();
            smaller.size = ImageSize::Bytes(facts.bytes - u64::from(facts.block_size));
            smaller.mkfs.inode_count = Some(facts.inodes.into());
            assert!(plan(&tree, &smaller).is_err(), "{facts:?}");
            if mounts {
                let mount = Mount::new(image.path(), "ro");
                let whole_seconds = options.mkfs.inode_size == Some(128);
                assert_same(&tree, &mount, whole_seconds);
                let found = fs::metadata(mount.join("lost+found")).unwrap();
                // Its empty blocks, as mke2fs makes them.
                let least = 12.min((16 << 10) / facts.block_size) * facts.block_size;
                assert!(found.len() >= least.into(), "{}", found.len());
                mount.unmount();
            }
        }
    }
}

#[test]
fn lost_and_found_is_a_directory() {
    let mut tree = Tree::new();
    add(&mut tree, "lost+found", EntryKind::Fifo);
    let error = extant_image::plan(&tree, &options(4096, "")).unwrap_err().to_string();
    assert!(error.starts_with("lost+found: every file system has a directory"), "{error}");
}

/// Returns the blocks of a file, as debugfs lists them.
fn blocks_of(image: &Image, path: &str) -> Vec<u64> {
    let listed = debugfs::read(image.path(), &format!("blocks \"{path}\""));
    listed.split_whitespace().map(|nr| nr.parse().unwrap()).collect()
}

#[test]
fn content_lies_in_the_order_of_a_walk_and_free_space_in_one_run() {
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Numbers));
    // Added in another order than that of the walk.
    let files = ["b/y", "a/z", "b/c/deep", "a/x", "first", "b/a", "last"];
    for (n, path) in files.iter().enumerate() {
        add(&mut tree, path, whole(source, n as u64, 20_000 + n as u64 * 7000));
    }
    let mut options = options(4096, "");
    options.size = ImageSize::Exact { free: FreeSpace::Bytes(16 << 20), inodes_free: 0 };
    let (image, facts) = built(&tree, &options);
    // The files of a directory lie together, before those of the directories in it.
    let at = |path: &str| blocks_of(&image, path);
    let directories = ["/", "/a", "/b", "/b/c"].map(at).concat();
    let files = ["/first", "/last", "/a/x", "/a/z", "/b/a", "/b/y", "/b/c/deep"].map(at).concat();
    assert!(directories.iter().max() < files.iter().min(), "{directories:?} {files:?}");
    let next = files.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(next, "{files:?}");
    let shown = run("dumpe2fs", &[image.path()]).must_succeed().text();
    let free: Vec<&str> =
        shown.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")).collect();
    assert_eq!(free, [format!("{}-{}", facts.blocks - facts.free_blocks, facts.blocks - 1)]);
}
