//! The tree of preallocations and the former lists, behind the trait [`Design`].
//!
//! A list is searched twice for each allocation, once for space and once to trim a window, and each
//! preallocation on the way is locked. The capped list moves used entries to its front and is cut
//! to 512 entries from its tail once it has a quarter more than that.

use crate::grid::Grid;
use crate::linked::Linked;
use crate::sheet::Sheet;
use extant_space::prealloc::{Ask, Found, Piece, Tree, place};
use extant_sync::SplitMix64;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Entries that the capped list is cut to.
const CAP: usize = 512;

/// One file's preallocations. A run is used from wherever the file asks.
pub trait Design {
    /// Takes up to `len` units for the file's units from `logical` on.
    fn take(&mut self, logical: u32, len: u32) -> Option<Piece>;
    /// Returns the part of a window around `logical` without a preallocation.
    fn trim(&mut self, logical: u32, window: Range<u64>) -> Range<u64>;
    /// Adds a preallocation.
    fn insert(&mut self, piece: Piece);
    /// Preallocations now.
    fn len(&self) -> usize;
    /// Preallocations looked at, and locks taken, so far.
    fn cost(&self) -> (u64, u64);
}

/// The engine's tree: one lock for each allocation.
#[derive(Default)]
pub struct AsTree {
    tree: Tree,
    visited: u64,
    locks: u64,
}

impl Design for AsTree {
    fn take(&mut self, logical: u32, len: u32) -> Option<Piece> {
        let mut visits = 0;
        self.locks += 1;
        let found = self.tree.take(logical, len, u64::MAX, &mut visits);
        self.visited += u64::from(visits);
        match found {
            Found::Taken { piece, of } => {
                self.tree.finish(of);
                Some(piece)
            }
            Found::Spent(_) | Found::Nothing => None,
        }
    }

    fn trim(&mut self, logical: u32, window: Range<u64>) -> Range<u64> {
        let mut visits = 0;
        self.locks += 1;
        let trimmed = self.tree.trim(logical, window, &mut visits);
        self.visited += u64::from(visits);
        trimmed
    }

    fn insert(&mut self, piece: Piece) {
        self.locks += 1;
        assert!(self.tree.insert(piece, 0), "preallocations overlap");
    }

    fn len(&self) -> usize {
        self.tree.len()
    }

    fn cost(&self) -> (u64, u64) {
        (self.visited, self.locks)
    }
}

struct Entry {
    piece: Piece,
    free: u32,
    lock: AtomicBool,
}

/// A list, the newest in front, with or without a cap.
pub struct AsList {
    list: Linked<Entry>,
    cap: Option<usize>,
    visited: u64,
    /// Pieces that were cut from the capped list, so that insertions are still checked.
    used: BTreeMap<u32, u32>,
}

impl AsList {
    /// Makes an empty list, capped or not.
    pub fn new(capped: bool) -> AsList {
        let cap = capped.then_some(CAP);
        AsList { list: Linked::new(), cap, visited: 0, used: BTreeMap::new() }
    }

    /// Walks the list, locking each entry as it is looked at, until `each` says which to stop at.
    fn walk(&mut self, mut each: impl FnMut(&Entry) -> bool) -> Option<usize> {
        for (at, entry) in self.list.iter() {
            self.visited += 1;
            while entry
                .lock
                .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {}
            let stop = each(entry);
            entry.lock.store(false, Ordering::Release);
            if stop {
                return Some(at);
            }
        }
        None
    }

    fn drop_entry(&mut self, at: usize) {
        let entry = self.list.remove(at);
        entry.iter().for_each(|entry| _ = self.used.remove(&entry.piece.logical));
    }
}

impl Design for AsList {
    fn take(&mut self, logical: u32, len: u32) -> Option<Piece> {
        let wanted = u64::from(logical);
        let at = self.walk(|e| {
            e.free > 0 && u64::from(e.piece.logical) <= wanted && wanted < e.piece.end()
        })?;
        let entry = self.list.get_mut(at)?;
        let offset = logical - entry.piece.logical;
        let len = len.min(entry.piece.len - offset).min(entry.free);
        let taken = Piece { logical, physical: entry.piece.physical + u64::from(offset), len };
        entry.free -= len;
        if entry.free == 0 {
            self.drop_entry(at);
        } else if self.cap.is_some() {
            self.list.renew(at);
        }
        Some(taken)
    }

    fn trim(&mut self, logical: u32, window: Range<u64>) -> Range<u64> {
        let (mut start, mut end) = (window.start, window.end);
        self.walk(|e| {
            if e.piece.logical > logical {
                end = end.min(e.piece.logical.into());
            } else {
                start = start.max(e.piece.end());
            }
            false
        });
        start..end
    }

    fn insert(&mut self, piece: Piece) {
        assert!(self.used.insert(piece.logical, piece.len).is_none(), "preallocations overlap");
        self.list.add(Entry { piece, free: piece.len, lock: AtomicBool::new(false) });
        if let Some(cap) = self.cap.filter(|cap| self.list.len() > cap + cap / 4) {
            while self.list.len() > cap {
                self.drop_entry(self.list.last());
            }
        }
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn cost(&self) -> (u64, u64) {
        // Each look takes the entry's lock; the list itself is walked without one.
        (self.visited, self.visited)
    }
}

/// Values of a design: of each write, and of all.
const ROWS: [&str; 5] = [
    "time of a write, ns",
    "looked at by a write",
    "locks of a write",
    "preallocations at the end",
    "writes",
];

/// Blocks of 4 KiB in the file: 64 GiB.
const BLOCKS: u32 = 1 << 24;

/// Returns the values of each design.
pub fn grid(quick: bool) -> Grid {
    let writes = if quick { 40_000 } else { 200_000 };
    let designs: [(&str, Box<dyn Design>); 3] = [
        ("tree", Box::new(AsTree::default())),
        ("list capped at 512", Box::new(AsList::new(true))),
        ("list", Box::new(AsList::new(false))),
    ];
    let names = designs.each_ref().map(|(name, _)| *name);
    let mut grid = Grid::new("preallocations alone", "see rows", &names, 0).less();
    for (column, (_, mut design)) in designs.into_iter().enumerate() {
        let start = Instant::now();
        write(design.as_mut(), writes);
        let nanos = start.elapsed().as_nanos() as f64;
        let (looked, locks) = design.cost();
        let each = [nanos, looked as f64, locks as f64].map(|all| all / f64::from(writes));
        let values = each.into_iter().chain([design.len() as f64, f64::from(writes)]);
        ROWS.iter().zip(values).for_each(|(row, value)| grid.add(row, column, value));
    }
    grid
}

/// Returns the table with a row for each design.
pub fn sheet(grid: &Grid) -> Sheet {
    let value = |row: usize, design: usize| grid.rows[row].1[design].first().copied();
    let writes = value(4, 0).unwrap_or(0.0);
    let title =
        format!("{writes} sparse random writes of a block into 64 GiB, preallocations only");
    let head = ["", "ns each", "looked at each", "locks each", "at the end"];
    let mut sheet = Sheet::new(title, head);
    for (design, name) in grid.columns.iter().enumerate() {
        let cells = [(0, 0), (1, 2), (2, 2), (3, 0)]
            .map(|(row, digits)| format!("{:.digits$}", value(row, design).unwrap_or(0.0)));
        sheet.row([name.to_string()].into_iter().chain(cells));
    }
    sheet
}

fn write(design: &mut dyn Design, writes: u32) {
    let mut next_physical = 0;
    let mut random = SplitMix64::new(1);
    for _ in 0..writes {
        let logical = random.below(BLOCKS.into()) as u32;
        if design.take(logical, 1).is_some() {
            continue;
        }
        let size = u64::from(BLOCKS) << 12;
        let ask = Ask {
            logical,
            len: 1,
            size,
            block: 4096,
            unit: 4096,
            group: 32768,
            limit: BLOCKS.into(),
        };
        let window = design.trim(logical, ask.window());
        // A block that was written before lies in a used or removed piece.
        let len = window.end.saturating_sub(window.start) as u32;
        if !window.contains(&logical.into()) {
            continue;
        }
        let first = place(len, &window, &(logical.into()..u64::from(logical) + 1));
        design.insert(Piece { logical: first as u32, physical: next_physical, len });
        next_physical += u64::from(len);
        design.take(logical, 1);
    }
}
