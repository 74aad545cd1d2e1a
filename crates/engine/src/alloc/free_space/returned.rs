//! Returned space: runs are listed beside a tree, and moved into it many at a time.
//!
//! A thread that returns space, or learns that a free is durable, adds the runs to a list and
//! continues. The next search in the tree, the end of the next commit, or a thread that finds the
//! list too long *settles*: it sorts the listed runs and moves them into the tree. Files are freed
//! in neighboring pieces, so most of them have become one run by then, and the tree's lock is not
//! taken for each. For example, 100 frees of 4 neighboring blocks are settled as one run of 400
//! blocks.
//!
//! # Invariants
//! - Runs in the list `ended` are held by the tree until they are settled. Runs that wait for a
//!   commit, runs queued for discard, and runs in the list `freed` are not held: they are
//!   subtracted from free space that is made from a bitmap.
//! - Freed runs are listed under their bitmap's lock, and a group is loaded under that lock, too: a
//!   clear bit is therefore free, held or listed.
//! - Space that may be claimed is listed before it is added to the budget, and is listed or in a
//!   tree from then on. A thread that locks a tree to search for space settles first, so a thread
//!   that holds a part of the budget finds space.
//! - The order of trees may have a shorter run for a tree than the tree has, but at least the
//!   longest listed run. A thread that lists a run raises the order's value afterwards. A thread
//!   that changes the tree, under its lock, sets the value and then checks whether a longer run was
//!   listed meanwhile.
//!
//! # Locking
//! The lists' lock is inward of the tree's, and nothing but the list of trees and the queue of
//! discards is taken inside.

use super::FreeSpace;
use super::tree::Tree;
use crate::bounds::Remark;
use extant_format::types::GroupNr;
use extant_journal::Tid;
use extant_space::{Held, Run};
use extant_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_sync::{Level, Mutex, MutexGuard};

/// The number of listed runs of a tree beyond which a thread settles them, unless the tree has more
/// runs itself.
const MAX_LISTED: usize = if cfg!(test) { 24 } else { 4096 };

/// Runs of a tree that may be queued to be discarded. More are released at once.
const MAX_QUEUED: usize = 1024;

/// Bytes of a listed run, as lists grow by doubling.
const LISTED_BYTES: i64 = 2 * size_of::<Run>() as i64;

/// The lists of a tree.
#[derive(Debug)]
pub(in crate::alloc) struct ReturnedRuns {
    lists: Mutex<Lists>,
    /// Whether `ended` or `freed` has anything, to be read without the lock.
    any: AtomicBool,
    /// The longest run of them.
    longest: AtomicU32,
    /// Whether the tree has groups in memory: if not, noting saves nothing.
    resident: AtomicBool,
    /// Runs that the tree had when it was settled last.
    known: AtomicU32,
}

#[derive(Debug, Default)]
struct Lists {
    /// Freed by transactions that are not durable yet.
    leaving: Vec<(Tid, Run)>,
    /// Freed, durable, and queued to be discarded.
    discarding: Vec<Run>,
    /// Slices of them that are being discarded.
    in_flight: Vec<Run>,
    /// Whether the tree is in the queue of discards.
    queued: bool,
    /// Freed, and durable.
    freed: Vec<Run>,
    /// Claims that ended without being booked.
    ended: Vec<Run>,
    /// Masks of groups that are not used any more, whose space is not part of the budget.
    bad: u64,
    /// Whether the tree is on the list of those of which something is noted.
    listed: bool,
}

impl Lists {
    /// Takes the runs that `tid` and its predecessors freed.
    fn take_durable(&mut self, tid: Tid) -> Vec<Run> {
        self.leaving.extract_if(.., |freed| freed.0 <= tid).map(|(_, run)| run).collect()
    }

    fn len(&self) -> usize {
        self.freed.len() + self.ended.len()
    }
}

impl ReturnedRuns {
    pub fn new() -> ReturnedRuns {
        ReturnedRuns {
            lists: Mutex::new(Level::Alloc, Lists::default()),
            any: AtomicBool::new(false),
            longest: AtomicU32::new(0),
            resident: AtomicBool::new(false),
            known: AtomicU32::new(0),
        }
    }

    /// The longest run that is noted and may be claimed.
    pub fn longest(&self) -> u32 {
        // SeqCst, here and where it is raised: a thread that lists a run updates the order of trees
        // afterwards, and a thread that sets the order reads this afterwards.
        self.longest.load(Ordering::SeqCst)
    }

    fn note_any(&self, lists: &Lists, longest: u32) {
        self.longest.fetch_max(longest, Ordering::SeqCst);
        // Release: a thread that reads it takes the lock, under which the lists are visible.
        self.any.store(lists.len() > 0, Ordering::Release);
    }
}

fn sum(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.len)).sum()
}

impl FreeSpace {
    /// A tree, locked, with all that may be claimed of its groups in memory.
    pub(in crate::alloc) fn tree(&self, t: u32) -> Option<MutexGuard<'_, Tree>> {
        let mut tree = self.trees.get(t as usize)?.lock();
        self.settle(t, &mut tree);
        Some(tree)
    }

    /// As [`FreeSpace::tree`], unless another thread holds its lock.
    pub(in crate::alloc) fn try_tree(&self, t: u32) -> Option<MutexGuard<'_, Tree>> {
        let mut tree = self.trees.get(t as usize)?.try_lock()?;
        self.settle(t, &mut tree);
        Some(tree)
    }

    /// Units of a group that were freed and are not in its tree: not durable yet, or not settled.
    pub(in crate::alloc) fn leaving(&self, t: u32, g: GroupNr) -> Held {
        let (mut leaving, units) = (Held::default(), self.shape.units(g));
        let Some(returned) = self.returned.get(t as usize) else { return leaving };
        let lists = returned.lists.lock();
        let all = lists.leaving.iter().map(|(_, run)| run);
        let all = all.chain(&lists.discarding).chain(&lists.in_flight).chain(&lists.freed);
        all.filter(|run| units.contains(&run.start)).for_each(|run| _ = leaving.add(*run));
        leaving
    }

    /// A group of the tree came into memory, or all left it.
    pub(in crate::alloc) fn set_resident(&self, t: u32, resident: bool) {
        if let Some(returned) = self.returned.get(t as usize) {
            // Relaxed, here and for the other hints: an old value causes one superfluous or one
            // missing settling.
            returned.resident.store(resident, Ordering::Relaxed);
        }
    }

    /// Notes clusters of a group that `tid` freed. The caller holds the bitmap's lock.
    pub(in crate::alloc) fn defer(
        &self,
        tid: Tid,
        g: GroupNr,
        runs: impl Iterator<Item = Run> + Clone,
    ) {
        self.add_pending(runs.clone().map(|run| i64::from(run.len)).sum());
        let t = self.shape.tree_of(g);
        let Some(returned) = self.returned.get(t as usize) else { return };
        let mut lists = returned.lists.lock();
        lists.leaving.extend(runs.map(|run| (tid, self.shape.place(g, run))));
        self.list(t, &mut lists);
    }

    /// Puts the tree onto the list of those of which something is noted.
    fn list(&self, t: u32, lists: &mut Lists) {
        if !std::mem::replace(&mut lists.listed, true) {
            self.noted_trees.lock().push(t);
        }
    }

    /// Held clusters of a tree's groups, which are in order, may be claimed again, once they are
    /// settled. Gives how many are the budget's now: none of bad groups.
    pub(in crate::alloc) fn release_held(&self, t: u32, runs: &[(GroupNr, Run)]) -> u64 {
        let Some(returned) = self.returned.get(t as usize) else { return 0 };
        let mut lists = returned.lists.lock();
        let bad = lists.bad;
        lists.ended.extend(runs.iter().map(|(g, run)| self.shape.place(*g, *run)));
        self.list(t, &mut lists);
        let good =
            runs.iter().filter(|(g, _)| bad & self.shape.mask(*g) == 0).map(|(_, run)| run.len);
        let (clusters, longest) = (good.clone().map(u64::from).sum(), good.max().unwrap_or(0));
        returned.note_any(&lists, longest);
        let many = lists.len() > MAX_LISTED.max(returned.known.load(Ordering::Relaxed) as usize);
        drop(lists);
        self.memory.count(runs.len() as i64 * LISTED_BYTES);
        self.noted(t, returned, longest, many);
        clusters
    }

    /// Something that may be claimed was noted: `many` runs are by now.
    fn noted(&self, t: u32, returned: &ReturnedRuns, longest: u32, many: bool) {
        let settles = many || !returned.resident.load(Ordering::Relaxed);
        // If another thread holds the tree's lock now, the next one settles. A thread may have done
        // so since, and have claimed the run: the order of trees then has too long a run, until a
        // search there fails (`in_tree`).
        if !settles || self.try_tree(t).is_none() {
            self.meta.raise(t, longest);
        }
    }

    /// Moves the listed runs of a locked tree into it.
    fn settle(&self, t: u32, tree: &mut Tree) {
        let Some(returned) = self.returned.get(t as usize) else { return };
        if returned.any.load(Ordering::Acquire) {
            self.settle_and_mark(t, tree, 0);
        }
    }

    /// Moves the listed runs into the tree. Runs that groups of the mask `bad` get from then on are
    /// not part of the budget.
    pub(in crate::alloc) fn settle_and_mark(&self, t: u32, tree: &mut Tree, bad: u64) {
        let Some(returned) = self.returned.get(t as usize) else { return };
        let (mut freed, mut ended) = {
            let mut lists = returned.lists.lock();
            lists.bad |= bad;
            // Relaxed: both change under the lists' lock only, and readers without it use them as
            // hints.
            returned.longest.store(0, Ordering::Relaxed);
            returned.any.store(false, Ordering::Relaxed);
            (std::mem::take(&mut lists.freed), std::mem::take(&mut lists.ended))
        };
        self.memory.count(-((freed.len() + ended.len()) as i64) * LISTED_BYTES);
        ended.sort_unstable_by_key(|run| run.start);
        self.merge(&mut ended);
        let wrong = tree.held.remove_all(&ended);
        if !wrong.is_empty() {
            self.refuse(t, tree, &wrong);
            ended.retain(|run| !wrong.contains(run));
        }
        freed.append(&mut ended);
        freed.sort_unstable_by_key(|run| run.start);
        self.merge(&mut freed);
        self.make_free(t, tree, freed);
        returned.known.store((tree.free.runs() + tree.held.runs()) as u32, Ordering::Relaxed);
    }

    /// Makes runs of a tree one that touch in a group; they are in order.
    fn merge(&self, runs: &mut Vec<Run>) {
        let len = self.shape.group_len();
        runs.dedup_by(|next, whole| {
            let touch = whole.end() == next.start && next.start % len != 0;
            if touch {
                whole.len += next.len;
            }
            touch
        });
    }

    /// Puts runs into a tree, as far as their groups are in memory; of others, the summaries hear.
    fn make_free(&self, t: u32, tree: &mut Tree, mut runs: Vec<Run>) {
        let mask = |run: &Run| self.shape.mask(self.shape.group_run(t, *run).0);
        let absent: Vec<Run> = runs.extract_if(.., |run| !tree.is_loaded(mask(run))).collect();
        let refused = self.change(t, tree, |tree| {
            for (g, run) in absent.iter().map(|run| self.shape.group_run(t, *run)) {
                self.summaries.freed(g.0, run.len);
            }
            if !absent.is_empty() {
                self.renew_outside(t, tree);
            }
            tree.free.add_all(&runs)
        });
        if !refused.is_empty() {
            self.refuse(t, tree, &refused);
        }
    }

    /// Takes space from the budget that was given to it, and turns out to have been free.
    #[cold]
    fn refuse(&self, t: u32, tree: &Tree, runs: &[Run]) {
        for (g, run) in runs.iter().map(|run| self.shape.group_run(t, *run)) {
            if self.vol.remarks.tells(Remark::Group) {
                tracing::error!("clusters {run:?} of group {g} were given back and not claimed");
            }
            if !tree.is_bad(self.shape.mask(g)) {
                self.budget.correct(run.len.into());
            }
        }
    }

    /// Makes the runs that `tid` and its predecessors freed available, or queues them for discard
    /// first.
    pub fn committed(&self, tid: Tid) {
        let trees = std::mem::take(&mut *self.noted_trees.lock());
        for t in trees {
            let Some(returned) = self.returned.get(t as usize) else { continue };
            let mut lists = returned.lists.lock();
            lists.listed = false;
            let mut left = lists.take_durable(tid);
            if !lists.leaving.is_empty() {
                self.list(t, &mut lists);
            }
            if self.discards.is_on() {
                self.queue_discards(t, &mut lists, &mut left);
            }
            self.let_leave(t, returned, lists, &left);
            drop(self.try_tree(t));
        }
        self.discard_committed();
    }

    /// Moves the runs that are long enough for a discard from `left` to the queue.
    fn queue_discards(&self, t: u32, lists: &mut Lists, left: &mut Vec<Run>) {
        left.sort_unstable_by_key(|run| run.start);
        self.merge(left);
        let room = MAX_QUEUED.saturating_sub(lists.discarding.len());
        let worth = left.extract_if(.., |run| self.is_discarded(run)).take(room);
        lists.discarding.extend(worth);
        if !lists.discarding.is_empty() && !std::mem::replace(&mut lists.queued, true) {
            self.discards.add_tree(t);
        }
    }

    /// Takes a slice of a length given by `len` from the queued runs of a tree. It stays listed
    /// until [`FreeSpace::end_discard`]. Returns `None` if the queue is empty.
    pub(in crate::alloc) fn begin_discard(
        &self,
        t: u32,
        returned: &ReturnedRuns,
        len: impl Fn(Run) -> u64,
    ) -> Option<Run> {
        let mut lists = returned.lists.lock();
        let Some(run) = lists.discarding.pop() else {
            lists.queued = false;
            self.discards.remove_tree(t);
            return None;
        };
        let slice =
            Run { start: run.start, len: u32::try_from(len(run)).unwrap_or(run.len).min(run.len) };
        if slice.len < run.len {
            lists.discarding.push(Run { start: slice.end(), len: run.len - slice.len });
        }
        lists.in_flight.push(slice);
        Some(slice)
    }

    /// A slice in flight may be allocated again.
    pub(in crate::alloc) fn end_discard(&self, t: u32, returned: &ReturnedRuns, slice: Run) {
        let mut lists = returned.lists.lock();
        lists.in_flight.retain(|run| *run != slice);
        self.let_leave(t, returned, lists, &[slice]);
    }

    /// Makes the queued runs of a tree available without a discard. Returns false if none are
    /// queued.
    pub(in crate::alloc) fn cancel_discard(&self, t: u32, returned: &ReturnedRuns) -> bool {
        let mut lists = returned.lists.lock();
        let runs = std::mem::take(&mut lists.discarding);
        if !runs.is_empty() {
            self.let_leave(t, returned, lists, &runs);
        }
        !runs.is_empty()
    }

    /// Runs that were noted as freed may be allocated again, once they are settled.
    fn let_leave(
        &self,
        t: u32,
        returned: &ReturnedRuns,
        mut lists: MutexGuard<'_, Lists>,
        left: &[Run],
    ) {
        let good = left
            .iter()
            .filter(|run| lists.bad & self.shape.mask(self.shape.group_run(t, **run).0) == 0);
        let (clusters, longest) =
            (good.clone().map(|run| u64::from(run.len)).sum(), good.map(|run| run.len).max());
        lists.freed.extend_from_slice(left);
        returned.note_any(&lists, longest.unwrap_or(0));
        drop(lists);
        self.memory.count(left.len() as i64 * LISTED_BYTES);
        self.noted(t, returned, longest.unwrap_or(0), false);
        self.budget.give(clusters);
        self.add_pending(-(sum(left) as i64));
    }
}
