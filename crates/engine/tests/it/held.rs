//! Held inodes, such as those that a FUSE kernel remembers, need not stay in memory.

use extant_engine::{Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::image::Image;
use extant_testkit::rng::Rng;

const FILES: usize = 3000;

const SMALL: &[&str] =
    &["-t", "ext4", "-b", "1024", "-N", "4096", "-O", "orphan_file", "-J", "size=4"];

fn name(i: usize) -> Vec<u8> {
    format!("file {i}").into_bytes()
}

/// Makes files that are held without references. Returns their numbers.
fn make(fs: &Fs, dir: &Node) -> Vec<u64> {
    let file = |i| {
        let node = fs.create(dir, &name(i), 0o644, NodeKind::File).expect("create");
        node.hold(1 + i as u64 % 3).expect("hold");
        node.attr().ino
    };
    (0..FILES).map(file).collect()
}

fn settle(fs: &Fs) {
    fs.sync().expect("sync");
    // The first look only notes that an inode was not used since.
    let mut idle = 0;
    while idle < 4 {
        idle = if fs.operations().shrink(4 * FILES) == 0 { idle + 1 } else { 0 };
    }
}

#[test]
fn held_inodes_leave_memory_and_live_on() {
    let image = Image::mke2fs(32 << 20, SMALL);
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("open");
    let dir = fs.root().expect("root");
    let free = fs.usage().inodes_free;
    let numbers = make(&fs, &dir);
    settle(&fs);
    let stats = fs.stats();
    assert!(stats.inodes_cached < 100, "{} inodes in memory", stats.inodes_cached);
    assert!(stats.inodes_parked > FILES - 100, "{} held elsewhere", stats.inodes_parked);
    // Without their names they stay allocated, in memory or not, until the last hold is released.
    for i in 0..FILES {
        fs.unlink(&dir, &name(i)).expect("unlink");
    }
    settle(&fs);
    assert_eq!(fs.stats().inodes_parked, 0, "an inode without a name stays in memory");
    assert_eq!(fs.usage().inodes_free, free - FILES as u64);
    for (i, ino) in numbers.iter().enumerate() {
        assert_eq!(fs.operations().node(*ino).expect("it is held").attr().nlink, 0);
        (0..1 + i % 3).for_each(|_| fs.operations().forget(*ino, 1).expect("it is held"));
    }
    // The reaper frees them.
    let gone = || numbers.iter().all(|ino| fs.operations().node(*ino).is_err());
    let waited = (0..2000).any(|_| {
        gone() || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            false
        }
    });
    assert!(waited, "inodes without names and holders live on");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn holds_of_evicted_inodes_are_released_without_loading() {
    let image = Image::mke2fs(32 << 20, SMALL);
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("open");
    let dir = fs.root().expect("root");
    let numbers = make(&fs, &dir);
    settle(&fs);
    let (cached, parked) = (fs.stats().inodes_cached, fs.stats().inodes_parked);
    for (i, ino) in numbers.iter().enumerate() {
        fs.operations().forget(*ino, 1 + i as u64 % 3).expect("it is held");
    }
    assert_eq!(
        (fs.stats().inodes_cached, fs.stats().inodes_parked),
        (cached, 0),
        "{parked} were parked"
    );
    // Nothing holds them: without their names they are freed.
    let free = fs.usage().inodes_free;
    (0..FILES).for_each(|i| fs.unlink(&dir, &name(i)).expect("unlink"));
    assert_eq!(fs.usage().inodes_free, free + FILES as u64);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Threads look names up, hold, forget, evict and unlink. No hold is lost, and none remains.
#[test]
fn holds_come_and_go_while_inodes_do() {
    let image = Image::mke2fs(32 << 20, SMALL);
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("open");
    let dir = fs.root().expect("root");
    let free = fs.usage().inodes_free;
    const SHARED: usize = 64;
    let made = |i| fs.create(&dir, &name(i), 0o644, NodeKind::File).expect("create").attr().ino;
    let numbers: Vec<u64> = (0..SHARED).map(made).collect();
    fs.sync().expect("sync");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (fs, dir, numbers) = (&fs, &dir, &numbers);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..4000 {
                    let i = rng.below(SHARED as u64) as usize;
                    let Ok(node) = fs.lookup(dir, &name(i)) else { continue };
                    node.hold(2).expect("it has a name");
                    fs.operations().forget(numbers[i], 1).expect("it is held");
                    fs.operations().shrink(8);
                    fs.operations().forget(numbers[i], 1).expect("it is held");
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || {
            (0..20_000).for_each(|_| {
                fs.operations().shrink(16);
            })
        });
    });
    settle(&fs);
    assert_eq!(fs.stats().inodes_parked, 0);
    (0..SHARED).for_each(|i| fs.unlink(&dir, &name(i)).expect("unlink"));
    assert_eq!(fs.usage().inodes_free, free, "a hold stayed");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// An inode with writers keeps their reservations, so it stays in memory.
#[test]
fn a_file_with_writers_stays_in_memory() {
    let image = Image::mke2fs(32 << 20, SMALL);
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("open");
    let dir = fs.root().expect("root");
    let node = fs.create(&dir, b"written", 0o644, NodeKind::File).expect("create");
    node.hold(1).expect("hold");
    fs.operations().open_hint(&node);
    let ino = node.attr().ino;
    drop(node);
    settle(&fs);
    assert_eq!(fs.stats().inodes_parked, 0);
    let node = fs.operations().node(ino).expect("it is there");
    fs.operations().close_hint(&node);
    drop(node);
    settle(&fs);
    assert_eq!(fs.stats().inodes_parked, 1);
    let file = fs
        .open_file(&fs.operations().node(ino).expect("it comes back"), OpenFlags::default())
        .expect("open");
    drop(file);
    fs.operations().forget(ino, 1).expect("it is held");
    fs.unmount().expect("unmount");
    image.assert_clean();
}
