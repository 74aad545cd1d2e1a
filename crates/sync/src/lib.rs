//! Locks, atomics and concurrent structures of Extant, behind safe interfaces.
//!
//! Every lock of the engine comes from this crate and is constructed with its [`Level`]. Builds
//! with debug assertions check at each acquisition that levels only go inward; other builds contain
//! no trace of levels.
//!
//! With `--cfg loom`, locks, atomics and threads are those of the model checker, and epochs are a
//! simple substitute; `make loom` runs the models. Only this crate is built that way.
//!
//! `unsafe` code is confined to the modules that reach objects by pointers ([`epoch`], [`table`],
//! [`cache`], [`SlabPages`]) and to the sleeping of the waiters of a [`lockref`] (`parking`).
#![deny(unsafe_code)]

mod arcs;
mod arrivals;
pub mod cache;
#[cfg(not(loom))]
mod condvar;
#[cfg(feature = "contention")]
pub mod contention;
mod counter;
#[cfg(feature = "designs")]
#[doc(hidden)]
pub mod designs;
pub mod epoch;
#[cfg(not(loom))]
mod frames;
mod freeze;
mod gate;
#[cfg(not(loom))]
mod growing;
mod hints;
mod level;
pub mod levels;
pub mod life;
pub mod list_lru;
#[cfg(not(feature = "designs"))]
pub mod lockref;
#[cfg(feature = "designs")]
#[path = "lockref/designs.rs"]
pub mod lockref;
#[cfg(loom)]
mod modelled;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod mutex;
#[cfg(feature = "designs")]
#[path = "lockref.rs"]
mod own_lockref;
mod padded;
pub mod parents;
mod parking;
mod pausable;
#[cfg(not(loom))]
mod pressure;
mod random;
mod revocable;
mod rounds;
#[cfg(not(loom))]
mod rwlock;
#[cfg(not(loom))]
pub mod scheduler;
pub mod seqcell;
mod sharded;
mod slots;
pub mod table;

#[cfg(not(loom))]
mod swap;

/// Scales the repetitions of a test: `n`, or about a hundredth of it under Miri.
#[cfg(test)]
pub(crate) const fn times(n: u32) -> u32 {
    if cfg!(miri) { n / 100 + 1 } else { n }
}

pub use arcs::ArcTable;
pub use arrivals::{Link, ListMark, ShardedList, Walk};
#[cfg(not(loom))]
pub use condvar::{Condvar, WaitTimeoutResult};
pub use counter::ShardedCounter;
#[cfg(not(loom))]
pub use frames::{Frame, SlabPages};
pub use freeze::{FreezeLock, HaltedChanges};
pub use gate::{Gate, Refused};
#[cfg(not(loom))]
pub use growing::GrowingTable;
pub use hints::Hints;
pub use level::Level;
#[cfg(loom)]
pub use modelled::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(not(loom))]
pub use mutex::{Mutex, MutexGuard, lock_two};
pub use padded::CachePadded;
pub use pausable::Pausable;
#[cfg(not(loom))]
pub use pressure::MemoryPressure;
pub use random::{SharedRng, SplitMix64};
pub use rounds::Coalescer;
#[cfg(not(loom))]
pub use rwlock::{
    ArcReadGuard, ArcRwLock, ArcWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    write_all_arc, write_two, write_two_arc,
};
pub use sharded::{MAX_SHARDS, Sharded, set_shard_index, shard_count, shard_index, with_shards};
pub use slots::Slots;
#[cfg(not(loom))]
pub use swap::{Swap, SwapRead};

/// Atomic types and fences, in one place so that the model checker can replace them.
///
/// The feature `contention` replaces them by types that count their writes.
pub mod atomic {
    #[cfg(all(feature = "contention", not(loom)))]
    pub use crate::contention::{
        AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32,
        AtomicU64, AtomicUsize,
    };
    #[cfg(not(any(feature = "contention", loom)))]
    pub use core::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32,
        AtomicU64, AtomicUsize,
    };
    #[cfg(not(loom))]
    pub use core::sync::atomic::{Ordering, compiler_fence, fence};
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32,
        AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Threads, in one place so that the model checker can replace them.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::*;
    #[cfg(not(loom))]
    pub use std::thread::*;
}

#[cfg(loom)]
pub use loom::sync::Arc;
pub use std::sync::LazyLock;
#[cfg(not(loom))]
pub use std::sync::OnceLock;
#[cfg(not(loom))]
pub use std::sync::{Arc, Weak};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
