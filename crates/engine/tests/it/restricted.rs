//! Walks on behalf of a user, while other threads give and take the permission to search.

use extant_engine::{
    Caller, Follow, Fs, Node, NodeKind, OpenOptions, RenameFlags, SetAttr, XattrMode,
};
use extant_testkit::{Ending, FeatureSet, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ACCESS: &[u8] = b"system.posix_acl_access";
const USER: Caller<'static> = Caller { uid: 1002, gid: 1002, groups: &[], umask: 0 };
const ROOT: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[], umask: 0 };

/// Ways to restrict a directory, each with a way back.
const WAYS: u64 = 8;

/// Rounds of each writer; `ROUNDS` replaces them.
const ROUNDS: u64 = 160;

/// Returns an ACL with this permission of the user, `other` for all others, and a mask.
fn acl(user: u16, other: u16) -> Vec<u8> {
    let entries =
        [(1u16, 7u16, u32::MAX), (2, user, 1002), (4, 5, u32::MAX), (16, 5, 0), (32, other, 0)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
}

/// A directory `name` in the root, with a file `f`, that one thread restricts and opens.
struct Toggled {
    name: String,
    /// Odd while the user may not search it.
    phase: AtomicU64,
    /// Walks that found it restricted for their whole time, and walks that reached the file.
    denied: AtomicU64,
    reached: AtomicU64,
}

fn chmod(fs: &Fs, dir: &Node, mode: u16) {
    fs.set_attr(dir, &SetAttr { mode: Some(mode), ..Default::default() }).unwrap();
}

fn set(fs: &Fs, dir: &Node, name: &[u8], value: &[u8]) {
    fs.set_xattr(dir, name, value, XattrMode::Any).unwrap();
}

fn make(fs: &Fs, at: (&Node, &[u8]), mode: u16) -> Node {
    let dir = fs.create_as(&ROOT, at, mode, NodeKind::Dir).unwrap();
    fs.create_as(&ROOT, (&dir, b"f"), 0o644, NodeKind::File).unwrap();
    dir
}

fn remove(fs: &Fs, root: &Node, name: &[u8]) {
    let dir = fs.lookup(root, name).unwrap();
    fs.unlink(&dir, b"f").unwrap();
    fs.rmdir(root, name).unwrap();
}

/// Restricts the directory, or opens it again, in one of [`WAYS`].
fn turn(fs: &Fs, root: &Node, (name, spare): (&[u8], &[u8]), (way, restrict): (u64, bool)) {
    let dir = || fs.lookup(root, name).unwrap();
    match (way, restrict) {
        (0, true) => chmod(fs, &dir(), 0o750),
        (1, true) => set(fs, &dir(), ACCESS, &acl(0, 5)),
        (2, true) => {
            set(fs, &dir(), b"user.a", &[7; 300]);
            set(fs, &dir(), ACCESS, &acl(0, 5));
        }
        (3, _) => fs.rename((root, name), (root, spare), RenameFlags::EXCHANGE).unwrap(),
        (4, true) => {
            remove(fs, root, name);
            make(fs, (root, name), 0o700);
        }
        // The first ACL allows the user alone to search, and its removal forbids it.
        (5, true) => {
            set(fs, &dir(), ACCESS, &acl(5, 0));
            fs.remove_xattr(&dir(), ACCESS).unwrap();
        }
        // An ACL that says no more than a mode.
        (6, true) => {
            let minimal = acl(0, 0);
            let minimal = [&minimal[..12], &minimal[20..28], &minimal[36..]].concat();
            set(fs, &dir(), ACCESS, &minimal);
        }
        (7, true) => {
            chmod(fs, &dir(), 0o711);
            chmod(fs, &dir(), 0o710);
        }
        (1 | 2, false) => fs.remove_xattr(&dir(), ACCESS).unwrap(),
        _ => chmod(fs, &dir(), 0o755),
    }
}

/// Waits for three more of these walks.
fn wait_for(count: &AtomicU64, stop: &AtomicBool) {
    let before = count.load(Ordering::Relaxed);
    while count.load(Ordering::Relaxed) < before + 3 && !stop.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

fn toggle(fs: &Fs, dir: &Toggled, (rounds, stop): (u64, &AtomicBool)) {
    let root = fs.root().unwrap();
    let (name, spare) = (dir.name.as_bytes(), format!("spare-{}", dir.name));
    let names = (name, spare.as_bytes());
    drop(make(fs, (&root, names.0), 0o755));
    drop(make(fs, (&root, names.1), 0o700));
    for way in (0..rounds).map(|round| round % WAYS) {
        turn(fs, &root, names, (way, true));
        dir.phase.fetch_add(1, Ordering::SeqCst);
        wait_for(&dir.denied, stop);
        dir.phase.fetch_add(1, Ordering::SeqCst);
        turn(fs, &root, names, (way, false));
        wait_for(&dir.reached, stop);
    }
}

/// Walks until told to stop.
fn walk(fs: &Fs, dirs: &[Toggled], stop: &AtomicBool) {
    // A walk that panics ends the others.
    let (mut n, _ending) = (0, Ending(stop));
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let dir = &dirs[n % dirs.len()];
        let (shape, method) = (n / dirs.len() % 4, n / dirs.len() / 4 % 3);
        let path = match shape {
            0 => format!("/{}/f", dir.name),
            1 => format!("/{}/./f", dir.name),
            2 => format!("/open/../{}/f", dir.name),
            _ => format!("/open/to-{}/f", dir.name),
        };
        let phase = dir.phase.load(Ordering::SeqCst);
        let found = match method {
            0 => fs.stat_as(&USER, &path, Follow::No).map(drop),
            1 => fs.resolve_as(&USER, &path, Follow::No).map(drop),
            _ => fs.resolve_parent_as(&USER, path.as_bytes()).map(drop),
        };
        let errno = found.map_or_else(|e| e.errno(), |()| 0);
        assert!([0, 2, 13].contains(&errno), "{path}: {errno}");
        if phase % 2 == 1 && dir.phase.load(Ordering::SeqCst) == phase {
            assert_eq!(errno, 13, "{path}, way {}", phase / 2 % WAYS);
            dir.denied.fetch_add(1, Ordering::Relaxed);
        } else if errno == 0 {
            dir.reached.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A walk that begins after a restriction ends with EACCES, until the restriction is lifted.
#[test]
fn no_walk_passes_a_directory_after_its_restriction() {
    let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
    let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
    let rounds = std::env::var("ROUNDS").map_or(ROUNDS, |n| n.parse().unwrap());
    let root = fs.root().unwrap();
    chmod(&fs, &root, 0o755);
    let open = fs.create_as(&ROOT, (&root, b"open"), 0o755, NodeKind::Dir).unwrap();
    let dirs = ["a", "b", "c"].map(|name| {
        let (to, link) = (format!("../{name}"), format!("to-{name}"));
        let kind = NodeKind::Symlink(to.as_bytes());
        fs.create_as(&ROOT, (&open, link.as_bytes()), 0o777, kind).unwrap();
        let zero = || AtomicU64::new(0);
        Toggled { name: name.into(), phase: zero(), denied: zero(), reached: zero() }
    });
    let stop = AtomicBool::new(false);
    let (shared, ends) = (&fs, &stop);
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| walk(shared, &dirs, ends))));
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                shared.shrink(8);
                std::thread::yield_now();
            }
        });
        let toggling =
            dirs.each_ref().map(|dir| scope.spawn(move || toggle(shared, dir, (rounds, ends))));
        let ended = toggling.map(|thread| thread.join());
        ends.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|toggled| toggled.unwrap());
    });
    drop((root, open));
    fs.unmount().unwrap();
}
