//! Names of inodes: a scan over all directories.

use super::directory::records;
use super::{DirectoryPart, Inspector, JournalLog};
use extant_format::dir::DirFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Bytes of a path at most. A longer one begins with the number of a directory.
const MAX_PATH: usize = 4096;

/// Bound on the problems that are kept.
const MAX_PROBLEMS: usize = 1000;

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundName {
    /// The inode.
    pub ino: u32,
    /// The directory.
    pub parent: u32,
    /// The name.
    pub name: Vec<u8>,
    /// The name was removed, and its bytes are still there.
    pub is_removed: bool,
}

/// The result of a search for names.
#[derive(Clone, Debug, Default)]
pub struct FoundNames {
    /// The names, in the order of inodes, of directories and of names.
    pub names: Vec<FoundName>,
    /// Damage that may hide names, in words.
    pub problems: Vec<String>,
    /// Parent and name of each directory.
    parents: BTreeMap<u32, (u32, Vec<u8>)>,
}

impl FoundNames {
    /// Returns the path of a name. It begins with `<INODE>` where the way to the root is not known,
    /// or the path is too long.
    pub fn path(&self, found: &FoundName) -> Vec<u8> {
        let root = extant_format::InodeNr::ROOT.0;
        let mut parts = vec![found.name.as_slice()];
        let (mut dir, mut len) = (found.parent, found.name.len());
        let mut seen = BTreeSet::new();
        while dir != root && len <= MAX_PATH {
            // Directories may be within each other.
            let above = self.parents.get(&dir).filter(|(parent, _)| *parent != dir);
            let Some((parent, name)) = above.filter(|_| seen.insert(dir)) else { break };
            len = len.saturating_add(name.len()).saturating_add(1);
            parts.push(name);
            dir = *parent;
        }
        let mut path = if dir == root { Vec::new() } else { format!("<{dir}>").into_bytes() };
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        path
    }
}

impl Inspector {
    /// Finds the names of inodes in all directories. With `removed` also those that were removed:
    /// they are in free bytes of directories, and in earlier states of these in the log.
    pub fn names(
        &self,
        wanted: &BTreeSet<u32>,
        removed: bool,
        log: Option<&JournalLog<'_>>,
    ) -> FoundNames {
        let mut found = FoundNames::default();
        let mut dirs = Vec::new();
        found.problems = self.each_slot(&mut |slot| {
            if slot.is_linked() && slot.inode.is_dir() {
                dirs.push(slot.ino);
            }
        });
        let claims = self.no_claims();
        for dir in &dirs {
            let slot = match self.inode(*dir) {
                Ok(slot) => slot,
                Err(error) => {
                    found.problem(error.to_string());
                    continue;
                }
            };
            let _ = self.directory_within(&slot, &claims, &mut |part| {
                match part {
                    DirectoryPart::Block(block) => {
                        let earlier = block.physical.zip(log);
                        if let Some((physical, log)) = earlier.filter(|_| removed) {
                            self.earlier_names(physical, log, &mut |mut name| {
                                name.parent = *dir;
                                found.record(name, wanted, removed, &[]);
                            });
                        }
                    }
                    DirectoryPart::Record(record) => {
                        let name = FoundName {
                            ino: record.ino,
                            parent: *dir,
                            name: record.name,
                            is_removed: record.is_removed,
                        };
                        found.record(name, wanted, removed, &dirs);
                    }
                    DirectoryPart::Problem(problem) => {
                        found.problem(format!("directory {dir}: {problem}"));
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            });
        }
        found.names.sort();
        // A name that is there yet sorts before the same one that was removed.
        let key = |name: &FoundName| (name.ino, name.parent, name.name.clone());
        found.names.dedup_by(|next, kept| key(&*next) == key(&*kept));
        found
    }

    /// Gives the names in earlier states of a block of a directory.
    fn earlier_names(&self, physical: u64, log: &JournalLog<'_>, each: &mut dyn FnMut(FoundName)) {
        let format = DirFormat::new(&self.geometry);
        for copy in log.copies_of(physical) {
            let Ok((bytes, _)) = log.content(copy) else { continue };
            let _ = records(format.area(&bytes), &format, &mut |part| {
                if let DirectoryPart::Record(record) = part {
                    let (ino, name) = (record.ino, record.name);
                    each(FoundName { ino, parent: 0, name, is_removed: true });
                }
                ControlFlow::Continue(())
            });
        }
    }
}

impl FoundNames {
    fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn record(&mut self, name: FoundName, wanted: &BTreeSet<u32>, removed: bool, dirs: &[u32]) {
        let is_dot = matches!(name.name.as_slice(), b"." | b"..");
        let root = extant_format::InodeNr::ROOT.0;
        if is_dot && !(name.ino == root && name.parent == root) {
            return;
        }
        if !name.is_removed && !is_dot && dirs.binary_search(&name.ino).is_ok() {
            let parent = (name.parent, name.name.clone());
            self.parents.entry(name.ino).or_insert(parent);
        }
        if wanted.contains(&name.ino) && (removed || !name.is_removed) {
            let name = if is_dot { FoundName { name: Vec::new(), ..name } } else { name };
            self.names.push(name);
        }
    }
}
