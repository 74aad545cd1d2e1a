//! Making, looking at and deleting many files, each thread in directories of its own.

use super::{Stage, filler};
use crate::measure::{Limit, run_threads};
use crate::target::{How, Put, Target};
use std::io;

/// Files in a directory.
const IN_DIRECTORY: usize = 500;

/// The names that each thread uses.
struct Names {
    dirs: Vec<Vec<u8>>,
    files: Vec<Vec<Vec<u8>>>,
}

impl Names {
    fn new(top: &str, threads: usize, count: usize) -> Names {
        let mut names = Names { dirs: vec![top.into()], files: Vec::new() };
        let each = count / threads;
        for t in 0..threads {
            names.dirs.push(format!("{top}/t{t}").into());
            names.dirs.extend(
                (0..each.div_ceil(IN_DIRECTORY)).map(|d| format!("{top}/t{t}/d{d}").into()),
            );
            let name = |i: usize| format!("{top}/t{t}/d{}/file{i}", i / IN_DIRECTORY).into_bytes();
            names.files.push((0..each).map(name).collect());
        }
        names
    }

    /// Returns the n-th file of a thread, from the start again behind the last of `made`.
    fn of(&self, thread: usize, n: u64, made: &[u64]) -> &[u8] {
        &self.files[thread][(n % made[thread].max(1)) as usize]
    }

    fn make_dirs(&self, target: &dyn Target) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| target.mkdir(dir))?;
        target.sync()
    }
}

/// Empty files.
pub fn empty(stage: &mut Stage<'_>) -> io::Result<()> {
    [1, 2, 16].into_iter().try_for_each(|threads| empty_with(stage, threads))
}

fn empty_with(stage: &mut Stage<'_>, threads: usize) -> io::Result<()> {
    let names = Names::new(&format!("empty{threads}"), threads, stage.scale.files);
    names.make_dirs(stage.target())?;
    let create = |target: &dyn Target, path: &[u8]| target.create(path);
    let made = fill(stage, "create empty files", threads, &names, create)?;
    let window = Limit::time(stage.scale.window);
    let target = stage.target();
    let stat = run_threads(threads, window, |t, n| target.stat(names.of(t, n, &made)).map(drop))?;
    let open = run_threads(threads, window, |t, n| {
        target.open(names.of(t, n, &made), How::Read).map(drop)
    })?;
    stage.add("stat files, warm", threads, &stat);
    stage.add("open and close files", threads, &open);
    delete(stage, "delete empty files", threads, &names, &made)
}

/// Files of 4 KiB.
pub fn small(stage: &mut Stage<'_>) -> io::Result<()> {
    [1, 16].into_iter().try_for_each(|threads| small_with(stage, threads))
}

fn small_with(stage: &mut Stage<'_>, threads: usize) -> io::Result<()> {
    let names = Names::new(&format!("small{threads}"), threads, stage.scale.files / 2);
    names.make_dirs(stage.target())?;
    let data = filler(4096);
    let put = |target: &dyn Target, path: &[u8]| {
        target.put(path, Put { data: &data, mode: 0o644, mtime: None })
    };
    let made = fill(stage, "create 4 KiB files", threads, &names, put)?;
    delete(stage, "delete 4 KiB files", threads, &names, &made)
}

/// Makes the files; how many each thread made before the time was over.
fn fill<F>(
    stage: &mut Stage<'_>,
    row: &'static str,
    threads: usize,
    names: &Names,
    make: F,
) -> io::Result<Vec<u64>>
where
    F: Fn(&dyn Target, &[u8]) -> io::Result<()> + Sync,
{
    let limit = Limit { ops: names.files[0].len() as u64, time: stage.scale.cap };
    let target = stage.target();
    let done = run_threads(threads, limit, |t, n| make(target, &names.files[t][n as usize]))?;
    target.sync()?;
    stage.add(row, threads, &done);
    Ok(done.ops)
}

fn delete(
    stage: &mut Stage<'_>,
    row: &'static str,
    threads: usize,
    names: &Names,
    made: &[u64],
) -> io::Result<()> {
    let target = stage.target();
    let most = made.iter().copied().max().unwrap_or(0);
    let limit = Limit { ops: most, time: stage.scale.cap };
    let mut done = run_threads(threads, limit, |t, n| {
        if n < made[t] { target.unlink(&names.files[t][n as usize]) } else { Ok(()) }
    })?;
    done.ops.iter_mut().zip(made).for_each(|(ops, made)| *ops = (*ops).min(*made));
    target.sync()?;
    stage.add(row, threads, &done);
    Ok(())
}
