//! The engine's own threads: writeback, reaper, those that scan bitmaps until all groups are known,
//! and one that looks ahead. The journal has its own.

use crate::alloc::{Alloc, Scanned};
use crate::ops::{Bell, Operations, ToReap};
use crate::vfs::Ahead;
use extant_sync::{Condvar, Level, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How often the reaper looks for inodes to free, while there are any.
const REAP_EVERY: Duration = Duration::from_millis(50);

/// How often it looks for those that only wait until callers let go of them.
const RETIRE_EVERY: Duration = Duration::from_secs(1);

/// How often scanning that was switched off looks whether it was switched on again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How much longer than it takes to zero a table is waited before the next one.
const REST: u32 = 10;

#[derive(Debug)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    fn is_asked(&self) -> bool {
        *self.asked.lock()
    }

    /// Sleeps; false if it was woken to stop.
    fn sleep(&self, how_long: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked && !how_long.is_zero() {
            self.wake.wait_for(&mut asked, how_long);
        }
        !*asked
    }
}

/// Running threads.
#[derive(Debug)]
pub struct Threads {
    stop: Arc<Stop>,
    bell: Arc<Bell>,
    running: Vec<JoinHandle<()>>,
    /// The allocator whose freed space a thread discards.
    discarding: Option<Arc<Alloc>>,
}

impl Threads {
    /// Starts none.
    pub fn none(ops: &Arc<Operations>) -> Threads {
        let stop = Arc::new(Stop { asked: Mutex::new(Level::Leaf, false), wake: Condvar::new() });
        Threads { stop, bell: ops.reaper_bell(), running: Vec::new(), discarding: None }
    }

    /// Starts writeback (every `interval`) and the reaper.
    pub fn start(ops: &Arc<Operations>, interval: Duration) -> std::io::Result<Threads> {
        let mut threads = Threads::none(ops);
        threads.every(interval, "extant-writeback", ops, |ops| {
            // What waits for a thaw with files locked would keep others from reading them.
            ops.st().mounted.wait_for_thaw();
            if let Err(e) = ops.write_back_all() {
                tracing::error!("writeback failed: {e}");
            }
            if let Err(e) = ops.record_writes() {
                tracing::warn!("the count of writes is not recorded: {e}");
            }
        })?;
        threads.start_reaper(ops)?;
        Ok(threads)
    }

    /// Starts the reaper, which sleeps while nothing waits for it.
    fn start_reaper(&mut self, ops: &Arc<Operations>) -> std::io::Result<()> {
        let (stop, bell, ops) = (self.stop.clone(), self.bell.clone(), Arc::downgrade(ops));
        let left = move || ops.upgrade().map(|ops| (ops.to_reap(), ops));
        let body = move || {
            while let Some((waiting, _)) = left() {
                let pause = match waiting {
                    ToReap::Soon => REAP_EVERY,
                    ToReap::Later => RETIRE_EVERY,
                    ToReap::Nothing => {
                        bell.sleep(|| {
                            stop.is_asked()
                                || left().is_none_or(|(waiting, _)| waiting != ToReap::Nothing)
                        });
                        REAP_EVERY
                    }
                };
                if !stop.sleep(pause) {
                    return;
                }
                if let Some((_, ops)) = left() {
                    ops.reap();
                }
            }
        };
        self.running.push(Builder::new().name("extant-reaper".into()).spawn(body)?);
        Ok(())
    }

    /// Starts what finds out how much space each group has, where that is worth a thread.
    pub fn start_scanning(&mut self, ops: &Arc<Operations>) -> std::io::Result<()> {
        for _ in 0..ops.st().alloc.scanners() {
            let (stop, ops) = (self.stop.clone(), Arc::downgrade(ops));
            let body = move || {
                // Requests come first. Where that is not granted, they share.
                crate::os::run_in_background();
                let mut pause = Duration::ZERO;
                while stop.sleep(pause) {
                    let Some(ops) = ops.upgrade() else { return };
                    match ops.st().alloc.scan_some() {
                        Scanned::Some => pause = Duration::ZERO,
                        Scanned::Off => pause = LOOK_AGAIN,
                        Scanned::All => return,
                    }
                }
            };
            self.running.push(Builder::new().name("extant-scan".into()).spawn(body)?);
        }
        Ok(())
    }

    /// Starts what zeroes unused parts of inode tables. It ends with the last of them, or at the
    /// first error.
    pub fn start_zeroing(&mut self, ops: &Arc<Operations>) -> std::io::Result<()> {
        let (stop, ops) = (self.stop.clone(), Arc::downgrade(ops));
        let body = move || {
            crate::os::run_in_background();
            let mut pause = LOOK_AGAIN;
            while stop.sleep(pause) {
                let Some(ops) = ops.upgrade() else { return };
                let start = Instant::now();
                match ops.st().alloc.zero_next_table() {
                    Ok(true) => pause = start.elapsed() * REST,
                    Ok(false) => return,
                    Err(e) => {
                        return tracing::warn!("inode tables are not zeroed any further: {e}");
                    }
                }
            }
        };
        self.running.push(Builder::new().name("extant-tables".into()).spawn(body)?);
        Ok(())
    }

    /// Starts the thread that discards freed space.
    pub fn start_discarding(&mut self, alloc: &Arc<Alloc>) -> std::io::Result<()> {
        alloc.begin_discard_thread();
        self.discarding = Some(alloc.clone());
        let alloc = alloc.clone();
        let body = move || while alloc.discard_next() {};
        self.running.push(Builder::new().name("extant-discard".into()).spawn(body)?);
        Ok(())
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
        self.bell.end_sleep();
        self.discarding.iter().for_each(|alloc| alloc.end_discard_thread());
        for thread in self.running {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine had panicked");
            }
        }
    }
}

/// The thread that looks ahead of those who walk the tree. It ends when this is dropped.
#[derive(Debug)]
pub struct LooksAhead {
    ahead: Arc<Ahead>,
    running: Option<JoinHandle<()>>,
}

impl LooksAhead {
    /// Starts it.
    pub fn start(ops: &Arc<Operations>) -> std::io::Result<LooksAhead> {
        let (ahead, ops) = (ops.vfs.ahead.clone(), Arc::downgrade(ops));
        let body = {
            let ahead = ahead.clone();
            move || {
                // For a processor that nobody else wants.
                crate::os::run_in_background();
                while let Some(step) = ahead.next() {
                    let Some(ops) = ops.upgrade() else { return };
                    ops.vfs.look_ahead(step);
                }
            }
        };
        let running = Builder::new().name("extant-ahead".into()).spawn(body)?;
        Ok(LooksAhead { ahead, running: Some(running) })
    }
}

impl Drop for LooksAhead {
    fn drop(&mut self) {
        self.ahead.end();
        if let Some(Err(_)) = self.running.take().map(JoinHandle::join) {
            tracing::error!("the thread that looks ahead had panicked");
        }
    }
}
