//! Groups that the file system gets while it is open.
//!
//! Tables have places for new groups before the geometry has the groups. Their space may be
//! allocated once the transaction that adds them is durable: no block of an earlier transaction
//! then lies behind the end that a recovery finds.
//!
//! The last tree may be short. Its new groups are absent from memory, as those that were never
//! needed, and the groups that it has stay.

use super::{Bitmap, FreeSpace, ReturnedRuns, Tree, margin_of, root_of};
use extant_format::types::GroupNr;
use extant_space::{Run, Summary};
use extant_sync::atomic::Ordering;
use extant_sync::{Level, Mutex};

impl FreeSpace {
    /// Appends groups to the tables, up to so many. Does nothing if they have as many. No two
    /// threads may do this at once.
    pub(in crate::alloc) fn append_groups(&self, groups: u32) {
        let trees = self.shape.trees_of(groups);
        let missing = |len: usize, wanted: u32| 0..(wanted as usize).saturating_sub(len);
        self.bitmaps.append(missing(self.bitmaps.len(), groups).map(|_| Bitmap::new()));
        let tree = |_| Mutex::new(Level::FreeSpace, Tree::new(&self.shape, 0));
        self.trees.append(missing(self.trees.len(), trees).map(tree));
        let returned = missing(self.returned.len(), trees).map(|_| ReturnedRuns::new());
        self.returned.append(returned);
        self.memory.append_trees(trees);
        self.summaries.append(groups.saturating_sub(self.summaries.len()));
        self.free_batches.append_groups(groups);
    }

    /// Makes the space of new groups available: all that the geometry has.
    pub(in crate::alloc) fn publish_groups(&self) {
        let (before, after) = (self.shape.groups(), self.groups.count());
        let mut clusters = 0;
        for g in before..after {
            let free = self.groups.with(GroupNr(g), |desc| desc.free_clusters);
            self.summaries.set(g, &Summary::of([Run { start: 0, len: free }]));
            clusters += u64::from(free);
        }
        self.shape.grow(after);
        let new = self.shape.trees().saturating_sub(self.meta.len());
        self.meta.append((0..new).map(|_| 0));
        for t in self.shape.tree_of(GroupNr(before))..self.shape.trees() {
            if let Some(mut tree) = self.tree(t) {
                self.change(t, &mut tree, |tree| self.renew_outside(t, tree));
            }
        }
        self.budget.give(clusters);
        self.root.store(root_of(&self.vol, &self.groups), Ordering::Relaxed);
        self.margin.store(margin_of(&self.vol), Ordering::Relaxed);
    }
}
