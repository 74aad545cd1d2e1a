//! Ways to find the inodes whose pages are being written.

use extant_sync::{Level, Link, Mutex, ShardedList};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An inode, as far as writing it matters.
#[derive(Debug, Default)]
pub struct Inode {
    /// Odd while its pages are being written; goes up with each start and each end.
    writes: AtomicU64,
    link: Link,
    /// Whether it is on a list that it leaves late.
    listed: AtomicBool,
}

impl Inode {
    fn is_written(&self) -> bool {
        self.writes.load(Ordering::SeqCst) % 2 == 1
    }

    /// How often its pages were begun and ended to be written.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// It is on no list: those of another design are gone.
    pub fn forget(&self) {
        self.listed.store(false, Ordering::SeqCst);
    }

    /// Waits for the writes in progress.
    fn wait(&self) {
        let seen = self.writes();
        while seen % 2 == 1 && self.writes() == seen {
            std::thread::yield_now();
        }
    }
}

/// Knows the inodes being written.
pub trait Written: Sync {
    /// Pages begin to be written; one thread does that to one inode.
    fn start(&self, inode: &Arc<Inode>) {
        inode.writes.fetch_add(1, Ordering::SeqCst);
        self.started(inode);
    }

    /// They are written.
    fn end(&self, inode: &Arc<Inode>) {
        inode.writes.fetch_add(1, Ordering::SeqCst);
        self.ended(inode);
    }

    /// Remembers it.
    fn started(&self, inode: &Arc<Inode>);

    /// Forgets it, at once or later.
    fn ended(&self, inode: &Arc<Inode>);

    /// Waits for everything that was being written at the call.
    fn sync(&self);

    /// Runs the periodic trimming pass.
    fn trim(&self) {}

    /// How many are remembered.
    fn remembered(&self) -> usize;
}

/// Looks at every inode there is, under the list's lock: Linux before 4.8.
pub struct WalkAll(pub Mutex<Vec<Arc<Inode>>>);

impl WalkAll {
    /// Over all inodes.
    pub fn new(inodes: &[Arc<Inode>]) -> Self {
        WalkAll(Mutex::new(Level::Lru, inodes.to_vec()))
    }
}

impl Written for WalkAll {
    fn started(&self, _: &Arc<Inode>) {}

    fn ended(&self, _: &Arc<Inode>) {}

    fn sync(&self) {
        let written: Vec<Arc<Inode>> =
            self.0.lock().iter().filter(|inode| inode.is_written()).cloned().collect();
        written.iter().for_each(|inode| inode.wait());
    }

    fn remembered(&self) -> usize {
        self.0.lock().len()
    }
}

/// A list that inodes join with the first page written and leave when a sync, or a trimming pass,
/// comes by: proposed in 2013.
pub struct Lazy {
    list: Mutex<Vec<Arc<Inode>>>,
    trims: bool,
}

impl Lazy {
    /// Makes an empty list, trimmed or not.
    pub fn new(trims: bool) -> Self {
        Lazy { list: Mutex::new(Level::Lru, Vec::new()), trims }
    }

    /// Removes the inodes that are not being written, and returns the others.
    fn prune(&self) -> Vec<Arc<Inode>> {
        let mut list = self.list.lock();
        list.retain(|inode| {
            // This thread clears the flag first and then reads the count again; a writer that
            // starts counts first and then reads the flag. All of these accesses are SeqCst, so one
            // of the two sees the other.
            let stays = inode.is_written();
            inode.listed.store(stays, Ordering::SeqCst);
            stays || inode.is_written() && !inode.listed.swap(true, Ordering::SeqCst)
        });
        list.clone()
    }
}

impl Written for Lazy {
    fn started(&self, inode: &Arc<Inode>) {
        let mut list = None;
        while !inode.listed.load(Ordering::SeqCst) {
            let list = list.get_or_insert_with(|| self.list.lock());
            if !inode.listed.swap(true, Ordering::SeqCst) {
                list.push(inode.clone());
            }
        }
    }

    fn ended(&self, _: &Arc<Inode>) {}

    fn sync(&self) {
        self.prune().iter().for_each(|inode| inode.wait());
    }

    fn trim(&self) {
        if self.trims {
            self.prune();
        }
    }

    fn remembered(&self) -> usize {
        self.list.lock().len()
    }
}

/// A sharded list that inodes leave as soon as their last page is written: Linux since 4.8, but for
/// the shards, and the engine.
pub struct Eager(ShardedList<()>);

impl Eager {
    /// Makes an empty list.
    pub fn new() -> Self {
        Eager(ShardedList::new(Level::Lru))
    }
}

impl Written for Eager {
    fn started(&self, inode: &Arc<Inode>) {
        self.0.add(&inode.link, || ());
    }

    fn ended(&self, inode: &Arc<Inode>) {
        self.0.remove(&inode.link);
    }

    fn sync(&self) {
        if !self.0.is_empty() {
            self.0.wait_gone(&self.0.arrived());
        }
    }

    fn remembered(&self) -> usize {
        self.0.len()
    }
}

/// One sync after the other over another design.
pub struct Serial<W> {
    inner: W,
    turn: Mutex<()>,
}

impl<W> Serial<W> {
    /// Over `inner`.
    pub fn new(inner: W) -> Self {
        Serial { inner, turn: Mutex::new(Level::FsState, ()) }
    }
}

impl<W: Written> Written for Serial<W> {
    fn started(&self, inode: &Arc<Inode>) {
        self.inner.started(inode);
    }

    fn ended(&self, inode: &Arc<Inode>) {
        self.inner.ended(inode);
    }

    fn sync(&self) {
        let _turn = self.turn.lock();
        self.inner.sync();
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn remembered(&self) -> usize {
        self.inner.remembered()
    }
}
