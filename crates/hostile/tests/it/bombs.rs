//! Bombs, images whose blocks are shared massively, cost an error, and neither time nor memory.

use extant_blocks::MemDevice;
use extant_engine::{
    Errno, Error, Falloc, Follow, Fs, Node, NodeKind, OpenFlags, RenameFlags, XattrMode,
    set_interrupt,
};
use extant_format::dir::DirFormat;
use extant_format::features::{Features, RoCompat};
use extant_format::htree::{RootInfo, dirhash};
use extant_format::inode::InodeFlags;
use extant_format::orphan;
use extant_hostile::atlas::{Kind, change_superblock};
use extant_hostile::bombs::*;
use extant_hostile::drive::{Depth, survive};
use extant_hostile::seeds::{Seed, options};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Number of blocks that a map of pointers can address with blocks of 4 KiB.
const ALL: u64 = 12 + 1024 + 1024 * 1024 + 1024 * 1024 * 1024;

fn seed(set: &str) -> Seed {
    Seed::make(FeatureSet::named(set), false)
}

fn open(image: &[u8]) -> Fs {
    Fs::open_device(Arc::new(MemDevice::from_bytes(image)), &options()).expect("the image opens")
}

fn node(fs: &Fs, path: &str) -> Node {
    fs.resolve(path, Follow::No).expect(path)
}

fn ino(seed: &Seed, path: &str) -> u32 {
    node(&open(&seed.bytes), path).ino() as u32
}

/// Returns the blocks of a directory in logical order.
fn blocks(seed: &Seed, ino: u32) -> Vec<u64> {
    let generation = seed.atlas.read_inode(&seed.bytes, ino).generation;
    let pieces = seed.atlas.blocks_of(ino, generation);
    let of_names = pieces.iter().filter(|piece| piece.kind == Kind::Directory);
    of_names.map(|piece| piece.bytes.start as u64 / u64::from(seed.atlas.geo.block_size)).collect()
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(result: Result<T, Error>, text: &str) {
    let error = result.expect_err("a hostile image");
    assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(text), "{error}");
}

/// Asserts that all operations that scan or change a directory fail.
#[track_caller]
fn assert_no_scan_ends_well(fs: &Fs, path: &str, text: &str) {
    let (root, dir) = (fs.root().expect("root"), node(fs, path));
    let name = &path.as_bytes()[1..];
    assert_corrupt(fs.lookup(&dir, b"absent"), text);
    assert_corrupt(fs.read_dir(&dir), text);
    assert_corrupt(fs.read_dir_from(&dir, 0, |_| true), text);
    assert_corrupt(fs.read_dir_plus(&dir, 0, |_, _| true), text);
    assert_corrupt(fs.create(&dir, b"new", 0o644, NodeKind::File), text);
    assert_corrupt(fs.unlink(&dir, b"absent"), text);
    assert_corrupt(fs.rename((&dir, b"absent"), (&root, b"there"), RenameFlags::empty()), text);
    assert_corrupt(fs.rmdir(&root, name), text);
}

#[test]
fn a_directory_of_shared_pointers_is_refused() {
    for set in ["ext2", "no_dir_index"] {
        let seed = seed(set);
        let ino = ino(&seed, "/dir");
        let data: Vec<u32> = blocks(&seed, ino).iter().map(|nr| *nr as u32).collect();
        let mut image = seed.bytes.clone();
        share_pointers(&mut image, &seed.atlas, ino, &data[..1], ALL);
        assert_no_scan_ends_well(&open(&image), "/dir", "in several places");
        // No block that the inode itself points to is shared; the pointer blocks are.
        let mut image = seed.bytes.clone();
        share_pointers(&mut image, &seed.atlas, ino, &[0], ALL);
        let fs = open(&image);
        assert_corrupt(fs.read_dir(&node(&fs, "/dir")), "");
    }
}

#[test]
fn a_directory_of_extents_of_one_block_is_refused() {
    let seed = seed("no_dir_index");
    let ino = ino(&seed, "/dir");
    let mut image = seed.bytes.clone();
    let count = share_extents(&mut image, &seed.atlas, ino, blocks(&seed, ino)[0], 1);
    assert!(count > 300);
    assert_no_scan_ends_well(&open(&image), "/dir", "block in several places");
}

#[test]
fn a_tree_that_names_one_leaf_many_times_lists_each_name_once() {
    for set in ["orphan_file", "1k", "no_csum"] {
        let seed = seed(set);
        let ino = ino(&seed, "/many");
        let nrs = blocks(&seed, ino);
        let mut image = seed.bytes.clone();
        // Two blocks: the root, and a leaf.
        let last = nrs[nrs.len() - 1];
        let size = u64::from(seed.atlas.geo.block_size);
        move_block(&seed, &mut image, last, nrs[1]);
        share_leaves(&mut image, &seed.atlas, ino, &nrs[..2], |n| n << 10);
        seed.atlas.change_inode(&mut image, ino, |inode| inode.size = 2 * size);
        let fs = open(&image);
        let entries = fs.read_dir(&node(&fs, "/many")).expect("a scan of the leaf");
        let mut names: Vec<_> = entries.iter().map(|entry| &entry.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert!(
            count > 5 && names.len() == count,
            "{set}: {count} entries of {} names",
            names.len()
        );
    }
}

/// Copies a block over another one, with its checksum.
fn move_block(seed: &Seed, image: &mut [u8], from: u64, to: u64) {
    let at = seed.atlas.block(to).start;
    image.copy_within(seed.atlas.block(from), at);
}

#[test]
fn a_chain_of_leaves_that_comes_back_is_refused() {
    let seed = seed("large_dir");
    let ino = ino(&seed, "/many");
    let nrs = blocks(&seed, ino);
    let mut image = seed.bytes.clone();
    // A root and two levels of nodes. All keys continue the hash of a name, so together they point
    // to the leaf two million times.
    let geo = &seed.atlas.geo;
    let info =
        RootInfo::parse(&image[seed.atlas.block(nrs[0])], &DirFormat::new(geo)).expect("a root");
    let hash = dirhash(info.hash_version, geo.hash_unsigned, &geo.hash_seed, b"absent").0;
    let (leaf, size) = (nrs[nrs.len() - 1], 1u64 << 38);
    move_block(&seed, &mut image, leaf, nrs[3]);
    share_leaves(&mut image, &seed.atlas, ino, &nrs[..4], |_| hash | 1);
    seed.atlas.change_inode(&mut image, ino, |inode| inode.size = size);
    let fs = open(&image);
    let dir = node(&fs, "/many");
    // The search leaves the tree and scans the blocks: a hole follows the first few.
    assert_corrupt(fs.lookup(&dir, b"absent"), "hole");
    assert_corrupt(fs.read_dir(&dir), "hole");
}

#[test]
fn a_file_of_shared_pointers_is_refused() {
    let seed = seed("ext2");
    let ino = ino(&seed, "/fragmented");
    let data = spare(&seed.atlas) as u32 + 4;
    // The same block again and again; holes between two blocks; holes alone.
    for pattern in [&[data][..], &[data, 0, data + 1, 0], &[0]] {
        let mut image = seed.bytes.clone();
        share_pointers(&mut image, &seed.atlas, ino, pattern, ALL);
        let fs = open(&image);
        let file = fs
            .open_file(&node(&fs, "/fragmented"), OpenFlags { write: true, ..OpenFlags::default() })
            .expect("open");
        if pattern.iter().all(|block| *block == 0) {
            assert_corrupt(file.seek_data(0), "pointer block in several places");
        }
        if pattern.len() == 1 && pattern[0] != 0 {
            assert_corrupt(file.seek_hole(0), "pointer block in several places");
        }
        let mut found = 0;
        assert_corrupt(
            file.extents(0, u64::MAX, |_| {
                found += 1;
                true
            }),
            "pointer block in several places",
        );
        assert!(found < 5000, "{found} extents");
        assert_corrupt(file.check_map(), "in several places");
        let _ = file.allocate(Falloc::Punch, 0, ALL * 4096);
        assert!(file.set_len(0).is_err(), "blocks are freed once");
    }
}

#[test]
fn a_file_of_extents_of_one_run_is_refused_where_all_of_it_is_read() {
    let seed = seed("1k");
    let ino = ino(&seed, "/fragmented");
    let mut image = seed.bytes.clone();
    share_extents(&mut image, &seed.atlas, ino, spare(&seed.atlas) + 1, 4);
    let fs = open(&image);
    let file = fs.open_file(&node(&fs, "/fragmented"), OpenFlags::default()).expect("open");
    assert_corrupt(file.check_map(), "block in several places");
    let honest = fs.open_file(&node(&fs, "/dir/sub/file4"), OpenFlags::default()).expect("open");
    honest.check_map().expect("an honest file");
}

#[test]
fn long_scans_end_when_the_caller_is_interrupted() {
    let seed = seed("no_dir_index");
    let fs = open(&seed.bytes);
    let root = fs.root().expect("root");
    let dir = fs.create(&root, b"large", 0o755, NodeKind::Dir).expect("mkdir");
    let file = node(&fs, "/dir/linked");
    let long = |n: u32| format!("{n:0>250}").into_bytes();
    (0..5000).for_each(|n| fs.link(&file, &dir, &long(n)).expect("link"));
    let listed = fs.create(&root, b"listed", 0o755, NodeKind::Dir).expect("mkdir");
    (0..20_000u32).for_each(|n| fs.link(&file, &listed, format!("{n}").as_bytes()).expect("link"));
    let before = set_interrupt(Some(Arc::new(|| true)));
    let interrupted =
        |result: Result<(), Error>| result.expect_err("an interrupted scan").is(Errno::Intr);
    assert!(interrupted(fs.lookup(&dir, b"absent").map(drop)));
    assert!(interrupted(fs.read_dir(&listed).map(drop)));
    assert!(interrupted(fs.create(&dir, b"new", 0o644, NodeKind::File).map(drop)));
    assert!(!interrupted(fs.lookup(&root, b"absent").map(drop)), "short operations end as ever");
    set_interrupt(before);
    assert!(!interrupted(fs.lookup(&dir, b"absent").map(drop)));
    assert_eq!(fs.read_dir(&dir).expect("all").len(), 5000);
    fs.unmount().expect("unmount");
}

#[test]
fn an_interrupted_rename_has_changed_nothing() {
    let seed = seed("no_dir_index");
    let fs = open(&seed.bytes);
    let dir = fs.create(&fs.root().expect("root"), b"large", 0o755, NodeKind::Dir).expect("mkdir");
    let file = node(&fs, "/dir/linked");
    let long = |n: u32| format!("{n:0>250}").into_bytes();
    (0..6000).for_each(|n| fs.link(&file, &dir, &long(n)).expect("link"));
    let last = fs.create(&dir, b"last", 0o644, NodeKind::File).expect("create");
    let is_there = |name: &[u8]| fs.lookup(&dir, name).is_ok_and(|found| found.ino() == last.ino());
    let (mut interrupted, mut done) = (0, 0);
    for nth in (0..2000).step_by(37) {
        for (new, flags) in [(&b"new"[..], RenameFlags::empty()), (&long(3), RenameFlags::EXCHANGE)]
        {
            let asked = AtomicU64::new(0);
            let before =
                set_interrupt(Some(Arc::new(move || asked.fetch_add(1, Ordering::Relaxed) == nth)));
            let renamed = fs.rename((&dir, b"last"), (&dir, new), flags);
            set_interrupt(before);
            let is_old = renamed.as_ref().is_err_and(|e| e.is(Errno::Intr));
            assert_eq!(
                (is_there(b"last"), is_there(new)),
                (is_old, renamed.is_ok()),
                "{nth}: {renamed:?}"
            );
            if renamed.is_ok() {
                fs.rename((&dir, new), (&dir, b"last"), flags).expect("back");
                done += 1;
            } else {
                interrupted += 1;
            }
        }
    }
    assert!(interrupted > 0 && done > 0, "{interrupted} interrupted, {done} done");
    drop((last, dir, file));
    fs.unmount().expect("unmount");
}

/// An image with 64 KiB blocks that has a file with a large value in an inode of its own: the
/// image, the file, the value.
fn with_a_large_value() -> (Seed, u32, u32) {
    let image = Image::mke2fs(48 << 20, &["-t", "ext4", "-b", "65536", "-O", "ea_inode"]);
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &options()).expect("a good image opens");
    let file =
        fs.create(&fs.root().expect("root"), b"file", 0o644, NodeKind::File).expect("create");
    // Large enough for an attribute block, and for a value in an inode.
    fs.set_xattr(&file, b"user.block", &[1; 5000], XattrMode::Any).expect("a value");
    fs.set_xattr(&file, b"user.large", &[2; 65536], XattrMode::Any).expect("a large value");
    let ino = file.ino() as u32;
    drop(file);
    fs.unmount().expect("unmount");
    let seed = Seed::of("large value".into(), device.to_vec());
    let is_value =
        |ino: &u32| seed.atlas.read_inode(&seed.bytes, *ino).flags.contains(InodeFlags::EA_INODE);
    let value =
        *seed.atlas.inodes.clone().iter().find(|ino| is_value(ino)).expect("an inode of a value");
    (seed, ino, value)
}

#[test]
fn values_beyond_the_limit_of_system_calls_are_not_read() {
    let (seed, ino, value) = with_a_large_value();
    let mut image = seed.bytes.clone();
    let size = 16 << 20;
    seed.atlas.change_inode(&mut image, value, |inode| inode.size = size.into());
    let shared = SharedValue { ino: value, size };
    share_values(&mut image, &seed.atlas, ino, shared, || true);
    // As many names as fit a block, all of one value.
    let fs = open(&image);
    let file = node(&fs, "/file");
    assert_corrupt(fs.list_xattrs(&file), "bytes of values");
    assert_corrupt(fs.get_xattr(&file, b"user.0001"), "bytes of values");
    let mut image = seed.bytes.clone();
    seed.atlas.change_inode(&mut image, value, |inode| inode.size = size.into());
    let mut left = 3;
    share_values(&mut image, &seed.atlas, ino, shared, || {
        left -= 1;
        left >= 0
    });
    let fs = open(&image);
    let file = node(&fs, "/file");
    assert!(fs.list_xattrs(&file).expect("names").contains(&b"user.0001".to_vec()));
    assert!(fs.get_xattr(&file, b"user.0001").expect_err("a value of 16 MiB").is(Errno::TooBig));
}

/// The kernel stores equal values once, also those of one file: two names of one inode are no
/// damage.
#[test]
fn names_may_have_a_value_in_common() {
    let image = FeatureSet::named("ea_inode").make();
    let mount = Mount::new(image.path(), "");
    let path = mount.join("file");
    std::fs::write(&path, "content").expect("write");
    let value = "v".repeat(5000);
    for name in ["user.a", "user.b"] {
        let args: [OsString; 5] =
            ["-n".into(), name.into(), "-v".into(), value.clone().into(), path.clone().into()];
        run("setfattr", &args).must_succeed();
    }
    mount.unmount();
    let seed = Seed::of("equal values".into(), image.bytes());
    let is_value =
        |ino: &&u32| seed.atlas.read_inode(&seed.bytes, **ino).flags.contains(InodeFlags::EA_INODE);
    assert_eq!(
        seed.atlas.inodes.iter().filter(is_value).count(),
        1,
        "the kernel stored the value once"
    );
    let fs = open(&seed.bytes);
    for name in [b"user.a", b"user.b"] {
        assert_eq!(fs.get_xattr(&node(&fs, "/file"), name).expect("a value"), value.as_bytes());
    }
}

#[test]
fn groups_that_share_their_tables_are_refused() {
    for set in ["ext3_1k", "1k"] {
        let seed = seed(set);
        assert!(seed.atlas.geo.groups_count > 1);
        let mut image = seed.bytes.clone();
        share_descriptors(&mut image, &seed.atlas);
        let device = Arc::new(MemDevice::from_bytes(&image));
        assert_corrupt(Fs::open_device(device, &options().read_only(true)), "of another group");
    }
}

#[test]
fn an_orphan_file_of_one_block_in_many_places_is_refused() {
    let seed = seed("1k");
    let ino = open(&seed.bytes).superblock().orphan_file_inum().0;
    let blocks =
        seed.atlas.of_kind(Kind::OrphanBlock).next().expect("a block").bytes.start as u64 / 1024;
    let mut image = seed.bytes.clone();
    share_extents(&mut image, &seed.atlas, ino, blocks, 1);
    let device = Arc::new(MemDevice::from_bytes(&image));
    assert_corrupt(Fs::open_device(device, &options()), "block in several places");
}

/// Counts warnings.
#[derive(Default)]
struct Warnings(AtomicU64);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn many_wrong_orphan_records_are_told_of_in_few_words() {
    let seed = seed("1k");
    let mut image = seed.bytes.clone();
    let mut records = 0;
    change_superblock(&mut image, |sb| {
        let features = sb.features();
        sb.set_features(Features {
            ro_compat: features.ro_compat | RoCompat::ORPHAN_PRESENT,
            ..features
        });
    });
    for piece in seed.atlas.of_kind(Kind::OrphanBlock).cloned().collect::<Vec<_>>() {
        let block = &mut image[piece.bytes.clone()];
        (0..orphan::slots(block.len())).for_each(|slot| orphan::put(block, slot, 9));
        records += orphan::slots(piece.bytes.len()) as u64;
        seed.atlas.seal(&mut image, &piece);
    }
    let warnings = Arc::new(Warnings::default());
    let device = Arc::new(MemDevice::from_bytes(&image));
    // While there is only one subscriber, `tracing` takes the answer of the first thread at a place
    // for that of all threads.
    let _second = Dispatch::new(warnings.clone());
    let fs = with_default(warnings.clone(), || Fs::open_device(device, &options()))
        .expect("records are dropped");
    assert!(records > 1000 && fs.recovery().orphans.invalid >= records, "{records}");
    let told = warnings.0.load(Ordering::Relaxed);
    assert!((1..50).contains(&told), "{told} warnings");
}

/// All operations run on bombs, as on other damaged images.
#[test]
fn shared_structures_do_no_harm() {
    for (set, crashed) in [
        ("ext3_1k", false),
        ("1k", true),
        ("large_dir", false),
        ("ea_inode", false),
        ("no_csum", true),
    ] {
        let seed = Seed::make(FeatureSet::named(set), crashed);
        for n in 0..40 {
            let mut image = seed.bytes.clone();
            let what = share(&mut image, &seed.atlas, &mut Rng::new(n));
            survive(image, n, Depth::Write)
                .unwrap_or_else(|why| panic!("{set}, {n}: {why}\n    {what}"));
        }
    }
}
