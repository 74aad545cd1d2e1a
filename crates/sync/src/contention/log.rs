//! The log of each thread: its writes, locks and events since counting started.

use super::report::Report;
use crate::level::{ALL, Level};
use core::panic::Location;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Writes after which another thread was the last to write the line.
    pub transfers: u64,
    /// How long locks on the line were held.
    pub held: Duration,
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

/// Lines whose last writer is remembered.
const REMEMBERED: usize = 1 << 16;

/// Bits of a thread's number in [`LAST`].
const THREAD_BITS: u32 = 12;

/// The last writer of lines: number of the line, then number of the thread. A line forgets its
/// writer when another one takes its place, so a line that comes back after long is no transfer.
static LAST: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed) % (1 << THREAD_BITS);
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

/// Makes this thread the last writer of a line. Returns whether another one was it before.
fn take_line(line: usize) -> bool {
    let Ok(thread) = NUMBER.try_with(|number| *number) else { return false };
    let word = ((line as u64) << THREAD_BITS) | thread;
    // Multiplied, since lines of one structure differ in few bits.
    let hash = (line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    // Relaxed: the word itself is all that is shared.
    let before = LAST[hash as usize % REMEMBERED].swap(word, Ordering::Relaxed);
    before != word && before >> THREAD_BITS == line as u64
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
        let entry = log.entry(address, level, place);
        entry.writes += writes;
        entry.failed += failed;
        entry.transfers += u64::from(take_line(address / LINE));
    });
}

impl Log {
    /// Returns the writes from `place` to the line of `address`.
    pub fn entry(&mut self, address: usize, level: Option<Level>, place: Place) -> &mut Writes {
        let none =
            Writes { place, level, writes: 0, failed: 0, transfers: 0, held: Duration::ZERO };
        let key = (address / LINE, core::ptr::from_ref(place) as usize);
        self.writes.entry(key).or_insert(none)
    }
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
    LAST.iter().for_each(|line| line.store(0, Ordering::Relaxed));
    COUNTING.store(true, Ordering::Relaxed);
}

/// Stops counting. Returns a report of all threads.
pub fn stop() -> Report {
    COUNTING.store(false, Ordering::Relaxed);
    let logs = lock(&LOGS);
    Report::of(logs.iter().map(|log| std::mem::take(&mut *lock(log))))
}
