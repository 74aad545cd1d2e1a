//! Walking a tree of an image.
//!
//! # Invariants
//! A directory is entered once, whatever the image says, and no deeper than [`MAX_DEPTH`]: every
//! walk ends. It needs memory for one path, for the entries of the directories on the way down, and
//! a number for each directory.

use crate::text::shown;
use extant_engine::{DirEntry, FileType, Fs, Node};
use std::collections::HashSet;

/// Levels that a walk goes down.
pub const MAX_DEPTH: usize = 2048;

/// The message for directories below that.
pub const TOO_DEEP: &str =
    "more than 2048 levels deep; name a directory further down to go on from there";

/// Something found on a walk.
#[derive(Debug)]
pub struct Item {
    /// Last component.
    pub name: Vec<u8>,
    /// Levels below the top.
    pub depth: usize,
    /// Whether it is the last entry of its directory.
    pub last: bool,
    /// The inode.
    pub node: Node,
}

/// A step of a walk. [`Walk::path`] gives the path that it concerns.
#[derive(Debug)]
pub enum Step {
    /// A file, or a directory that is entered next.
    Found(Item),
    /// A directory that was found before, after everything in it.
    Left(Item),
    /// Something that could not be read, and why.
    Problem(String),
}

/// A directory on the way down.
struct Level {
    item: Item,
    entries: std::vec::IntoIter<DirEntry>,
    /// Bytes of the directory's path.
    path_len: usize,
}

/// A walk from a top down, directories before their content, names in order.
pub struct Walk<'a> {
    fs: &'a Fs,
    levels: Vec<Level>,
    entered: HashSet<u64>,
    path: Vec<u8>,
    top: Option<Node>,
    /// The directory that was returned last and is entered next.
    next: Option<Item>,
    /// Problems of the directory entered last, the last one first.
    problems: Vec<String>,
    max_depth: usize,
}

impl<'a> Walk<'a> {
    /// Makes a walk from `top` on, at most `max_depth` levels down.
    pub fn new(fs: &'a Fs, top: Node, max_depth: Option<usize>) -> Walk<'a> {
        Walk {
            fs,
            levels: Vec::new(),
            entered: HashSet::new(),
            path: Vec::new(),
            top: Some(top),
            next: None,
            problems: Vec::new(),
            max_depth: max_depth.unwrap_or(usize::MAX),
        }
    }

    /// Returns the path of the last step's entry below the top; empty for the top itself.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the directory of the last step's entry; `None` for the top.
    pub fn dir(&self) -> Option<&Node> {
        self.levels.last().map(|level| &level.item.node)
    }

    /// Returns the next step, if there is one.
    pub fn step(&mut self) -> Option<Step> {
        if let Some(node) = self.top.take() {
            return Some(self.found(Item { name: Vec::new(), depth: 0, last: true, node }));
        }
        if let Some(item) = self.next.take() {
            self.enter(item);
        }
        if let Some(problem) = self.problems.pop() {
            return Some(Step::Problem(problem));
        }
        let depth = self.levels.len();
        let level = self.levels.last_mut()?;
        self.path.truncate(level.path_len);
        let Some(entry) = level.entries.next() else {
            return self.levels.pop().map(|level| Step::Left(level.item));
        };
        let last = level.entries.as_slice().is_empty();
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&entry.name);
        match self.fs.node(entry.ino) {
            Ok(node) => Some(self.found(Item { name: entry.name, depth, last, node })),
            Err(e) => Some(Step::Problem(e.to_string())),
        }
    }

    fn found(&mut self, item: Item) -> Step {
        if item.node.file_type() == FileType::Directory {
            self.next = Some(Item { name: item.name.clone(), node: item.node.clone(), ..item });
        }
        Step::Found(item)
    }

    fn enter(&mut self, item: Item) {
        let depth = self.levels.len();
        let Listing { entries, mut problems } = if depth >= self.max_depth {
            Listing::default()
        } else if depth >= MAX_DEPTH {
            Listing::problem(TOO_DEEP)
        } else if !self.entered.insert(item.node.ino()) {
            Listing::problem(
                "this directory was met before: the tree has a loop, or two names for it",
            )
        } else {
            list(self.fs, &item.node)
        };
        problems.reverse();
        self.problems = problems;
        self.levels.push(Level { item, entries: entries.into_iter(), path_len: self.path.len() });
    }
}

/// The entries of a directory that can be used, and the reasons why others cannot.
#[derive(Debug, Default)]
pub struct Listing {
    /// Entries in the order of their names. Each name occurs once.
    pub entries: Vec<DirEntry>,
    /// Each entry is one message.
    pub problems: Vec<String>,
}

impl Listing {
    /// Makes a listing without entries, for a directory that is not listed.
    pub fn problem(text: &str) -> Listing {
        Listing { entries: Vec::new(), problems: vec![text.into()] }
    }
}

/// Lists a directory, without `.` and `..`. Damage costs the entries that it affects only.
pub fn list(fs: &Fs, dir: &Node) -> Listing {
    let mut listing = Listing::default();
    let read = fs.read_dir_from(dir, 0, |e| {
        if e.name != b"." && e.name != b".." {
            let (name, ino) = (e.name.to_vec(), u64::from(e.ino.0));
            listing.entries.push(DirEntry { name, ino, ftype: e.ftype, next: e.next });
        }
        true
    });
    listing.problems.extend(read.err().map(|e| e.to_string()));
    listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut repeated: Option<Vec<u8>> = None;
    let before = listing.entries.len();
    listing.entries.dedup_by(|later, first| {
        let same = later.name == first.name;
        if same && repeated.is_none() {
            repeated = Some(first.name.clone());
        }
        same
    });
    if let Some(name) = repeated {
        let left_out = before - listing.entries.len();
        listing.problems.push(format!(
            "corrupt: the name {} occurs more than once; entries left out for repeated names: \
            {left_out}",
            shown(&name)
        ));
    }
    listing
}
