//! Free runs of a group as a buddy allocator sees them.

use extant_space::Run;

/// Powers of two that buddies have: up to a group of 2^19 blocks.
pub const ORDERS: usize = 20;

/// Counts of a group: its free blocks, its runs, and the buddies that they fall into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub free: u32,
    pub runs: u32,
    buddies: [u32; ORDERS],
}

/// Calls `each` with the aligned powers of two that a run falls into, each as large as its place
/// allows.
fn buddies(run: Run, mut each: impl FnMut(u32, u32)) {
    let mut at = run.start;
    while at < run.end() {
        let by_place = if at == 0 { ORDERS as u32 - 1 } else { at.trailing_zeros() };
        let order = by_place.min((run.end() - at).ilog2()).min(ORDERS as u32 - 1);
        each(at, order);
        at += 1 << order;
    }
}

impl Orders {
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Orders {
        let mut orders = Orders::default();
        runs.into_iter().for_each(|run| orders.add(run));
        orders
    }

    pub fn add(&mut self, run: Run) {
        (self.free, self.runs) = (self.free + run.len, self.runs + 1);
        buddies(run, |_, order| self.buddies[order as usize] += 1);
    }

    pub fn remove(&mut self, run: Run) {
        (self.free, self.runs) = (self.free - run.len, self.runs - 1);
        buddies(run, |_, order| self.buddies[order as usize] -= 1);
    }

    /// Returns the order of the largest buddy; `None` if nothing is free.
    pub fn largest(&self) -> Option<u32> {
        self.buddies.iter().rposition(|count| *count > 0).map(|order| order as u32)
    }

    /// Blocks of the average free run.
    pub fn average(&self) -> u32 {
        self.free.checked_div(self.runs).unwrap_or(0)
    }
}

/// Returns the first buddy of at least an order in a run.
pub fn buddy_in(run: Run, least: u32) -> Option<u32> {
    let mut found = None;
    buddies(run, |at, order| {
        if order >= least && found.is_none() {
            found = Some(at);
        }
    });
    found
}
