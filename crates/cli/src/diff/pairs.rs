//! Two trees walked together: pairs of entries at the same path, in the order of their names.
//!
//! # Invariants
//! A directory is entered once in each tree, and no deeper than [`MAX_DEPTH`]: every walk ends. It
//! needs memory for one path, for the entries of the directories on the way down, and a number for
//! each directory.
//!
//! A name of one tree is alone only if the other directory was read completely. Entries that cannot
//! be read are problems, and no pairs.

use crate::copy::tree::{LOST_AND_FOUND, Member, is_empty_lost_and_found};
use crate::walk::{Listing, MAX_DEPTH, TOO_DEEP, list};
use extant_engine::{Attr, DirEntry, FileType, Fs, Node};
use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::vec::IntoIter;

/// The inode of an entry.
#[derive(Debug)]
pub struct Found {
    /// The inode.
    pub node: Node,
    /// Its attributes.
    pub attr: Attr,
}

impl Found {
    fn of(node: Node) -> Found {
        Found { attr: node.attr(), node }
    }

    /// Returns whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.attr.ftype == FileType::Directory
    }
}

/// The entries of two trees at one path.
#[derive(Debug)]
pub struct Pair {
    /// The path.
    pub member: Arc<Member>,
    /// Levels below the tops.
    pub depth: usize,
    /// The entry of each tree; at least one is there.
    pub sides: [Option<Found>; 2],
    /// Whether both are directories, and the second one has other names only: no name of the first
    /// one, which has some, is left.
    pub is_replaced: bool,
    /// Whether the directory of this entry is such a pair.
    pub is_below_replaced: bool,
}

/// A failed read of one of the trees.
#[derive(Debug)]
pub struct Fault {
    /// The tree.
    pub side: usize,
    /// The reason.
    pub text: String,
}

impl Fault {
    /// Makes a function that turns errors of one tree into faults.
    pub fn of<E: ToString>(side: usize) -> impl Fn(E) -> Fault {
        move |error| Fault { side, text: error.to_string() }
    }
}

/// An entry that cannot be read.
#[derive(Debug)]
pub struct Problem {
    /// The path.
    pub path: Vec<u8>,
    /// The tree and the reason.
    pub fault: Fault,
}

/// A directory on the way down.
struct Level {
    member: Arc<Member>,
    entries: [IntoIter<DirEntry>; 2],
    /// Whether all names of each directory are known.
    is_complete: [bool; 2],
    is_replaced: bool,
}

impl Level {
    /// Returns the entries of the next name. A name of one tree is left out if the other tree may
    /// have it in a part of the directory that cannot be read.
    fn next(&mut self) -> Option<[Option<DirEntry>; 2]> {
        loop {
            let [a, b] = &mut self.entries;
            let order = match (a.as_slice().first(), b.as_slice().first()) {
                (Some(a), Some(b)) => a.name.cmp(&b.name),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return None,
            };
            let names = [
                if order.is_le() { a.next() } else { None },
                if order.is_ge() { b.next() } else { None },
            ];
            match order {
                Ordering::Less if !self.is_complete[1] => {}
                Ordering::Greater if !self.is_complete[0] => {}
                _ => return Some(names),
            }
        }
    }
}

/// A walk over two trees, directories before their content.
pub struct PairWalk<'a> {
    fs: [&'a Fs; 2],
    /// The pair of the tops, until the first step.
    tops: Option<Pair>,
    levels: Vec<Level>,
    entered: [HashSet<u64>; 2],
    problems: VecDeque<Problem>,
}

impl<'a> PairWalk<'a> {
    /// Makes a walk from two tops on, which have the name `name`.
    pub fn new(fs: [&'a Fs; 2], tops: [Node; 2], name: &[u8]) -> PairWalk<'a> {
        let tops = Pair {
            member: Member::new(None, name),
            depth: 0,
            sides: tops.map(|node| Some(Found::of(node))),
            is_replaced: false,
            is_below_replaced: false,
        };
        let (levels, entered, problems) = Default::default();
        PairWalk { fs, tops: Some(tops), levels, entered, problems }
    }

    /// Returns the next path, or the next entry that cannot be read, if there is one.
    pub fn step(&mut self) -> Option<Result<Pair, Problem>> {
        if let Some(tops) = self.tops.take() {
            return Some(Ok(self.found(tops)));
        }
        loop {
            if let Some(problem) = self.problems.pop_front() {
                return Some(Err(problem));
            }
            let Some(names) = self.levels.last_mut()?.next() else {
                self.levels.pop();
                continue;
            };
            if let Some(pair) = self.pair(names) {
                return Some(Ok(self.found(pair)));
            }
        }
    }

    /// Leaves out everything below the pair of the last step, which must have a directory.
    pub fn leave(&mut self) {
        self.levels.pop();
        self.problems.clear();
    }

    /// Looks up the inodes of a name. `None` if nothing is to be told of it, or only problems.
    fn pair(&mut self, names: [Option<DirEntry>; 2]) -> Option<Pair> {
        let level = self.levels.last()?;
        let name = names.iter().flatten().next()?.name.clone();
        let member = Member::new(Some(level.member.clone()), &name);
        let (depth, is_below_replaced) = (self.levels.len(), level.is_replaced);
        let mut sides = [None, None];
        for (side, entry) in names.into_iter().enumerate() {
            let Some(entry) = entry else { continue };
            match self.fs[side].node(entry.ino) {
                Ok(node) => sides[side] = Some(Found::of(node)),
                Err(error) => {
                    let fault = Fault { side, text: error.to_string() };
                    self.problems.push_back(Problem { path: member.path(), fault });
                }
            }
        }
        if !self.problems.is_empty() {
            return None;
        }
        Some(Pair { member, depth, sides, is_replaced: false, is_below_replaced })
    }

    /// Enters the directories of a pair.
    fn found(&mut self, mut pair: Pair) -> Pair {
        if !pair.sides.iter().flatten().any(Found::is_directory) {
            return pair;
        }
        let mut is_complete = [true; 2];
        let [a, b] = [0, 1].map(|side| {
            let listing = self.enter(side, &pair);
            is_complete[side] = listing.problems.is_empty();
            self.problems.extend(
                listing
                    .problems
                    .into_iter()
                    .map(|text| Problem { path: pair.member.path(), fault: Fault { side, text } }),
            );
            listing.entries
        });
        let both = pair.sides.iter().flatten().filter(|found| found.is_directory()).count() == 2;
        let is_replaced = both && is_complete == [true; 2] && !a.is_empty() && are_disjoint(&a, &b);
        pair.is_replaced = is_replaced;
        let entries = [a, b].map(Vec::into_iter);
        self.levels.push(Level { member: pair.member.clone(), entries, is_complete, is_replaced });
        pair
    }

    /// Lists a directory; nothing if the tree has none there.
    fn enter(&mut self, side: usize, pair: &Pair) -> Listing {
        let Some(found) = pair.sides[side].as_ref().filter(|found| found.is_directory()) else {
            return Listing::default();
        };
        if pair.depth >= MAX_DEPTH {
            return Listing::problem(TOO_DEEP);
        }
        if !self.entered[side].insert(found.attr.ino) {
            return Listing::problem(
                "this directory was met before: the tree has a loop, or two names for it",
            );
        }
        let fs = self.fs[side];
        let mut listing = list(fs, &found.node);
        if pair.depth == 0 && fs.root().is_ok_and(|root| root.ino() == found.attr.ino) {
            listing.entries.retain(|entry| {
                let is_empty = |node| is_empty_lost_and_found(fs, &entry.name, &node);
                entry.name != LOST_AND_FOUND || !fs.node(entry.ino).is_ok_and(is_empty)
            });
        }
        listing
    }
}

/// Returns whether two sorted lists have no name in common.
fn are_disjoint(a: &[DirEntry], b: &[DirEntry]) -> bool {
    let mut rest = b.iter().peekable();
    a.iter().all(|entry| {
        while rest.next_if(|other| other.name < entry.name).is_some() {}
        rest.peek().is_none_or(|other| other.name != entry.name)
    })
}
