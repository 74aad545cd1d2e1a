//! A freeze against changes, files that come into memory, other freezes, and the thaw.

use super::*;
use crate::{FreezeLock, Gate, Pausable, RwLock, with_shards};
use loom::cell::UnsafeCell;

/// Bytes that the checker watches: changes must not meet a freeze there.
struct Bytes(UnsafeCell<()>);

#[expect(unsafe_code, reason = "the checker watches the cell: the model checks its exclusive use")]
// SAFETY: the freeze must ensure it, which the model checks; the cell is empty.
unsafe impl Sync for Bytes {}

/// A directory in memory.
#[derive(Clone)]
struct Dir(Arc<(RwLock<()>, Lockref)>);

impl Dir {
    fn new() -> Dir {
        Dir(Arc::new((RwLock::new(Level::Directory, ()), Lockref::new(0))))
    }
}

impl Object for Dir {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.0.1
    }
}

/// A file system: its freeze, its directories, its journal's gate, its device.
struct Fs {
    freeze: FreezeLock,
    dirs: Cache<Dir>,
    handles: Gate,
    device: Bytes,
}

const NUMBER: u32 = 1;

fn fs() -> Arc<Fs> {
    Arc::new(Fs {
        freeze: FreezeLock::default(),
        dirs: Cache::new(Level::Leaf, 1),
        handles: Gate::with_shards(8, 1),
        device: Bytes(UnsafeCell::new(())),
    })
}

impl Fs {
    /// Finds the directory, or brings it into memory.
    fn dir(&self) -> Held<Dir> {
        self.dirs.get(NUMBER).unwrap_or_else(|| {
            let shard = self.dirs.lock(NUMBER);
            if let Some(dir) = shard.get(NUMBER) {
                return dir;
            }
            let mut shard = shard;
            shard.insert(NUMBER, Dir::new()).0
        })
    }

    /// A change of the directory: its lock, and then a handle, for which it must not wait.
    fn change(&self) {
        let dir = self.dir();
        let _lock = self.freeze.lock_change(|| dir.0.0.write());
        assert_eq!(self.handles.enter(0, 1), Ok(()), "it waits for the thaw with a lock");
        self.device.0.with(|_| ());
        let _ = self.handles.leave(0, 0);
    }

    /// A freeze, while which a reader goes on and nothing changes.
    fn freeze(&self) {
        let halted = self.freeze.halt_changes(|| {
            for dir in self.dirs.all_in_shard(0) {
                drop(dir.0.0.write());
            }
        });
        self.handles.shut();
        assert!(self.handles.is_drained(), "a change is still at it");
        drop(self.dir().0.0.read());
        self.device.0.with_mut(|_| ());
        self.handles.open();
        assert!(self.freeze.is_halted(), "another freeze lets changes go on");
        drop(halted);
    }
}

/// A change that finds its directory in memory.
#[test]
fn no_change_waits_for_a_handle_with_a_lock() {
    model(|| {
        let fs = fs();
        drop(fs.dir());
        let other = fs.clone();
        let changer = thread::spawn(move || other.change());
        fs.freeze();
        changer.join().unwrap();
    });
}

/// A change that brings its directory into memory, before the freeze comes there or afterwards.
#[test]
fn a_directory_comes_into_memory_during_a_freeze() {
    model(|| {
        let fs = fs();
        let other = fs.clone();
        let changer = thread::spawn(move || other.change());
        fs.freeze();
        changer.join().unwrap();
    });
}

/// The end of a freeze lets no change into the next one: changes wait until the end of each.
#[test]
fn a_freeze_follows_another() {
    model(|| {
        let fs = fs();
        let other = fs.clone();
        let freezer = thread::spawn(move || other.freeze());
        fs.freeze();
        freezer.join().unwrap();
    });
}

/// A device that tells whether it is frozen: its changes must not find it so.
fn device() -> Arc<Pausable<Arc<AtomicBool>>> {
    // Two shards, as for two processors.
    Arc::new(with_shards(2, || Pausable::new(Arc::new(AtomicBool::new(false)))))
}

fn write(device: &Pausable<Arc<AtomicBool>>) -> bool {
    let write = |frozen: &Arc<AtomicBool>| {
        // Others may run at its beginning and in its middle.
        assert!(!frozen.load(Ordering::Relaxed) && !frozen.load(Ordering::Relaxed), "a change");
    };
    device.change(write).is_some()
}

/// Tells the device whether it is frozen, by a read, which goes on meanwhile.
fn tell(device: &Pausable<Arc<AtomicBool>>, frozen: bool) {
    assert!(device.read(|told| told.store(frozen, Ordering::Relaxed)).is_some());
}

/// Nothing changes while changes are paused, and each change is made after that.
#[test]
fn changes_wait_for_the_end_of_a_pause() {
    model(|| {
        let device = device();
        let other = device.clone();
        let writer = thread::spawn(move || assert!(write(&other)));
        device.pause();
        tell(&device, true);
        tell(&device, false);
        device.resume();
        writer.join().unwrap();
    });
}

/// A change that waits is refused when the value is taken away.
#[test]
fn a_change_that_waits_is_refused_after_the_end() {
    model(|| {
        let device = device();
        device.pause();
        tell(&device, true);
        let other = device.clone();
        let writer = thread::spawn(move || assert!(!write(&other)));
        assert!(device.revoke().is_some());
        device.resume();
        writer.join().unwrap();
    });
}
