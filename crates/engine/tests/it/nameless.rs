//! Files without a name (O_TMPFILE): no lookup by number finds them before a link does, and files
//! that are still held at unmount are freed.

use crate::crash::{EXT3, EXT4, QUOTA, record, sweep};
use extant_engine::{Caller, Errno, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::FeatureSet;
use std::sync::Barrier;

const SETS: [&str; 3] = ["orphan_file", "ext3_1k", "no_journal"];

fn write(fs: &Fs, node: &Node, data: &[u8]) {
    let file = fs.open_file(node, OpenFlags { write: true, ..Default::default() }).expect("open");
    assert_eq!(file.write_at(0, data).expect("write"), data.len());
}

fn read(fs: &Fs, node: &Node) -> Vec<u8> {
    let file = fs.open_file(node, OpenFlags::default()).expect("open");
    let mut data = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut data).expect("read"), data.len());
    data
}

fn is_stale(fs: &Fs, ino: u64) -> bool {
    fs.operations().node(ino).is_err_and(|e| e.is(Errno::Stale))
}

/// Nameless inodes are written, synced and freed outside of the inode cache.
#[test]
fn nameless_inodes_are_not_in_the_cache() {
    const FILES: usize = 100;
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let (before, free) = (fs.stats().inodes_cached, fs.usage().inodes_free);
        let nodes: Vec<Node> = (0..FILES)
            .map(|_| fs.create_nameless(&Caller::default(), &root, 0o600).unwrap())
            .collect();
        for node in &nodes {
            write(&fs, node, &[7; 9000]);
            assert!(is_stale(&fs, node.ino()), "{set}: never written to its slot");
        }
        assert_eq!(
            (fs.stats().inodes_cached, fs.stats().inodes_nameless),
            (before, FILES),
            "{set}"
        );
        fs.sync().unwrap();
        for node in &nodes {
            assert!(is_stale(&fs, node.ino()), "{set}: its slot is there, and has no link");
            assert_eq!(read(&fs, node), [7; 9000]);
        }
        while fs.operations().shrink(1000) > 0 {}
        assert!(nodes.iter().all(|node| read(&fs, node) == [7; 9000]), "{set}: memory was short");
        assert_eq!(
            (fs.usage().inodes_free, fs.stats().inodes_nameless),
            (free - FILES as u64, FILES),
            "{set}"
        );
        nodes.iter().for_each(|node| fs.release(node, 1));
        fs.sync().unwrap();
        assert_eq!((fs.usage().inodes_free, fs.stats().inodes_nameless), (free, 0), "{set}");
        assert!(fs.stats().inodes_cached <= before, "{set}");
        drop((nodes, root));
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn a_link_makes_them_findable() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
        write(&fs, &node, b"content");
        fs.link(&node, &root, b"name").unwrap();
        fs.release(&node, 1);
        assert_eq!(fs.stats().inodes_nameless, 0, "{set}");
        let found = fs.operations().node(node.ino()).unwrap();
        assert_eq!((found.generation(), found.attr().nlink), (node.generation(), 1), "{set}");
        // Both references lead to one inode: one reads the bytes that the other wrote.
        write(&fs, &found, b"changed");
        assert_eq!(read(&fs, &node), b"changed", "{set}");
        drop((node, found));
        fs.unlink(&root, b"name").unwrap();
        drop(root);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn make_findable_lets_lookups_by_number_succeed() {
    let image = FeatureSet::named("orphan_file").make_sized(32 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
    fs.operations().make_findable(&node).unwrap();
    fs.operations().make_findable(&node).unwrap();
    let ino = node.ino();
    drop(node);
    assert_eq!(
        (fs.stats().inodes_nameless, fs.operations().node(ino).unwrap().attr().nlink),
        (0, 0)
    );
    fs.link(&fs.operations().node(ino).unwrap(), &root, b"name").unwrap();
    fs.unlink(&root, b"name").unwrap();
    let node = fs.operations().node(ino).unwrap();
    fs.operations().forget(ino, 1).unwrap();
    fs.sync().unwrap();
    assert!(is_stale(&fs, ino), "it has no holder");
    assert!(fs.operations().make_findable(&node).is_err_and(|e| e.is(Errno::Stale)));
    drop((node, root));
    fs.unmount().unwrap();
    image.assert_clean();
}

/// An unlinked file gets no new name while it is open, as in the kernel. A file that was created
/// without a name gets one once.
#[test]
fn a_file_that_lost_its_name_gets_no_other() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let named = fs.create(&root, b"named", 0o600, NodeKind::File).unwrap();
        let nameless = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
        let shown = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
        fs.operations().make_findable(&shown).unwrap();
        for (node, name) in [(&nameless, &b"first"[..]), (&shown, b"shown")] {
            fs.link(node, &root, name).unwrap();
        }
        for (node, name) in [(&named, &b"named"[..]), (&nameless, b"first"), (&shown, b"shown")] {
            write(&fs, node, b"content");
            let open = fs.open_file(node, OpenFlags::default()).unwrap();
            fs.unlink(&root, name).unwrap();
            let refused = fs.link(node, &root, b"again").expect_err("it lost its last name");
            assert!(refused.is(Errno::NoEnt), "{set}: {refused}");
            assert_eq!((node.attr().nlink, read(&fs, node)), (0, b"content".to_vec()), "{set}");
            assert!(fs.resolve("/again", Follow::No).is_err_and(|e| e.is(Errno::NoEnt)), "{set}");
            drop(open);
        }
        [&nameless, &shown].into_iter().for_each(|node| fs.release(node, 1));
        drop((named, nameless, shown, root));
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Unmount ends all holds, released or not.
#[test]
fn unmount_frees_held_nameless_files() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let (free, blocks) = (fs.usage().inodes_free, fs.usage().free);
        let held: Vec<Node> = (0..20)
            .map(|_| fs.create_nameless(&Caller::default(), &root, 0o600).unwrap())
            .collect();
        held.iter().for_each(|node| write(&fs, node, &[1; 20_000]));
        let open: Vec<_> = held
            .iter()
            .step_by(2)
            .map(|n| fs.open_file(n, OpenFlags::default()).unwrap())
            .collect();
        // Of these only the number is left, and no caller knows it.
        for _ in 0..20 {
            write(
                &fs,
                &fs.create_nameless(&Caller::default(), &root, 0o600).unwrap(),
                &[2; 20_000],
            );
        }
        assert_eq!(fs.stats().inodes_nameless, 40, "{set}");
        drop(root);
        fs.unmount().unwrap();
        drop((held, open));
        image.assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        assert_eq!(fs.recovery().orphans.freed, 0, "{set}: left for the next one to free");
        assert_eq!((fs.usage().inodes_free, fs.usage().free), (free, blocks), "{set}");
        fs.unmount().unwrap();
    }
}

/// The number goes to another file while a reference to the former one still exists.
#[test]
fn an_old_reference_is_not_the_next_file() {
    for set in SETS {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let mut reused = 0;
        let mut last: Option<Node> = None;
        for round in 0..60 {
            let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
            write(&fs, &node, &[round; 100]);
            if let Some(old) = last.take_if(|old| old.ino() == node.ino()) {
                reused += 1;
                assert_ne!(old.generation(), node.generation(), "{set}");
                let gone = |e: extant_engine::Error| e.is(Errno::Stale) || e.is(Errno::NoEnt);
                assert!(
                    old.hold(1).is_err() && fs.link(&old, &root, b"old").is_err_and(gone),
                    "{set}"
                );
                assert!(fs.operations().make_findable(&old).is_err(), "{set}");
                assert!(fs.write_direct(&old, 0, &[99; 50], false).is_err(), "{set}");
                assert_eq!(fs.stats().inodes_nameless, 1, "{set}: the next one stays");
                assert_eq!(read(&fs, &node), [round; 100], "{set}");
                if round % 2 == 0 {
                    fs.link(&node, &root, format!("{round}").as_bytes()).unwrap();
                    assert_eq!(
                        fs.operations().node(node.ino()).unwrap().generation(),
                        node.generation(),
                        "{set}"
                    );
                }
            }
            fs.release(&node, 1);
            fs.sync().unwrap();
            last = Some(node);
        }
        assert!(reused > 5, "{set}: {reused} numbers were used again");
        drop((last, root));
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Two threads give a file its first name, a third one removes names, and a fourth looks it up by
/// number all the time: it finds nothing, or that file.
#[test]
fn names_come_from_two_sides() {
    let image = FeatureSet::named("orphan_file").make_sized(32 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    for _ in 0..150 {
        let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
        write(&fs, &node, &[3; 5000]);
        let start = Barrier::new(4);
        let second = std::thread::scope(|scope| {
            let link = |name: &'static [u8]| {
                let (fs, root, node, start) = (&fs, &root, &node, &start);
                scope.spawn(move || {
                    start.wait();
                    fs.link(node, root, name)
                })
            };
            let (first, second) = (link(b"one"), link(b"two"));
            scope.spawn(|| {
                start.wait();
                while fs.unlink(&root, b"one").is_err() {}
            });
            start.wait();
            while fs.stats().inodes_nameless > 0 {
                match fs.operations().node(node.ino()) {
                    Ok(found) => assert_eq!(found.generation(), node.generation()),
                    Err(e) => assert!(e.is(Errno::Stale), "{e}"),
                }
            }
            first.join().unwrap().expect("it is held, and the name is free");
            second.join().unwrap()
        });
        if let Err(e) = second {
            // The other name came and went before: there is no way back.
            assert!(e.is(Errno::NoEnt), "{e}");
            assert_eq!((node.attr().nlink, read(&fs, &node).len()), (0, 5000));
            fs.release(&node, 1);
            continue;
        }
        fs.release(&node, 1);
        assert_eq!((node.attr().nlink, read(&fs, &node).len()), (1, 5000));
        let found = fs.resolve("/two", Follow::No).unwrap();
        assert_eq!((found.ino(), found.generation()), (node.ino(), node.generation()));
        fs.unlink(&root, b"two").unwrap();
    }
    fs.sync().unwrap();
    drop(root);
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Threads make files without a name, name most of them, hold others, and sync. At each cut the
/// synced files are there, and the space of nameless files is free.
#[test]
fn nameless_files_survive_power_cuts() {
    const THREADS: u64 = 4;
    for setup in [EXT4, EXT3, QUOTA] {
        let scene = record(setup, false, |stage| {
            let root = stage.root();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (stage, root) = (&*stage, &root);
                    scope.spawn(move || {
                        let mut kept = Vec::new();
                        for i in 0..12 {
                            let data = extant_testkit::rng::Rng::new(thread << 8 | i)
                                .bytes((i * 900 + 100) as usize);
                            let node = stage
                                .fs
                                .create_nameless(&Caller::default(), root, 0o600)
                                .expect("nameless");
                            write(&stage.fs, &node, &data);
                            if i % 3 == 0 {
                                stage.fs.sync_node(&node, false).expect("fsync");
                            }
                            let name = format!("t{thread}-{i}");
                            match i % 4 {
                                0 => kept.push(node),
                                1 => stage.fs.release(&node, 1),
                                _ => {
                                    stage.fs.link(&node, root, name.as_bytes()).expect("link");
                                    stage.fs.release(&node, 1);
                                    stage.sync_file(&node, &format!("/{name}"), &data);
                                }
                            }
                        }
                        stage.fs.sync().expect("sync");
                        std::mem::forget(kept);
                    });
                }
            });
        });
        sweep(&format!("nameless on {}", setup.name), &scene, 160, 5);
    }
}
