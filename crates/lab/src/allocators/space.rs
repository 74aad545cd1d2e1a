//! Free space under the changes of a design, and the cost of reading it.

use super::map::{Map, Shape};
use super::{Cost, Taken};
use extant_space::{FreeTree, Run};
use std::collections::HashMap;

/// How bitmaps are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// One after the other.
    Single,
    /// Those of a flexible group together.
    Together,
    /// Together and ahead of the search, so that the disk has several such reads to do at once.
    Ahead,
}

/// Nanoseconds of a bitmap that is read alone, and of those of a flexible group: as the published
/// times say.
const SINGLE: u64 = 3_200_000;
const TOGETHER: u64 = 38_000_000;
/// Reads that a disk does at once when it is told ahead: the published times of a search with and
/// without it.
const AT_ONCE: u64 = 3;

#[derive(Debug)]
pub struct Space<'a> {
    map: &'a Map,
    own: HashMap<u32, FreeTree>,
    /// A bit for each group whose bitmap was read.
    read: Vec<u64>,
    reading: Reading,
    slow: bool,
    pub(super) cost: Cost,
}

impl<'a> Space<'a> {
    /// Makes the free space of `map`. On a `slow` disk reading takes virtual time.
    pub fn new(map: &'a Map, reading: Reading, slow: bool) -> Space<'a> {
        let words = map.shape.groups.div_ceil(64) as usize;
        Space {
            map,
            own: HashMap::new(),
            read: vec![0; words],
            reading,
            slow,
            cost: Cost::default(),
        }
    }

    pub fn shape(&self) -> Shape {
        self.map.shape
    }

    /// Returns a group as it is now.
    pub fn group(&self, g: u32) -> &FreeTree {
        self.own.get(&g).unwrap_or_else(|| self.map.group(g))
    }

    /// Returns whether the group's bitmap was read.
    pub fn is_read(&self, g: u32) -> bool {
        self.read.get(g as usize / 64).is_some_and(|word| word & 1 << (g % 64) != 0)
    }

    fn note(&mut self, g: u32) -> bool {
        let new = !self.is_read(g);
        if new {
            self.read[g as usize / 64] |= 1 << (g % 64);
            self.cost.bitmaps += 1;
        }
        new
    }

    /// Reads a group's bitmap, unless that was done. True if it was read now.
    pub fn look(&mut self, g: u32) -> bool {
        let new = !self.is_read(g);
        match self.reading {
            _ if !new => {}
            Reading::Single => {
                self.note(g);
                self.wait(SINGLE);
            }
            Reading::Together | Reading::Ahead => self.look_all(g >> self.map.shape.flex_bits),
        }
        new
    }

    /// Reads the bitmaps of a flexible group.
    pub fn look_all(&mut self, tree: u32) {
        let groups = self.map.shape.groups_of(tree);
        let new = groups.filter(|g| self.note(*g)).count() as u64;
        let whole = match self.reading {
            Reading::Single => SINGLE * new,
            Reading::Together => TOGETHER,
            Reading::Ahead => TOGETHER / AT_ONCE,
        };
        self.wait(if new > 0 { whole } else { 0 });
    }

    /// The disk is waited for.
    pub fn wait(&mut self, nanoseconds: u64) {
        if self.slow {
            self.cost.waited += nanoseconds;
        }
    }

    /// Returns a group to be changed.
    fn own(&mut self, g: u32) -> &mut FreeTree {
        self.own.entry(g).or_insert_with(|| self.map.group(g).clone())
    }

    /// Takes a run of a group out. `None` if it is not free.
    pub fn take(&mut self, g: u32, run: Run) -> Option<Taken> {
        let start = self.shape().block(g, run.start);
        self.own(g).take(run).then_some(Taken { start, len: run.len })
    }

    /// Gives blocks back, which lie in one group; which that is.
    pub fn give(&mut self, taken: Taken) -> u32 {
        let (g, start) = self.shape().place(taken.start);
        let free = self.own(g).add(Run { start, len: taken.len });
        debug_assert!(free, "{taken:?} was free already");
        g
    }
}
