//! The list of all inodes, and lookups by number, under the whole engine; the list of unused inodes
//! alone; and inodes of the engine that pass through memory.

mod lru;

use super::{Chosen, Grid, open};
use crate::jobs;
use crate::side::{Setup, make_device};
use crate::target::{Engine, Target};
use extant_blocks::SparseDevice;
use extant_engine::design::{FIND, FindWrites, InodeList, InodeLookup, LIST, LOOKUP};
use extant_engine::{Caller, Follow, OpenOptions};
use extant_measure::options::Options;
use extant_measure::timing::{Limit, beside, run_threads, share_out};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Files of each tree.
const FILES: usize = 120_000;

/// Numbers of threads.
const THREADS: [usize; 4] = [1, 2, 4, 16];

/// The least memory that an engine takes, in which some thousand inodes fit.
const LITTLE: u64 = 64 << 20;

/// Where the files are.
const TOP: &str = "tree";

const LISTS: [(&str, InodeList); 3] = [
    ("global list", InodeList::Global),
    ("per-fs list", InodeList::PerFs),
    ("sharded list", InodeList::Sharded),
];

const LOOKUPS: [(&str, InodeLookup); 3] = [
    ("global lock", InodeLookup::Global),
    ("sharded lock", InodeLookup::Sharded),
    ("epoch", InodeLookup::Epoch),
];

/// Measures every design.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let _chosen = Chosen::hold();
    let files = if options.quick { FILES / 2 } else { FILES };
    let base = make_device(&Setup::for_inodes(files as u64))?;
    let little = || Tree::new(&base, &OpenOptions::new().memory(LITTLE), files);
    let (trees, whole) = ([little()?, little()?], Tree::new(&base, &OpenOptions::new(), files)?);
    let mut grids = vec![lists(options, &trees)?, lookups(options, &whole, &trees[0])?];
    grids.push(lru::grid(options)?);
    grids.push(nameless(options, &whole.engine, files / 10)?);
    grids.push(share(&trees[0]));
    let [one, two] = trees;
    [one, two, whole].into_iter().try_for_each(|tree| tree.engine.unmount())?;
    Ok(grids)
}

/// A file system with a tree of files.
struct Tree {
    engine: Engine,
    paths: Vec<Vec<u8>>,
    numbers: Vec<u64>,
    /// The next file for a walk.
    next: AtomicUsize,
}

impl Tree {
    fn new(base: &SparseDevice, options: &OpenOptions, files: usize) -> io::Result<Tree> {
        let engine = open(base, options)?;
        jobs::fill(&engine, TOP, files, 2)?;
        let mut paths = Vec::new();
        for dir in engine.list(TOP.as_bytes())? {
            let dir = [TOP.as_bytes(), b"/", &dir.name].concat();
            let names = engine.list(&dir)?;
            paths.extend(names.iter().map(|name| [&dir[..], b"/", &name.name].concat()));
        }
        let number = |path| Ok(engine.fs().resolve(path, Follow::No)?.ino());
        let numbers = paths.iter().map(number).collect::<io::Result<_>>()?;
        Ok(Tree { engine, paths, numbers, next: AtomicUsize::new(0) })
    }

    /// Looks at the attributes of an inode by its number.
    fn bulkstat(&self, n: usize) -> io::Result<()> {
        let ino = self.numbers[n % self.numbers.len()];
        let attr = self.engine.fs().node(ino)?.attr();
        if attr.ino == ino { Ok(()) } else { Err(io::Error::other("another inode was found")) }
    }

    /// Looks at the next file of all, as find(1) does with a test that needs attributes.
    fn find(&self) -> io::Result<()> {
        // Relaxed: the number itself is all that is shared.
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.engine.stat(&self.paths[n % self.paths.len()]).map(drop)
    }

    fn cached(&self) -> usize {
        self.engine.fs().stats().inodes_cached.max(1)
    }
}

/// Inodes come into memory by their numbers and leave it, in two file systems, each thread with a
/// range of its own.
fn lists(options: &Options, trees: &[Tree; 2]) -> io::Result<Grid> {
    let title = "list of all inodes: one comes and one goes";
    let mut grid = Grid::new(title, "inodes/s", &LISTS.map(|(name, _)| name), 2);
    let works = [("bulkstat through memory", false), ("the same while all are walked", true)];
    let mut rows = options.rows(&THREADS, &works);
    rows.iter_mut().for_each(|(name, _)| *name += ", 2 fs");
    options.fill(&mut grid, &rows, |&(threads, walks), design| {
        LIST.set(LISTS[design].1);
        FIND.set(if walks { FindWrites::Walk } else { FindWrites::Eager });
        for tree in trees {
            // All that are in memory afterwards came when this list was chosen.
            (0..3).for_each(|_| _ = tree.engine.fs().shrink(usize::MAX));
            (0..tree.cached() * 2).try_for_each(|n| tree.bulkstat(n))?;
        }
        let walk = |_, over: &AtomicBool| {
            // A sync looks at all inodes for those under writeback.
            while !over.load(Ordering::Relaxed) {
                trees.iter().try_for_each(|tree| tree.engine.sync())?;
                thread::yield_now();
            }
            Ok(())
        };
        beside(usize::from(walks), walk, |_| {
            let done = run_threads(threads, Limit::time(options.window()), |thread, n| {
                let tree = &trees[thread % trees.len()];
                tree.bulkstat(tree.numbers.len() / threads * thread + n as usize)
            })?;
            Ok(done.rate())
        })
    })?;
    LIST.set(InodeList::Table);
    FIND.set(FindWrites::Eager);
    Ok(grid)
}

/// Work of threads that look inodes up.
#[derive(Clone, Copy)]
enum Work {
    /// Each thread has a range of its own, and all inodes are in memory.
    Own,
    /// All threads look up the same few.
    Same,
    /// Each thread has a range of its own, and inodes come into memory and leave it.
    Through,
    /// Threads share the files of a tree that is larger than memory, by their paths.
    Find,
}

fn lookups(options: &Options, whole: &Tree, little: &Tree) -> io::Result<Grid> {
    let works = [
        ("bulkstat, all in memory", Work::Own),
        ("lookups of the same few", Work::Same),
        ("bulkstat through memory", Work::Through),
        ("find through memory", Work::Find),
    ];
    let names = LOOKUPS.map(|(name, _)| name);
    let mut grid = Grid::new("inodes by number", "inodes/s", &names, 2);
    let rows = options.rows(&THREADS, &works);
    options.fill(&mut grid, &rows, |&(threads, work), design| {
        LOOKUP.set(LOOKUPS[design].1);
        let own = |tree: &Tree, thread| tree.numbers.len() / threads * thread;
        let done = run_threads(threads, Limit::time(options.window()), |thread, n| match work {
            Work::Own => whole.bulkstat(own(whole, thread) + n as usize),
            Work::Same => whole.bulkstat(n as usize % 16),
            Work::Through => little.bulkstat(own(little, thread) + n as usize),
            Work::Find => little.find(),
        })?;
        Ok(done.rate())
    })?;
    LOOKUP.set(InodeLookup::Epoch);
    Ok(grid)
}

/// Files that are made without a name and let go at once, until all are free again: each is put
/// into the table, as a FUSE kernel wants it, or none is.
fn nameless(options: &Options, engine: &Engine, files: usize) -> io::Result<Grid> {
    let title = "the engine's files without a name";
    let mut grid = Grid::new(title, "lives/s", &["in the table", "never in it"], 1);
    let (fs, files) = (engine.fs(), files.max(64));
    let dir = fs.root()?;
    let rows = options.rows(&THREADS, &[("made and let go", ())]);
    options.fill(&mut grid, &rows, |(threads, ()), column| {
        let start = Instant::now();
        share_out(*threads, files, |_| {
            let node = fs.create_nameless(&Caller::default(), &dir, 0o600)?;
            if column == 0 {
                fs.make_findable(&node)?;
            }
            fs.release(&node, 1);
            Ok(())
        })?;
        fs.sync()?;
        let time = start.elapsed().as_secs_f64().max(1e-9);
        if fs.stats().inodes_nameless > 0 {
            return Err(io::Error::other("a file without a holder is not freed"));
        }
        Ok(files as f64 / time)
    })?;
    Ok(grid)
}

/// Returns the size of the tree relative to memory.
fn share(tree: &Tree) -> Grid {
    let columns = ["files", "in memory", "times"];
    let mut share =
        Grid::new("inodes of the tree to inodes in memory", "times", &columns, 0).plain();
    let (files, cached) = (tree.paths.len() as f64, tree.cached() as f64);
    let values = [files, cached, files / cached];
    values.into_iter().enumerate().for_each(|(column, value)| {
        share.add("after the walks", column, value);
    });
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_keeps_no_more_inodes_than_fit_into_memory() {
        let grids = grids(&Options::least(&[2])).expect("no invariant broken");
        let share = grids.last().expect("the engine's tree");
        let (_, cells) = &share.rows[0];
        assert!(cells[0][0] >= 1.5 * cells[1][0], "{cells:?}");
    }
}
