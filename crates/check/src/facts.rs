//! Facts about each inode that later passes need, in eight bytes for each inode.

use crate::volume::Volume;
use extant_format::{FileType, GroupNr, InodeNr, bitmap};
use std::sync::atomic::{AtomicU32, Ordering};

/// The state of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InodeState {
    /// Not in use.
    #[default]
    Unused,
    /// In use, and must have a name.
    Used,
    /// In use by the file system itself, without a name.
    Hidden,
    /// Deleted while it was open: its removal is to be completed.
    Orphan,
    /// The value of an attribute.
    Value,
}

/// Facts about an inode.
#[derive(Debug, Default)]
pub struct Fact {
    /// The count of links in the inode.
    pub links: u16,
    pub kind: FileType,
    pub state: InodeState,
    /// Names that were found. Relaxed: it is read once the threads have ended.
    found: AtomicU32,
}

impl Fact {
    pub fn new(links: u16, kind: FileType, state: InodeState) -> Fact {
        Fact { links, kind, state, found: AtomicU32::new(0) }
    }

    /// Returns whether the inode is in use.
    pub fn is_used(&self) -> bool {
        self.state != InodeState::Unused
    }

    /// Counts a name. A count that overflows is wrong in any case.
    pub fn count_name(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of names.
    pub fn names(&self) -> u32 {
        self.found.load(Ordering::Relaxed)
    }
}

/// Facts about the inodes of each group, up to the last one in use.
#[derive(Debug, Default)]
pub struct Facts {
    groups: Vec<Box<[Fact]>>,
}

impl Facts {
    /// Adds the facts of the next group.
    pub fn push(&mut self, mut facts: Vec<Fact>) {
        let used = facts.iter().rposition(|fact| fact.state != InodeState::Unused);
        facts.truncate(used.map_or(0, |last| last.saturating_add(1)));
        self.groups.push(facts.into_boxed_slice());
    }

    /// Returns the facts of an inode in use.
    pub fn get(&self, volume: &Volume<'_>, ino: InodeNr) -> Option<&Fact> {
        let (group, index) = volume.reader.geometry.inode_location(ino).ok()?;
        let fact = self.groups.get(group.index())?.get(index as usize)?;
        (fact.state != InodeState::Unused).then_some(fact)
    }

    /// Returns the facts of a group, which may end before its last inode.
    pub fn group(&self, group: GroupNr) -> &[Fact] {
        self.groups.get(group.index()).map_or(&[], |facts| facts)
    }

    /// Sets the bits of a group's inodes in use; those below `first_ino` always are.
    pub fn mark_used(&self, group: GroupNr, bits: &mut [u8], first_ino: u32) {
        for (index, fact) in self.group(group).iter().enumerate() {
            if fact.is_used() {
                bitmap::set(bits, index);
            }
        }
        if group.0 == 0 {
            bitmap::set_range(bits, 0..first_ino.saturating_sub(1) as usize);
        }
    }

    /// Returns the number of directories of a group.
    pub fn dirs(&self, group: GroupNr) -> u32 {
        let is_dir =
            |fact: &&Fact| fact.state != InodeState::Unused && fact.kind == FileType::Directory;
        self.group(group).iter().filter(is_dir).count() as u32
    }
}
