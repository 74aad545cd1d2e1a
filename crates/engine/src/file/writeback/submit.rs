//! Submission of file data to the device. A thread that submits alone has other threads submit
//! parts of a large batch: copying the data to the device, or into memory that stands for one,
//! takes most of the time of writeback.
//!
//! # Invariants
//! - When a call returns, all of its writes have ended.
//! - The writes of a batch have no defined order: nothing is mapped before all of them have ended.

use crate::store::Store;
use extant_blocks::Plug;
use extant_sync::atomic::{AtomicUsize, Ordering};
use std::io;

/// Threads that a lot is shared among at most.
const MAX_THREADS: usize = 4;

/// Submits a batch of data of so many files and reports each request: its offset, its length in
/// bytes and its result.
pub(in crate::file) fn each(
    st: &Store,
    (plug, files): (Plug<'_>, usize),
    done: impl FnMut(u64, u64, io::Result<()>),
) {
    let busy = Busy::enter(&st.dirty_files.submitting);
    let threads = (st.shards / busy.all).clamp(1, MAX_THREADS);
    st.dirty_files.plugs.add(&plug.finish_by(threads, done), files as u64);
}

/// Submits a lot of one file.
///
/// # Errors
/// The first of the device. The other requests are submitted nevertheless.
pub(in crate::file) fn all(st: &Store, plug: Plug<'_>) -> io::Result<()> {
    let mut first = Ok(());
    each(st, (plug, 1), |_, _, result| {
        if first.is_ok() {
            first = result;
        }
    });
    first
}

/// A guard that counts this thread among the submitting ones.
struct Busy<'a> {
    count: &'a AtomicUsize,
    /// How many they were when it came, itself among them.
    all: usize,
}

impl<'a> Busy<'a> {
    /// Relaxed, as is the end: the number only says how many threads are worth it.
    fn enter(count: &'a AtomicUsize) -> Busy<'a> {
        Busy { count, all: count.fetch_add(1, Ordering::Relaxed).saturating_add(1) }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
