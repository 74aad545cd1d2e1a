//! Space, inode numbers and orphan records under many threads: counted exactly, and clean for
//! e2fsck.

use extant_engine::{
    Errno, Falloc, File, FileType, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, Result,
    Usage,
};
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Image, e2fsck};

const THREADS: u64 = 4;

/// Feature sets that differ in groups, clusters and orphan records.
const SETS: [&str; 7] =
    ["default", "1k", "ext2_1k", "bigalloc_1k", "meta_bg", "uninit_bg", "ext3_1k"];

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).unwrap()
}

fn is_full<T: std::fmt::Debug>(result: &Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if error.is(Errno::NoSpc) => true,
        Err(error) => panic!("{error}"),
    }
}

fn create(fs: &Fs, dir: &Node, name: &str) -> Result<Node> {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File)
}

fn open_file(fs: &Fs, node: &Node) -> File {
    fs.open_file(node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap()
}

fn in_threads(work: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

/// A directory for each thread.
fn directories(fs: &Fs) -> Vec<Node> {
    let root = fs.root().unwrap();
    let make = |i| fs.create(&root, format!("thread{i}").as_bytes(), 0o755, NodeKind::Dir).unwrap();
    (0..THREADS).map(make).collect()
}

/// Creates files and writes into them until nothing fits any more.
fn fill(fs: &Fs, dir: &Node, thread: u64) {
    let mut rng = Rng::new(thread);
    for i in 0.. {
        let node = create(fs, dir, &format!("file{i}"));
        if is_full(&node) {
            return;
        }
        let file = open_file(fs, &node.unwrap());
        let data = rng.bytes(1 + rng.clone().below(200_000) as usize);
        if is_full(&file.write_at(rng.below(3) * 10_000, &data))
            || i % 8 == 0 && is_full(&file.sync().map(|()| 0))
        {
            return;
        }
    }
}

fn remove_files(fs: &Fs, dir: &Node) {
    for entry in fs.read_dir(dir).unwrap() {
        fs.unlink(dir, &entry.name).unwrap();
    }
}

/// Returns the usage in the superblock on the device after unmounting.
fn free_on_device(image: &Image) -> (u64, u64) {
    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
    let sb = fs.superblock();
    (sb.free_blocks_count(), u64::from(sb.free_inodes_count()))
}

fn free(usage: Usage) -> (u64, u64) {
    (usage.free, usage.inodes_free)
}

#[test]
fn threads_fill_and_empty_a_file_system() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(24 << 20);
        let fs = open(&image);
        let dirs = directories(&fs);
        in_threads(|thread| fill(&fs, &dirs[thread as usize], thread));
        fs.sync().unwrap();
        let full = fs.usage();
        assert_eq!(full.available, 0, "{set}: {full:?}");
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!(free_on_device(&image), free(full), "{set}");

        let fs = open(&image);
        let root = fs.root().unwrap();
        in_threads(|thread| {
            let dir = fs.lookup(&root, format!("thread{thread}").as_bytes()).unwrap();
            remove_files(&fs, &dir);
            fs.rmdir(&root, format!("thread{thread}").as_bytes()).unwrap();
        });
        fs.sync().unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn removal_frees_every_block() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(24 << 20);
        let fs = open(&image);
        let before = free(fs.usage());
        for _ in 0..2 {
            let dirs = directories(&fs);
            in_threads(|thread| {
                for i in 0..40 {
                    let node = create(&fs, &dirs[thread as usize], &format!("file{i}")).unwrap();
                    open_file(&fs, &node).write_at(i * 5000, &vec![7; 9000]).unwrap();
                }
                remove_files(&fs, &dirs[thread as usize]);
            });
            let root = fs.root().unwrap();
            (0..THREADS).for_each(|i| fs.rmdir(&root, format!("thread{i}").as_bytes()).unwrap());
        }
        fs.sync().unwrap();
        fs.sync().unwrap();
        let after = free(fs.usage());
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!((after, free_on_device(&image)), (before, before), "{set}");
    }
}

#[test]
fn threads_use_up_the_inodes() {
    for set in ["default", "1k", "uninit_bg", "ext2_1k"] {
        let image = FeatureSet::named(set).make_sized(48 << 20);
        let fs = open(&image);
        let dirs = directories(&fs);
        let before = fs.usage().inodes_free;
        let made = std::sync::atomic::AtomicU64::new(0);
        in_threads(|thread| {
            for i in 0.. {
                let what = if i % 50 == 7 { NodeKind::Dir } else { NodeKind::File };
                let name = format!("{i}");
                let node = fs.create(&dirs[thread as usize], name.as_bytes(), 0o700, what);
                if is_full(&node) {
                    return;
                }
                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        assert_eq!((fs.usage().inodes_free, made.into_inner()), (0, before), "{set}");
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!(free_on_device(&image).1, 0);
    }
}

#[test]
fn parallel_writers_do_not_interleave() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let dirs = directories(&fs);
    in_threads(|thread| {
        let node = create(&fs, &dirs[thread as usize], "file").unwrap();
        let file = open_file(&fs, &node);
        for i in 0..64 {
            file.write_at(i << 17, &vec![thread as u8; 1 << 17]).unwrap();
            if i % 4 == 0 {
                file.sync().unwrap();
            }
        }
    });
    fs.sync().unwrap();
    for dir in &dirs {
        let file = open_file(&fs, &fs.lookup(dir, b"file").unwrap());
        let mut runs = 0;
        file.extents(0, u64::MAX, |_| {
            runs += 1;
            true
        })
        .unwrap();
        // Interleaved writers would leave an extent for each of the 16 syncs at least.
        assert!(runs <= 8, "{runs} extents for 8 MiB");
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Opens `count` nameless files with content, and closes some of them again in random order.
fn orphans(fs: &Fs, count: u64) -> Vec<File> {
    let root = fs.root().unwrap();
    let mut rng = Rng::new(count);
    let mut open = Vec::new();
    for i in 0..count {
        let name = format!("orphan{i}");
        let node = create(fs, &root, &name).unwrap();
        let file = open_file(fs, &node);
        file.write_at(0, &vec![1; 3000]).unwrap();
        fs.unlink(&root, name.as_bytes()).unwrap();
        open.push(file);
        if i % 3 == 0 {
            open.swap_remove(rng.below(open.len() as u64) as usize);
        }
    }
    fs.sync().unwrap();
    open
}

#[test]
fn orphans_survive_a_crash_and_are_freed() {
    for (set, count) in
        [("default", 60), ("orphan_file", 300), ("ext3_1k", 60), ("no_csum", 300), ("ext2_1k", 20)]
    {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let before = free(fs.usage());
        let held = orphans(&fs, count);
        assert!(held.len() > count as usize / 2);
        fs.crash();
        drop(held);
        let crashed = image.copy();
        let fs = open(&image);
        if FeatureSet::named(set).journal {
            assert!(fs.recovery().orphans.freed > count / 2, "{set}: {:?}", fs.recovery());
            assert_eq!(fs.recovery().orphans.invalid, 0);
        }
        fs.sync().unwrap();
        let after = free(fs.usage());
        fs.unmount().unwrap();
        if FeatureSet::named(set).journal {
            image.assert_clean();
            assert_eq!(after, before, "{set}");
            e2fsck::recover(crashed.path()).assert_clean();
        }
    }
}

#[test]
fn orphans_that_are_closed_leave_no_record() {
    for set in ["default", "orphan_file"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let before = free(fs.usage());
        in_threads(|thread| drop(orphans_of_thread(&fs, thread)));
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!(free_on_device(&image), before, "{set}");
    }
}

#[test]
fn a_full_orphan_file_overflows_into_the_list() {
    let args = ["-t", "ext4", "-b", "1024", "-O", "orphan_file", "-E", "orphan_file_size=2"];
    let image = Image::mke2fs(32 << 20, &args);
    let fs = open(&image);
    let before = free(fs.usage());
    let mut held = orphans(&fs, 900);
    assert!(held.len() > 2 * 254);
    let last = held.split_off(300);
    let crashed = image.copy();
    drop(last);
    fs.sync().unwrap();
    fs.crash();
    drop(held);
    for image in [&image, &crashed] {
        let by_e2fsck = image.copy();
        let fs = open(image);
        assert_eq!(fs.recovery().orphans.invalid, 0);
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!(free_on_device(image), before);
        e2fsck::recover(by_e2fsck.path()).assert_clean();
    }
}

fn orphans_of_thread(fs: &Fs, thread: u64) -> Vec<File> {
    let root = fs.root().unwrap();
    let make = |i| {
        let name = format!("t{thread}n{i}");
        let node = create(fs, &root, &name).unwrap();
        let file = open_file(fs, &node);
        file.allocate(Falloc::KeepSize, 0, 20_000).unwrap();
        fs.unlink(&root, name.as_bytes()).unwrap();
        file
    };
    (0..50).map(make).collect()
}

#[test]
fn a_group_with_a_bad_bitmap_is_left_alone() {
    use std::os::unix::fs::FileExt;
    let image = FeatureSet::named("1k").make();
    let groups = extant_testkit::dumpe2fs::dump(image.path()).groups;
    let group = groups[1..].iter().find(|group| !group.flags.contains("BLOCK_UNINIT")).unwrap();
    let block = group.block_bitmap;
    let file = std::fs::File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0x55; 64], block * 1024 + 200).unwrap();
    image.leave_unjudged("a bitmap is damaged");
    let fs = open(&image);
    let dirs = directories(&fs);
    open_file(&fs, &create(&fs, &dirs[0], "kept").unwrap()).write_at(0, &[1; 9000]).unwrap();
    fs.sync().unwrap();
    // Every group is tried. The space of the bad group is reserved for writers that do not get it,
    // until that group was tried.
    let probe = open_file(&fs, &create(&fs, &dirs[0], "probe").unwrap());
    assert!(is_full(&probe.allocate(Falloc::KeepSize, 0, image.bytes().len() as u64)));
    assert!(fs.superblock().error_count() > 0);
    drop(probe);
    fs.unlink(&dirs[0], b"probe").unwrap();
    fs.sync().unwrap();
    in_threads(|thread| fill(&fs, &dirs[thread as usize], thread));
    fs.sync().unwrap();
    assert!(fs.resolve("/thread0/kept", Follow::Yes).unwrap().file_type() == FileType::Regular);
    fs.unmount().unwrap();
    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
    assert!(fs.superblock().first_error().is_some());
    fs.unmount().unwrap();
    let extant_testkit::e2fsck::Verdict::Complaints(lines) = e2fsck::check(image.path()) else {
        panic!("clean")
    };
    assert!(lines.iter().all(|line| !line.contains("Multiply")), "{lines:?}");
}

#[test]
fn usage_equals_that_of_the_kernel() {
    for set in ["default", "1k", "bigalloc_1k", "meta_bg", "orphan_file"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let dirs = directories(&fs);
        remove_files(&fs, &dirs[0]);
        create(&fs, &dirs[1], "file").unwrap();
        let own = fs.usage();
        fs.unmount().unwrap();
        let mount = extant_testkit::kernel::Mount::new(image.path(), "rw");
        let printed = std::process::Command::new("stat")
            .args(["-f", "-c", "%b %f %a %c %d"])
            .arg(mount.path())
            .output();
        let printed = String::from_utf8(printed.expect("stat, of coreutils").stdout).unwrap();
        mount.unmount();
        let of = |u: Usage| {
            format!("{} {} {} {} {}", u.blocks, u.free, u.available, u.inodes, u.inodes_free)
        };
        assert_eq!(of(own), printed.trim(), "{set}");
    }
}

#[test]
fn directories_are_spread_at_the_top_and_near_their_parents_below() {
    let image = FeatureSet::named("1k").make();
    let fs = open(&image);
    let (root, per_group) = (fs.root().unwrap(), u64::from(fs.superblock().inodes_per_group()));
    let group = |node: &Node| (node.ino() - 1) / per_group;
    let make = |dir: &Node, i: u32| {
        fs.create(dir, i.to_string().as_bytes(), 0o755, NodeKind::Dir).unwrap()
    };
    let tops: Vec<Node> = (0..8).map(|i| make(&root, i)).collect();
    let groups: std::collections::BTreeSet<u64> = tops.iter().map(group).collect();
    assert!(groups.len() >= 4, "{groups:?}");
    // A group that holds the journal or the tables of others has less than its share of blocks.
    let near = |top: &&Node| (0..4).all(|i| group(&make(top, i)) == group(top));
    assert!(tops.iter().filter(near).count() >= 5);
    for top in &tops {
        assert_eq!(group(&create(&fs, top, "file").unwrap()), group(top));
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn a_large_file_has_few_extents() {
    let image = FeatureSet::named("1k").make_sized(128 << 20);
    let fs = open(&image);
    let node = create(&fs, &fs.root().unwrap(), "file").unwrap();
    let file = open_file(&fs, &node);
    (0..64u64).for_each(|i| {
        assert_eq!(file.write_at(i << 20, &vec![i as u8; 1 << 20]).unwrap(), 1 << 20)
    });
    file.sync().unwrap();
    let mut runs = Vec::new();
    file.extents(0, u64::MAX, |run| {
        runs.push((run.physical >> 10, run.len >> 10));
        true
    })
    .unwrap();
    // The file takes eight groups.
    assert!(runs.len() <= 16, "{runs:?}");
    drop(file);
    fs.unmount().unwrap();
    image.assert_clean();
}
