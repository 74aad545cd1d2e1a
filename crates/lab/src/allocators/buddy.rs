//! Buddy allocators of three times: groups one after the other (to 2020), with lists of groups by
//! their largest buddy and by their average run (2021 to 2023), and with such lists ordered by
//! group and several places to go on (2025).
//!
//! | criterion | a group is good if | to 2020 | 2023, 2025 |
//! | --- | --- | --- | --- |
//! | power of two | it has a buddy of the length, a power of two | all groups | by the lists |
//! | whole length | its average run is as long | all groups | by the lists |
//! | free | it has so much free space | all groups | all groups |
//! | any | anything is free | all groups | all groups |
//!
//! By the lists, a request for the whole length may get 2^i blocks fewer, if that is still enough.
//!
//! A search through all groups reads the unread bitmaps; lists contain only groups that were read.

use super::map::{ORDERS, average, buddies, largest};
use super::{Cost, Map, Policy, Reading, Space, Taken, Want};
use extant_space::{FreeTree, Run};
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Included};
use std::ops::ControlFlow;

/// Runs that a search measures at most, and that it measures at least unless one is exactly right.
const MOST: u32 = 200;
const LEAST: u32 = 10;
/// The shortest power of two that is searched for as a buddy.
const SMALLEST: u32 = 4;
/// By how many powers of two a wish may shrink.
const SHRINK: u32 = 3;
/// Larger wishes go on where the last large one was satisfied.
const STREAM: u32 = 16;
/// Places of large wishes: one for each processor, but not more than a part of the groups.
const STREAMS: u32 = 64;
const GROUPS_PER_STREAM: u32 = 4;

/// How groups are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// One after the other.
    None,
    /// By lists to whose ends groups come when they change.
    Queues,
    /// By lists in the order of groups.
    Arrays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Criterion {
    PowerOfTwo,
    Average,
    Shrunk,
    Free,
    Any,
}

/// In their order.
const CRITERIA: [Criterion; 5] = {
    use Criterion::{Any, Average, Free, PowerOfTwo, Shrunk};
    [PowerOfTwo, Average, Shrunk, Free, Any]
};

/// Where a group is linked: its turn (0 in arrays) and its orders.
#[derive(Clone, Copy, Debug)]
struct Link {
    turn: u64,
    largest: usize,
    average: usize,
}

type List = BTreeSet<(u64, u32)>;

#[derive(Debug)]
pub struct Buddy<'a> {
    space: Space<'a>,
    lists: Lists,
    by_largest: [List; ORDERS],
    by_average: [List; ORDERS],
    links: HashMap<u32, Link>,
    turn: u64,
    streams: Vec<u32>,
}

/// Result of a search.
#[derive(Debug)]
struct Search<'w> {
    want: &'w Want,
    criterion: Criterion,
    /// The group that is looked at first.
    start: u32,
    /// Blocks that are looked for now.
    goal: u32,
    found: u32,
    best: Option<(u32, Run)>,
}

impl Search<'_> {
    /// Measures a run; breaks if the search is over.
    fn measure(&mut self, g: u32, run: Run) -> ControlFlow<()> {
        self.found += 1;
        let best = self.best.map_or(0, |(_, best)| best.len);
        let (fits, fitted) = (run.len >= self.goal, best >= self.goal);
        if best == 0 || !fitted && run.len > best || fits && run.len < best {
            self.best = Some((g, run));
        }
        let best = self.best.map_or(0, |(_, best)| best.len);
        let enough =
            best == self.goal || self.found > MOST || best > self.goal && self.found > LEAST;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl<'a> Buddy<'a> {
    /// Nothing is read yet.
    pub fn new(map: &'a Map, lists: Lists, reading: Reading, slow: bool) -> Buddy<'a> {
        let streams = if lists == Lists::Arrays {
            STREAMS.min(map.shape.groups / GROUPS_PER_STREAM)
        } else {
            1
        };
        Buddy {
            space: Space::new(map, reading, slow),
            lists,
            by_largest: Default::default(),
            by_average: Default::default(),
            links: HashMap::new(),
            turn: 0,
            streams: vec![0; streams.max(1) as usize],
        }
    }

    fn stream(&mut self, file: u32) -> &mut u32 {
        let index = file as usize % self.streams.len();
        &mut self.streams[index]
    }

    /// Links a group as it is now, unless nothing of it is known.
    fn link(&mut self, g: u32) {
        if self.lists == Lists::None || !self.space.is_read(g) {
            return;
        }
        if let Some(old) = self.links.remove(&g) {
            self.by_largest[old.largest].remove(&(old.turn, g));
            self.by_average[old.average].remove(&(old.turn, g));
        }
        let group = self.space.group(g);
        let Some(largest) = largest(group) else { return };
        let average = average(group).ilog2().min(ORDERS as u32 - 1);
        self.turn += 1;
        let turn = if self.lists == Lists::Queues { self.turn } else { 0 };
        let link = Link { turn, largest: largest as usize, average: average as usize };
        self.by_largest[link.largest].insert((turn, g));
        self.by_average[link.average].insert((turn, g));
        self.links.insert(g, link);
    }

    /// Reads a group's bitmap, and those that are read with it.
    fn look(&mut self, g: u32) {
        if self.space.look(g) {
            let shape = self.space.shape();
            for g in shape.groups_of(g >> shape.flex_bits) {
                if !self.links.contains_key(&g) {
                    self.link(g);
                }
            }
        }
    }

    /// Exactly at the goal, if the whole length is free there.
    fn at_goal(&mut self, want: &Want) -> Option<Taken> {
        let shape = self.space.shape();
        let (g, bit) = shape.place(want.goal);
        if bit == 0 || g >= shape.groups {
            return None;
        }
        self.look(g);
        let run = self.space.group(g).at(bit)?;
        (run.end() - bit >= want.len).then_some(())?;
        self.take(g, Run { start: bit, len: want.len })
    }

    fn take(&mut self, g: u32, run: Run) -> Option<Taken> {
        let taken = self.space.take(g, run);
        self.link(g);
        taken
    }

    fn pass(&mut self, search: &mut Search<'_>) -> ControlFlow<()> {
        let (start, groups) = (search.start, self.space.shape().groups);
        let listed = self.lists != Lists::None;
        let power = search.want.len.is_power_of_two() && search.want.len >= SMALLEST;
        let order = search.want.len.ilog2() as usize;
        match search.criterion {
            Criterion::PowerOfTwo if !power => ControlFlow::Continue(()),
            Criterion::PowerOfTwo | Criterion::Average if listed => self.listed(order, search),
            Criterion::Shrunk if listed => self.shrunk(search),
            Criterion::Shrunk => ControlFlow::Continue(()),
            _ => (start..groups).chain(0..start).try_for_each(|g| self.visit(g, search)),
        }
    }

    /// Through the lists from an order on.
    fn listed(&mut self, order: usize, search: &mut Search<'_>) -> ControlFlow<()> {
        let start = search.start;
        let parts = match self.lists {
            Lists::Arrays if start > 0 => {
                &[((0, start), (0, u32::MAX)), ((0, 0), (0, start - 1))][..]
            }
            _ => &[((0, 0), (u64::MAX, u32::MAX))],
        };
        for (first, last) in parts {
            for index in order.min(ORDERS - 1)..ORDERS {
                let mut from = Included(*first);
                // A visit may link groups anew.
                while let Some(next) = {
                    let by_largest = search.criterion == Criterion::PowerOfTwo;
                    let lists = if by_largest { &self.by_largest } else { &self.by_average };
                    lists[index].range((from, Included(*last))).next().copied()
                } {
                    self.visit(next.1, search)?;
                    from = Excluded(next);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Searches for decreasing lengths while the request allows it.
    fn shrunk(&mut self, search: &mut Search<'_>) -> ControlFlow<()> {
        let whole = search.want.len.ilog2();
        for order in (whole.saturating_sub(SHRINK)..=whole).rev() {
            let goal = 1 << order;
            if goal >= search.want.len {
                continue;
            }
            search.goal = goal;
            self.listed(order as usize, search)?;
        }
        search.goal = search.want.len;
        ControlFlow::Continue(())
    }

    fn visit(&mut self, g: u32, search: &mut Search<'_>) -> ControlFlow<()> {
        self.space.cost.looked += 1;
        self.look(g);
        let is_first = self.space.shape().is_first(g);
        let group = self.space.group(g);
        if !is_good(search.criterion, group, search.goal, is_first) {
            return ControlFlow::Continue(());
        }
        scan(g, group, search)
    }
}

fn is_good(criterion: Criterion, group: &FreeTree, goal: u32, is_first: bool) -> bool {
    match criterion {
        // Data leave the first group of a flexible group alone.
        Criterion::PowerOfTwo => !is_first && group.longest().is_some_and(|run| run.len >= goal),
        Criterion::Average | Criterion::Shrunk => average(group) >= goal,
        Criterion::Free => group.free() >= goal,
        Criterion::Any => group.free() > 0,
    }
}

/// Looks through a group.
fn scan(g: u32, group: &FreeTree, search: &mut Search<'_>) -> ControlFlow<()> {
    if search.criterion == Criterion::PowerOfTwo {
        let whole = |(_, order): &(u32, u32)| 1 << order >= search.goal;
        let runs = group.by_length().take_while(|run| run.len >= search.goal);
        let found = runs.flat_map(buddies).find(whole);
        return found.map_or(ControlFlow::Continue(()), |(start, _)| {
            search.best = Some((g, Run { start, len: search.goal }));
            ControlFlow::Break(())
        });
    }
    for run in group.within(0..u32::MAX) {
        if matches!(search.criterion, Criterion::Free | Criterion::Any) || run.len >= search.goal {
            search.measure(g, run)?;
        }
    }
    let fits = search.best.is_some_and(|(_, best)| best.len >= search.goal);
    if fits { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl Policy for Buddy<'_> {
    fn allocate(&mut self, want: &Want) -> Option<Taken> {
        if let Some(taken) = self.at_goal(want) {
            return Some(taken);
        }
        let near = self.space.shape().place(want.goal).0.min(self.space.shape().groups - 1);
        let large = want.len > STREAM;
        let start = if large { *self.stream(want.file) } else { near };
        let criterion = Criterion::PowerOfTwo;
        let mut search = Search { want, criterion, start, goal: want.len, found: 0, best: None };
        for criterion in CRITERIA {
            search.criterion = criterion;
            if self.pass(&mut search).is_break() {
                break;
            }
        }
        let (g, run) = search.best?;
        if large {
            *self.stream(want.file) = g;
        }
        self.take(g, Run { start: run.start, len: run.len.min(want.len) })
    }

    fn free(&mut self, taken: Taken) {
        let g = self.space.give(taken);
        self.link(g);
    }

    /// Two pages a group: its bitmap and its buddies.
    fn cost(&self) -> Cost {
        let group = u64::from(self.space.shape().group_len) / 8 * 2;
        let bytes = self.space.cost.bitmaps * group;
        Cost { bytes, cached: self.space.cost.bitmaps, ..self.space.cost }
    }

    fn prefetch(&mut self) {
        for tree in 0..self.space.shape().trees() {
            self.space.look_all(tree);
            self.space.shape().groups_of(tree).for_each(|g| self.link(g));
        }
    }
}
