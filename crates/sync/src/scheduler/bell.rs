//! Wakes a task for work that many threads queue.

use super::Task;
use crate::OnceLock;
use crate::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

/// Wakes a task once, until its job begins to look for work: of 1000 files that become dirty within
/// the interval of writeback, the first arms the timer, and the others read a word.
///
/// # Ordering
/// A thread queues work and rings then; the job calls [`Bell::begin`] and looks at the queue then.
/// The two fences order the write of each before its read, so the job sees the work or the thread
/// sees that the bell is not rung.
#[derive(Debug, Default)]
pub struct Bell {
    task: OnceLock<(Task, Duration)>,
    rung: AtomicBool,
}

impl Bell {
    /// Names the task, and how long after a ring its job runs. Rings once: work may be queued.
    pub fn set(&self, task: Task, delay: Duration) {
        let first = self.task.set((task, delay)).is_ok();
        debug_assert!(first, "a bell has one task");
        self.rung.store(false, SeqCst);
        self.ring();
    }

    /// Has the job run. To be called after work was queued.
    pub fn ring(&self) {
        fence(SeqCst);
        if !self.rung.load(Relaxed)
            && let Some((task, delay)) = self.task.get()
            && !self.rung.swap(true, SeqCst)
        {
            if delay.is_zero() {
                task.wake();
            } else {
                task.wake_after(*delay);
            }
        }
    }

    /// Has the job run at once, whatever its delay is. False if there is no task, or no thread for
    /// it.
    pub fn hurry(&self) -> bool {
        self.task.get().is_some_and(|(task, _)| task.wake())
    }

    /// Rings from now on wake the task again. The job calls this before it looks for work.
    pub fn begin(&self) {
        self.rung.store(false, SeqCst);
        fence(SeqCst);
    }

    /// Whether the job will run, without a further ring.
    pub fn is_rung(&self) -> bool {
        self.rung.load(SeqCst)
    }

    /// Ends the task, as [`Task::stop`].
    pub fn stop(&self) {
        self.task.get().into_iter().for_each(|(task, _)| task.stop());
    }
}
