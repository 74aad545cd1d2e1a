//! The entries of a tree in the order of their names, read ahead by several threads.
//!
//! # Invariants
//! An inode may have more names than it counts links, so all inodes but directories are remembered:
//! each is read once, and its further names are links.

use super::job::Job;
use crate::ordered;
use crate::walk::{Item, Step, Walk, list};
use extant_engine::{Attr, FileType, Fs, Node};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Bytes of content up to which one thread reads a file as one task.
pub const SMALL: u64 = 1 << 20;

/// Cost of an entry besides its content, in bytes: a bound on records that are read ahead.
const ENTRY: u64 = 32 << 10;

/// Cost of all entries that are read ahead, in bytes.
pub const AHEAD: u64 = 32 << 20;

/// The directory that mkfs makes for e2fsck.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A name by its last component and the directory above it. Whole paths of a deep tree would take
/// memory in proportion to the square of its depth.
#[derive(Debug)]
pub struct Member {
    above: Option<Arc<Member>>,
    name: Box<[u8]>,
}

impl Member {
    /// Makes a name below a directory; without one, that of the top.
    pub fn new(above: Option<Arc<Member>>, name: &[u8]) -> Arc<Member> {
        Arc::new(Member { above, name: name.into() })
    }

    /// Makes the name of `item`, found below the directories `above` in a tree whose top is `name`.
    fn of(item: &Item, above: &[Arc<Member>], name: &[u8]) -> Arc<Member> {
        let own = if item.depth == 0 { name } else { &item.name };
        Member::new(above.last().cloned(), own)
    }

    /// Returns the directory above; `None` for the top.
    pub fn above(&self) -> Option<&Arc<Member>> {
        self.above.as_ref()
    }

    /// Returns the last component.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the path from the top on, with the name of the top.
    pub fn path(&self) -> Vec<u8> {
        let mut names = vec![&*self.name];
        let mut at = self;
        while let Some(above) = &at.above {
            names.push(&above.name);
            at = above;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// An entry of a tree.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub member: Arc<Member>,
    /// Levels below the top.
    pub depth: usize,
    /// Its inode.
    pub node: Node,
    /// Its attributes.
    pub attr: Attr,
    /// Whether this is a further name of an inode.
    pub again: bool,
}

impl Entry {
    /// Returns the path from the top on.
    pub fn path(&self) -> Vec<u8> {
        self.member.path()
    }

    /// Returns the memory that the entry takes at most when it is read ahead, in bytes.
    pub fn cost(&self) -> u64 {
        let has_content = !self.again && self.attr.ftype == FileType::Regular;
        ENTRY + if has_content { self.attr.size.min(SMALL) } else { 0 }
    }
}

/// A tree of an image.
pub struct Tree<'a> {
    /// The image.
    pub fs: &'a Fs,
    /// The top of the tree.
    pub top: Node,
    /// The name of the top.
    pub name: &'a [u8],
    /// Counts entries, and reports failures.
    pub job: &'a Job<'a>,
}

impl Tree<'_> {
    /// Calls `work` for each entry, by the threads of the job, and `consume` for each with its
    /// result, in order.
    ///
    /// # Errors
    /// Those of `consume`. An entry that cannot be read is a problem of the job.
    pub fn each<R: Send>(
        &self,
        work: impl Fn(&Entry) -> R + Sync,
        mut consume: impl FnMut(Entry, R) -> io::Result<()>,
    ) -> io::Result<()> {
        ordered::run(
            (self.job.threads(), AHEAD),
            |entry| {
                let result = work(&entry);
                (entry, result)
            },
            |(entry, result)| consume(entry, result),
            |pusher| self.walk(|entry, cost| pusher.push(entry, cost)),
        )
    }

    fn walk(&self, mut push: impl FnMut(Entry, u64) -> io::Result<()>) -> io::Result<()> {
        let mut walk = Walk::new(self.fs, self.top.clone(), None);
        let is_root = self.fs.root().is_ok_and(|root| root.ino() == self.top.ino());
        // The directories from the top down to the one that the walk is in.
        let mut above: Vec<Arc<Member>> = Vec::new();
        let mut met: HashSet<u64> = HashSet::new();
        while let Some(step) = walk.step() {
            match step {
                Step::Found(item) => {
                    let in_root = is_root && item.depth == 1;
                    if in_root && is_empty_lost_and_found(self.fs, &item.name, &item.node) {
                        continue;
                    }
                    above.truncate(item.depth);
                    let member = Member::of(&item, &above, self.name);
                    let attr = item.node.attr();
                    let mut again = false;
                    if attr.ftype == FileType::Directory {
                        above.push(member.clone());
                    } else {
                        again = !met.insert(attr.ino);
                    }
                    let entry = Entry { member, depth: item.depth, node: item.node, attr, again };
                    let cost = entry.cost();
                    push(entry, cost)?;
                }
                Step::Left(_) => {}
                Step::Problem(problem) => {
                    self.job.problem(&[b"/", walk.path()].concat(), problem);
                }
            }
        }
        Ok(())
    }
}

/// Returns whether an entry of the root is the directory of e2fsck, and empty: it belongs to the
/// file system, not to the tree.
pub fn is_empty_lost_and_found(fs: &Fs, name: &[u8], node: &Node) -> bool {
    name == LOST_AND_FOUND && node.file_type() == FileType::Directory && {
        let listing = list(fs, node);
        listing.entries.is_empty() && listing.problems.is_empty()
    }
}
