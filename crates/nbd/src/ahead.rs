//! Read-ahead: small reads near each other are answered from longer ones.
//!
//! With a delay of a millisecond for each request, small files and blocks of metadata are slow that
//! are read one after the other. The export is divided into windows. The first small read asks for
//! its own bytes; the next one in the same window or beside it reads its window. So reads that are
//! far apart cost no more than their bytes.
//!
//! # Invariants
//! A kept window has the content that a read of the export would return: a write forgets the
//! windows that it touches.

use extant_sync::Arc;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a window.
pub const WINDOW: u64 = 128 << 10;

/// Bytes of a read that is small.
pub const SMALL: u64 = WINDOW / 2;

/// Windows that are kept at most: 32 MiB. Directories are read in the order of hashes, so the files
/// of one come from all over its blocks.
const KEPT: usize = 256;

/// Places that are known at most.
const PLACES: usize = 64;

/// How a small read is made.
#[derive(Debug)]
pub enum Plan {
    /// From a window.
    Kept(Arc<Vec<u8>>),
    /// With its whole window.
    Window,
    /// Alone.
    Alone,
}

/// The windows of an export.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Windows with their numbers, the last used one last.
    windows: VecDeque<(u64, Arc<Vec<u8>>)>,
    /// The windows of the last reads, the newest last.
    places: VecDeque<u64>,
}

impl Ahead {
    /// Returns how to read in a window.
    pub fn plan(&mut self, window: u64) -> Plan {
        let found = self.windows.iter().position(|(number, _)| *number == window);
        if let Some(kept) = found.and_then(|at| self.windows.remove(at)) {
            let data = kept.1.clone();
            self.windows.push_back(kept);
            return Plan::Kept(data);
        }
        let is_near = self.places.iter().any(|place| place.abs_diff(window) <= 1);
        push(&mut self.places, window, PLACES);
        if is_near { Plan::Window } else { Plan::Alone }
    }

    /// Keeps the content of a window.
    pub fn keep(&mut self, window: u64, data: Arc<Vec<u8>>) {
        self.windows.retain(|(number, _)| *number != window);
        push(&mut self.windows, (window, data), KEPT);
    }

    /// Forgets the windows of a range of bytes.
    pub fn forget(&mut self, range: &Range<u64>) {
        let touched = range.start / WINDOW..range.end.div_ceil(WINDOW);
        self.windows.retain(|(number, _)| !touched.contains(number));
    }

    /// Forgets all windows.
    pub fn clear(&mut self) {
        self.windows.clear();
    }
}

/// Adds an entry, in the place of the oldest one if there are `most`.
fn push<T>(list: &mut VecDeque<T>, entry: T, most: usize) {
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(entry);
}

/// Splits a range of bytes at the borders of windows; each part with the number of its window.
pub fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let windows = range.start / WINDOW..range.end.div_ceil(WINDOW);
    windows.map(move |number| {
        let start = number * WINDOW;
        (number, range.start.max(start)..range.end.min(start.saturating_add(WINDOW)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_kept(ahead: &mut Ahead, window: u64) -> bool {
        matches!(ahead.plan(window), Plan::Kept(_))
    }

    #[test]
    fn reads_near_each_other_are_of_windows() {
        let mut ahead = Ahead::default();
        assert!(matches!(ahead.plan(7), Plan::Alone));
        assert!(matches!(ahead.plan(9), Plan::Alone));
        assert!(matches!(ahead.plan(7), Plan::Window));
        assert!(matches!(ahead.plan(6), Plan::Window));
        ahead.keep(7, Arc::new(vec![1]));
        assert!(is_kept(&mut ahead, 7) && !is_kept(&mut ahead, 6));
    }

    #[test]
    fn least_used_and_changed_windows_are_forgotten() {
        let mut ahead = Ahead::default();
        (0..KEPT as u64).for_each(|window| ahead.keep(window, Arc::default()));
        assert!(is_kept(&mut ahead, 0));
        ahead.keep(1000, Arc::default());
        assert!(is_kept(&mut ahead, 0) && !is_kept(&mut ahead, 1) && is_kept(&mut ahead, 1000));
        ahead.forget(&(3 * WINDOW - 1..3 * WINDOW + 1));
        assert!(!is_kept(&mut ahead, 2) && !is_kept(&mut ahead, 3) && is_kept(&mut ahead, 4));
        ahead.clear();
        assert!(!is_kept(&mut ahead, 4));
    }

    #[test]
    fn ranges_are_split_at_windows() {
        let all: Vec<_> = parts(WINDOW - 1..2 * WINDOW + 3).collect();
        let (first, last) = (WINDOW - 1..WINDOW, 2 * WINDOW..2 * WINDOW + 3);
        assert_eq!(all, [(0, first), (1, WINDOW..2 * WINDOW), (2, last)]);
    }
}
