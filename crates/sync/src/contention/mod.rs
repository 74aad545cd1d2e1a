//! Counts of the accesses to shared memory: writes to cache lines by locks and atomics, waits, and
//! failed exchanges.
//!
//! The crate's feature `contention` replaces the usual types by counting ones; without the feature,
//! nothing of this module exists. Counting slows all operations and changes the interleaving of
//! threads. It therefore tells *how often* and *where* threads meet, never how fast they are.
//!
//! Every lock and atomic of this crate is counted. The counts inside `std`'s `Arc`, the allocator
//! and plain memory are not. A lock counts as one write when taken and one when released.
//!
//! # Locking
//! Each thread has a log of its own behind a mutex that only [`start`] and [`stop`] also take.

mod atomics;
mod hold;
mod log;
mod report;

pub(crate) use hold::Hold;

pub use atomics::{
    AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32,
    AtomicU64, AtomicUsize,
};
pub use log::{FELL_BACK, event, start, stop, worker};
pub use report::{LevelReport, Line, Report, Site};
