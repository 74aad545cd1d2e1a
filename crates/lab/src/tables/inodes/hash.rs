//! The table of inodes by number: one lock for all, a lock for each shard, no lock for lookups.

use super::THREADS;
use crate::measure::{Limit, run_threads};
use crate::options::Options;
use crate::tables::Grid;
use extant_sync::cache::{Cache, Held, OnEvict};
use extant_sync::lockref::Lockref;
use extant_sync::{Level, Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const DESIGNS: [&str; 3] = ["global lock", "sharded lock", "epoch"];

/// Locks of the sharded table, and of the engine's for changes.
const SHARDS: usize = 64;

/// Inodes that workloads do not find are this far from those that are there.
const ABSENT: u32 = 1 << 30;

/// An inode, as far as it matters here.
struct Inode {
    ino: u32,
    refs: Lockref,
    _rest: [u64; 24],
}

impl Inode {
    fn new(ino: u32) -> Inode {
        Inode { ino, refs: Lockref::new(0), _rest: [0; 24] }
    }
}

/// A table by number.
trait ByNumber: Sync {
    /// Gets the inode of a number, reads its own number, and drops the reference. Returns that
    /// number.
    fn look(&self, ino: u32) -> Option<u32>;
    fn insert(&self, ino: u32);
    fn remove(&self, ino: u32) -> bool;
    fn len(&self) -> usize;
}

type Map = FxHashMap<u32, Arc<Inode>>;

struct Global(Mutex<Map>);

impl ByNumber for Global {
    fn look(&self, ino: u32) -> Option<u32> {
        let found = self.0.lock().get(&ino).cloned();
        found.map(|inode| inode.ino)
    }

    fn insert(&self, ino: u32) {
        let inode = Arc::new(Inode::new(ino));
        self.0.lock().insert(ino, inode);
    }

    fn remove(&self, ino: u32) -> bool {
        let gone = self.0.lock().remove(&ino);
        gone.is_some()
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

struct Sharded(Vec<RwLock<Map>>);

impl Sharded {
    fn shard(&self, ino: u32) -> &RwLock<Map> {
        &self.0[ino as usize % SHARDS]
    }
}

impl ByNumber for Sharded {
    fn look(&self, ino: u32) -> Option<u32> {
        let found = self.shard(ino).read().get(&ino).cloned();
        found.map(|inode| inode.ino)
    }

    fn insert(&self, ino: u32) {
        let inode = Arc::new(Inode::new(ino));
        self.shard(ino).write().insert(ino, inode);
    }

    fn remove(&self, ino: u32) -> bool {
        let gone = self.shard(ino).write().remove(&ino);
        gone.is_some()
    }

    fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.read().len()).sum()
    }
}

struct Epoch(Cache<Arc<Inode>>);

impl OnEvict for Inode {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.refs
    }

    fn depart(&self) {}
}

impl ByNumber for Epoch {
    fn look(&self, ino: u32) -> Option<u32> {
        self.0.get(ino).map(|inode| inode.ino)
    }

    fn insert(&self, ino: u32) {
        let (_held, before) = self.0.lock(ino).insert(ino, Arc::new(Inode::new(ino)));
        drop(before);
    }

    fn remove(&self, ino: u32) -> bool {
        let gone = self.0.lock(ino).remove_if(ino, |count, _| count == 0);
        gone.is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn designs() -> [Box<dyn ByNumber>; 3] {
    let map = || RwLock::new(Level::InodeCacheShard, Map::default());
    [
        Box::new(Global(Mutex::new(Level::InodeCacheShard, Map::default()))),
        Box::new(Sharded((0..SHARDS).map(|_| map()).collect())),
        Box::new(Epoch(Cache::new(Level::InodeCacheShard, SHARDS))),
    ]
}

/// Workload of the threads.
#[derive(Clone, Copy)]
enum Work {
    /// Each looks up a range of its own.
    Own,
    /// All look up the same few.
    Same,
    /// Each inserts and removes in a range of its own; one operation is an inode's life.
    Churn,
    /// As find(1) over ten times the inodes that fit: look up, insert a missing inode, remove the
    /// oldest one.
    Find,
}

const WORKS: [(&str, Work); 4] = [
    ("bulkstat, all in memory", Work::Own),
    ("lookups of the same few", Work::Same),
    ("inodes created and evicted", Work::Churn),
    ("find over 10 times the bound", Work::Find),
];

/// Measures every design.
pub fn grid(options: &Options, bound: u32) -> io::Result<Grid> {
    let mut grid = Grid::new("inodes by number", "inodes/s", &DESIGNS, 2);
    let rows = options.rows(&THREADS, &WORKS);
    options.fill(&mut grid, &rows, |(threads, work), design| {
        measure(&*designs()[design], *work, (*threads, bound), options.window())
    })?;
    Ok(grid)
}

fn measure(
    table: &dyn ByNumber,
    work: Work,
    (threads, bound): (usize, u32),
    window: Duration,
) -> io::Result<f64> {
    let each = (bound / threads as u32).max(16);
    let base = |thread: usize| thread as u32 * (each * 16);
    for thread in 0..threads {
        (0..each).for_each(|n| table.insert(base(thread) + n));
    }
    let done = run_threads(threads, Limit::time(window), |thread, n| match work {
        Work::Own => found(table, base(thread) + n as u32 % each),
        Work::Same => found(table, n as u32 % 16),
        Work::Churn => {
            let ino = ABSENT + base(thread) + n as u32 % each;
            table.insert(ino);
            if table.remove(ino) {
                Ok(())
            } else {
                Err(io::Error::other("an inode is gone that no thread removed"))
            }
        }
        Work::Find => find(table, base(thread), each, n as u32),
    })?;
    if table.len() == (each as usize) * threads {
        Ok(done.rate())
    } else {
        Err(io::Error::other("inodes were lost"))
    }
}

fn found(table: &dyn ByNumber, ino: u32) -> io::Result<()> {
    match table.look(ino) {
        Some(own) if own == ino => Ok(()),
        _ => Err(io::Error::other(format!("inode {ino} is there and was not found"))),
    }
}

/// The n-th inode of a round over ten times `each`; `each` of them are in memory.
fn find(table: &dyn ByNumber, base: u32, each: u32, n: u32) -> io::Result<()> {
    let around = each * 10;
    let ino = base + (n + each) % around;
    if table.look(ino).is_some() {
        return Err(io::Error::other(format!("inode {ino} was found and cannot be there")));
    }
    table.insert(ino);
    if table.remove(base + n % around) {
        Ok(())
    } else {
        Err(io::Error::other("the oldest inode is not there"))
    }
}

/// Inodes without lookups by number: they enter the table nevertheless, or never.
pub fn skip_grid(options: &Options, bound: u32) -> io::Result<Grid> {
    let title = "inodes that nobody looks up by number";
    let mut grid = Grid::new(title, "lives/s", &["in the table", "never in it"], 1);
    let each = bound.max(16);
    let rows = options.rows(&THREADS, &[("made and given back", ())]);
    options.fill(&mut grid, &rows, |(threads, ()), column| {
        let table = Epoch(Cache::new(Level::InodeCacheShard, SHARDS));
        let done = run_threads(*threads, Limit::time(options.window()), |thread, n| {
            let ino = thread as u32 * each + n as u32 % each;
            if column == 1 {
                drop(Held::unlisted(ino, Arc::new(Inode::new(ino))));
                return Ok(());
            }
            table.insert(ino);
            if table.remove(ino) { Ok(()) } else { Err(io::Error::other("an inode is gone")) }
        })?;
        Ok(done.rate())
    })?;
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A design with a defect: removed inodes stay.
    struct Keeping(Sharded);

    impl ByNumber for Keeping {
        fn look(&self, ino: u32) -> Option<u32> {
            self.0.look(ino)
        }

        fn insert(&self, ino: u32) {
            self.0.insert(ino);
        }

        fn remove(&self, ino: u32) -> bool {
            self.0.look(ino).is_some()
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    #[test]
    fn a_table_that_keeps_removed_inodes_is_refused() {
        let map = || RwLock::new(Level::InodeCacheShard, Map::default());
        let table = Keeping(Sharded((0..SHARDS).map(|_| map()).collect()));
        let window = Duration::from_millis(5);
        let refused = measure(&table, Work::Churn, (1, 64), window).expect_err("inodes stay");
        assert!(refused.to_string().contains("inodes were lost"), "{refused}");
    }
}
