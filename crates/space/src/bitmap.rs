//! The free units of a group as a bitmap.
//!
//! # Invariants
//! - A set bit is a free unit; bits from `len` on are clear.
//! - `runs[k]` is the number of maximal runs of free units whose length has `k` as its binary logarithm, rounded down.
//! - `free` is the number of set bits.

use crate::{FreeMap, Run};

const WORD: u32 = u64::BITS;
/// Runs of a group of 8 * 64 KiB units.
const ORDERS: usize = 20;

/// See the module's description. Its size depends on the group's only.
#[derive(Debug, Clone)]
pub struct BitMap {
    words: Box<[u64]>,
    len: u32,
    free: u32,
    runs: [u32; ORDERS],
}

fn order(len: u32) -> usize {
    (len.max(1).ilog2() as usize).min(ORDERS - 1)
}

/// The word with bits `index * 64` on of a bitmap; what the bitmap does not have is set.
fn load_word(bitmap: &[u8], index: usize) -> u64 {
    let bytes = bitmap.get(index * 8..).unwrap_or(&[]).iter().copied().chain(std::iter::repeat(0xFF));
    bytes.take(8).enumerate().fold(0, |word, (place, byte)| word | u64::from(byte) << (8 * place))
}

impl BitMap {
    /// The first unit at or behind `from` that is free (`free`) or taken; `len` if there is none.
    fn next(&self, from: u32, free: bool) -> u32 {
        let flip = if free { 0 } else { u64::MAX };
        let mut index = (from / WORD) as usize;
        let mut mask = u64::MAX << (from % WORD);
        while let Some(word) = self.words.get(index) {
            let hit = (word ^ flip) & mask;
            if hit != 0 {
                return (index as u32 * WORD + hit.trailing_zeros()).min(self.len);
            }
            (index, mask) = (index + 1, u64::MAX);
        }
        self.len
    }

    /// The start of the free run that ends just before `end`; `end` itself if the unit there is taken.
    fn run_start(&self, end: u32) -> u32 {
        let mut at = end;
        while at > 0 {
            let (index, bits) = (((at - 1) / WORD) as usize, (at - 1) % WORD + 1);
            let word = self.words.get(index).copied().unwrap_or(0);
            // The `bits` lowest bits, moved to the top.
            let ones = (word << (WORD - bits)).leading_ones().min(bits);
            at -= ones;
            if ones < bits {
                break;
            }
        }
        at
    }

    /// The free run at or behind `from` (its part from `from` on), up to `limit`.
    fn next_run(&self, from: u32, limit: u32) -> Option<Run> {
        let start = self.next(from, true);
        if start >= limit {
            return None;
        }
        let end = self.next(start, false);
        Some(Run { start, len: end - start })
    }

    /// The nearest run of `enough` units from `goal` on and then from the front, else the longest one met.
    fn search(&self, goal: u32, enough: u32) -> Option<Run> {
        let mut best: Option<Run> = None;
        for (from, limit) in [(goal, self.len), (0, goal)] {
            let mut at = from;
            while let Some(run) = self.next_run(at, limit) {
                if run.len >= enough {
                    return Some(run);
                }
                if best.is_none_or(|best| run.len > best.len) {
                    best = Some(run);
                }
                at = run.end();
            }
        }
        best
    }

    /// Sets or clears the run's bits.
    fn mark(&mut self, run: Run, free: bool) {
        let (mut at, end) = (run.start, run.end());
        while at < end {
            let bits = (WORD - at % WORD).min(end - at);
            let mask = (u64::MAX >> (WORD - bits)) << (at % WORD);
            if let Some(word) = self.words.get_mut((at / WORD) as usize) {
                *word = if free { *word | mask } else { *word & !mask };
            }
            at += bits;
        }
    }

    fn note(&mut self, len: u32, add: bool) {
        if len > 0 {
            let count = &mut self.runs[order(len)];
            *count = if add { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// Takes a run whose units are all free out of the maximal run around it.
    fn cut(&mut self, run: Run) -> Run {
        let before = run.start - self.run_start(run.start);
        let after = self.next(run.end(), false) - run.end();
        self.note(before + run.len + after, false);
        self.note(before, true);
        self.note(after, true);
        self.mark(run, false);
        self.free -= run.len;
        run
    }

    /// The longest order that occurs.
    fn top(&self) -> Option<usize> {
        self.runs.iter().rposition(|count| *count > 0)
    }
}

impl FreeMap for BitMap {
    fn from_bitmap(bitmap: &[u8], len: u32) -> BitMap {
        let words = (0..len.div_ceil(WORD) as usize).map(|index| !load_word(bitmap, index)).collect();
        let mut map = BitMap { words, len, free: 0, runs: [0; ORDERS] };
        if let (Some(last), bits @ 1..) = (map.words.last_mut(), len % WORD) {
            *last &= u64::MAX >> (WORD - bits);
        }
        let mut at = 0;
        while let Some(run) = map.next_run(at, len) {
            map.note(run.len, true);
            map.free += run.len;
            at = run.end();
        }
        map
    }

    fn count(&self) -> u32 {
        self.free
    }

    fn longest(&self) -> u32 {
        self.top().map_or(0, |order| 1 << order)
    }

    fn take(&mut self, goal: u32, want: u32, min: u32) -> Option<Run> {
        let longest = self.longest();
        // Where no run can have all, one of the longest order is enough.
        let enough = if want >= longest.saturating_mul(2) { longest } else { want };
        let goal = if goal < self.len { goal } else { 0 };
        let found = self.search(goal, enough.max(min).max(1))?;
        if found.len < min {
            return None;
        }
        Some(self.cut(Run { start: found.start, len: found.len.min(want.max(1)) }))
    }

    fn take_at(&mut self, start: u32, want: u32, min: u32) -> Option<Run> {
        if start >= self.len {
            return None;
        }
        let len = (self.next(start, false) - start).min(want);
        (len > 0 && len >= min).then(|| self.cut(Run { start, len }))
    }

    fn take_apart(&mut self, want: u32, room: u32) -> Option<Run> {
        let run = self.search(0, self.longest().max(1))?;
        let half = run.len / 2;
        let fits = want > 0 && half >= room.max(want);
        fits.then(|| self.cut(Run { start: run.start + half, len: want }))
    }

    fn give(&mut self, run: Run) -> bool {
        let inside = run.start.checked_add(run.len).is_some_and(|end| end <= self.len);
        if run.len == 0 || !inside || self.next(run.start, true) < run.end() {
            return false;
        }
        let before = run.start - self.run_start(run.start);
        let after = self.next(run.end(), false) - run.end();
        self.note(before, false);
        self.note(after, false);
        self.note(before + run.len + after, true);
        self.mark(run, true);
        self.free += run.len;
        true
    }

    fn run_from(&self, from: u32) -> Option<Run> {
        self.next_run(from, self.len)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.words)
    }
}

#[cfg(test)]
mod tests;
