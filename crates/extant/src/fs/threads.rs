//! The engine's own threads: writeback and reaper. The journal has its own.

use crate::ops::Operations;
use extant_sync::{Condvar, Level, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often the reaper looks for inodes to free.
const REAP_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    /// Sleeps; false if it was woken to stop.
    fn sleep(&self, how_long: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked {
            self.wake.wait_for(&mut asked, how_long);
        }
        !*asked
    }
}

/// Running threads.
#[derive(Debug)]
pub struct Threads {
    stop: Arc<Stop>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts writeback (every `interval`) and the reaper.
    pub fn start(ops: &Arc<Operations>, interval: Duration) -> std::io::Result<Threads> {
        let stop = Arc::new(Stop { asked: Mutex::new(Level::Leaf, false), wake: Condvar::new() });
        let mut threads = Threads { stop, running: Vec::new() };
        threads.every(interval, "extant-writeback", ops, |ops| {
            if let Err(e) = ops.write_back_all() {
                tracing::error!("writeback failed: {e}");
            }
        })?;
        threads.every(REAP_EVERY, "extant-reaper", ops, |ops| {
            ops.reap();
        })?;
        Ok(threads)
    }

    fn every(
        &mut self,
        interval: Duration,
        name: &str,
        ops: &Arc<Operations>,
        work: fn(&Operations),
    ) -> std::io::Result<()> {
        let stop = self.stop.clone();
        let ops = Arc::downgrade(ops);
        let body = move || {
            while stop.sleep(interval) {
                let Some(ops) = ops.upgrade() else { return };
                work(&ops);
            }
        };
        self.running.push(Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }

    /// Stops and joins them.
    pub fn stop(self) {
        *self.stop.asked.lock() = true;
        self.stop.wake.notify_all();
        for thread in self.running {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine had panicked");
            }
        }
    }
}
