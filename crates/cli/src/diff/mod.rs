//! The differences of two trees.
//!
//! One thread walks both trees together and pairs their entries by path ([`pairs`]). Other threads
//! compare attributes and small files ahead ([`compare`]). Changes come out in the order of names.
//! [`layer`] writes them as a layer of a container image.
//!
//! # Hard links
//! A name is linked as in the other tree if the first name of its inode is the same in both, where
//! only names that both trees have count, and directories do not. Trees with the same names have
//! the same links exactly if that holds for each name. Example: A has the links `b` and `c`, B has
//! `a`, `b` and `c`. In both trees `b` is the first common name of `c`, so only `a` is reported.
//!
//! # Bounds
//! Each pair that is compared has an inode that was not met before. If neither was, both files are
//! read together; else digests of their content are compared, which each inode has once. If both
//! were met, at other names than each other, only the difference of the links is reported. So each
//! inode is read at most twice, each time within a budget, even if all names lead to few inodes.

pub mod compare;
pub mod layer;
pub mod pairs;

use crate::copy::budget::Budget;
use crate::copy::content::Content;
use crate::copy::digest::{self, Ignore, Sum};
use crate::copy::job::Job;
use crate::copy::tree::{AHEAD, Member, SMALL};
use crate::ordered;
use compare::Difference;
use extant_engine::{FileType, Fs, Node};
use pairs::{Fault, Found, Pair, PairWalk};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Memory of a pair besides content, in bytes: a bound on differences that wait to be printed.
const PAIR: u64 = 64 << 10;

/// Two trees.
pub struct Trees<'a> {
    /// The images.
    pub fs: [&'a Fs; 2],
    /// The tops of the trees.
    pub tops: [Node; 2],
    /// The images' names for messages.
    pub names: [String; 2],
    /// Attributes that are not compared.
    pub ignore: Ignore,
    /// Reports failures.
    pub job: &'a Job<'a>,
}

impl Trees<'_> {
    /// Makes a walk over both trees. `name` is the name of the tops.
    fn walk(&self, name: &[u8]) -> PairWalk<'_> {
        PairWalk::new(self.fs, self.tops.clone(), name)
    }

    /// Reports a failed read of one of the trees.
    fn problem(&self, path: &[u8], fault: &Fault) {
        self.job.problem(path, format_args!("{}: {}", self.names[fault.side], fault.text));
    }
}

/// Kind of a change.
#[derive(Debug)]
pub enum Change {
    /// Only the first tree has the name.
    Removed,
    /// Only the second tree has the name.
    Added,
    /// The entries differ.
    Changed(Vec<Difference>),
    /// The entries are further names of inodes that differ, and were reported at this name.
    As(Arc<Member>),
}

/// Changes by their kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Names of the second tree only.
    pub added: u64,
    /// Names of the first tree only.
    pub removed: u64,
    /// Names whose entries differ.
    pub changed: u64,
}

impl Counts {
    /// Counts a change.
    pub fn add(&mut self, change: &Change) {
        match change {
            Change::Added => self.added += 1,
            Change::Removed => self.removed += 1,
            Change::Changed(_) | Change::As(_) => self.changed += 1,
        }
    }

    /// Returns whether there were changes.
    pub fn any(self) -> bool {
        self.added + self.removed + self.changed > 0
    }
}

/// Calls `each` for each path at which the trees differ, in the order of names.
///
/// # Errors
/// Those of `each`. Entries that cannot be read are problems of the job, and no changes.
pub fn each_change(
    trees: &Trees<'_>,
    name: &[u8],
    mut each: impl FnMut(&Pair, Change) -> io::Result<()>,
) -> io::Result<()> {
    let mut comparison = Comparison::new(trees);
    let budgets = trees.fs.map(Budget::of);
    ordered::run(
        (trees.job.threads(), AHEAD),
        |task: Task| {
            let begun = task.begin(trees, &budgets);
            (task, begun)
        },
        |(task, begun)| match comparison.finish(&task, begun, &budgets) {
            Ok(Some(change)) => each(&task.pair, change),
            Ok(None) => Ok(()),
            Err(fault) => {
                trees.problem(&task.pair.member.path(), &fault);
                Ok(())
            }
        },
        |pusher| {
            let (mut walk, mut links) = (trees.walk(name), Links::default());
            while let Some(step) = walk.step() {
                match step {
                    Ok(pair) => {
                        let task = links.task(pair);
                        let cost = task.cost();
                        pusher.push(task, cost)?;
                    }
                    Err(problem) => trees.problem(&problem.path, &problem.fault),
                }
            }
            Ok(())
        },
    )
}

/// The first common name of each inode but directories, in each tree.
#[derive(Default)]
struct Links([HashMap<u64, Arc<Member>>; 2]);

impl Links {
    /// Makes the task of a pair.
    fn task(&mut self, pair: Pair) -> Task {
        let links = match &pair.sides {
            [Some(a), Some(b)] if !a.is_directory() && !b.is_directory() => {
                Some([a, b].map(|found| found.attr.ino))
            }
            _ => None,
        };
        let first = links.map(|inos| {
            [0, 1].map(|side| {
                let first = self.0[side].entry(inos[side]);
                first.or_insert_with(|| pair.member.clone()).clone()
            })
        });
        Task { pair, first }
    }
}

/// A pair to be compared.
struct Task {
    pair: Pair,
    /// The first common name of the inode in each tree, if neither is a directory.
    first: Option<[Arc<Member>; 2]>,
}

impl Task {
    fn cost(&self) -> u64 {
        let sizes = self.pair.sides.iter().flatten().map(|found| found.attr.size.min(SMALL));
        PAIR + if self.both().is_some() { sizes.sum() } else { 0 }
    }

    fn both(&self) -> Option<[&Found; 2]> {
        match &self.pair.sides {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        }
    }

    /// Returns whether the inode of each tree was met at an earlier name.
    fn is_met(&self) -> [bool; 2] {
        let own = &self.pair.member;
        self.first
            .as_ref()
            .map_or([false; 2], |first| [0, 1].map(|side| !Arc::ptr_eq(&first[side], own)))
    }

    /// Returns the name at which the same two inodes were compared before.
    fn same_as(&self) -> Option<&Arc<Member>> {
        let [a, b] = self.first.as_ref()?;
        (Arc::ptr_eq(a, b) && self.is_met() == [true; 2]).then_some(a)
    }

    /// Compares the attributes, and the content if that is small. `None` if there is nothing to
    /// compare.
    fn begin(&self, trees: &Trees<'_>, budgets: &[Budget; 2]) -> Option<Result<Begun, Fault>> {
        if self.is_met() == [true; 2] {
            return None;
        }
        let found = self.both()?;
        Some(self.compare(found, trees, budgets))
    }

    fn compare(
        &self,
        found: [&Found; 2],
        trees: &Trees<'_>,
        budgets: &[Budget; 2],
    ) -> Result<Begun, Fault> {
        let differences = compare::attributes(trees.fs, found, trees.ignore)?;
        let attr = found.map(|found| &found.attr);
        let are_files = attr.iter().all(|attr| attr.ftype == FileType::Regular);
        if !are_files || attr[0].size != attr[1].size {
            return Ok(Begun { differences, left: Left::Nothing });
        }
        if self.is_met() != [false; 2] {
            return Ok(Begun { differences, left: Left::Digests });
        }
        let open = |side: usize| open(trees.fs[side], side, found[side]);
        let files = [open(0)?, open(1)?];
        let may_read = |side: usize| {
            let stored = files[side].stored();
            stored <= SMALL && budgets[side].admits(stored)
        };
        let is_small = may_read(0) && may_read(1);
        let same =
            is_small.then(|| compare::have_same_content(trees.fs, &files, None)).transpose()?;
        Ok(Begun { differences, left: Left::Content(files, same) })
    }
}

fn open(fs: &Fs, side: usize, found: &Found) -> Result<Content, Fault> {
    Content::open(fs, &found.node).map_err(Fault::of(side))
}

/// A pair whose attributes are compared.
struct Begun {
    differences: Vec<Difference>,
    left: Left,
}

/// The rest of a comparison.
enum Left {
    Nothing,
    /// The content of both files, and whether it is the same, if it is small.
    Content([Content; 2], Option<bool>),
    /// The digests of the content of both files.
    Digests,
}

/// The changes so far.
struct Comparison<'a> {
    trees: &'a Trees<'a>,
    /// Inodes of the second tree, but directories, that differ from their pair.
    changed: HashSet<u64>,
    /// Digests of the content of inodes that were met more than once, by tree and number.
    digests: [HashMap<u64, Sum>; 2],
    digest_budgets: [Budget; 2],
}

impl<'a> Comparison<'a> {
    fn new(trees: &'a Trees<'a>) -> Comparison<'a> {
        let (changed, digests) = Default::default();
        Comparison { trees, changed, digests, digest_budgets: trees.fs.map(Budget::of) }
    }

    /// Returns the change at a path, if there is one.
    fn finish(
        &mut self,
        task: &Task,
        begun: Option<Result<Begun, Fault>>,
        budgets: &[Budget; 2],
    ) -> Result<Option<Change>, Fault> {
        let [a, b] = match &task.pair.sides {
            [Some(a), Some(b)] => [a, b],
            [Some(_), None] => return Ok(Some(Change::Removed)),
            _ => return Ok(Some(Change::Added)),
        };
        if let Some(first) = task.same_as() {
            let is_changed = self.changed.contains(&b.attr.ino);
            return Ok(is_changed.then(|| Change::As(first.clone())));
        }
        let mut differences = Vec::new();
        if let Some(begun) = begun.transpose()? {
            differences = begun.differences;
            let same = match begun.left {
                Left::Nothing => true,
                Left::Content(files, same) => self.have_same_content(&files, same, budgets)?,
                Left::Digests => self.digest(0, a)? == self.digest(1, b)?,
            };
            if !same {
                differences.push(Difference::bare("content"));
            }
        }
        if let Some([first, other]) = task.first.as_ref().filter(|[a, b]| !Arc::ptr_eq(a, b)) {
            let paths = [first.path(), other.path()];
            differences.push(Difference::of_bytes("link", [&paths[0], &paths[1]]));
        }
        if differences.is_empty() {
            return Ok(None);
        }
        if !b.is_directory() {
            self.changed.insert(b.attr.ino);
        }
        Ok(Some(Change::Changed(differences)))
    }

    /// Returns whether two files have the same content; `same` is known for small ones.
    fn have_same_content(
        &self,
        files: &[Content; 2],
        same: Option<bool>,
        budgets: &[Budget; 2],
    ) -> Result<bool, Fault> {
        for (side, file) in files.iter().enumerate() {
            budgets[side].admit(file.stored()).map_err(Fault::of(side))?;
            self.trees.job.bytes(file.stored());
        }
        match same {
            Some(same) => Ok(same),
            None => {
                let threads = Some(self.trees.job.threads());
                compare::have_same_content(self.trees.fs, files, threads)
            }
        }
    }

    /// Returns the digest of a file's content.
    fn digest(&mut self, side: usize, found: &Found) -> Result<Sum, Fault> {
        if let Some(sum) = self.digests[side].get(&found.attr.ino) {
            return Ok(*sum);
        }
        let file = open(self.trees.fs[side], side, found)?;
        self.digest_budgets[side].admit(file.stored()).map_err(Fault::of(side))?;
        let threads = (file.stored() > SMALL).then(|| self.trees.job.threads());
        let sum = digest::of_content(&file, threads).map_err(Fault::of(side))?;
        self.digests[side].insert(found.attr.ino, sum);
        Ok(sum)
    }
}
