//! The end of a test's threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped, at which the other threads of a test end. A scope of threads
/// waits for them, also when an assertion fails, and a test that does not end tells nothing.
#[derive(Debug)]
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_end_with_a_thread_that_panics() {
        let ends = AtomicBool::new(false);
        let scope = || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
                let _ending = Ending(&ends);
                std::panic::resume_unwind(Box::new("an assertion failed"));
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(scope)).is_err());
        assert!(ends.load(Ordering::SeqCst));
    }
}
