//! Choices between designs, which measurements make while the program runs.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A chosen design of the process: at first the first of all.
#[derive(Debug)]
pub struct Choice<T: 'static> {
    all: &'static [T],
    at: AtomicUsize,
}

impl<T: Copy + PartialEq> Choice<T> {
    /// Makes a choice between `all`, which must not be empty.
    pub const fn new(all: &'static [T]) -> Self {
        Choice { all, at: AtomicUsize::new(0) }
    }

    /// Returns the chosen design.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: designs change between measurements only.
        self.all[self.at.load(Ordering::Relaxed)]
    }

    /// Chooses another design. Nothing of the former one may be in use: the designs tell where that
    /// matters.
    pub fn set(&self, design: T) {
        let at = self.all.iter().position(|known| *known == design);
        at.iter().for_each(|at| self.at.store(*at, Ordering::Relaxed));
    }
}
