//! Jobs that change nothing.

use super::{Job, Size, ensure_dir, ensure_file};
use crate::target::{How, Target};
use extant_measure::timing::Limit;
use std::io;

const DIRS: [&[u8]; 5] =
    [b"one", b"one/two", b"one/two/three", b"one/two/three/four", b"one/two/three/four/five"];
pub const PATH: &[u8] = b"one/two/three/four/five/six";

/// Three steps down, and up again.
pub const UP: &[u8] = b"one/two/three/../../..";

/// Files of the directory whose files are looked at one after the other.
const FILES: usize = 1000;

/// Directories of the tree that is walked, and files in each.
const TREE: (usize, usize) = (32, 32);

/// The same operation of all threads, by the path of six components.
pub fn one<'a>(
    target: &'a dyn Target,
    size: &Size,
    look: fn(&dyn Target) -> io::Result<u64>,
) -> io::Result<Job<'a>> {
    DIRS.into_iter().try_for_each(|dir| ensure_dir(target, dir))?;
    ensure_file(target, PATH)?;
    Ok(Job::new(Limit::time(size.window), move |_, _| look(target).map(drop)))
}

fn names(target: &dyn Target, dir: &str, files: usize) -> io::Result<Vec<Vec<u8>>> {
    ensure_dir(target, dir.as_bytes())?;
    let names: Vec<_> = (0..files).map(|n| format!("{dir}/file{n}").into_bytes()).collect();
    if target.stat(&names[0]).is_err() {
        names.iter().try_for_each(|name| target.create(name))?;
    }
    Ok(names)
}

/// Where a thread begins among `count`, and how it goes on: all look at all, and seldom at the same
/// at once.
fn turn(thread: usize, n: u64, count: usize) -> usize {
    (thread * 61 + n as usize) % count
}

/// open(2) and close(2) of different files.
pub fn open<'a>(target: &'a dyn Target, _threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let names = names(target, "look", FILES)?;
    Ok(Job::new(Limit::time(size.window), move |t, n| {
        target.open(&names[turn(t, n, names.len())], How::Read).map(drop)
    }))
}

/// stat(2) of different files of one directory.
pub fn stat_files<'a>(target: &'a dyn Target, _threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let names = names(target, "look", FILES)?;
    Ok(Job::new(Limit::time(size.window), move |t, n| {
        target.stat(&names[turn(t, n, names.len())]).map(drop)
    }))
}

/// As find(1) with a test that needs attributes: each operation lists a directory and looks at each
/// of its files.
pub fn walk<'a>(target: &'a dyn Target, _threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let dirs = (0..TREE.0).map(|d| format!("walk/d{d}"));
    ensure_dir(target, b"walk")?;
    let dirs: Vec<Vec<u8>> = dirs
        .map(|dir| names(target, &dir, TREE.1).map(|_| dir.into_bytes()))
        .collect::<io::Result<_>>()?;
    Ok(Job::new(Limit::time(size.window), move |t, n| {
        let dir = &dirs[turn(t, n, dirs.len())];
        let mut path = [dir.as_slice(), b"/"].concat();
        for entry in target.list(dir)? {
            path.truncate(dir.len() + 1);
            path.extend_from_slice(&entry.name);
            target.stat(&path)?;
        }
        Ok(())
    }))
}
