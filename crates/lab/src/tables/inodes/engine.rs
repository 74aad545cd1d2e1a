//! The engine as a whole: inodes by number, files without a name, and a tree whose inodes do not
//! all fit into memory.

use super::THREADS;
use crate::jobs;
use crate::measure::{Limit, run_threads, share_out};
use crate::options::Options;
use crate::side::{Setup, make_device};
use crate::tables::Grid;
use crate::target::{Engine, Target, io_error};
use extant_blocks::SparseDevice;
use extant_engine::{Caller, Follow, Fs, OpenOptions};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The least memory that an engine takes, in which some thousand inodes fit.
const LITTLE: u64 = 64 << 20;

/// Where the files are.
const TOP: &str = "tree";

/// Inodes a second, and how much of the tree is in memory.
pub fn grids(options: &Options, files: usize) -> io::Result<Vec<Grid>> {
    let base = make_device(&Setup::for_inodes(files as u64))?;
    let engine = open(&base, OpenOptions::new())?;
    jobs::fill(&engine, TOP, files, 2)?;
    let mut rates = Grid::new("the engine", "inodes/s", &["rate"], 0).plain();
    bulkstat(options, &engine, &mut rates)?;
    let nameless = nameless(options, &engine, files / 10)?;
    engine.unmount()?;

    let engine = open(&base, OpenOptions::new().memory(LITTLE))?;
    jobs::fill(&engine, TOP, files, 2)?;
    let mut share = Grid::new(
        "inodes of the tree to inodes in memory",
        "times",
        &["files", "in memory", "times"],
        0,
    )
    .plain();
    find(options, &engine, files, (&mut rates, &mut share))?;
    engine.unmount()?;
    Ok(vec![rates, nameless, share])
}

fn open(base: &SparseDevice, options: OpenOptions) -> io::Result<Engine> {
    Fs::open_device(Arc::new(base.fork()), &options).map(Engine::new).map_err(io_error)
}

/// Directories of the tree.
fn dirs(engine: &Engine) -> io::Result<Vec<Vec<u8>>> {
    let names = engine.list(TOP.as_bytes())?;
    Ok(names.iter().map(|dir| [TOP.as_bytes(), b"/", &dir.name].concat()).collect())
}

/// Attributes by number, each thread a range of its own; all inodes are in memory.
fn bulkstat(options: &Options, engine: &Engine, grid: &mut Grid) -> io::Result<()> {
    let mut numbers = Vec::new();
    for dir in dirs(engine)? {
        for name in engine.list(&dir)? {
            let path = [dir.as_slice(), b"/", &name.name].concat();
            numbers.push(engine.fs().resolve(path, Follow::No).map_err(io_error)?.ino());
        }
    }
    let rows = options.rows(&THREADS, &[("bulkstat by number", ())]);
    options.fill(grid, &rows, |(threads, ()), _| {
        let range = numbers.len().div_ceil(*threads);
        let done = run_threads(*threads, Limit::time(options.window()), |thread, n| {
            let own = numbers.chunks(range).nth(thread).unwrap_or(&numbers);
            let ino = own[n as usize % own.len()];
            let attr = engine.fs().node(ino).map_err(io_error)?.attr();
            if attr.ino == ino { Ok(()) } else { Err(io::Error::other("another inode was found")) }
        })?;
        Ok(done.rate())
    })
}

/// Files that are made without a name and let go at once, until all are free again: each is put
/// into the table, as a FUSE kernel wants it, or none is.
fn nameless(options: &Options, engine: &Engine, files: usize) -> io::Result<Grid> {
    let title = "the engine's files without a name";
    let mut grid = Grid::new(title, "lives/s", &["in the table", "never in it"], 1);
    let (fs, files) = (engine.fs(), files.max(64));
    let dir = fs.root().map_err(io_error)?;
    let rows = options.rows(&THREADS, &[("made and let go", ())]);
    options.fill(&mut grid, &rows, |(threads, ()), column| {
        let start = Instant::now();
        share_out(*threads, files, |_| {
            let node = fs.create_nameless(&Caller::default(), &dir, 0o600).map_err(io_error)?;
            if column == 0 {
                fs.make_findable(&node).map_err(io_error)?;
            }
            fs.release(&node, 1);
            Ok(())
        })?;
        fs.sync().map_err(io_error)?;
        let time = start.elapsed().as_secs_f64().max(1e-9);
        if fs.stats().inodes_nameless > 0 {
            return Err(io::Error::other("a file without a holder is not freed"));
        }
        Ok(files as f64 / time)
    })?;
    Ok(grid)
}

/// Lists all directories and looks at each file, as find(1) does with a test that needs attributes.
fn find(
    options: &Options,
    engine: &Engine,
    files: usize,
    (rates, share): (&mut Grid, &mut Grid),
) -> io::Result<()> {
    let dirs = dirs(engine)?;
    for _ in 0..options.runs(9, 2) {
        for &threads in options.threads(&THREADS) {
            let done = share_out(threads, dirs.len(), |n| {
                let names = engine.list(&dirs[n])?;
                names.iter().try_for_each(|name| {
                    engine.stat(&[dirs[n].as_slice(), b"/", &name.name].concat()).map(drop)
                })
            })?;
            let rate = files as f64 / done.elapsed.as_secs_f64().max(1e-9);
            rates.add(&format!("find through {} MiB, {threads} threads", LITTLE >> 20), 0, rate);
        }
        let cached = engine.fs().stats().inodes_cached.max(1);
        for (column, value) in
            [(0, files as f64), (1, cached as f64), (2, files as f64 / cached as f64)]
        {
            share.add("after the walks", column, value);
        }
    }
    Ok(())
}
