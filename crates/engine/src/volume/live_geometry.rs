//! The geometry of a file system that may get larger while it is open.
//!
//! Threads read it without locks: it dereferences to the present [`Geometry`]. A thread that needs
//! two numbers of one moment takes a reference first: `let geometry: &Geometry = &volume.geo`.
//! After a growth from 8 to 12 groups, such a reference still has 8.
//!
//! # Invariants
//! A later geometry differs from an earlier one by more blocks, groups, inodes and descriptor
//! blocks, and by features that tell places of descriptors. No number of an earlier one becomes
//! invalid.

use extant_format::Geometry;
use extant_sync::GrowingTable;
use extant_sync::atomic::{AtomicUsize, Ordering};
use std::ops::Deref;

/// See the module's description.
#[derive(Debug)]
pub struct LiveGeometry {
    first: Geometry,
    /// The geometries of growth, which stay: other threads may read them.
    later: GrowingTable<Geometry>,
    /// How many of them hold: the last one is present.
    grown: AtomicUsize,
}

impl LiveGeometry {
    /// The geometry of a file system that is being opened.
    pub fn new(first: Geometry) -> LiveGeometry {
        LiveGeometry { first, later: GrowingTable::default(), grown: AtomicUsize::new(0) }
    }

    /// Makes a larger geometry the present one. Tables of groups must have grown before. No two
    /// threads may do this at once.
    pub fn grow(&self, larger: Geometry) {
        self.later.append([larger]);
        // Release: a thread that reads a larger number of groups finds their tables.
        self.grown.store(self.later.len(), Ordering::Release);
    }

    fn newest(&self, grown: usize) -> &Geometry {
        self.later.get(grown.wrapping_sub(1)).unwrap_or(&self.first)
    }
}

impl Deref for LiveGeometry {
    type Target = Geometry;

    #[inline]
    fn deref(&self) -> &Geometry {
        match self.grown.load(Ordering::Acquire) {
            0 => &self.first,
            grown => self.newest(grown),
        }
    }
}
