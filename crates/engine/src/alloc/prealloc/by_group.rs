//! The files with preallocations in each group: a discard of a group visits these.
//!
//! A group here is a tree of free space, one flexible group. A file is listed while it has
//! preallocations there, once for any number of them, and in one group more where it had some last.
//!
//! # Locking
//! Each group's list has a lock of its own (Lru), inward of the tree of a file.

use super::Prealloc;
use extant_sync::{CachePadded, GrowingTable, Level, Mutex};
use std::sync::{Arc, Weak};

#[derive(Debug)]
enum Slot {
    File(Weak<Prealloc>),
    /// Unused; the next unused one.
    Free(Option<u32>),
}

/// The files of a group, each in a slot that it keeps.
#[derive(Debug, Default)]
struct Files {
    slots: Vec<Slot>,
    free: Option<u32>,
}

impl Files {
    /// No files, with the lock of the list.
    fn listed() -> CachePadded<Mutex<Files>> {
        CachePadded::new(Mutex::new(Level::Lru, Files::default()))
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct ByGroup {
    groups: GrowingTable<CachePadded<Mutex<Files>>>,
}

impl ByGroup {
    pub fn new(groups: u32) -> ByGroup {
        ByGroup { groups: (0..groups).map(|_| Files::listed()).collect() }
    }

    /// Appends groups, up to so many. No two threads may do this at once.
    pub fn append(&self, groups: u32) {
        let new = (groups as usize).saturating_sub(self.groups.len());
        self.groups.append((0..new).map(|_| Files::listed()));
    }

    /// Lists a file. Returns its slot, or `None` for a group that does not exist.
    pub fn join(&self, group: u32, file: &Arc<Prealloc>) -> Option<u32> {
        let new = Slot::File(Arc::downgrade(file));
        let mut files = self.groups.get(group as usize)?.lock();
        let Some(at) = files.free else {
            files.slots.push(new);
            return u32::try_from(files.slots.len() - 1).ok();
        };
        let slot = files.slots.get_mut(at as usize)?;
        let Slot::Free(next) = std::mem::replace(slot, new) else { return None };
        files.free = next;
        Some(at)
    }

    /// Removes a file by its slot.
    pub fn leave(&self, group: u32, slot: u32) {
        let Some(files) = self.groups.get(group as usize) else { return };
        let mut files = files.lock();
        let next = Slot::Free(files.free);
        if let Some(place) = files.slots.get_mut(slot as usize) {
            let file = std::mem::replace(place, next);
            files.free = Some(slot);
            drop((files, file));
        }
    }

    /// Returns the files of a group.
    pub fn files(&self, group: u32) -> Vec<Arc<Prealloc>> {
        let file = |slot: &Slot| match slot {
            Slot::File(file) => file.upgrade(),
            Slot::Free(_) => None,
        };
        let Some(files) = self.groups.get(group as usize) else { return Vec::new() };
        files.lock().slots.iter().filter_map(file).collect()
    }
}
