//! Finds a place for a claim: at its goal, then where its length fits, then the longest runs, then anything.

use super::Request;
use super::blocks::{Blocks, power};
use super::claim::Claim;
use super::group::Group;
use crate::error::{Errno, Error, Result};
use extant_format::types::{BlockNr, GroupNr};
use extant_space::{BitMap, FreeMap, Run};
use extant_sync::atomic::Ordering::Relaxed;
use std::ops::Range;
use std::sync::Arc;

/// Groups that are tried for a run of full length before a shorter one is taken.
const FULL_TRIES: u32 = 16;
/// Groups with the longest runs that are tried before all groups are.
const LONGEST_TRIES: u32 = 16;
/// How often all groups are looked at, when others move space about meanwhile.
const SWEEPS: u32 = 8;

/// Parts of a group that threads start files in.
const COLOURS: u64 = 16;
/// Clusters from which on a growing file is worth a place of its own, and how often those have to fit there.
const STREAM: u32 = 32;
const ROOM: u32 = 8;

/// A wish in clusters.
struct Wish {
    group: GroupNr,
    bit: u32,
    want: u32,
    min: u32,
    /// Groups that may be used.
    groups: u32,
    /// The goal is behind what a file has, not just a place to start.
    grows: bool,
}

/// Where a run was found.
type Found = Option<(GroupNr, Run)>;

impl Blocks {
    /// See [`Alloc::claim`](super::Alloc::claim).
    pub fn claim(this: &Arc<Blocks>, want: &Request) -> Result<Claim> {
        let most = this.vol.geo.clusters_per_group;
        let len = this.clusters(want.len.max(1)).min(u64::from(most));
        let min = this.clusters(want.min.max(1)).min(len);
        let unread = this.unread.load(Relaxed);
        let budget = match want.reserved {
            true => len,
            false => this.budget.take_some(len, min, this.keep(want.purpose, want.privileged)),
        };
        let found = if budget == 0 { None } else { this.find(&this.wish(want, budget as u32, min as u32)) };
        let used = found.map_or(0, |(_, run)| u64::from(run.len));
        if !want.reserved {
            this.budget.give(budget - used);
        }
        let (g, run) = found.ok_or_else(|| this.nothing_found(unread))?;
        let start = this.vol.geo.block_of_bit(g, run.start);
        Ok(Claim::new(this.clone(), start, run.len << this.vol.geo.cluster_bits))
    }

    /// Why there is no place, if `unread` bitmaps could not be read before.
    fn nothing_found(&self, unread: u64) -> Error {
        match self.unread.load(Relaxed) == unread {
            true => Errno::NoSpc.into(),
            false => std::io::Error::other("no space in the groups whose bitmaps can be read").into(),
        }
    }

    fn wish(&self, want: &Request, clusters: u32, min: u32) -> Wish {
        let groups = if want.low { self.low_groups() } else { self.count() };
        let goal = self.vol.geo.group_and_bit(want.goal).filter(|(g, _)| g.0 < groups);
        let (group, bit) = goal.unwrap_or((GroupNr(0), 0));
        // A file that comes to the start of a group goes on behind the group's metadata.
        let grows = goal.is_some() && !self.is_start_goal(group, want.goal);
        Wish { group, bit, want: clusters, min, groups, grows }
    }

    /// Groups that lie below block 2^32 as a whole (or all).
    fn low_groups(&self) -> u32 {
        match self.vol.geo.group_of_block(BlockNr(1 << 32)) {
            Some(first_too_high) => first_too_high.0,
            None => self.count(),
        }
    }

    fn find(&self, wish: &Wish) -> Found {
        if let Some(run) = self.at_goal(wish) {
            return Some((wish.group, run));
        }
        let found = self.at_stream(wish).or_else(|| self.of_full_length(wish)).or_else(|| self.of_longest(wish));
        let found = found.or_else(|| (0..SWEEPS).find_map(|_| self.anywhere(wish)));
        if let Some((g, run)) = found {
            self.streams.local().store(self.vol.geo.block_of_bit(g, run.end()).0, Relaxed);
        }
        found
    }

    /// Exactly at the goal if a good part is there, else at full length in the goal's group. A file that grows by much and
    /// finds its place taken goes where it has room, since whoever took the place grows there too.
    fn at_goal(&self, wish: &Wish) -> Option<Run> {
        // Where to start is not worth waiting for.
        let mut group = if wish.grows { self.lock(wish.group)? } else { self.try_lock(wish.group)? };
        let enough = wish.min.max(wish.want / 4);
        let take = |map: &mut BitMap| {
            let here = map.take_at(wish.bit, wish.want, enough);
            let stream = wish.grows && wish.want >= STREAM;
            let apart = |map: &mut BitMap| map.take_apart(wish.want, wish.want.saturating_mul(ROOM));
            let here = here.or_else(|| if stream { apart(map) } else { None });
            here.or_else(|| map.take(wish.bit, wish.want, wish.want))
        };
        self.take_by(wish.group, &mut group, take)
    }

    /// A place to start a file in a group: each thread has a part of the group of its own.
    pub(super) fn start_goal(&self, g: GroupNr, thread: usize) -> BlockNr {
        let geo = &self.vol.geo;
        let part = u64::from(geo.blocks_in_group(g)) / COLOURS;
        BlockNr(geo.first_block_of_group(g).0 + part * (thread as u64 % COLOURS))
    }

    fn is_start_goal(&self, g: GroupNr, goal: BlockNr) -> bool {
        let part = (u64::from(self.vol.geo.blocks_in_group(g)) / COLOURS).max(1);
        goal.0.saturating_sub(self.vol.geo.first_block_of_group(g).0).is_multiple_of(part)
    }

    /// Where this thread last went when its goal's group was full.
    fn at_stream(&self, wish: &Wish) -> Found {
        let last = BlockNr(self.streams.local().load(Relaxed));
        let (g, bit) = self.vol.geo.group_and_bit(last).filter(|(g, _)| g.0 != wish.group.0 && g.0 < wish.groups)?;
        let mut group = self.try_lock(g)?;
        Some((g, self.take(g, &mut group, bit, wish.want, wish.want)?))
    }

    /// In a group that has a run of full length, or may have one; busy groups are passed over.
    fn of_full_length(&self, wish: &Wish) -> Found {
        let sure = wish.want.checked_next_power_of_two().unwrap_or(u32::MAX);
        let found = self.of_order(wish, sure);
        if found.is_some() || wish.want.is_power_of_two() { found } else { self.of_order(wish, power(wish.want)) }
    }

    /// In a group whose longest run's power of two is at least `least`.
    fn of_order(&self, wish: &Wish, least: u32) -> Found {
        let mut tries = FULL_TRIES;
        for range in self.order(wish) {
            let mut at = range.start;
            while let Some(g) = self.longest.find(at..range.end, least) {
                tries = tries.checked_sub(1)?;
                let found = self
                    .try_lock(GroupNr(g))
                    .and_then(|mut group| self.take(GroupNr(g), &mut group, 0, wish.want, wish.want));
                if let Some(run) = found {
                    return Some((GroupNr(g), run));
                }
                at = g + 1;
            }
        }
        None
    }

    /// In one of the groups with the longest runs.
    fn of_longest(&self, wish: &Wish) -> Found {
        for _ in 0..LONGEST_TRIES {
            let least = self.longest.largest().min(power(wish.want)).max(1);
            let g = self.order(wish).into_iter().find_map(|range| self.longest.find(range, least))?;
            let mut group = self.lock(GroupNr(g))?;
            if let Some(run) = self.take(GroupNr(g), &mut group, 0, wish.want, wish.min.max(least)) {
                return Some((GroupNr(g), run));
            }
        }
        None
    }

    /// In any group.
    fn anywhere(&self, wish: &Wish) -> Found {
        for range in self.order(wish) {
            let mut at = range.start;
            while let Some(g) = self.longest.find(at..range.end, 1) {
                let mut group = self.lock(GroupNr(g))?;
                if let Some(run) = self.take(GroupNr(g), &mut group, 0, wish.want, wish.min) {
                    return Some((GroupNr(g), run));
                }
                at = g + 1;
            }
        }
        None
    }

    /// All groups: from the goal's to the end of its flexible group, the rest of that, those behind, those before.
    fn order(&self, wish: &Wish) -> [Range<u32>; 4] {
        let bits = self.vol.geo.flex_bits;
        let first = (wish.group.0 >> bits) << bits;
        let end = first.saturating_add(1u32.checked_shl(bits).unwrap_or(u32::MAX)).min(wish.groups);
        [wish.group.0..end, first..wish.group.0, end..wish.groups, 0..first]
    }

    fn take(&self, g: GroupNr, group: &mut Group, bit: u32, want: u32, min: u32) -> Option<Run> {
        self.take_by(g, group, |map| map.take(bit, want, min))
    }

    /// Claims what `take` takes.
    fn take_by(&self, g: GroupNr, group: &mut Group, take: impl FnOnce(&mut BitMap) -> Option<Run>) -> Option<Run> {
        let map = self.warm(g, group)?;
        let run = take(&mut map.free)?;
        map.claimed += run.len;
        self.longest.set(g.0, map.free.longest());
        Some(run)
    }
}
