//! A tree: unpacked, looked at cold and warm, walked, removed.

use super::Stage;
use super::archive::{Archive, Entry, What};
use crate::measure::{Done, share_out};
use crate::target::{Kind, Put, Target};
use std::io;
use std::time::Instant;

const TOP: &str = "tree";

/// Threads that look at every file at once, beside one alone.
const MANY: usize = 16;

/// Untar, stat, walk, rm -rf.
pub fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    let archive = Archive::new(TOP, stage.scale.tree_files);
    let untar = timed(archive.entries.len(), || unpack(stage.target(), &archive))?;
    stage.add("untar", 1, &untar);
    let files: Vec<&Entry> =
        archive.entries.iter().filter(|e| matches!(e.what, What::File(..))).collect();
    for threads in [1, MANY] {
        stage.running.cold()?;
        let cold = stat_all(stage.target(), &files, threads)?;
        let warm = stat_all(stage.target(), &files, threads)?;
        stage.add("stat every file of a tree, cold", threads, &cold);
        stage.add("stat every file of a tree, warm", threads, &warm);
    }
    stage.running.cold()?;
    for row in ["readdir and lstat of a tree, cold", "readdir and lstat of a tree, warm"] {
        let walk = timed(archive.entries.len(), || walk(stage.target(), TOP.as_bytes()))?;
        stage.add(row, 1, &walk);
    }
    let remove = timed(archive.entries.len(), || remove(stage.target(), TOP.as_bytes()))?;
    stage.add("rm -rf", 1, &remove);
    Ok(())
}

fn timed(ops: usize, work: impl FnOnce() -> io::Result<()>) -> io::Result<Done> {
    let start = Instant::now();
    work()?;
    Ok(Done { ops: vec![ops as u64], elapsed: start.elapsed() })
}

/// As tar(1) does it: times of directories at the end.
fn unpack(target: &dyn Target, archive: &Archive) -> io::Result<()> {
    for entry in &archive.entries {
        match &entry.what {
            What::Directory => target.mkdir(&entry.path)?,
            What::File(from, size) => {
                let data = &archive.data[*from..from + size];
                target.put(&entry.path, Put { data, mode: 0o644, mtime: Some(entry.mtime) })?;
            }
            What::Symlink(to) => {
                target.symlink(&entry.path, to)?;
                target.set_mtime(&entry.path, entry.mtime)?;
            }
        }
    }
    let dirs = archive.entries.iter().filter(|e| matches!(e.what, What::Directory));
    dirs.rev().try_for_each(|dir| target.set_mtime(&dir.path, dir.mtime))
}

fn stat_all(target: &dyn Target, files: &[&Entry], threads: usize) -> io::Result<Done> {
    share_out(threads, files.len(), |n| {
        let entry = files[n];
        match (target.stat(&entry.path)?, &entry.what) {
            (found, What::File(_, size)) if found != *size as u64 => {
                Err(io::Error::other("a file has another size"))
            }
            _ => Ok(()),
        }
    })
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

/// As find(1) with a test that needs attributes.
fn walk(target: &dyn Target, top: &[u8]) -> io::Result<()> {
    let mut dirs = vec![top.to_vec()];
    while let Some(dir) = dirs.pop() {
        for entry in target.list(&dir)? {
            let path = join(&dir, &entry.name);
            target.stat(&path)?;
            if entry.kind == Kind::Directory {
                dirs.push(path);
            }
        }
    }
    Ok(())
}

/// As rm(1) -rf. The depth is the tree's own, which is bounded.
fn remove(target: &dyn Target, dir: &[u8]) -> io::Result<()> {
    for entry in target.list(dir)? {
        let path = join(dir, &entry.name);
        match entry.kind {
            Kind::Directory => remove(target, &path)?,
            Kind::Other => target.unlink(&path)?,
        }
    }
    target.rmdir(dir)
}
