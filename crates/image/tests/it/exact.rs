//! Sizes of images.

use crate::helpers::{Numbers, add, attributes, built, byte_at, every_kind, options, whole};
use extant_blocks::SparseDevice;
use extant_image::{
    BuildOptions, ContentSink, ContentSource, ContentStream, EntryKind, Error, FreeSpace,
    ImageFacts, ImageSize, OpenContent, Tree, plan,
};
use extant_testkit::e2fsck;
use extant_testkit::kernel::Mount;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

fn exact(bytes: u64) -> ImageSize {
    ImageSize::Exact { free: FreeSpace::Bytes(bytes), inodes_free: 0 }
}

/// Writes one file until the kernel has no space; returns its length. While delayed blocks are
/// written, the kernel counts some of them twice: it is asked again when all of them have a place.
fn fill(mount: &Mount) -> u64 {
    let mut file = std::fs::File::create(mount.join("filler")).unwrap();
    for len in [4096, 4096, 1024, 1024] {
        let block = vec![b'f'; len];
        let error = loop {
            if let Err(error) = file.write_all(&block) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        file.sync_all().unwrap();
    }
    file.metadata().unwrap().len()
}

#[test]
fn root_can_write_the_promised_bytes() {
    let tree = every_kind();
    let small = [(1024, ""), (1024, "^flex_bg"), (1024, "^extent,^64bit")];
    for (block_size, features) in [(4096, ""), (4096, "^has_journal")].into_iter().chain(small) {
        for free in [64 << 10, 3 << 20, 40 << 20] {
            let mut options = options(block_size, features);
            options.size = exact(free);
            let (image, facts) = built(&tree, &options);
            e2fsck::check(image.path()).assert_clean();
            let mount = Mount::new(image.path(), "");
            let filled = fill(&mount);
            // A file of one extent, or with a map in the kernel's reserve, has a block more.
            let most = free + u64::from(block_size);
            assert!((free..=most).contains(&filled), "{features} {free}: {filled} {facts:?}");
            mount.unmount();
            e2fsck::check(image.path()).assert_clean();
        }
    }
}

/// Without free inodes, and where each name needs another block of the root.
#[test]
fn the_promised_file_finds_an_inode_and_a_place_for_its_name() {
    let few = |tree: &mut Tree| (1..=5).for_each(|n| add(tree, &n.to_string(), EntryKind::Fifo));
    // The entries of this directory fill its blocks to the last byte.
    let full = |tree: &mut Tree| {
        add(tree, &"a".repeat(204), EntryKind::Fifo);
        (0..7).for_each(|n| add(tree, &format!("z{n}{}", "z".repeat(246)), EntryKind::Fifo));
    };
    let indexed = |tree: &mut Tree| {
        (0..500).for_each(|n| add(tree, &format!("{n}{}", "z".repeat(200)), EntryKind::Fifo));
    };
    let ext2 = "^extent,^64bit,^metadata_csum,^has_journal";
    let mut trees = [Tree::new(), Tree::new(), Tree::new()];
    few(&mut trees[0]);
    full(&mut trees[1]);
    indexed(&mut trees[2]);
    let linear = format!("{ext2},^dir_index");
    for (tree, (block_size, features)) in
        trees.iter().zip([(4096, ""), (1024, &linear), (1024, ext2)])
    {
        let mut options = options(block_size, features);
        for size in [FreeSpace::Bytes(1 << 20), FreeSpace::Percent(50.0)] {
            options.size = ImageSize::Exact { free: size, inodes_free: 0 };
            let (image, facts) = built(tree, &options);
            let free = match size {
                FreeSpace::Bytes(bytes) => bytes,
                _ => facts.bytes / 2,
            };
            let mount = Mount::new(image.path(), "");
            let filled = fill(&mount);
            let most = free + 4 * u64::from(block_size);
            assert!((free..=most).contains(&filled), "{features} {free}: {filled} {facts:?}");
            mount.unmount();
            e2fsck::check(image.path()).assert_clean();
        }
    }
}

#[test]
fn no_block_is_free_by_default_and_one_block_less_fails() {
    for (name, tree) in [("empty", Tree::new()), ("all", every_kind())] {
        for (block_size, features) in
            [(4096, ""), (1024, ""), (4096, "bigalloc"), (4096, "^has_journal")]
        {
            let mut options = options(block_size, features);
            options.size = exact(0);
            let (image, facts) = built(&tree, &options);
            e2fsck::check(image.path()).assert_clean();
            assert_eq!(facts.free_blocks, 0, "{name} {block_size} {features}");
            // Exactly the needed inodes, where the defaults for a size would be more.
            options.mkfs.inode_count = Some(facts.inodes.into());
            options.size = ImageSize::Bytes(facts.bytes);
            assert_eq!(plan(&tree, &options).unwrap().facts().bytes, facts.bytes);
            options.size = ImageSize::Bytes(facts.bytes - u64::from(block_size));
            let error = plan(&tree, &options).unwrap_err();
            let needed = match error {
                Error::TooSmall { needed, .. } => needed.unwrap(),
                other => panic!("{name} {block_size} {features}: {other}"),
            };
            assert_eq!(needed, facts.bytes, "{name} {block_size} {features}");
        }
    }
}

/// Kinds of file systems whose structures take other blocks with each size.
fn sized_sets() -> Vec<(&'static str, BuildOptions)> {
    let small_groups = |features: &str| {
        let mut options = options(1024, features);
        options.mkfs.group_blocks = Some(2048);
        options
    };
    let mut ratio = options(4096, "");
    ratio.mkfs.inode_ratio = Some(4096);
    let mut count = options(1024, "");
    count.mkfs.inode_count = Some(3000);
    vec![
        ("4k", options(4096, "")),
        ("1k", options(1024, "")),
        ("no journal", options(4096, "^has_journal")),
        ("bigalloc", options(4096, "bigalloc")),
        ("small groups", small_groups("^resize_inode,^64bit")),
        ("small groups without flex_bg", small_groups("^flex_bg,^resize_inode,^64bit")),
        ("ratio", ratio),
        ("count", count),
    ]
}

/// Plans an image of this size. Returns the size that is named if it is too small.
fn sized(tree: &Tree, options: &BuildOptions, bytes: u64) -> Result<ImageFacts, u64> {
    let mut options = options.clone();
    options.size = ImageSize::Bytes(bytes);
    match plan(tree, &options) {
        Ok(plan) => Ok(plan.facts()),
        Err(Error::TooSmall { asked, needed: Some(needed) }) if asked == bytes => Err(needed),
        Err(error) => panic!("{bytes}: {error}"),
    }
}

/// The journal grows at 2,048 and at 32,768 blocks, and with small groups each size has other
/// tables of inodes.
#[test]
fn a_named_size_is_the_next_that_is_enough() {
    let mut trees = vec![("all", every_kind())];
    for (name, size) in [("below 2 MiB", 1_700_000), ("below 8 MiB", 7_500_000)] {
        let mut tree = Tree::new();
        let source = tree.add_source(Arc::new(Numbers));
        add(&mut tree, "file", whole(source, 1, size));
        (0..200).for_each(|n| add(&mut tree, &format!("empty {n}"), EntryKind::Fifo));
        trees.push((name, tree));
    }
    for (name, tree) in &trees {
        for (set, mut options) in sized_sets() {
            options.size = exact(0);
            let name = format!("{name}, {set}");
            let block = u64::from(options.mkfs.block_size.unwrap());
            let least = plan(tree, &options).unwrap().facts().bytes;
            assert_eq!(sized(tree, &options, least).map(|facts| facts.bytes), Ok(least), "{name}");
            for blocks in (1..24).chain([200]) {
                let less = least.saturating_sub(blocks * block).max(64 * block);
                assert_eq!(sized(tree, &options, less), Err(least), "{name}: {less}");
            }
            let mut bytes = least;
            for n in 0..24 {
                bytes += block << (n % 8);
                let Err(needed) = sized(tree, &options, bytes) else { continue };
                assert!(needed > bytes, "{name}: {bytes}, {needed}");
                let made = sized(tree, &options, needed).map(|facts| facts.bytes);
                assert_eq!(made, Ok(needed), "{name}: {bytes}");
                assert_eq!(sized(tree, &options, needed - block), Err(needed), "{name}: {bytes}");
            }
        }
    }
}

#[test]
fn inodes_leave_space_to_content() {
    let tree = every_kind();
    for (name, mut options) in sized_sets() {
        options.size = exact(0);
        let least = plan(&tree, &options).unwrap().facts();
        options.size = ImageSize::Bytes(least.bytes);
        let (image, facts) = built(&tree, &options);
        assert_eq!((facts.bytes, facts.inodes), (least.bytes, least.inodes), "{name}");
        e2fsck::check(image.path()).assert_clean();
        // With more space there are as many inodes as mkfs makes.
        options.size = ImageSize::Bytes(least.bytes * 4);
        let (_, facts) = built(&tree, &options);
        assert!(facts.inodes >= least.inodes && facts.free_blocks > 0, "{name}: {facts:?}");
    }
}

/// The last file fills its last cluster, and no cluster is cut by the end.
#[test]
fn content_ends_within_the_file_system_with_bigalloc() {
    for (block_size, cluster) in [(4096, 65_536), (1024, 16_384), (4096, 1 << 20)] {
        let mut options = options(block_size, "bigalloc");
        options.mkfs.cluster_size = Some(cluster);
        for size in [300_000, 327_680, 10 << 20] {
            let mut tree = Tree::new();
            let source = tree.add_source(Arc::new(Numbers));
            add(&mut tree, "file", whole(source, 1, size));
            for free in [0, 1 << 20] {
                options.size = exact(free);
                let (image, facts) = built(&tree, &options);
                e2fsck::check(image.path()).assert_clean();
                let mount = Mount::new(image.path(), "");
                let filled = fill(&mount);
                assert!(filled >= free, "{block_size} {cluster} {size}: {filled} {facts:?}");
                let bytes = std::fs::read(mount.join("file")).unwrap();
                assert!(bytes.len() as u64 == size && bytes.last() == Some(&byte_at(1, size - 1)));
                mount.unmount();
                e2fsck::check(image.path()).assert_clean();
            }
            // Larger sizes that cut a cluster.
            options.size = exact(0);
            let least = plan(&tree, &options).unwrap().facts();
            let mut options = options.clone();
            options.mkfs.inode_count = Some(least.inodes.into());
            for blocks in [1, 3] {
                options.size = ImageSize::Bytes(least.bytes + blocks * u64::from(block_size));
                let (image, _) = built(&tree, &options);
                e2fsck::check(image.path()).assert_clean();
            }
        }
    }
}

#[test]
fn sizes_are_stable_across_groups() {
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Numbers));
    for n in 0..40u64 {
        add(&mut tree, &format!("f{n}"), whole(source, n, 300_000));
        let mut options = options(1024, "^resize_inode");
        options.size = exact(100 << 10);
        let plan = plan(&tree, &options).unwrap();
        let facts = plan.facts();
        let reserve = (facts.blocks / 50).min(4096);
        assert!(facts.free_blocks >= 100 + reserve, "{n}: {facts:?}");
        if n % 7 == 0 {
            let (image, _) = built(&tree, &options);
            e2fsck::check(image.path()).assert_clean();
        }
    }
}

/// A large file system has no space for its descriptors in such groups.
#[test]
fn groups_of_few_blocks_make_small_images() {
    let tree = every_kind();
    for (block_size, group, features) in [
        (4096, 256, ""),
        (4096, 256, "^flex_bg"),
        (1024, 1024, ""),
        (1024, 1024, "^flex_bg,^resize_inode"),
        (1024, 256, ""),
    ] {
        let mut options = options(block_size, features);
        options.mkfs.group_blocks = Some(group);
        let (image, facts) = built(&tree, &options);
        e2fsck::check(image.path()).assert_clean();
        assert!(facts.blocks / u64::from(group) >= 4, "{block_size} {group} {features}: {facts:?}");
        options.size = ImageSize::Bytes(64 << 20);
        let (image, facts) = built(&tree, &options);
        assert_eq!(facts.bytes, 64 << 20);
        e2fsck::check(image.path()).assert_clean();
        // None has this size.
        for size in [exact(1 << 40), ImageSize::Bytes(1 << 40)] {
            options.size = size;
            let error = plan(&tree, &options).err().map(|error| error.to_string());
            assert!(
                error.is_some_and(|error| error.contains("no valid file system")),
                "{features}"
            );
        }
    }
}

#[test]
fn free_inodes_are_there() {
    let mut options = options(4096, "");
    options.size = ImageSize::Exact { free: FreeSpace::Percent(25.0), inodes_free: 5000 };
    let (image, facts) = built(&every_kind(), &options);
    e2fsck::check(image.path()).assert_clean();
    assert!((5000..5000 + 512).contains(&facts.free_inodes), "{facts:?}");
    assert!(facts.free_blocks * 4 >= facts.blocks, "{facts:?}");
}

#[test]
fn many_small_files_fill_many_groups() {
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Numbers));
    for n in 0..20_000u64 {
        let path = format!("d{}/f{n}", n % 200);
        tree.add(path.as_bytes(), &attributes(0o600), whole(source, n, n % 9000)).unwrap();
    }
    for features in ["", "^flex_bg", "inline_data"] {
        let mut options = options(1024, features);
        options.size = exact(0);
        let (image, facts) = built(&tree, &options);
        e2fsck::check(image.path()).assert_clean();
        assert_eq!(facts.free_blocks, 0, "{features}");
    }
}

/// More than all tried steps add up to was replaced, and takes space all the same.
#[test]
fn a_size_that_is_enough_holds_what_was_replaced() {
    const REPLACED: u64 = 6 << 30;
    let mut options = options(4096, "");
    options.mkfs.inode_count = Some(64);
    options.size = ImageSize::Bytes(16 << 20);
    let fill = |tree: &mut Tree, options: &BuildOptions, bytes: u64| {
        let device = SparseDevice::new(bytes);
        let mut stream = ContentStream::new(&device, options).unwrap();
        let source = tree.add_arrivals();
        for size in [REPLACED, 5000] {
            let position = stream.begin(size, std::slice::from_ref(&(0..size))).unwrap();
            add(tree, "file", whole(source, position, size));
        }
        stream.plan(tree, options).map(|plan| plan.facts().bytes)
    };
    let error = fill(&mut Tree::new(), &options, 16 << 20).unwrap_err();
    let Error::TooSmall { needed: Some(needed), .. } = error else { panic!("{error}") };
    assert!(needed > REPLACED, "{needed}");
    options.size = ImageSize::Bytes(needed);
    assert_eq!(fill(&mut Tree::new(), &options, needed).unwrap(), needed);
}

#[test]
fn nothing_is_written_if_content_cannot_be_had() {
    let sources: [Arc<dyn ContentSource>; 2] = [Arc::new(Failing), Arc::new(Changed(Numbers))];
    for source in sources {
        let mut tree = Tree::new();
        let source = tree.add_source(source);
        tree.add(b"a/file", &attributes(0o600), EntryKind::Directory).unwrap();
        add(&mut tree, "a/broken", whole(source, 0, 10_000));
        let plan = plan(&tree, &options(4096, "")).unwrap();
        let device = SparseDevice::new(plan.facts().bytes);
        let error = plan.write_to(&device).unwrap_err();
        assert!(error.to_string().starts_with("a/broken: "), "{error}");
        let mut superblock = [0; 1024];
        extant_blocks::BlockDevice::read_exact_at(&device, &mut superblock, 1024).unwrap();
        assert_eq!(superblock, [0; 1024]);
    }
}

/// A source that cannot be read.
struct Failing;

impl ContentSource for Failing {
    fn open(&self, _: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        Err(io::Error::other("no luck"))
    }
}

/// A source that changes before it was read to the end.
struct Changed(Numbers);

impl ContentSource for Changed {
    fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        self.0.open(position)
    }

    fn finish(&self) -> io::Result<()> {
        Err(io::Error::other("it was changed"))
    }
}
