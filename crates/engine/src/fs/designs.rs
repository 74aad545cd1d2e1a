//! Tests of former designs under the whole engine: each is the one in use after its choice.

use crate::design::{
    FIND, FindWrites, InodeList, InodeLookup, LIST, LOOKED_AT, LOOKUP, REFS, RUNS, RefsDesign,
    RunsDesign,
};
use crate::{File, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_blocks::BlockDevice;
use extant_sync::levels::acquired;
use extant_testkit::{FeatureSet, Memory};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// One test at a time chooses.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device whose writes wait while they are stopped.
#[derive(Debug)]
struct Stopping {
    inner: Memory,
    stopped: AtomicBool,
    waiting: AtomicUsize,
}

impl Stopping {
    fn pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        while self.stopped.load(SeqCst) {
            thread::yield_now();
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}

impl BlockDevice for Stopping {
    extant_blocks::forward_device!(self => self.inner;
        len, name, alignment, read_only, read_exact_at, read_vectored_at, flush, discard,
        write_zeroes, next_data, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.pass();
        self.inner.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.pass();
        self.inner.write_vectored_at(bufs, offset)
    }
}

/// Opens a file system that nothing but its callers writes to.
fn opened() -> (Arc<Stopping>, Fs) {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let device = Arc::new(Stopping {
        inner: Memory::from_bytes(&image.bytes()),
        stopped: AtomicBool::new(false),
        waiting: AtomicUsize::new(0),
    });
    let options = OpenOptions::new().commit_interval(Duration::from_secs(3600));
    let fs = Fs::open_device(device.clone(), &options).unwrap();
    (device, fs)
}

fn file(fs: &Fs, name: &str, direct: bool) -> File {
    let node = fs.create(&fs.root().unwrap(), name.as_bytes(), 0o644, NodeKind::File).unwrap();
    fs.open_file(&node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
}

/// Returns the locks of a sync that has nothing to do, and the inodes that it looked at. The least
/// of some: once in a while a sync takes one lock more to count its thread.
fn clean_sync(fs: &Fs) -> (u64, u64) {
    let one = || {
        let (locks, looked) = (acquired(), LOOKED_AT.load(SeqCst));
        fs.sync().unwrap();
        (acquired() - locks, LOOKED_AT.load(SeqCst) - looked)
    };
    fs.sync().unwrap();
    (0..8).map(|_| one()).min().unwrap()
}

#[test]
fn a_sync_looks_at_the_inodes_of_the_chosen_design() {
    let _alone = alone();
    for list in [InodeList::Global, InodeList::PerFs, InodeList::Sharded] {
        LIST.set(list);
        let (_, fs) = opened();
        (0..50).for_each(|n| drop(file(&fs, &format!("f{n}"), false)));
        let eager = clean_sync(&fs);
        assert_eq!(eager.1, 0);
        let serial = |find| {
            FIND.set(find);
            clean_sync(&fs)
        };
        assert_eq!(serial(FindWrites::EagerSerial), (eager.0 + 1, 0));
        let walk = serial(FindWrites::Walk);
        assert!(walk.1 >= 50 && walk.0 > eager.0, "{list:?}: {walk:?}");
        assert_eq!(serial(FindWrites::WalkSerial), (walk.0 + 1, walk.1), "{list:?}");
        FIND.set(FindWrites::Eager);
        fs.unmount().unwrap();
    }
    LIST.set(InodeList::Table);
}

#[test]
fn a_lazy_list_keeps_inodes_until_a_sync_or_until_it_is_trimmed() {
    let _alone = alone();
    let (_, fs) = opened();
    let files: Vec<File> = (0..200).map(|n| file(&fs, &format!("f{n}"), false)).collect();
    for (find, kept) in [
        (FindWrites::Eager, 0..=0),
        (FindWrites::Lazy, 200..=200),
        (FindWrites::LazyTrimmed, 1..=64),
    ] {
        FIND.set(find);
        for file in &files {
            file.write_at(0, &[1; 4096]).unwrap();
            file.sync().unwrap();
        }
        let remembered = fs.stats().pages.writeback_files;
        assert!(kept.contains(&remembered), "{find:?}: {remembered}");
        fs.sync().unwrap();
        assert_eq!(fs.stats().pages.writeback_files, 0, "{find:?}");
    }
    FIND.set(FindWrites::Eager);
    drop(files);
    fs.unmount().unwrap();
}

#[test]
fn a_sync_of_each_design_waits_for_the_write_in_progress() {
    use FindWrites::*;
    let _alone = alone();
    let (device, fs) = opened();
    let file = file(&fs, "f", false);
    for find in [Eager, EagerSerial, Walk, WalkSerial, Lazy, LazyTrimmed] {
        file.write_at(0, &[1; 4096]).unwrap();
        fs.sync().unwrap();
        FIND.set(find);
        file.write_at(0, &[2; 4096]).unwrap();
        device.stopped.store(true, SeqCst);
        thread::scope(|scope| {
            let writer = scope.spawn(|| file.sync());
            while device.waiting.load(SeqCst) == 0 {
                thread::yield_now();
            }
            let syncer = scope.spawn(|| {
                fs.sync().unwrap();
                !device.stopped.load(SeqCst)
            });
            // Enough for a sync that waits for nothing.
            thread::sleep(Duration::from_millis(20));
            device.stopped.store(false, SeqCst);
            writer.join().unwrap().unwrap();
            assert!(syncer.join().unwrap(), "{find:?}: a sync ended before a write");
        });
        fs.sync().unwrap();
    }
    FIND.set(Eager);
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn a_lookup_takes_the_chosen_lock() {
    let _alone = alone();
    let (_, fs) = opened();
    let node = file(&fs, "f", false).node().clone();
    let (ino, number) = (node.ino(), node.0.ino);
    let locks = |lookup| {
        LOOKUP.set(lookup);
        let before = acquired();
        let node = fs.node(ino).unwrap();
        let looked = acquired() - before;
        drop(node);
        looked
    };
    let all = [InodeLookup::Epoch, InodeLookup::Sharded, InodeLookup::Global];
    assert_eq!(all.map(locks), [0, 1, 1]);
    // A change takes the lock of all beside that of its shard.
    let change = |lookup| {
        LOOKUP.set(lookup);
        let before = acquired();
        assert!(fs.vfs.inodes.release_evicted(number, 1).is_ok_and(|known| known.is_some()));
        acquired() - before
    };
    let [own, all] = [InodeLookup::Sharded, InodeLookup::Global].map(change);
    assert_eq!(all, own + 1);
    LOOKUP.set(InodeLookup::Epoch);
    drop(node);
    fs.unmount().unwrap();
}

#[test]
fn inodes_count_references_in_the_chosen_design() {
    let _alone = alone();
    let fallbacks = |design| {
        REFS.set(design);
        let (_, fs) = opened();
        let node = file(&fs, "f", false).node().clone();
        let before = fs.stats().lockref_fallbacks;
        (0..1000).for_each(|_| drop(node.clone()));
        let after = fs.stats().lockref_fallbacks;
        drop(node);
        fs.unmount().unwrap();
        after - before
    };
    // Each change of a count takes the lock, or those between one reference and two, or none.
    assert!(fallbacks(RefsDesign::Lock) >= 2000);
    assert!(fallbacks(RefsDesign::Split) >= 1000);
    assert!(fallbacks(RefsDesign::Lockref) < 1000, "other tests take locks seldom");
    REFS.set(RefsDesign::Lockref);
}

#[test]
fn preallocations_are_in_the_chosen_structure() {
    let _alone = alone();
    let looked = |design| {
        RUNS.set(design);
        let (_, fs) = opened();
        let sparse = file(&fs, "f", true);
        let before = fs.stats().prealloc;
        for n in 0..100 {
            sparse.write_at(n * (1 << 20), &[1; 4096]).unwrap();
        }
        let after = fs.stats().prealloc;
        drop(sparse);
        fs.unmount().unwrap();
        (after.visited - before.visited, after.live)
    };
    let (tree, list) = (looked(RunsDesign::Tree), looked(RunsDesign::List));
    assert_eq!(list.1, tree.1, "the same preallocations");
    assert!(tree.1 >= 50 && list.0 > 10 * tree.0, "{tree:?}, {list:?}");
    assert_eq!(looked(RunsDesign::CappedList), list, "below the cap");
    RUNS.set(RunsDesign::Tree);
}
