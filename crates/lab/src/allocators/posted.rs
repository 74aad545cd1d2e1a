//! The free-space-tree allocator as it was posted in 2020.
//!
//! Known defects that are its policy are always kept: trees are loaded within requests and as a
//! whole; a tree's scan is linear; nothing is preallocated; one tree leaves memory for each one
//! that is used, however far usage is beyond the limit; a goal is met only by a run that begins
//! there, and files begin nowhere, so goals are left out; a tree whose longest run lies in its
//! first group, where data do not go, is advised again and again. Kept if asked for ([`Defects`]):
//! loaded trees are missing in the order of all trees until they change, and the first to change
//! empties it; a tree that is loaded again may be on no list, and then never leaves. Of the list of
//! trees that were never loaded the first is taken to be the lowest: only so a request of level 2
//! loads some 200 new trees, as the published counts say. Mended always: places have 64 bits, and
//! so has the limit; lists change under their locks.

use super::{Cost, Map, Policy, Reading, Space, Taken, Want};
use extant_space::{Lru, Run};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashSet};

/// Bytes of a node.
const NODE: u64 = 56;
/// Runs that a request measures.
const MAX_TO_SCAN: u32 = 200;

/// Avoidable defects of the posting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// A loaded tree is not in the order until its longest run changes, and the first to change
    /// resets the order.
    pub unlinked: bool,
    /// A tree that is made again is on no list of those that may leave.
    pub lost: bool,
}

/// Work of a request so far.
#[derive(Debug, Default)]
struct Request {
    goal: u32,
    criterion: u8,
    scanned: u32,
    found: u32,
    consultations: u8,
    /// The best run so far, and its group.
    best: Option<(u32, Run)>,
    decided: bool,
    greedy: bool,
    unadvised: bool,
}

#[derive(Debug)]
pub struct Posted<'a> {
    space: Space<'a>,
    level: u8,
    /// Nodes; 0 for any number.
    limit: u64,
    defects: Defects,
    nodes: u64,
    loaded: HashSet<u32>,
    /// Trees that ever were in memory.
    cached: HashSet<u32>,
    /// The longest run of trees in the order.
    longest: Vec<Option<u32>>,
    order: BTreeSet<(Reverse<u32>, u32)>,
    /// Trees that never were.
    uncached: BTreeSet<u32>,
    lru: Lru,
}

/// Returns whether a length is better than the best so far (0: none), for a goal; and whether it is
/// exactly right.
fn better(len: u32, goal: u32, best: u32, criterion: u8) -> (bool, bool) {
    match len {
        _ if len == goal => (true, true),
        _ if criterion == 0 && len < goal => (false, false),
        _ => (best < goal && len > best || len > goal && len < best, false),
    }
}

impl<'a> Posted<'a> {
    /// Nothing is loaded. A `limit` in bytes; 0 for none.
    pub fn new(map: &'a Map, level: u8, limit: u64, defects: Defects, slow: bool) -> Posted<'a> {
        let trees = map.shape.trees();
        Posted {
            space: Space::new(map, Reading::Together, slow),
            level,
            limit: limit / NODE,
            defects,
            nodes: 0,
            loaded: HashSet::new(),
            cached: HashSet::new(),
            longest: vec![None; trees as usize],
            order: BTreeSet::new(),
            uncached: (0..trees).collect(),
            lru: Lru::default(),
        }
    }

    fn trees(&self) -> u32 {
        self.space.shape().trees()
    }

    fn nodes_of(&self, t: u32) -> u64 {
        self.space.shape().groups_of(t).map(|g| self.space.group(g).runs() as u64).sum()
    }

    fn load(&mut self, t: u32) {
        if self.loaded.contains(&t) {
            return;
        }
        self.space.look_all(t);
        self.loaded.insert(t);
        self.nodes += self.nodes_of(t);
        let again = !self.cached.insert(t);
        self.uncached.remove(&t);
        if !self.defects.unlinked {
            self.renew(t);
        }
        if !(again && self.defects.lost) {
            self.lru.loaded(t);
        }
        self.evict_one(t);
    }

    fn evict_one(&mut self, keep: u32) {
        let over = self.limit > 0 && self.nodes > self.limit;
        if let Some(old) = self.lru.victim().filter(|old| over && *old != keep) {
            self.lru.remove(old);
            self.nodes -= self.nodes_of(old);
            self.loaded.remove(&old);
            self.space.cost.evicted += 1;
        }
    }

    /// Puts a tree where it belongs in the order.
    fn renew(&mut self, t: u32) {
        let groups = self.space.shape().groups_of(t);
        let longest = groups.filter_map(|g| self.space.group(g).longest()).map(|run| run.len);
        let longest = longest.max().unwrap_or(0);
        match self.longest[t as usize] {
            Some(old) if old == longest => return,
            Some(old) => _ = self.order.remove(&(Reverse(old), t)),
            None if self.defects.unlinked => {
                let linked = std::mem::take(&mut self.order);
                linked.into_iter().for_each(|(_, t)| self.longest[t as usize] = None);
            }
            None => {}
        }
        self.longest[t as usize] = Some(longest);
        self.order.insert((Reverse(longest), t));
    }

    /// Changes a group, whose tree is loaded for it.
    fn change<R>(&mut self, g: u32, change: impl FnOnce(&mut Space<'a>) -> R) -> R {
        let t = g >> self.space.shape().flex_bits;
        self.load(t);
        self.nodes -= self.space.group(g).runs() as u64;
        let result = change(&mut self.space);
        self.nodes += self.space.group(g).runs() as u64;
        self.renew(t);
        result
    }

    /// Looks through a tree, the longest runs first; of equals those that were added last, which
    /// are not the first group's.
    fn scan(&mut self, t: u32, request: &mut Request) {
        self.space.cost.looked += 1;
        let shape = self.space.shape();
        let mut lists: Vec<_> =
            shape.groups_of(t).map(|g| (g, self.space.group(g).by_length())).collect();
        let mut next = BinaryHeap::new();
        let push = |next: &mut BinaryHeap<_>, index: usize, run: Option<Run>| {
            next.extend(run.map(|run| (run.len, index, Reverse(run.start))));
        };
        (0..).zip(&mut lists).for_each(|(index, (_, list))| push(&mut next, index, list.next()));
        while let Some((len, index, Reverse(start))) = next.pop() {
            let (group, list) = &mut lists[index];
            push(&mut next, index, list.next());
            let measured = (*group, Run { start, len });
            if request.criterion == 0 && len < request.goal
                || !request.measure(measured, shape.is_first(*group))
            {
                break;
            }
        }
    }

    /// Returns the tree that the optimizer examines next.
    fn consult(&mut self, request: &mut Request) -> Option<u32> {
        if request.greedy || request.unadvised || request.decided {
            return None;
        }
        request.consultations = request.consultations.wrapping_add(1);
        let best = request.best.map_or(0, |(_, best)| best.len);
        let sufficient = self.order.range(..=(Reverse(request.goal), u32::MAX)).next_back();
        let largest = if request.criterion > 0 { self.order.first() } else { None };
        let seen = sufficient.or(largest).copied();
        let judged =
            seen.map(|(len, tree)| (better(len.0, request.goal, best, request.criterion), tree));
        let remembered = judged.filter(|((better, _), _)| *better);
        let exact = remembered.is_some_and(|((_, exact), _)| exact);
        let measured = request.best.is_some();
        let cache = self.should_cache(request);
        match remembered {
            None if !measured && cache => self.uncached.first().copied(),
            None if !measured && request.criterion < 2 => {
                (request.criterion, request.scanned) = (request.criterion + 1, 0);
                Some(0)
            }
            None if !measured => {
                request.greedy = true;
                None
            }
            _ if !exact && cache => self.uncached.first().copied(),
            Some((_, tree)) => Some(tree),
            None => {
                request.unadvised = true;
                None
            }
        }
    }

    fn should_cache(&self, request: &Request) -> bool {
        match self.level {
            _ if self.uncached.is_empty() => false,
            3.. => true,
            0 => false,
            1 if request.criterion == 0 => false,
            _ => !request.consultations.is_multiple_of(2),
        }
    }
}

impl Request {
    /// Measures a run of a tree. False if the tree has nothing more to offer.
    fn measure(&mut self, measured: (u32, Run), in_first: bool) -> bool {
        self.found += 1;
        if in_first && self.criterion < 2 && !self.greedy {
            return true;
        }
        let best = self.best.map_or(0, |(_, best)| best.len);
        let (better, exact) = better(measured.1.len, self.goal, best, self.criterion);
        let holds = self.greedy || better || best == 0;
        if holds {
            self.best = Some(measured);
        }
        self.decided |= self.greedy || exact || self.found > MAX_TO_SCAN;
        holds && !self.decided
    }
}

impl Policy for Posted<'_> {
    fn allocate(&mut self, want: &Want) -> Option<Taken> {
        let mut request = Request { goal: want.len, ..Request::default() };
        let mut at = self.consult(&mut request).unwrap_or(0);
        loop {
            while request.scanned < self.trees() && !request.decided {
                self.load(at);
                self.scan(at, &mut request);
                request.scanned += 1;
                at = self.consult(&mut request).unwrap_or((at + 1) % self.trees());
            }
            if request.decided || request.criterion == 2 {
                break;
            }
            (request.criterion, request.scanned, request.unadvised) =
                (request.criterion + 1, 0, false);
        }
        let (group, run) = request.best?;
        let run = Run { start: run.start, len: run.len.min(want.len) };
        self.change(group, |space| space.take(group, run))
    }

    fn free(&mut self, taken: Taken) {
        let (g, _) = self.space.shape().place(taken.start);
        self.change(g, |space| space.give(taken));
    }

    fn cost(&self) -> Cost {
        Cost { bytes: self.nodes * NODE, cached: self.cached.len() as u64, ..self.space.cost }
    }

    fn prefetch(&mut self) {
        (0..self.trees()).for_each(|t| self.load(t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_as_described() {
        assert_eq!(better(8, 8, 0, 0), (true, true));
        assert_eq!(better(7, 8, 0, 0), (false, false));
        assert_eq!(better(7, 8, 3, 1), (true, false));
        assert_eq!(better(9, 8, 12, 1), (true, false));
        assert_eq!(better(12, 8, 9, 1), (false, false));
        assert_eq!(better(5, 8, 6, 2), (false, false));
    }
}
