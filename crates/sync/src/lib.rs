//! Locks, atomics and concurrent structures of Extant, behind safe interfaces.
//!
//! Every lock of the engine comes from here and is constructed with its [`Level`]. Builds with debug assertions check
//! at each acquisition that levels only go inward; other builds carry no trace of them.
#![forbid(unsafe_code)]

mod arrivals;
mod condvar;
#[cfg(feature = "contention")]
pub mod contention;
mod counter;
pub mod levels;
mod mutex;
mod padded;
mod rounds;
mod rwlock;
mod sharded;

pub use arrivals::{ArrivalList, Arrived, Link, Walk};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use counter::ShardedCounter;
pub use levels::Level;
pub use mutex::{Mutex, MutexGuard, lock_two};
pub use padded::CachePadded;
pub use rounds::Rounds;
pub use rwlock::{
    ArcReadGuard, ArcRwLock, ArcWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, write_all_arc, write_two,
    write_two_arc,
};
pub use sharded::{Sharded, shard_count, shard_index};

/// Atomic types and fences, from one place so that a model checker can stand in for them.
///
/// The feature `contention` puts types in place of them that count their writes.
pub mod atomic {
    #[cfg(feature = "contention")]
    pub use crate::contention::{
        AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
        AtomicUsize,
    };
    #[cfg(not(feature = "contention"))]
    pub use core::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
        AtomicUsize,
    };
    pub use core::sync::atomic::{Ordering, compiler_fence, fence};
}

/// Threads, from one place so that a model checker can stand in for them.
pub mod thread {
    pub use std::thread::*;
}

pub use std::sync::{Arc, LazyLock, OnceLock, Weak};
