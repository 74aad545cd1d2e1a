//! The list of all inodes: one for all file systems, one for each, one in shards.
//!
//! Bulkstat reads inodes by number, each thread a range of its own, and they pass through memory:
//! each comes to the list, and the one that came `bound` before goes. A walk over all (as for
//! quota, or dropping caches) may go on at the same time.

use super::THREADS;
use crate::linked::Linked;
use crate::measure::{Limit, run_threads};
use crate::options::Options;
use crate::tables::Grid;
use extant_sync::list_lru::{Answer, Link, ListLru};
use extant_sync::{Level, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The designs: before 2015, since then, and as proposed in 2013 and used here.
const DESIGNS: [&str; 3] = ["global list", "per-fs list", "sharded list"];

/// File systems that threads use in turn.
const FILE_SYSTEMS: usize = 2;

/// All inodes of file systems.
trait AllInodes: Sync {
    /// An inode's place.
    type Place: Send;

    fn add(&self, fs: usize, ino: u32) -> Self::Place;
    fn remove(&self, fs: usize, place: Self::Place);
    /// Calls for some inodes of a file system: how many.
    fn visit(&self, fs: usize) -> usize;
    fn len(&self) -> usize;
}

/// One lock for all, or one for each file system.
struct Lists(Vec<Mutex<Linked<u32>>>);

impl Lists {
    fn new(count: usize) -> Self {
        Lists((0..count).map(|_| Mutex::new(Level::Lru, Linked::new())).collect())
    }

    fn of(&self, fs: usize) -> &Mutex<Linked<u32>> {
        &self.0[fs % self.0.len()]
    }
}

impl AllInodes for Lists {
    type Place = usize;

    fn add(&self, fs: usize, ino: u32) -> usize {
        self.of(fs).lock().add(ino)
    }

    fn remove(&self, fs: usize, place: usize) {
        self.of(fs).lock().remove(place);
    }

    fn visit(&self, fs: usize) -> usize {
        // Looks at everything, as walkers did that held the lock.
        self.of(fs).lock().iter().count()
    }

    fn len(&self) -> usize {
        self.0.iter().map(|list| list.lock().len()).sum()
    }
}

/// Shards of each file system's list, chosen by the thread.
struct Sharded(Vec<ListLru<u32>>);

/// Items that a walk looks at before it lets go of a shard's lock.
const STRIDE: usize = 256;

impl AllInodes for Sharded {
    type Place = Box<Link>;

    fn add(&self, fs: usize, ino: u32) -> Box<Link> {
        let link = Box::new(Link::new());
        self.0[fs].add(&link, ino);
        link
    }

    fn remove(&self, fs: usize, link: Box<Link>) {
        self.0[fs].del(&link);
    }

    fn visit(&self, fs: usize) -> usize {
        let list = &self.0[fs];
        let stride = |shard| {
            let mut budget = list.count_in(shard);
            let mut seen = 0;
            while budget > 0 {
                let mut part = budget.min(STRIDE);
                // Examined inodes become the newest, so that the next stride continues behind them.
                list.walk(shard, &mut part, |_, _| {
                    seen += 1;
                    Answer::Rotate
                });
                budget -= budget.min(STRIDE);
            }
            seen
        };
        (0..list.shards()).map(stride).sum()
    }

    fn len(&self) -> usize {
        self.0.iter().map(ListLru::count).sum()
    }
}

/// Measures every design.
pub fn grid(options: &Options, bound: u32) -> io::Result<Grid> {
    let mut grid = Grid::new("list of all inodes: one comes and one goes", "inodes/s", &DESIGNS, 2);
    let works = [("bulkstat through memory", false), ("the same while all are walked", true)];
    let mut rows = options.rows(&THREADS, &works);
    rows.iter_mut().for_each(|(name, _)| *name += &format!(", {FILE_SYSTEMS} fs"));
    options.fill(&mut grid, &rows, |&(threads, walks), design| {
        let how = (threads, bound, walks, options.window());
        match design {
            0 => cycle(&Lists::new(1), how),
            1 => cycle(&Lists::new(FILE_SYSTEMS), how),
            _ => cycle(&Sharded((0..FILE_SYSTEMS).map(|_| ListLru::new()).collect()), how),
        }
    })?;
    Ok(grid)
}

fn cycle<L: AllInodes>(
    list: &L,
    (threads, bound, walks, window): (usize, u32, bool, Duration),
) -> io::Result<f64> {
    let each = (bound as usize / threads).max(1);
    let held: Vec<_> =
        (0..threads).map(|_| std::sync::Mutex::new(VecDeque::with_capacity(each))).collect();
    for (thread, places) in held.iter().enumerate() {
        let mut places = places.lock().map_err(|_| io::Error::other("poisoned"))?;
        places.extend((0..each as u32).map(|ino| list.add(thread % FILE_SYSTEMS, ino)));
    }
    let over = AtomicBool::new(!walks);
    let seen = AtomicU64::new(0);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let found: usize = (0..FILE_SYSTEMS).map(|fs| list.visit(fs)).sum();
                seen.fetch_add(found as u64, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let done = run_threads(threads, Limit::time(window), |thread, n| {
            // Uncontended: each thread has its own.
            let mut places = held[thread].lock().map_err(|_| io::Error::other("poisoned"))?;
            let fs = thread % FILE_SYSTEMS;
            places.push_back(list.add(fs, n as u32));
            places.pop_front().into_iter().for_each(|oldest| list.remove(fs, oldest));
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        done
    })?;
    if list.len() == each * threads {
        Ok(done.rate())
    } else {
        Err(io::Error::other("inodes were lost"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_all_inodes_but_the_removed() {
        fn check<L: AllInodes>(list: &L) {
            let mut places: Vec<_> = (0..100).map(|ino| list.add(0, ino)).collect();
            assert_eq!((list.len(), list.visit(0)), (100, 100));
            places.drain(..50).for_each(|place| list.remove(0, place));
            places.push(list.add(0, 7));
            assert_eq!((list.len(), list.visit(0)), (51, 51));
        }
        check(&Lists::new(1));
        check(&Lists::new(FILE_SYSTEMS));
        check(&Sharded((0..FILE_SYSTEMS).map(|_| ListLru::new()).collect()));
    }
}
