//! Requests that are interrupted: the kernel sends a request of its own for it when a signal comes to the client, fatal or not.
//!
//! Each thread that serves has a cell with the number of the request that it serves. To interrupt request 7, its number is
//! put beside that of the thread that serves 7; the engine asks now and then during long operations, and ends them with
//! EINTR. Short operations never ask, so that a timer of the client does not fail them.
//!
//! # Invariants
//! - No interruption is lost. The server may learn of it before a thread has noted the request: so the number goes to a list
//!   first, and then the cells are searched. A thread notes its request first, and then looks at the list. All of that is in
//!   one order (SeqCst), so one of both sees the other.
//! - The list is short: it forgets the oldest number. What is left in it are requests that were answered meanwhile, since
//!   every other one is found by the thread that serves it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers in the list at most.
const MAX_EARLY: usize = 256;

/// What the threads of a connection serve, and what of that is interrupted.
#[derive(Debug, Default)]
pub struct Interrupts {
    threads: Mutex<Vec<Arc<Cell>>>,
    /// Interrupted requests that no thread had noted.
    early: Mutex<VecDeque<u64>>,
    /// How many these are: looked at for each request.
    early_count: AtomicUsize,
    /// The mount has ended: nobody waits for any request.
    ended: Arc<AtomicBool>,
}

/// What a thread serves. On a line of its own, since every request writes it. Reads are Relaxed: an interruption that is seen
/// late ends the work one question later, and a number that is out of date equals no other request's.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    /// The request; 0 if there is none.
    serves: AtomicU64,
    /// The interrupted request.
    interrupted: AtomicU64,
}

impl Cell {
    fn is_interrupted(&self) -> bool {
        let serves = self.serves.load(Ordering::Relaxed);
        serves != 0 && self.interrupted.load(Ordering::Relaxed) == serves
    }
}

/// A thread's place among those of a connection.
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
    // Nothing panics while one of them is locked.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interrupts {
    /// Serves request `unique` by `work`, which may be interrupted.
    pub fn serve<R>(self: &Arc<Self>, unique: u64, work: impl FnOnce() -> R) -> R {
        let cell = self.cell();
        cell.interrupted.store(0, Ordering::Relaxed);
        cell.serves.store(unique, Ordering::SeqCst);
        if self.early_count.load(Ordering::SeqCst) > 0 && self.take_early(unique) {
            cell.interrupted.store(unique, Ordering::Relaxed);
        }
        let result = work();
        cell.serves.store(0, Ordering::Relaxed);
        result
    }

    /// The cell of this thread.
    fn cell(self: &Arc<Self>) -> Arc<Cell> {
        HERE.with_borrow_mut(|here| match here {
            Some(here) if Arc::ptr_eq(&here.of, self) => here.cell.clone(),
            _ => {
                let cell = Arc::new(Cell::default());
                lock(&self.threads).push(cell.clone());
                let (asked, ended) = (cell.clone(), self.ended.clone());
                extant::set_interrupt(Some(Arc::new(move || ended.load(Ordering::Relaxed) || asked.is_interrupted())));
                *here = Some(Enlisted { of: self.clone(), cell: cell.clone() });
                cell
            }
        })
    }

    /// The kernel wants request `unique` to end.
    pub fn interrupt(&self, unique: u64) {
        {
            let mut early = lock(&self.early);
            early.push_back(unique);
            if early.len() > MAX_EARLY {
                early.pop_front();
            }
            self.early_count.store(early.len(), Ordering::SeqCst);
        }
        let threads = lock(&self.threads);
        if let Some(cell) = threads.iter().find(|cell| cell.serves.load(Ordering::SeqCst) == unique) {
            cell.interrupted.store(unique, Ordering::Relaxed);
            self.take_early(unique);
        }
    }

    fn take_early(&self, unique: u64) -> bool {
        let mut early = lock(&self.early);
        let before = early.len();
        early.retain(|other| *other != unique);
        self.early_count.store(early.len(), Ordering::SeqCst);
        early.len() < before
    }

    /// Interrupts what is served now.
    pub fn interrupt_all(&self) {
        for cell in &*lock(&self.threads) {
            cell.interrupted.store(cell.serves.load(Ordering::SeqCst), Ordering::Relaxed);
        }
    }

    /// Interrupts what is served, now and later: the mount has ended.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the engine would end a long operation of this thread.
    fn is_interrupted() -> bool {
        HERE.with_borrow(|here| {
            here.as_ref().is_some_and(|here| here.of.ended.load(Ordering::Relaxed) || here.cell.is_interrupted())
        })
    }

    #[test]
    fn the_request_that_is_served_is_interrupted_and_no_other() {
        let all = Arc::new(Interrupts::default());
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
