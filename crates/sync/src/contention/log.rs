//! The log of each thread: its writes, locks and events since counting started.

use super::report::Report;
use crate::level::{ALL, Level};
use core::panic::Location;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A place in the source.
pub(crate) type Place = &'static Location<'static>;

/// Writes of one thread to one line from one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes {
    pub place: Place,
    /// The level, if the write changed the word of a lock.
    pub level: Option<Level>,
    pub writes: u64,
    pub failed: u64,
}

/// The use that one thread made of the locks of one level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockLog {
    pub taken: u64,
    pub contended: u64,
    pub waited: Duration,
    pub held: Duration,
}

/// All that one thread did while counting was on.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub worker: bool,
    pub writes: HashMap<(usize, usize), Writes>,
    pub locks: [LockLog; ALL.len()],
    pub events: HashMap<&'static str, u64>,
}

type Shared = Arc<Mutex<Log>>;

static COUNTING: AtomicBool = AtomicBool::new(false);
static LOGS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: OnceCell<Shared> = const { OnceCell::new() };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register() -> Shared {
    let log = Shared::default();
    lock(&LOGS).push(log.clone());
    log
}

/// Applies `change` to this thread's log while counting is on. A thread that is being torn down has
/// no log.
pub(super) fn with(change: impl FnOnce(&mut Log)) {
    // Relaxed: operations that run while counting starts or stops may or may not be counted.
    if COUNTING.load(Ordering::Relaxed) {
        let _ = MINE.try_with(|mine| change(&mut lock(mine.get_or_init(register))));
    }
}

/// Records `writes` to the cache line of `address`. `failed` of them did not succeed, but took the
/// line for writing all the same.
pub(crate) fn written(
    address: usize,
    level: Option<Level>,
    place: Place,
    writes: u64,
    failed: u64,
) {
    with(|log| {
        let key = (address / LINE, core::ptr::from_ref(place) as usize);
        let entry = log.writes.entry(key).or_insert(Writes { place, level, writes: 0, failed: 0 });
        entry.writes += writes;
        entry.failed += failed;
    });
}

/// The event of a reference count that could not be changed without its lock.
pub const FELL_BACK: &str = "references that fell back to the lock";

/// Counts a named event, such as [`FELL_BACK`].
pub fn event(name: &'static str) {
    with(|log| *log.events.entry(name).or_default() += 1);
}

/// Marks this thread as a worker, whose operations are measured; other threads work in the
/// background.
pub fn worker() {
    with(|log| log.worker = true);
}

/// Clears all counts and starts counting.
pub fn start() {
    let mut logs = lock(&LOGS);
    logs.retain(|log| Arc::strong_count(log) > 1);
    logs.iter().for_each(|log| *lock(log) = Log::default());
    COUNTING.store(true, Ordering::Relaxed);
}

/// Stops counting. Returns a report of all threads.
pub fn stop() -> Report {
    COUNTING.store(false, Ordering::Relaxed);
    let logs = lock(&LOGS);
    Report::of(logs.iter().map(|log| std::mem::take(&mut *lock(log))))
}
