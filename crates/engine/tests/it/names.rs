//! Names and inodes that are evicted, moved and created while other threads look them up.

use extant_engine::{
    Errno, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags, SetAttr,
};
use extant_testkit::kernel::Mount;
use extant_testkit::{Ending, FeatureSet, Image, debugfs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).unwrap()
}

fn dir(fs: &Fs, at: &Node, name: &str) -> Node {
    fs.create(at, name.as_bytes(), 0o755, NodeKind::Dir).unwrap()
}

fn file(fs: &Fs, at: &Node, name: &str) -> Node {
    fs.create(at, name.as_bytes(), 0o644, NodeKind::File).unwrap()
}

fn set_size(fs: &Fs, node: &Node, size: u64) {
    fs.set_attr(node, &SetAttr { size: Some(size), ..Default::default() }).unwrap();
}

fn close(fs: Fs, image: &Image) {
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Inodes are evicted and loaded again during lookups and changes. A change is never lost: a file's
/// size only grows here, so no thread may see it shrink.
#[test]
fn eviction_races_with_lookups() {
    const FILES: usize = 400;
    const ROUNDS: u64 = 10;
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let top = dir(&fs, &root, "top");
    let sub = dir(&fs, &top, "sub");
    (0..FILES).for_each(|n| drop(file(&fs, &sub, &format!("file{n}"))));
    drop((root, top, sub));
    let paths: Vec<String> = (0..FILES).map(|n| format!("/top/sub/file{n}")).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for looker in 0..3 {
            let (fs, paths, stop) = (&fs, &paths, &stop);
            scope.spawn(move || {
                let mut seen = [0; FILES];
                while !stop.load(Ordering::Acquire) {
                    for (path, seen) in paths.iter().zip(&mut seen) {
                        let size = match looker {
                            0 => fs.stat(path, Follow::Yes).unwrap().size,
                            1 => fs.resolve(path, Follow::Yes).unwrap().attr().size,
                            _ => {
                                let node = fs.resolve(path, Follow::No).unwrap();
                                fs.open_file(&node, OpenFlags::default()).unwrap().len()
                            }
                        };
                        assert!(size >= *seen, "{path} had {seen} bytes and has {size}");
                        *seen = size;
                    }
                }
            });
        }
        let evictor = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                fs.sync().unwrap();
                // The second pass reaches most of them before a lookup does.
                for _ in 0..4 {
                    fs.shrink(4 * FILES);
                }
            }
        });
        let ending = Ending(&stop);
        for round in 1..=ROUNDS {
            for path in &paths {
                set_size(&fs, &fs.resolve(path, Follow::Yes).unwrap(), round);
            }
        }
        while fs.stats().inodes_evicted == 0 || fs.stats().names_evicted == 0 {
            thread::yield_now();
        }
        drop(ending);
        evictor.join().unwrap();
    });
    paths.iter().for_each(|path| assert_eq!(fs.stat(path, Follow::Yes).unwrap().size, ROUNDS));
    close(fs, &image);
}

/// Referenced inodes are not evicted. Evicted ones are read again with their state and holds.
#[test]
fn referenced_inodes_are_not_evicted() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let kept = file(&fs, &root, "kept");
    let held = file(&fs, &root, "held");
    held.hold(1).unwrap();
    set_size(&fs, &held, 7);
    let dropped = file(&fs, &root, "dropped");
    set_size(&fs, &dropped, 5);
    let dropped_ino = dropped.ino();
    drop((dropped, held));
    fs.sync().unwrap();
    // The first pass clears the marks of use. The commit releases its inodes shortly after its end.
    for _ in 0..100_000 {
        fs.shrink(1000);
        if fs.stats().inodes_evicted > 1 {
            break;
        }
        thread::yield_now();
    }
    (0..2).for_each(|_| assert_eq!(fs.shrink(1000), 0, "everything has gone that may"));
    let stats = fs.stats();
    assert_eq!(
        (stats.inodes_evicted, stats.inodes_unused),
        (2, 0),
        "nothing is kept without a reference"
    );
    assert_eq!(stats.inodes_parked, 1, "`held` is held");
    assert_eq!(fs.stat("/dropped", Follow::Yes).unwrap().size, 5);
    assert_eq!(fs.stat("/held", Follow::Yes).unwrap().size, 7);
    assert_eq!(fs.node(dropped_ino).unwrap().attr().size, 5);
    let again = fs.resolve("/kept", Follow::Yes).unwrap();
    assert_eq!((again.ino(), again.generation()), (kept.ino(), kept.generation()));
    fs.release(&fs.resolve("/held", Follow::Yes).unwrap(), 1);
    drop((kept, again, root));
    close(fs, &image);
}

/// `/p` and `/q` are exchanged all the time, and the directory at `/q` loses its leaf and gets
/// another one. A leaf below `/p` exists at every moment. But a walk that resolved `/p` may reach
/// its directory when that is `/q`.
#[test]
fn exchanged_directories_hide_nothing() {
    const ROUNDS: usize = 300;
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    for name in ["p", "q"] {
        file(&fs, &dir(&fs, &root, name), "leaf");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let found = fs
                        .resolve("/p/leaf", Follow::Yes)
                        .map(drop)
                        .and(fs.stat("/p/leaf", Follow::Yes));
                    assert!(found.is_ok(), "{found:?}");
                }
            });
        }
        let _ending = Ending(&stop);
        for _ in 0..ROUNDS {
            fs.rename((&root, b"p"), (&root, b"q"), RenameFlags::EXCHANGE).unwrap();
            let spare = fs.resolve("/q", Follow::Yes).unwrap();
            fs.unlink(&spare, b"leaf").unwrap();
            drop(file(&fs, &spare, "leaf"));
        }
    });
    drop(root);
    close(fs, &image);
}

/// A deep directory moves between two parents while threads walk to its leaf by both paths, upward,
/// too, and change it.
#[test]
fn renames_race_with_deep_walks() {
    const ROUNDS: u64 = 100;
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let (left, right) = (dir(&fs, &root, "left"), dir(&fs, &root, "right"));
    let mut at = dir(&fs, &left, "moved");
    for name in ["c", "d", "e", "f"] {
        at = dir(&fs, &at, name);
    }
    let leaf = file(&fs, &at, "leaf");
    let (ino, stop) = (leaf.ino(), AtomicBool::new(false));
    let walks =
        ["left", "right", "left/..//right", "right/../left"].map(|side| (side, AtomicU64::new(0)));
    thread::scope(|scope| {
        for (side, found) in &walks {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || {
                let path = format!("/{side}/moved/c/d/e/../e/f/leaf");
                while !stop.load(Ordering::Acquire) {
                    match fs.resolve(&path, Follow::Yes) {
                        Ok(node) => {
                            assert_eq!(node.ino(), ino);
                            if found.fetch_add(1, Ordering::AcqRel) % 16 == 0 {
                                set_size(fs, &node, 1 + found.load(Ordering::Acquire));
                            }
                        }
                        Err(e) => assert!(e.is(Errno::NoEnt), "{e}"),
                    }
                }
            });
        }
        let _ending = Ending(&stop);
        let mut rounds = 0;
        while rounds < ROUNDS || walks.iter().any(|(_, found)| found.load(Ordering::Acquire) < 20) {
            let (from, to) = if rounds % 2 == 0 { (&left, &right) } else { (&right, &left) };
            fs.rename((from, b"moved"), (to, b"moved"), RenameFlags::empty()).unwrap();
            if rounds % 8 == 0 {
                fs.shrink(50);
            }
            rounds += 1;
            thread::yield_now();
        }
    });
    drop((root, left, right, at, leaf));
    close(fs, &image);
}

/// A name comes and goes. A lookup between two changes finds the result of the last one.
#[test]
fn absent_names_race_with_creation() {
    const ROUNDS: u64 = 500;
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let top = dir(&fs, &root, "top");
    // Odd while the name changes; half of it is odd while the name is there.
    let (changes, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for looker in 0..3 {
            let (fs, top, changes, done) = (&fs, &top, &changes, &done);
            scope.spawn(move || {
                let mut quiet = 0u64;
                while !done.load(Ordering::Acquire) || quiet == 0 {
                    let before = changes.load(Ordering::SeqCst);
                    let found = match looker {
                        0 => fs.stat("/top/name", Follow::Yes).map(drop),
                        1 => fs.lookup(top, b"name").map(drop),
                        _ => fs.resolve("/top/name", Follow::Yes).map(drop),
                    };
                    if changes.load(Ordering::SeqCst) == before && before % 2 == 0 {
                        quiet += 1;
                        let there = before / 2 % 2 == 1;
                        assert_eq!(found.is_ok(), there, "change {before}: {found:?}");
                    }
                }
            });
        }
        let change = |op: &dyn Fn()| {
            changes.fetch_add(1, Ordering::SeqCst);
            op();
            changes.fetch_add(1, Ordering::SeqCst);
            thread::yield_now();
        };
        let _ending = Ending(&done);
        for n in 0..ROUNDS {
            change(&|| drop(file(&fs, &top, "name")));
            change(&|| match n % 3 {
                0 => {
                    fs.rename((&top, b"name"), (&root, b"elsewhere"), RenameFlags::empty()).unwrap()
                }
                _ => fs.unlink(&top, b"name").unwrap(),
            });
        }
    });
    drop((root, top));
    close(fs, &image);
}

/// The flag for direct access to the device's memory (chattr +x) is kept and inherited, except
/// beside flags that exclude it.
#[test]
fn the_flag_of_direct_access_is_handed_down() {
    const DAX: u32 = 0x0200_0000;
    const JOURNAL_DATA: u32 = 0x4000;
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let before = fs.create(&root, b"before", 0o644, NodeKind::File).expect("create");
    let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).expect("mkdir");
    fs.set_flags(&dir, dir.attr().flags | DAX).expect("chattr +x");
    for (name, what) in [(b"sub", NodeKind::Dir), (b"new", NodeKind::File)] {
        let made = fs.create(&dir, name, 0o755, what).expect("create");
        assert_eq!(made.attr().flags & DAX, DAX);
    }
    assert_eq!(before.attr().flags & DAX, 0);
    let both = before.attr().flags | DAX | JOURNAL_DATA;
    assert!(fs.set_flags(&before, both).expect_err("not both").is(Errno::OpNotSupp));
    fs.set_flags(&dir, dir.attr().flags & !DAX).expect("chattr -x");
    let made = fs.create(&dir, b"later", 0o644, NodeKind::File).expect("create");
    assert_eq!(made.attr().flags & DAX, 0);
    drop((before, dir, root, made));
    fs.unmount().expect("unmount");
    image.assert_clean();
    // An inode that has both may be assigned both again.
    debugfs::write(image.path(), &format!("set_inode_field before flags 0x{both:X}"));
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let before = fs.resolve("/before", Follow::Yes).expect("it is there");
    fs.set_flags(&before, both).expect("nothing changes");
    drop(before);
    fs.unmount().expect("unmount");
}

/// Without `dir_nlink` a directory has a limit of subdirectories, for an exchange of names, too.
#[test]
fn an_exchange_gives_no_directory_more_subdirectories_than_it_may_have() {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "4096", "-O", "^dir_nlink"]);
    let fs = open(&image);
    let root = fs.root().unwrap();
    let [full, other] = ["full", "other"].map(|name| dir(&fs, &root, name));
    dir(&fs, &full, "sub");
    file(&fs, &full, "file");
    dir(&fs, &other, "dir");
    drop((root, full, other));
    fs.unmount().unwrap();
    image.leave_unjudged("a directory says that it has more subdirectories than it has");
    debugfs::write(image.path(), "set_inode_field full links_count 65000");

    let mount = Mount::new(image.path(), "");
    let [full, other] =
        ["full", "other"].map(|name| std::fs::File::open(mount.join(name)).unwrap());
    let swap = |from: &std::fs::File, a: &str, to: &std::fs::File, b: &str| {
        rustix::fs::renameat_with(from, a, to, b, rustix::fs::RenameFlags::EXCHANGE)
    };
    assert_eq!(
        swap(&full, "file", &other, "dir"),
        Err(rustix::io::Errno::MLINK),
        "so says the kernel"
    );
    drop((full, other));
    mount.unmount();

    let fs = open(&image);
    let root = fs.root().unwrap();
    let [full, other] = [b"full".as_slice(), b"other"].map(|name| fs.lookup(&root, name).unwrap());
    let swap = |from: &Node, a: &str, to: &Node, b: &str| {
        fs.rename((from, a.as_bytes()), (to, b.as_bytes()), RenameFlags::EXCHANGE)
    };
    assert!(swap(&full, "file", &other, "dir").unwrap_err().is(Errno::Mlink));
    assert!(swap(&other, "dir", &full, "file").unwrap_err().is(Errno::Mlink));
    assert!(fs.lookup(&full, b"file").unwrap().file_type() == extant_engine::FileType::Regular);
    // One for another leaves the number as it is.
    swap(&full, "sub", &other, "dir").unwrap();
    swap(&full, "file", &full, "sub").unwrap();
    fs.unmount().unwrap();
}

/// A directory comes and goes in one transaction, which never writes its slot. A walk that read its
/// number before looks it up afterwards.
#[test]
fn a_number_whose_slot_was_never_written_is_stale() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let number = fs.create(&root, b"gone", 0o755, NodeKind::Dir).expect("mkdir").ino();
    fs.rmdir(&root, b"gone").expect("rmdir");
    let error = fs.node(number).expect_err("it is gone");
    assert!(error.is(Errno::Stale), "{error}");
    drop(root);
    fs.unmount().expect("unmount");
}
