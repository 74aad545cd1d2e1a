//! Requests of a keeper to its server, which wake the threads that wait for some.

use rustix::fs::statfs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Largest number of requests at a time, however many a server that was taken over asks for.
const MAX_REQUESTS: usize = 256;

/// Threads that each wait for the answer to one request.
#[derive(Debug, Default)]
pub struct Wakers(Arc<AtomicUsize>);

/// One of the threads.
struct Waker(Arc<AtomicUsize>);

impl Drop for Waker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Wakers {
    /// Makes the kernel send so many requests to the server of a mount, but not more than
    /// [`MAX_REQUESTS`] at a time. Returns before they are answered.
    ///
    /// A request from the process of the server itself would keep that process if it were killed,
    /// for as long as it has received the request and not answered: for microseconds.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn wake(&self, place: &Path, count: u32) -> io::Result<()> {
        self.start(count, || {
            let place = place.to_path_buf();
            move || {
                // Only the request counts.
                let _ = statfs(&place);
            }
        })
    }

    fn start<F: FnOnce() + Send + 'static>(
        &self,
        count: u32,
        ask: impl Fn() -> F,
    ) -> io::Result<()> {
        for _ in 0..count {
            let before = self.0.fetch_add(1, Ordering::AcqRel);
            let waker = Waker(self.0.clone());
            if before >= MAX_REQUESTS {
                break;
            }
            let ask = ask();
            let body = move || {
                ask();
                drop(waker);
            };
            Builder::new().name("extant-wake".into()).spawn(body)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::yield_now;

    #[test]
    fn a_server_starts_a_bounded_number_of_threads() {
        let wakers = Wakers::default();
        let (sender, receiver) = channel::<()>();
        let receiver = Arc::new(std::sync::Mutex::new(receiver));
        for _ in 0..3 {
            let ask = || {
                let receiver = receiver.clone();
                // Until the sender is gone.
                move || {
                    let _ = receiver.lock().expect("a lock").recv();
                }
            };
            wakers.start(u32::MAX, ask).expect("threads");
            assert_eq!(wakers.0.load(Ordering::Acquire), MAX_REQUESTS);
        }
        drop(sender);
        while wakers.0.load(Ordering::Acquire) > 0 {
            yield_now();
        }
    }
}
