//! What each thread did since counting started.

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

/// Where in the source something was done.
pub(crate) type Place = &'static Location<'static>;

/// Writes of one thread to one line from one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes {
    pub place: Place,
    /// The level of the lock whose word it was.
    pub level: Option<Level>,
    pub writes: u64,
    pub failed: u64,
}

/// What one thread did with the locks of one level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockLog {
    pub taken: u64,
    pub contended: u64,
    pub waited: Duration,
    pub held: Duration,
}

/// What one thread did.
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

/// Changes this thread's log, while counting; a thread that is being torn down has none.
pub(super) fn with(change: impl FnOnce(&mut Log)) {
    // Relaxed: what a thread does around the start or the stop is counted or not.
    if COUNTING.load(Ordering::Relaxed) {
        let _ = MINE.try_with(|mine| change(&mut lock(mine.get_or_init(register))));
    }
}

/// Notes writes to the line of `address`, of which `failed` did not succeed (they took the line all
/// the same).
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

/// The name of what happens when a reference count cannot be changed without its lock.
pub const FELL_BACK: &str = "references that fell back to the lock";

/// Counts something that has a name, such as [`FELL_BACK`].
pub fn event(name: &'static str) {
    with(|log| *log.events.entry(name).or_default() += 1);
}

/// Marks this thread as one of those whose operations are measured; others work in the background.
pub fn worker() {
    with(|log| log.worker = true);
}

/// Forgets what was counted, and counts from here on.
pub fn start() {
    let mut logs = lock(&LOGS);
    logs.retain(|log| Arc::strong_count(log) > 1);
    logs.iter().for_each(|log| *lock(log) = Log::default());
    COUNTING.store(true, Ordering::Relaxed);
}

/// Counts no longer; what all threads did.
pub fn stop() -> Report {
    COUNTING.store(false, Ordering::Relaxed);
    let logs = lock(&LOGS);
    Report::of(logs.iter().map(|log| std::mem::take(&mut *lock(log))))
}
