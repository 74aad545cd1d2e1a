//! Interruption of requests. The kernel sends INTERRUPT when the client receives a signal, fatal or
//! not.
//!
//! Each serving thread has a cell with the number of its request. To interrupt request 7, the
//! server stores 7 as the interrupted request in the cell of the thread that serves 7. Long
//! operations of the engine poll the cell and end with `EINTR`. They see the interruption only
//! [`PATIENCE`] after the signal: on the kernel's ext4 no signal fails a lookup, and programs with
//! a timer rely on that.
//!
//! # Invariants
//! - No interruption is lost, although INTERRUPT may arrive before a thread has stored the number
//!   of the request. The interrupting thread first adds the number to a list and then searches the
//!   cells. A serving thread first stores the number and then reads the list. All of these accesses
//!   are in one order (SeqCst), so that one thread sees the other.
//! - The list stays short: it drops the oldest number beyond [`MAX_EARLY`], and numbers older than
//!   [`FORGOTTEN`]. Their requests were answered meanwhile, since the serving thread finds every
//!   other one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest length of the list.
const MAX_EARLY: usize = 256;

/// Age at which a number leaves the list. Threads store the number of a request much sooner.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// Time between a signal and the end of the work.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests that the threads of a connection serve, and their interruptions.
#[derive(Debug)]
pub struct Interrupts {
    threads: Mutex<Vec<Arc<Cell>>>,
    /// Interrupted requests that no thread had stored, with the times of the interruptions.
    early: Mutex<VecDeque<(u64, Instant)>>,
    /// Length of `early`, which each request reads.
    early_count: AtomicUsize,
    /// The mount has ended: no caller waits for any request.
    ended: Arc<AtomicBool>,
    clock: Clock,
    patience: Duration,
}

/// Counts milliseconds.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Request of a thread. The cell has its own cache line, since every request writes it. Reads are
/// Relaxed: an interruption that is seen late ends the work one poll later, and a stale number
/// equals the number of no other request.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    /// The request; 0 if there is none.
    serves: AtomicU64,
    /// The interrupted request.
    interrupted: AtomicU64,
    /// When its work must end. Written before `interrupted`, which publishes it.
    ends_at: AtomicU64,
}

impl Cell {
    fn is_interrupted(&self, clock: Clock) -> bool {
        let serves = self.serves.load(Ordering::Relaxed);
        serves != 0
            && self.interrupted.load(Ordering::Acquire) == serves
            && self.ends_at.load(Ordering::Relaxed) <= clock.now()
    }

    fn interrupt(&self, unique: u64, ends_at: u64) {
        self.ends_at.store(ends_at, Ordering::Relaxed);
        self.interrupted.store(unique, Ordering::Release);
    }
}

/// Registration of a thread's cell with a connection. A drop removes the cell.
struct Enlisted {
    of: Arc<Interrupts>,
    cell: Arc<Cell>,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        lock(&self.of.threads).retain(|cell| !Arc::ptr_eq(cell, &self.cell));
    }
}

thread_local! {
    static HERE: RefCell<Option<Enlisted>> = const { RefCell::new(None) };
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is valid: no code panics while it holds these locks.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Interrupts {
    fn default() -> Self {
        Interrupts::with_patience(PATIENCE)
    }
}

impl Interrupts {
    fn with_patience(patience: Duration) -> Interrupts {
        Interrupts {
            threads: Mutex::default(),
            early: Mutex::default(),
            early_count: AtomicUsize::new(0),
            ended: Arc::default(),
            clock: Clock(Instant::now()),
            patience,
        }
    }

    /// Returns the time, in milliseconds of the clock, at which work that is interrupted now must
    /// end.
    fn deadline(&self) -> u64 {
        self.clock
            .now()
            .saturating_add(u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX))
    }

    /// Runs `work`, which serves request `unique` and may be interrupted.
    pub fn serve<R>(self: &Arc<Self>, unique: u64, work: impl FnOnce() -> R) -> R {
        let cell = self.cell();
        cell.interrupted.store(0, Ordering::Relaxed);
        cell.serves.store(unique, Ordering::SeqCst);
        if self.early_count.load(Ordering::SeqCst) > 0 && self.take_early(unique) {
            cell.interrupt(unique, self.deadline());
        }
        let result = work();
        cell.serves.store(0, Ordering::Relaxed);
        result
    }

    /// Returns the cell of this thread; registers one if it has none for this connection.
    fn cell(self: &Arc<Self>) -> Arc<Cell> {
        HERE.with_borrow_mut(|here| match here {
            Some(here) if Arc::ptr_eq(&here.of, self) => here.cell.clone(),
            _ => {
                let cell = Arc::new(Cell::default());
                lock(&self.threads).push(cell.clone());
                let (asked, ended, clock) = (cell.clone(), self.ended.clone(), self.clock);
                let is_over = move || ended.load(Ordering::Relaxed) || asked.is_interrupted(clock);
                extant_engine::set_interrupt(Some(Arc::new(is_over)));
                *here = Some(Enlisted { of: self.clone(), cell: cell.clone() });
                cell
            }
        })
    }

    /// Interrupts request `unique`.
    pub fn interrupt(&self, unique: u64) {
        {
            let mut early = lock(&self.early);
            early.push_back((unique, Instant::now()));
            if early.len() > MAX_EARLY {
                early.pop_front();
            }
            self.early_count.store(early.len(), Ordering::SeqCst);
        }
        let threads = lock(&self.threads);
        if let Some(cell) = threads.iter().find(|cell| cell.serves.load(Ordering::SeqCst) == unique)
        {
            cell.interrupt(unique, self.deadline());
            self.take_early(unique);
        }
    }

    fn take_early(&self, unique: u64) -> bool {
        let mut early = lock(&self.early);
        let taken = early.iter().any(|(other, _)| *other == unique);
        early.retain(|(other, told)| *other != unique && told.elapsed() < FORGOTTEN);
        self.early_count.store(early.len(), Ordering::SeqCst);
        taken
    }

    /// Interrupts all requests that are served now, without delay.
    pub fn interrupt_all(&self) {
        for cell in &*lock(&self.threads) {
            cell.interrupt(cell.serves.load(Ordering::SeqCst), 0);
        }
    }

    /// Interrupts all requests, current and later ones: the mount has ended.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the engine would end a long operation of this thread.
    fn is_interrupted() -> bool {
        HERE.with_borrow(|here| {
            let is_over = |here: &Enlisted| {
                here.of.ended.load(Ordering::Relaxed) || here.cell.is_interrupted(here.of.clock)
            };
            here.as_ref().is_some_and(is_over)
        })
    }

    #[test]
    fn the_request_that_is_served_is_interrupted_and_no_other() {
        let all = Arc::new(Interrupts::with_patience(Duration::ZERO));
        let seen = all.serve(4, || {
            all.interrupt(6);
            let before = is_interrupted();
            all.interrupt(4);
            (before, is_interrupted())
        });
        assert_eq!(seen, (false, true));
        assert!(!all.serve(8, is_interrupted));
        assert!(all.serve(6, is_interrupted), "it was told before the request came");
        assert!(!all.serve(6, is_interrupted));
    }

    #[test]
    fn a_signal_ends_no_request_before_its_time() {
        let all = Arc::new(Interrupts::with_patience(Duration::from_secs(1000)));
        assert!(!all.serve(4, || {
            all.interrupt(4);
            is_interrupted()
        }));
        all.interrupt(6);
        assert!(!all.serve(6, is_interrupted), "a signal before the request");
        let old = Instant::now().checked_sub(FORGOTTEN).expect("the machine runs for longer");
        lock(&all.early).extend([(8, old), (10, old)]);
        all.interrupt(12);
        all.serve(12, || ());
        assert!(lock(&all.early).is_empty(), "old numbers are forgotten");
    }

    #[test]
    fn the_end_interrupts_all() {
        let all = Arc::new(Interrupts::default());
        assert!(all.serve(4, || {
            all.interrupt_all();
            is_interrupted()
        }));
        assert!(!all.serve(6, is_interrupted));
        all.end();
        assert!(all.serve(8, is_interrupted));
    }

    #[test]
    fn late_interruptions_are_forgotten() {
        let all = Interrupts::default();
        (1..10_000).for_each(|unique| all.interrupt(unique));
        assert_eq!(lock(&all.early).len(), MAX_EARLY);
    }

    #[test]
    fn a_thread_that_ends_leaves_the_list() {
        let all = Arc::new(Interrupts::default());
        let of_thread = all.clone();
        std::thread::spawn(move || of_thread.serve(2, || ())).join().expect("a thread");
        assert!(lock(&all.threads).is_empty());
    }
}
