//! Walks upward while directories move: `..` in paths, and parents.

use extant_engine::{Errno, Follow, Fs, Node, NodeKind, OpenOptions, RenameFlags};
use extant_testkit::{FeatureSet, Image};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Moves of each directory.
const ROUNDS: u64 = 400;

/// Two directories that move among three.
struct Storm {
    fs: Fs,
    parents: [Node; 3],
    /// The number of the file `own` of each parent.
    own: [u64; 3],
    moved: [Node; 2],
    /// A directory in the first of these.
    below: Node,
    /// Twice the moves of each that ended, and one more during a move.
    changes: [AtomicU64; 2],
    /// Movers that are not done.
    movers: AtomicU64,
}

impl Storm {
    fn new(image: &Image, options: &OpenOptions) -> Storm {
        let fs = Fs::open(image.path(), options).unwrap();
        let root = fs.root().unwrap();
        let dir = |at, name: &str| fs.create(at, name.as_bytes(), 0o755, NodeKind::Dir).unwrap();
        let parents = ["p0", "p1", "p2"].map(|name| dir(&root, name));
        let own =
            [0, 1, 2].map(|n| fs.create(&parents[n], b"own", 0o644, NodeKind::File).unwrap().ino());
        let moved = ["m0", "m1"].map(|name| dir(&parents[0], name));
        let below = dir(&moved[0], "below");
        let (changes, movers) = (Default::default(), AtomicU64::new(2));
        Storm { fs, parents, own, moved, below, changes, movers }
    }

    fn is_over(&self) -> bool {
        self.movers.load(Ordering::Acquire) == 0
    }

    /// Moves one of the two directories from parent to parent.
    fn keep_moving(&self, nr: usize) {
        let (name, changes) = (format!("m{nr}"), &self.changes[nr]);
        for round in 0..ROUNDS as usize {
            let from = (&self.parents[round % 3], name.as_bytes());
            let to = (&self.parents[(round + 1) % 3], name.as_bytes());
            changes.fetch_add(1, Ordering::SeqCst);
            self.fs.rename(from, to, RenameFlags::empty()).unwrap();
            changes.fetch_add(1, Ordering::SeqCst);
            if round % 16 == 0 {
                self.fs.shrink(50);
            }
            thread::yield_now();
        }
        self.movers.fetch_sub(1, Ordering::AcqRel);
    }

    /// A path down to a directory that moves and up again leads to the parent of its begin.
    fn keep_walking(&self, way: &str) {
        let mut found = 0;
        while !self.is_over() || found == 0 {
            for (nr, own) in self.own.iter().enumerate() {
                let path = format!("/p{nr}/{way}/own");
                let seen = match found % 2 {
                    0 => self.fs.resolve(&path, Follow::Yes).map(|node| node.ino()),
                    _ => self.fs.stat(&path, Follow::Yes).map(|attr| attr.ino),
                };
                match seen {
                    Ok(ino) => {
                        assert_eq!(ino, *own, "{path}");
                        found += 1;
                    }
                    Err(e) => assert!(e.is(Errno::NoEnt), "{path}: {e}"),
                }
            }
        }
    }

    /// The parent between two moves is that of the last one.
    fn keep_asking(&self, nr: usize) {
        let (moved, changes, mut quiet) = (&self.moved[nr], &self.changes[nr], 0);
        while !self.is_over() || quiet == 0 {
            let before = changes.load(Ordering::SeqCst);
            let parent = match quiet % 2 {
                0 => self.fs.parent(moved).unwrap(),
                _ => self.fs.lookup(moved, b"..").unwrap(),
            };
            assert!(self.parents.iter().any(|known| known.ino() == parent.ino()));
            if changes.load(Ordering::SeqCst) == before && before % 2 == 0 {
                quiet += 1;
                let expected = &self.parents[(before / 2) as usize % 3];
                assert_eq!(parent.ino(), expected.ino(), "after {} moves", before / 2);
            }
            assert_eq!(self.fs.parent(&self.below).unwrap().ino(), self.moved[0].ino());
        }
    }
}

fn storm(options: &OpenOptions) {
    let image = FeatureSet::named("default").make();
    let storm = Storm::new(&image, options);
    thread::scope(|scope| {
        for nr in 0..2 {
            let storm = &storm;
            scope.spawn(move || storm.keep_moving(nr));
            scope.spawn(move || storm.keep_asking(nr));
        }
        for way in ["m0/..", "m1/./..", "m0/below/../.."] {
            let storm = &storm;
            scope.spawn(move || storm.keep_walking(way));
        }
    });
    let Storm { fs, .. } = storm;
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn ways_up_agree_with_renames() {
    storm(&OpenOptions::new());
}

/// As below a FUSE mount, where the kernel knows names.
#[test]
fn ways_up_agree_with_renames_without_names_in_memory() {
    storm(&OpenOptions::new().remember_names(false));
}

/// Both directories get another parent at once, and the parent of each is known before.
#[test]
fn an_exchange_changes_both_parents() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let dir = |at, name: &[u8]| fs.create(at, name, 0o755, NodeKind::Dir).unwrap();
    let (a, b) = (dir(&root, b"a"), dir(&root, b"b"));
    let (x, y) = (dir(&a, b"x"), dir(&b, b"y"));
    let parents = || [&x, &y].map(|dir| fs.parent(dir).unwrap().ino());
    assert_eq!(parents(), [a.ino(), b.ino()]);
    fs.rename((&a, b"x"), (&b, b"y"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(parents(), [b.ino(), a.ino()]);
    fs.rename((&b, b"y"), (&root, b"x"), RenameFlags::empty()).unwrap();
    assert_eq!(parents(), [root.ino(), a.ino()]);
    assert_eq!(fs.resolve("/x/../a/x/../../b/..", Follow::No).unwrap().ino(), root.ino());
    // The old parent goes, and its number may be another inode's.
    fs.rmdir(&root, b"b").unwrap();
    assert_eq!(parents(), [root.ino(), a.ino()]);
    assert_eq!(fs.parent(&root).unwrap().ino(), root.ino());
    drop((root, a, b, x, y));
    fs.unmount().unwrap();
    image.assert_clean();
}
