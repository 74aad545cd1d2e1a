//! The engine's rules on the engine's structures, without their protection: locks, claims, frees
//! that wait for a commit.
//!
//! The tables also show the engine itself; this form runs under the same counters as the older
//! designs.

use super::{Cost, Map, Policy, Reading, Space, Taken, Want};
use extant_space::{FreeTree, Meta, Run, Summaries, Summary};
use std::collections::HashSet;

/// Runs behind the goal that are looked at for one of the whole length.
const NEAR_RUNS: usize = 128;
/// Clusters from which on a growing file is worth a place of its own, how often those have to fit
/// there, and among how many runs.
const STREAM: u32 = 32;
const ROOM: u32 = 8;
const LONG_RUNS: usize = 16;
/// Less than one part in so many is little free space.
const SCARCE: u64 = 8;
/// Consultations of the order for a run of the whole length.
const CONSULTATIONS: u32 = 16;

/// See the module's description.
#[derive(Debug)]
pub struct Engine<'a> {
    space: Space<'a>,
    meta: Meta,
    summaries: Summaries,
    /// The next tree that may be unknown.
    unknown: u32,
    known: HashSet<u32>,
    loaded: HashSet<u32>,
    runs: u64,
    /// Where each of some threads last found space away from its goal.
    streams: [u64; 16],
    patterns: Vec<Option<Summary>>,
}

impl<'a> Engine<'a> {
    /// Nothing is known yet.
    pub fn new(map: &'a Map, slow: bool) -> Engine<'a> {
        Engine {
            space: Space::new(map, Reading::Together, slow),
            meta: Meta::new((0..map.shape.trees()).map(|_| 0)),
            summaries: Summaries::new(map.shape.groups),
            unknown: 0,
            known: HashSet::new(),
            loaded: HashSet::new(),
            runs: 0,
            streams: [0; 16],
            patterns: Vec::new(),
        }
    }

    fn tree_of(&self, g: u32) -> u32 {
        g >> self.space.map.shape.flex_bits
    }

    /// Returns a group's summary; that of a pattern is made once.
    fn summary(&mut self, g: u32) -> Summary {
        let pattern = self.space.map.pattern(g) as usize;
        if self.patterns.len() <= pattern {
            self.patterns.resize(pattern + 1, None);
        }
        *self.patterns[pattern]
            .get_or_insert_with(|| Summary::of(self.space.map.group(g).runs.by_length()))
    }

    /// Gets to know a tree's groups.
    fn summarise(&mut self, t: u32) {
        if !self.known.insert(t) {
            return;
        }
        self.space.look_all(t);
        for g in self.space.map.shape.groups_of(t) {
            let summary = self.summary(g);
            self.summaries.set(g, &summary);
        }
        self.renew(t);
    }

    /// The longest run of a tree as far as is known.
    fn renew(&self, t: u32) {
        let groups = self.space.map.shape.groups_of(t);
        let longest = groups.map(|g| {
            if self.loaded.contains(&g) {
                self.space.group(g).longest()
            } else {
                self.summaries.longest(g).unwrap_or(0)
            }
        });
        self.meta.set(t, longest.max().unwrap_or(0));
    }

    fn load(&mut self, g: u32) {
        if self.loaded.insert(g) {
            self.space.look(g);
            self.runs += self.space.group(g).runs.runs() as u64;
            self.renew(self.tree_of(g));
        }
    }

    fn take(&mut self, g: u32, run: Run) -> Option<Taken> {
        let before = self.space.group(g).runs.runs() as u64;
        let taken = self.space.take(g, run);
        self.runs = self.runs + self.space.group(g).runs.runs() as u64 - before;
        self.renew(self.tree_of(g));
        taken
    }

    /// Returns whether other threads work on a group's tree.
    fn is_busy(&mut self, t: u32, want: &Want<'_>) -> bool {
        let busy = want.busy.is_some_and(|busy| busy.iter().any(|g| self.tree_of(*g) == t));
        self.space.cost.passed += u64::from(busy);
        busy
    }

    /// Allocates at the goal if a good part of the length is free there. A file that grows by much
    /// and finds its place taken moves to a longer free run.
    fn at_goal(&mut self, want: &Want<'_>) -> Option<Taken> {
        let (g, bit) = self.space.map.shape.place(want.goal);
        if g >= self.space.map.shape.groups {
            return None;
        }
        self.load(g);
        self.space.cost.looked += 1;
        let runs = &self.space.group(g).runs;
        let here = runs.at(bit).map(|run| Run { start: bit, len: (run.end() - bit).min(want.len) });
        let here = here.filter(|run| run.len >= want.least.max(want.len / 4));
        let apart = || if bit > 0 && want.len >= STREAM { apart(runs, want.len) } else { None };
        let group_len = self.space.map.shape.group_len;
        let hole = || if bit == 0 { hole(runs, want.len, group_len) } else { None };
        let run = here.or_else(hole).or_else(apart).or_else(|| nearest(runs, bit, want.len))?;
        self.take(g, run)
    }

    /// Behind where the thread last went.
    fn at_stream(&mut self, want: &Want<'_>) -> Option<Taken> {
        let last = self.streams[want.file as usize % self.streams.len()];
        let (g, bit) = self.space.map.shape.place(last);
        if last == 0 || g >= self.space.map.shape.groups || self.is_busy(self.tree_of(g), want) {
            return None;
        }
        self.load(g);
        self.space.cost.looked += 1;
        let run = nearest(&self.space.group(g).runs, bit, want.len)?;
        self.take(g, run)
    }

    fn by_criteria(&mut self, want: &Want<'_>) -> Option<Taken> {
        let near = self.tree_of(self.space.map.shape.place(want.goal).0);
        for consultation in 1..=CONSULTATIONS {
            let found = self.consult(want, near, want.len);
            if found.is_some() {
                return found;
            }
            // The default level looks at nothing unknown for the whole length.
            if consultation > 1 || !self.few() || !self.explore() {
                break;
            }
        }
        if self.explore() {
            let found = self.consult(want, near, want.len);
            if found.is_some() {
                return found;
            }
        }
        self.consult(want, near, want.least)
    }

    /// Returns whether there are so few trees that requests load the trees that they need.
    fn few(&self) -> bool {
        self.space.map.shape.trees() <= 8
    }

    fn explore(&mut self) -> bool {
        let trees = self.space.map.shape.trees();
        while self.unknown < trees && self.known.contains(&self.unknown) {
            self.unknown += 1;
        }
        let some = self.unknown < trees;
        if some {
            self.summarise(self.unknown);
        }
        some
    }

    /// Tries the trees that the order advises: for the whole length, else for the longest run.
    fn consult(&mut self, want: &Want<'_>, near: u32, least: u32) -> Option<Taken> {
        let trees = self.space.map.shape.trees();
        let advice = if least < want.len {
            self.meta.longest(near, trees)
        } else if want.len < STREAM || self.meta.get(near) >= want.len {
            Some(self.meta.nearby(want.len, near, trees)).filter(|some| !some.is_empty())
        } else {
            None
        };
        let advice =
            advice.or_else(|| self.meta.fitting(want.len, near, trees)).unwrap_or_default();
        let free: Vec<u32> = advice.iter().copied().filter(|t| !self.is_busy(*t, want)).collect();
        free.into_iter().find_map(|t| self.in_tree(t, want, least))
    }

    /// In a tree: in the group that has the shortest sufficient run, else the longest.
    fn in_tree(&mut self, t: u32, want: &Want<'_>, least: u32) -> Option<Taken> {
        self.space.cost.looked += 1;
        let groups =
            self.space.map.shape.groups_of(t).filter(|g| !self.space.map.shape.is_first(*g));
        let known = groups.map(|g| (self.best_len(g, want.len), g));
        let fit = |len: u32| if len >= want.len { len } else { u32::MAX - len };
        let (_, g) = known.filter(|(len, _)| *len > 0).min_by_key(|(len, g)| (fit(*len), *g))?;
        self.load(g);
        let runs = &self.space.group(g).runs;
        let run = runs.best_fit(want.len, 0, 0).or_else(|| runs.longest())?;
        (run.len >= least).then_some(())?;
        self.take(g, Run { start: run.start, len: run.len.min(want.len) })
    }

    /// Returns the length that a group offers for `len`: exact if the group is in memory, else its
    /// longest run.
    fn best_len(&self, g: u32, len: u32) -> u32 {
        if !self.loaded.contains(&g) {
            return self.summaries.longest(g).unwrap_or(0);
        }
        let runs = &self.space.group(g).runs;
        runs.best_fit(len, 0, 0).or_else(|| runs.longest()).map_or(0, |run| run.len)
    }

    /// In any group, whatever is known of it.
    fn anywhere(&mut self, want: &Want<'_>) -> Option<Taken> {
        let near = self.space.map.shape.place(want.goal).0.min(self.space.map.shape.groups);
        for g in (near..self.space.map.shape.groups).chain(0..near) {
            self.load(g);
            let runs = &self.space.group(g).runs;
            if let Some(run) = runs.best_fit(want.len, 0, 0).or_else(|| runs.longest()) {
                return self.take(g, Run { start: run.start, len: run.len.min(want.len) });
            }
        }
        None
    }
}

/// Where little of a group is free, a run of exactly the length.
fn hole(runs: &FreeTree, len: u32, group_len: u32) -> Option<Run> {
    let scarce = u64::from(runs.free()) * SCARCE < u64::from(group_len);
    if scarce { runs.best_fit(len, 0, 0).filter(|run| run.len == len) } else { None }
}

/// From the middle of one of the longest runs, if half of it has room.
fn apart(runs: &FreeTree, len: u32) -> Option<Run> {
    let long =
        runs.by_length().take(LONG_RUNS).find(|run| run.len / 2 >= len.saturating_mul(ROOM))?;
    Some(Run { start: long.start + long.len / 2, len })
}

/// Returns the first run of the whole length behind a unit, then before it.
fn nearest(runs: &FreeTree, bit: u32, len: u32) -> Option<Run> {
    let fits = |run: &Run| run.len >= len;
    let behind = runs.within(bit..u32::MAX).take(NEAR_RUNS).find(fits);
    let run = behind.or_else(|| runs.within(0..bit).take(NEAR_RUNS).find(fits))?;
    Some(Run { start: run.start, len })
}

impl Policy for Engine<'_> {
    fn allocate(&mut self, want: &Want<'_>) -> Option<Taken> {
        if let Some(taken) = self.at_goal(want) {
            return Some(taken);
        }
        let found = self
            .at_stream(want)
            .or_else(|| self.by_criteria(want))
            .or_else(|| self.anywhere(want))?;
        self.streams[want.file as usize % self.streams.len()] = found.end();
        Some(found)
    }

    fn free(&mut self, taken: Taken) {
        let (g, _) = self.space.map.shape.place(taken.start);
        self.load(g);
        let before = self.space.group(g).runs.runs() as u64;
        self.space.give(taken);
        self.runs = self.runs + self.space.group(g).runs.runs() as u64 - before;
        self.renew(self.tree_of(g));
    }

    fn cost(&self) -> Cost {
        let index = self.summaries.bytes() + self.meta.bytes();
        let trees: HashSet<u32> = self.loaded.iter().map(|g| self.tree_of(*g)).collect();
        Cost {
            bytes: FreeTree::bytes_of(self.runs) + index as u64,
            cached: trees.len() as u64,
            ..self.space.cost
        }
    }

    fn prefetch(&mut self) {
        (0..self.space.map.shape.trees()).for_each(|t| self.summarise(t));
    }
}
