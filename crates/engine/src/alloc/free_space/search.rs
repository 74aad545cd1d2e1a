//! Finds a place for a claim: at its goal, behind the last claim of its thread, and then by
//! criteria over all trees.
//!
//! | criterion | takes |
//! | --- | --- |
//! | 0 | a run of the whole length, not in a group that has the metadata of its neighbours |
//! | 1 | the longest run, not there either |
//! | 2 | the same, anywhere |
//!
//! The order of all trees ([`extant_space::Meta`]) determines the tried trees. Space is taken from
//! locked trees only. Trees that other threads have locked are skipped, except the goal's, and
//! except in the last resort.

use super::FreeSpace;
use super::tree::Tree;
use crate::alloc::Request;
use crate::alloc::claim::Claim;
use crate::error::{Errno, Error, Result};
use extant_format::types::{BlockNr, GroupNr};
use extant_space::{Advice, Run};
use extant_sync::MutexGuard;
use extant_sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use tracing::{trace, trace_span};

/// The target of traced events.
pub(in crate::alloc) const TRACED: &str = "extant::frsp";

/// Consultations of the order for a run of the whole length.
const CONSULTATIONS: u32 = 16;
/// How often all groups are looked at, when others move space about meanwhile.
const SWEEPS: u32 = 8;

/// Parts of a group that threads start files in.
const COLOURS: u64 = 16;
/// Clusters from which on a growing file is worth a place of its own, and how often those have to
/// fit there.
const STREAM: u32 = 32;
const ROOM: u32 = 8;
/// Runs behind and before the goal that are looked at for one of the whole length.
const NEAR_RUNS: usize = 128;
/// Long runs of a tree among which one in the goal's group is looked for.
const LONG_RUNS: usize = 16;

/// A wish in clusters.
pub(in crate::alloc) struct SearchGoal {
    group: GroupNr,
    bit: u32,
    want: u32,
    min: u32,
    /// Trees that may be used.
    trees: u32,
    /// The goal is the block behind the file's last one, and not only a starting point.
    grows: bool,
    data: bool,
}

/// Where a run was found.
type Found = Option<(GroupNr, Run)>;

/// How a tree is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Criterion {
    Full,
    Best,
    Any,
}

impl FreeSpace {
    /// See [`Alloc::claim`](crate::alloc::Alloc::claim).
    pub fn claim(this: &Arc<FreeSpace>, want: &Request) -> Result<Claim> {
        // Events of the search belong to the span of its request.
        let Request { goal, len, min, purpose, .. } = want;
        let _request =
            trace_span!(target: TRACED, "request", goal = goal.0, len, min, ?purpose).entered();
        let most = this.vol.geo.clusters_per_group;
        let len = this.clusters(want.len.max(1)).min(u64::from(most));
        let min = this.clusters(want.min.max(1)).min(len);
        let unread = this.unread.load(Relaxed);
        let budget = if want.reserved {
            len
        } else {
            this.budget.take_some(len, min, this.min_free(want.purpose, want.privileged))
        };
        let found =
            if budget == 0 { None } else { this.find(&this.wish(want, budget as u32, min as u32)) };
        let used = found.map_or(0, |(_, run)| u64::from(run.len));
        if !want.reserved {
            this.budget.give(budget - used);
        }
        let (g, run) = found.ok_or_else(|| this.nothing_found(unread))?;
        let start = this.vol.geo.block_of_bit(g, run.start);
        Ok(Claim::new(this.clone(), start, run.len << this.vol.geo.cluster_bits))
    }

    /// Claims the first free run within `within`; `None` if nothing of it is free.
    pub(in crate::alloc) fn claim_within(
        this: &Arc<FreeSpace>,
        g: GroupNr,
        within: Run,
    ) -> Result<Option<Claim>> {
        this.load(g)?;
        let Some(mut tree) = this.with_group(g, true) else { return Ok(None) };
        let units = this.shape.place(g, within);
        let Some(free) = tree.free.within(units.start..units.end()).next() else { return Ok(None) };
        if !this.budget.take(free.len.into(), 0) {
            return Err(Errno::NoSpc.into());
        }
        let taken = this.take(this.shape.tree_of(g), &mut tree, free);
        drop(tree);
        let Some((g, run)) = taken else {
            this.budget.give(free.len.into());
            return Ok(None);
        };
        let start = this.vol.geo.block_of_bit(g, run.start);
        Ok(Some(Claim::new(this.clone(), start, run.len << this.vol.geo.cluster_bits)))
    }

    /// Claims a free run of exactly the wanted length in the goal's flexible group, where little is
    /// left. `None` if there is none, or if others are busy there.
    pub(in crate::alloc) fn claim_hole(this: &Arc<FreeSpace>, want: &Request) -> Option<Claim> {
        let len = this.clusters(want.len);
        let wish = this.wish(want, u32::try_from(len).ok()?, 1);
        let mut tree = this.with_group(wish.group, false)?;
        let hole = this.hole(&wish, &tree)?;
        if !this.budget.take(len, this.min_free(want.purpose, want.privileged)) {
            return None;
        }
        let taken = this.take(this.shape.tree_of(wish.group), &mut tree, hole);
        drop(tree);
        let Some((g, run)) = taken else {
            this.budget.give(len);
            return None;
        };
        this.counts.goal.add(1);
        let start = this.vol.geo.block_of_bit(g, run.start);
        Some(Claim::new(this.clone(), start, run.len << this.vol.geo.cluster_bits))
    }

    /// Why there is no place, if `unread` bitmaps could not be read before.
    fn nothing_found(&self, unread: u64) -> Error {
        if self.unread.load(Relaxed) == unread {
            Errno::NoSpc.into()
        } else {
            std::io::Error::other("no space in the groups whose bitmaps can be read").into()
        }
    }

    fn wish(&self, want: &Request, clusters: u32, min: u32) -> SearchGoal {
        let trees = if want.low { self.low_trees() } else { self.meta.len() };
        let goal =
            self.vol.geo.group_and_bit(want.goal).filter(|(g, _)| self.shape.tree_of(*g) < trees);
        let (group, bit) = goal.unwrap_or((GroupNr(0), 0));
        // A file that comes to the start of a group goes on behind the group's metadata.
        let grows = goal.is_some() && !self.is_start_goal(group, want.goal);
        SearchGoal {
            group,
            bit,
            want: clusters,
            min,
            trees,
            grows,
            data: want.purpose == crate::alloc::Purpose::Data,
        }
    }

    /// Trees that lie below block 2^32 as a whole (or all).
    fn low_trees(&self) -> u32 {
        match self.vol.geo.group_of_block(BlockNr(1 << 32)) {
            Some(first_too_high) => self.shape.trees_below(first_too_high.0),
            None => self.meta.len(),
        }
    }

    fn find(&self, wish: &SearchGoal) -> Found {
        if let Some(found) = self.at_goal(wish) {
            self.counts.goal.add(1);
            return Some(found);
        }
        let found =
            self.at_stream(wish).or_else(|| self.by_criteria(wish)).or_else(|| self.anywhere(wish));
        if let Some((g, run)) = found {
            self.streams.local().store(self.vol.geo.block_of_bit(g, run.end()).0, Relaxed);
        }
        found
    }

    /// Searches exactly at the goal if a large part of the request is free there, else for the full
    /// length in the goal's group. A file that grows by much moves to a long run if its goal is
    /// taken, since the owner of these blocks probably grows there, too. A new file in a tree with
    /// little free space fills a run of its exact length.
    fn at_goal(&self, wish: &SearchGoal) -> Found {
        // Where to start is not worth waiting for.
        let mut tree = self.with_group(wish.group, wish.grows)?;
        let goal = self.shape.unit(wish.group, wish.bit);
        let here = tree
            .free
            .at(goal)
            .map(|run| Run { start: goal, len: (run.end() - goal).min(wish.want) });
        let here = here.filter(|run| run.len >= wish.min.max(wish.want / 4));
        let apart =
            || if wish.grows && wish.want >= STREAM { self.apart(wish, &tree) } else { None };
        let hole = || if wish.grows { None } else { self.hole(wish, &tree) };
        let run = here.or_else(hole).or_else(apart).or_else(|| self.nearest(wish, &tree, goal))?;
        self.take(self.shape.tree_of(wish.group), &mut tree, run)
    }

    /// Returns a free run of exactly the wanted length, if little of the tree is free. An exact fit
    /// leaves no remainder, and long runs stay whole. If much is free, neighbors matter more.
    fn hole(&self, wish: &SearchGoal, tree: &Tree) -> Option<Run> {
        if !tree.is_scarce(self.shape.group_len()) {
            return None;
        }
        let near = self.shape.unit(wish.group, wish.bit);
        tree.free.best_fit(wish.want, near, 0).filter(|run| run.len == wish.want)
    }

    /// Returns space from the middle of one of the longest runs of the goal's group, if half of the
    /// run suffices: files that grow from there do not soon meet files that grow elsewhere.
    fn apart(&self, wish: &SearchGoal, tree: &Tree) -> Option<Run> {
        let (units, room) = (self.shape.units(wish.group), wish.want.saturating_mul(ROOM));
        let long = tree.free.by_length().take(LONG_RUNS).take_while(|run| run.len / 2 >= room);
        let run = { long }.find(|run| units.contains(&run.start))?;
        Some(Run { start: run.start + run.len / 2, len: wish.want })
    }

    /// The first run of the whole length behind the goal in its group, then before it.
    fn nearest(&self, wish: &SearchGoal, tree: &Tree, goal: u32) -> Option<Run> {
        let units = self.shape.units(wish.group);
        let fits = |run: &Run| run.len >= wish.want;
        let behind = tree.free.within(goal..units.end).take(NEAR_RUNS).find(fits);
        let run =
            behind.or_else(|| tree.free.within(units.start..goal).take(NEAR_RUNS).find(fits))?;
        Some(Run { start: run.start, len: wish.want })
    }

    /// Takes a run of a locked tree.
    fn take(&self, t: u32, tree: &mut MutexGuard<'_, Tree>, run: Run) -> Found {
        let taken = self.change(t, tree, |tree| tree.claim(run));
        taken.then(|| self.shape.group_run(t, run))
    }

    /// A place to start a file in a group: each thread has a part of the group of its own.
    pub(in crate::alloc) fn start_goal(&self, g: GroupNr, thread: usize) -> BlockNr {
        let geo = &self.vol.geo;
        let part = u64::from(geo.blocks_in_group(g)) / COLOURS;
        BlockNr(geo.first_block_of_group(g).0 + part * (thread as u64 % COLOURS))
    }

    fn is_start_goal(&self, g: GroupNr, goal: BlockNr) -> bool {
        let part = (u64::from(self.vol.geo.blocks_in_group(g)) / COLOURS).max(1);
        goal.0.saturating_sub(self.vol.geo.first_block_of_group(g).0).is_multiple_of(part)
    }

    /// Where this thread last went when its goal's group was full.
    fn at_stream(&self, wish: &SearchGoal) -> Found {
        let last = BlockNr(self.streams.local().load(Relaxed));
        let (g, bit) = self.vol.geo.group_and_bit(last).filter(|(g, _)| g.0 != wish.group.0)?;
        let t = self.shape.tree_of(g);
        if t >= wish.trees {
            return None;
        }
        let mut tree = self.with_group(g, false)?;
        let behind = SearchGoal { group: g, bit, ..*wish };
        let run = self.nearest(&behind, &tree, self.shape.unit(g, bit))?;
        let found = self.take(t, &mut tree, run)?;
        self.counts.stream.add(1);
        Some(found)
    }

    /// Searches by descending criteria. A run that is long enough is taken at once; before a
    /// shorter one is taken, more trees may be examined.
    fn by_criteria(&self, wish: &SearchGoal) -> Found {
        let near = self.shape.tree_of(wish.group);
        for consultation in 1..=CONSULTATIONS {
            let found = self.consult(wish, Criterion::Full);
            if found.is_some() {
                return found;
            }
            if !self.explore(0, consultation, near) {
                break;
            }
        }
        for criterion in [Criterion::Best, Criterion::Any] {
            let more_is_known = self.explore(criterion as usize, 1, near);
            let full = if more_is_known { self.consult(wish, Criterion::Full) } else { None };
            let found = full.or_else(|| self.consult(wish, criterion));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Tries the trees that the order of all trees advises.
    fn consult(&self, wish: &SearchGoal, criterion: Criterion) -> Found {
        let advice = self.advice(wish, criterion);
        trace!(
            target: TRACED,
            ?criterion,
            want = wish.want,
            ?advice,
            unknown = self.scan.left(),
            "optimiser",
        );
        let found = advice.into_iter().find_map(|t| self.in_tree(t, wish, criterion))?;
        if let Some(count) = self.counts.criteria.get(criterion as usize) {
            count.add(1);
        }
        trace!(target: TRACED, ?criterion, group = found.0.0, len = found.1.len, "found");
        Some(found)
    }

    /// Trees to try, the best first.
    fn advice(&self, wish: &SearchGoal, criterion: Criterion) -> Advice {
        let near = self.shape.tree_of(wish.group);
        self.counts.advice.add(1);
        // A small request belongs near its goal, not into the shortest run.
        if criterion == Criterion::Full && (wish.want < STREAM || self.meta.get(near) >= wish.want)
        {
            let nearby = self.meta.nearby(wish.want, near, wish.trees);
            if !nearby.is_empty() {
                return nearby;
            }
        }
        let advice = match criterion {
            Criterion::Full => self.meta.fitting(wish.want, near, wish.trees),
            _ => self.meta.longest(near, wish.trees),
        };
        advice.unwrap_or_else(|| {
            self.counts.busy.add(1);
            let least = if criterion == Criterion::Full { wish.want } else { wish.min };
            self.meta.nearby(least, near, wish.trees)
        })
    }

    /// In a tree: among the groups in memory, else in the group that is said to have the best,
    /// which is loaded.
    fn in_tree(&self, t: u32, wish: &SearchGoal, criterion: Criterion) -> Found {
        let avoid =
            if wish.data && criterion != Criterion::Any { self.shape.behind_first(t) } else { 0 };
        for attempt in 0..=self.shape.groups_of(t).len() {
            let mut tree =
                if criterion == Criterion::Any { self.tree(t)? } else { self.try_tree(t)? };
            let here = self.best_of(t, wish, &tree, avoid);
            let outside = self.best_absent(t, wish, &tree, avoid);
            let hoped = outside.map_or(0, |(_, longest)| longest);
            let least = self.least(t, wish, criterion);
            let (enough, best) = (least.max(hoped.min(wish.want)), here.map_or(0, |run| run.len));
            trace!(
                target: TRACED,
                tree = t,
                ?criterion,
                best,
                hoped,
                least,
                bytes = self.memory.usage(),
                "allocator step",
            );
            if let Some(run) = here.filter(|run| run.len >= enough) {
                if attempt == 0 {
                    self.used_again(t, &tree);
                }
                return self.take(
                    t,
                    &mut tree,
                    Run { start: run.start, len: run.len.min(wish.want) },
                );
            }
            let Some((g, _)) = outside.filter(|(_, longest)| *longest >= least) else {
                // The order may have advised a tree that had more once.
                self.tell_longest(t, &tree);
                return None;
            };
            drop(tree);
            self.load(g).ok()?;
        }
        None
    }

    /// Returns the shortest acceptable run in a tree. The run for which the order suggests a tree
    /// may be in a group that data should avoid; other trees then have runs as long.
    fn least(&self, t: u32, wish: &SearchGoal, criterion: Criterion) -> u32 {
        match criterion {
            Criterion::Full => wish.want,
            Criterion::Best => (self.meta.get(t) / 8 * 7).min(wish.want).max(wish.min),
            Criterion::Any => wish.min,
        }
    }

    /// The run of a tree that fits best: the shortest that is long enough, else the longest.
    fn best_of(&self, t: u32, wish: &SearchGoal, tree: &Tree, avoid: u32) -> Option<Run> {
        let near = if self.shape.tree_of(wish.group) == t {
            self.shape.unit(wish.group, wish.bit)
        } else {
            0
        };
        tree.free.best_fit(wish.want, near, avoid).or_else(|| tree.free.longest_from(avoid))
    }

    /// Of the groups that are not in memory that with the shortest sufficient longest run, else
    /// that with the longest.
    fn best_absent(
        &self,
        t: u32,
        wish: &SearchGoal,
        tree: &Tree,
        avoid: u32,
    ) -> Option<(GroupNr, u32)> {
        let groups =
            self.shape.groups_of(t).map(GroupNr).filter(|g| tree.is_absent(self.shape.mask(*g)));
        let known = groups.filter(|g| self.shape.unit(*g, 0) >= avoid);
        let known = known.filter_map(|g| Some((g, self.summaries.longest(g.0)?)));
        known.filter(|(_, longest)| *longest > 0).min_by_key(|(_, longest)| {
            if *longest >= wish.want { *longest } else { u32::MAX - longest }
        })
    }

    /// Searches all groups, without regard to summaries. Other threads may move space meanwhile, so
    /// all are searched several times.
    fn anywhere(&self, wish: &SearchGoal) -> Found {
        let near = self.shape.tree_of(wish.group);
        let trees = || (near..wish.trees).chain(0..near.min(wish.trees));
        let found = (0..SWEEPS).find_map(|_| trees().find_map(|t| self.in_any_group(t, wish)))?;
        self.counts.anywhere.add(1);
        Some(found)
    }

    fn in_any_group(&self, t: u32, wish: &SearchGoal) -> Found {
        let mut unreadable = 0;
        for attempt in 0..=self.shape.groups_of(t).len() {
            let mut tree = self.tree(t)?;
            if let Some(run) = self.best_of(t, wish, &tree, 0).filter(|run| run.len >= wish.min) {
                if attempt == 0 {
                    self.used_again(t, &tree);
                }
                return self.take(
                    t,
                    &mut tree,
                    Run { start: run.start, len: run.len.min(wish.want) },
                );
            }
            let untried = |g: &GroupNr| {
                tree.is_absent(self.shape.mask(*g)) && unreadable & self.shape.mask(*g) == 0
            };
            let has_free = |g: &GroupNr| self.groups.with(*g, |desc| desc.free_clusters) > 0;
            let next = self.shape.groups_of(t).map(GroupNr).find(|g| untried(g) && has_free(g))?;
            drop(tree);
            if self.load(next).is_err() {
                unreadable |= self.shape.mask(next);
            }
        }
        None
    }
}
