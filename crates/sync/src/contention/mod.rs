//! Counts what threads do to memory that they share: writes to cache lines by locks and atomics,
//! waits, failed exchanges.
//!
//! The crate's feature `contention` puts counting types in place of the usual ones; without it
//! nothing of this exists. It makes everything slower and lets threads meet at other moments, so it
//! tells *how often* and *where*, never how fast.
//!
//! What it sees is every lock and atomic of this crate. It does not see the counts inside `std`'s
//! `Arc`s, the allocator, or plain memory. A lock counts as one write when taken and one when
//! released.
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
