//! Many callers of sync at once, with many inodes in memory.

use super::{Watch, ensure_dir, ensure_file};
use crate::target::Target;
use extant_measure::timing::{beside, joined, share_out};
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Callers of sync at once.
pub const SYNCERS: usize = 100;

/// An unrelated file that is looked at.
const LOOKED_AT: &[u8] = b"looked-at";

/// Files in a directory.
const IN_DIRECTORY: usize = 2000;

/// Makes empty files so that their inodes are in memory, and lets them become clean.
pub fn fill(target: &dyn Target, top: &str, files: usize, threads: usize) -> io::Result<()> {
    ensure_dir(target, top.as_bytes())?;
    (0..files.div_ceil(IN_DIRECTORY))
        .try_for_each(|d| target.mkdir(format!("{top}/d{d}").as_bytes()))?;
    share_out(threads, files, |n| {
        target.create(format!("{top}/d{}/f{n}", n / IN_DIRECTORY).as_bytes())
    })?;
    target.sync()
}

/// Callers of sync at once.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// How often each of [`SYNCERS`] callers calls, one time after the other. More than a few
    /// times, and it hardly counts how long the threads take to begin.
    pub calls: usize,
    /// Threads that make files meanwhile.
    pub creators: usize,
}

impl Crowd {
    /// Calls of all.
    pub fn syncs(&self) -> u64 {
        (SYNCERS * self.calls) as u64
    }
}

/// [`SYNCERS`] callers of sync at once, while others make files of their own below `top` until the
/// last has returned. How long that took, and how many files were made meanwhile. Threads are there
/// before `watch` looks, and go afterwards.
pub fn sync_crowd(
    target: &dyn Target,
    top: &str,
    crowd: Crowd,
    watch: &dyn Watch,
) -> io::Result<(Duration, u64)> {
    beside_creators(target, top, crowd.creators, || all_at_once(target, crowd.calls, watch))
}

/// Runs `work` while other threads make files of their own below `top`. Returns its result, and the
/// number of files that were made meanwhile.
fn beside_creators<T>(
    target: &dyn Target,
    top: &str,
    creators: usize,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<(T, u64)> {
    ensure_dir(target, top.as_bytes())?;
    let made = AtomicU64::new(0);
    let create = |thread: usize, over: &AtomicBool| {
        keep_creating(target, &format!("{top}/c{thread}"), over, &made)
    };
    beside(creators, create, |over| {
        // All are at work before the first sync.
        while !over.load(Ordering::Relaxed) && made.load(Ordering::Relaxed) < 16 * creators as u64 {
            std::thread::yield_now();
        }
        let before = made.load(Ordering::Relaxed);
        work().map(|result| (result, made.load(Ordering::Relaxed) - before))
    })
}

/// Effects of syncs on creators and on an unrelated thread.
pub struct Noticed {
    /// The 99th percentile of the time of a stat, in microseconds.
    pub p99: f64,
    /// Files made in a second; at least one, so that a rate of nothing can be compared.
    pub created: f64,
}

/// Looks at a file for some time while some threads make files, and others call sync again and
/// again.
pub fn under_load(
    target: &dyn Target,
    window: Duration,
    (creators, syncing): (usize, usize),
) -> io::Result<Noticed> {
    ensure_file(target, LOOKED_AT)?;
    target.sync()?;
    let keep_syncing = |_, over: &AtomicBool| {
        while !over.load(Ordering::Relaxed) {
            target.sync()?;
        }
        Ok(())
    };
    let work = || {
        let start = Instant::now();
        let p99 = beside(syncing, keep_syncing, |_| look(target, window))?;
        Ok((p99, start.elapsed().as_secs_f64()))
    };
    let ((p99, seconds), made) = beside_creators(target, "load", creators, work)?;
    Ok(Noticed { p99, created: made.max(1) as f64 / seconds.max(1e-9) })
}

/// Returns the 99th percentile of the time of a stat, in microseconds; one stat every 50
/// microseconds.
fn look(target: &dyn Target, window: Duration) -> io::Result<f64> {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < window.max(Duration::from_millis(20)) {
        let begin = Instant::now();
        target.stat(LOOKED_AT)?;
        times.push(begin.elapsed());
        std::thread::sleep(Duration::from_micros(50));
    }
    times.sort_unstable();
    Ok(times.get(times.len() * 99 / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6))
}

/// From the moment when all threads may call sync until all have returned from their last call.
fn all_at_once(target: &dyn Target, calls: usize, watch: &dyn Watch) -> io::Result<Duration> {
    let (begin, end) = (&Barrier::new(SYNCERS + 1), &Barrier::new(SYNCERS + 1));
    let ready = &AtomicUsize::new(0);
    let one = move || {
        ready.fetch_add(1, Ordering::Relaxed);
        begin.wait();
        let synced = (0..calls).try_for_each(|_| target.sync());
        end.wait();
        synced
    };
    std::thread::scope(|scope| {
        let syncing: Vec<_> = (0..SYNCERS).map(|_| scope.spawn(one)).collect();
        // The start of the threads is not part of the time.
        while ready.load(Ordering::Relaxed) < SYNCERS {
            std::thread::yield_now();
        }
        watch.start();
        let start = Instant::now();
        begin.wait();
        end.wait();
        let time = start.elapsed();
        watch.stop();
        syncing.into_iter().try_for_each(joined).map(|()| time)
    })
}

/// Makes files in a directory, and deletes each some time later, until `over`. Counts the files in
/// `made`.
fn keep_creating(
    target: &dyn Target,
    dir: &str,
    over: &AtomicBool,
    made: &AtomicU64,
) -> io::Result<()> {
    const KEPT: u64 = 200;
    ensure_dir(target, dir.as_bytes())?;
    let name = |n: u64| format!("{dir}/f{n}").into_bytes();
    let mut n = 0;
    while !over.load(Ordering::Relaxed) {
        target.create(&name(n))?;
        if n >= KEPT {
            target.unlink(&name(n - KEPT))?;
        }
        n += 1;
        made.fetch_add(1, Ordering::Relaxed);
    }
    (n.saturating_sub(KEPT)..n).try_for_each(|n| target.unlink(&name(n)))
}
