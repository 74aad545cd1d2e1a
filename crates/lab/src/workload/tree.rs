//! A tree: unpacked, looked at cold and warm, walked, removed.

use super::{Stage, filler};
use crate::target::{Put, Target};
use extant_measure::timing::{Done, share_out};
use extant_sync::SplitMix64;
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
    let elapsed = start.elapsed();
    Ok(Done { ops: vec![ops as u64], elapsed, own: vec![elapsed] })
}

/// As tar(1) does it: times of directories at the end.
pub fn unpack(target: &dyn Target, archive: &Archive) -> io::Result<()> {
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
            if entry.is_dir {
                dirs.push(path);
            }
        }
    }
    Ok(())
}

/// As rm(1) -rf. The depth is the tree's own, which is bounded.
pub fn remove(target: &dyn Target, dir: &[u8]) -> io::Result<()> {
    for entry in target.list(dir)? {
        let path = join(dir, &entry.name);
        if entry.is_dir { remove(target, &path)? } else { target.unlink(&path)? }
    }
    target.rmdir(dir)
}

/// Largest file.
const MAX_SIZE: u64 = 256 << 10;

/// Regular files in a directory.
const FILES_IN_DIRECTORY: usize = 9;

/// Regular files for each symlink.
const FILES_PER_LINK: usize = 12;

/// Kind of an entry.
#[derive(Clone, Debug)]
pub enum What {
    Directory,
    /// A file of this many bytes, from this place of [`Archive::data`].
    File(usize, usize),
    Symlink(Vec<u8>),
}

/// One name.
#[derive(Clone, Debug)]
pub struct Entry {
    pub path: Vec<u8>,
    /// Its kind.
    pub what: What,
    /// Modification time, in seconds since 1970.
    pub mtime: i64,
}

/// A tree to be unpacked.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Entries; parents come first.
    pub entries: Vec<Entry>,
    /// Files are pieces of this.
    pub data: Vec<u8>,
}

impl Archive {
    /// Makes a tree with `files` regular files below `top`, the same each time.
    pub fn new(top: &str, files: usize) -> Archive {
        let mut random = SplitMix64::new(files as u64);
        let mut archive = Archive { entries: Vec::new(), data: filler(MAX_SIZE as usize * 2) };
        archive.add(top.into(), What::Directory);
        let mut dirs = vec![top.to_owned()];
        for n in 0..files {
            if n % FILES_IN_DIRECTORY == 0 {
                // Parents among the recent ones: a tree that is neither flat nor a chain.
                let span = dirs.len().min(40) as u64;
                let parent = &dirs[dirs.len() - 1 - random.below(span) as usize];
                let depth = parent.bytes().filter(|b| *b == b'/').count();
                let parent = if depth > 8 { &dirs[0] } else { parent };
                let dir = format!("{parent}/dir{n}");
                archive.add(dir.clone().into(), What::Directory);
                dirs.push(dir);
            }
            let dir = &dirs[dirs.len() - 1];
            let size = size(&mut random);
            let from = random.below(MAX_SIZE) as usize;
            archive.add(format!("{dir}/file{n}.dat").into(), What::File(from, size));
            if n % FILES_PER_LINK == 0 {
                archive.add(
                    format!("{dir}/link{n}").into(),
                    What::Symlink(format!("file{n}.dat").into()),
                );
            }
        }
        archive
    }

    fn add(&mut self, path: Vec<u8>, what: What) {
        let mtime = 1_500_000_000 + self.entries.len() as i64;
        self.entries.push(Entry { path, what, mtime });
    }
}

/// Sizes in even shares of each power of two, few large ones: about 10 KiB on average.
fn size(random: &mut SplitMix64) -> usize {
    let bits = random.below(10) + 6;
    let wide = if random.below(40) == 0 { bits + 3 } else { bits };
    ((1 << wide) + random.below(1 << wide)).min(MAX_SIZE) as usize
}

#[cfg(test)]
mod archive_tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn parents_come_first_and_names_once() {
        let archive = Archive::new("tree", 3000);
        let mut seen: HashSet<&[u8]> = HashSet::new();
        for entry in &archive.entries {
            if let Some(at) = entry.path.iter().rposition(|b| *b == b'/') {
                assert!(
                    seen.contains(&entry.path[..at]),
                    "{}",
                    String::from_utf8_lossy(&entry.path)
                );
            }
            assert!(seen.insert(&entry.path));
        }
    }

    #[test]
    fn files_lie_within_the_data_and_have_a_usual_size() {
        let archive = Archive::new("tree", 3000);
        let mut total = 0;
        for entry in &archive.entries {
            if let What::File(from, size) = entry.what {
                assert!(from + size <= archive.data.len());
                total += size;
            }
        }
        let mean = total / 3000;
        assert!((6_000..20_000).contains(&mean), "{mean}");
    }
}
