//! Walking a tree of an image.
//!
//! # Invariants
//! A directory is entered once, whatever the image says, and no deeper than [`MAX_DEPTH`]: every walk ends, and needs memory
//! for the entries of the directories on the way only, and a number for each directory.

use crate::image::join;
use extant::{DirEntry, FileType, Fs, Node};
use std::collections::HashSet;
use std::fmt::Display;

/// Levels that a walk goes down.
pub const MAX_DEPTH: usize = 2048;

/// Something found on a walk.
#[derive(Debug)]
pub struct Item {
    /// Path below the top; empty for the top itself.
    pub path: Vec<u8>,
    /// Last component.
    pub name: Vec<u8>,
    /// Levels below the top.
    pub depth: usize,
    /// Whether it is the last entry of its directory.
    pub last: bool,
    /// The inode.
    pub node: Node,
}

/// What could not be read on a walk.
#[derive(Debug)]
pub struct Obstacle {
    /// Path below the top.
    pub path: Vec<u8>,
    /// Why.
    pub error: String,
}

struct Level {
    entries: std::vec::IntoIter<DirEntry>,
    path: Vec<u8>,
}

/// A walk from a top down, directories before their content, names in order.
pub struct Walk<'a> {
    fs: &'a Fs,
    levels: Vec<Level>,
    entered: HashSet<u64>,
    first: Option<Item>,
    /// A directory that was handed out and is entered next.
    next: Option<(Node, Vec<u8>)>,
    max_depth: usize,
}

impl<'a> Walk<'a> {
    /// A walk from `top` on, at most `max_depth` levels down.
    pub fn new(fs: &'a Fs, top: Node, max_depth: Option<usize>) -> Walk<'a> {
        let first = Item { path: Vec::new(), name: Vec::new(), depth: 0, last: true, node: top };
        let max_depth = max_depth.unwrap_or(usize::MAX);
        Walk { fs, levels: Vec::new(), entered: HashSet::new(), first: Some(first), next: None, max_depth }
    }

    fn enter(&mut self, dir: &Node, path: Vec<u8>) -> Result<(), Obstacle> {
        if self.levels.len() >= self.max_depth {
            return Ok(());
        }
        if self.levels.len() >= MAX_DEPTH {
            return Err(obstacle(path, "deeper than directories are followed"));
        }
        if !self.entered.insert(dir.ino()) {
            return Err(obstacle(path, "this directory was met before: the tree has a loop, or two names for it"));
        }
        match entries(self.fs, dir) {
            Ok(found) => self.levels.push(Level { entries: found.into_iter(), path }),
            Err(e) => return Err(obstacle(path, e)),
        }
        Ok(())
    }

    fn found(&mut self, entry: DirEntry, depth: usize, dir: &[u8], last: bool) -> Result<Item, Obstacle> {
        let path = join(dir, &entry.name);
        let node = match self.fs.node(entry.ino) {
            Ok(node) => node,
            Err(e) => return Err(obstacle(path, e)),
        };
        if node.file_type() == FileType::Directory {
            self.next = Some((node.clone(), path.clone()));
        }
        Ok(Item { path, name: entry.name, depth, last, node })
    }
}

fn obstacle(path: Vec<u8>, error: impl Display) -> Obstacle {
    Obstacle { path, error: error.to_string() }
}

/// The entries of a directory in the order of their names, less those that cannot be names.
pub fn entries(fs: &Fs, dir: &Node) -> extant::Result<Vec<DirEntry>> {
    let mut found = fs.read_dir(dir)?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

impl Iterator for Walk<'_> {
    type Item = Result<Item, Obstacle>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            if first.node.file_type() == FileType::Directory {
                self.next = Some((first.node.clone(), Vec::new()));
            }
            return Some(Ok(first));
        }
        if let Some((dir, path)) = self.next.take()
            && let Err(obstacle) = self.enter(&dir, path)
        {
            return Some(Err(obstacle));
        }
        loop {
            let depth = self.levels.len();
            let level = self.levels.last_mut()?;
            let Some(entry) = level.entries.next() else {
                self.levels.pop();
                continue;
            };
            let (last, dir) = (level.entries.as_slice().is_empty(), level.path.clone());
            return Some(self.found(entry, depth, &dir, last));
        }
    }
}
