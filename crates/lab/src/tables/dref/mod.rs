//! Cost of a get and a put of references to objects that many threads share.

#[cfg(feature = "contention")]
mod counts;
mod designs;

use crate::jobs::Watch;
use crate::measure::{Done, Limit, run_threads};
use crate::options::Options;
use crate::stored::Results;
use designs::{Atomic, CasSplit, Dref, Locked, Lockref};
use extant_sync::CachePadded;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The designs: a lock for each change; count and lock apart, as in 2013; count and lock in one
/// word; a plain counter.
const DESIGNS: [&str; 4] = ["lock", "cas_split", "lockref", "atomic"];

/// The engine's.
const CHOSEN: usize = 2;

const THREADS: [usize; 4] = [1, 2, 4, 16];

/// Times a second that a holder takes the lock of each shared object.
const RATES: [u64; 3] = [1_000, 10_000, 100_000];

/// How long a holder holds it.
const HOLD: Duration = Duration::from_nanos(500);

/// Shared objects.
const SHARED: usize = 2;

/// Gets and puts of one operation, so that the clock is looked at seldom.
const BATCH: u64 = 64;

/// References that each object has all the time, as a parent has from its children.
const BASE: i32 = 10;

pub fn run(options: &Options) -> io::Result<bool> {
    #[cfg(feature = "contention")]
    vec![counts::grid(options)?].print(options.json)?;
    #[cfg(not(feature = "contention"))]
    vec![grid(options)?].print(options.json)?;
    Ok(true)
}

/// Assignment of objects to threads.
#[derive(Clone, Copy)]
enum Use {
    /// All threads the same few.
    Shared,
    /// Each thread its own.
    Own,
    /// All threads use the same few, and another thread takes their locks so many times a second.
    Held(u64),
    /// As users of AIM7's `short`: a working directory's four parents, two files that all open, one
    /// of each user's own.
    Users,
}

/// Measures every design.
#[cfg(not(feature = "contention"))]
fn grid(options: &Options) -> io::Result<super::Grid> {
    let mut grid = super::Grid::new("references: a get and a put", "pairs/s", &DESIGNS, CHOSEN);
    let rows = options.rows(&THREADS, &uses());
    options.fill(&mut grid, &rows, |(threads, how), design| {
        Ok(measure(design, *how, (*threads, options.window()), &())?.rate())
    })?;
    Ok(grid)
}

fn uses() -> Vec<(String, Use)> {
    let fixed =
        [("shared objects", Use::Shared), ("own objects", Use::Own), ("users' paths", Use::Users)];
    let held =
        RATES.into_iter().map(|rate| (format!("shared, lock taken {rate}/s"), Use::Held(rate)));
    fixed.into_iter().map(|(name, how)| (name.to_owned(), how)).chain(held).collect()
}

/// Pairs of a get and a put that threads make.
fn measure(
    design: usize,
    how: Use,
    load: (usize, Duration),
    watch: &dyn Watch,
) -> io::Result<Done> {
    match design {
        0 => of::<Locked>(how, load, watch),
        1 => of::<CasSplit>(how, load, watch),
        2 => of::<Lockref>(how, load, watch),
        _ => of::<Atomic>(how, load, watch),
    }
}

/// Objects that a user's round visits, and how many of them all users share.
const ROUND: usize = 7;
const ROUND_SHARED: usize = 6;

fn of<D: Dref>(
    how: Use,
    (threads, window): (usize, Duration),
    watch: &dyn Watch,
) -> io::Result<Done> {
    let shared = if matches!(how, Use::Users) { ROUND_SHARED } else { SHARED };
    let objects: Vec<CachePadded<D>> =
        (0..shared + threads).map(|_| CachePadded::new(D::new(BASE))).collect();
    let at = |thread: usize, n: u64| match how {
        Use::Shared | Use::Held(_) => n as usize % SHARED,
        Use::Own => shared + thread,
        Use::Users => match n as usize % ROUND {
            own if own == ROUND_SHARED => shared + thread,
            common => common,
        },
    };
    let rate = if let Use::Held(rate) = how { rate } else { 0 };
    let done = with_holder(&objects[..shared], rate, || {
        watch.start();
        let done = run_threads(threads, Limit::time(window), |thread, n| {
            if n == 0 {
                watch.thread();
            }
            for i in 0..BATCH {
                let object = &*objects[at(thread, n * BATCH + i)];
                object.get();
                object.put();
            }
            Ok(())
        });
        watch.stop();
        done
    })?;
    if objects.iter().all(|object| object.count() == BASE) {
        Ok(Done { ops: done.ops.iter().map(|ops| ops * BATCH).collect(), ..done })
    } else {
        Err(io::Error::other("references were lost"))
    }
}

/// Runs `work` while a thread takes the objects' locks `rate` times a second each, and holds them
/// for a while.
fn with_holder<D: Dref, R: Send>(
    objects: &[CachePadded<D>],
    rate: u64,
    work: impl FnOnce() -> R + Send,
) -> R {
    let over = AtomicBool::new(rate == 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            let mut taken = 0;
            while !over.load(Ordering::Relaxed) {
                if start.elapsed().as_secs_f64() * rate as f64 >= f64::from(taken) {
                    objects.iter().for_each(|object| object.locked(|| hold(HOLD)));
                    taken += 1;
                } else {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let outcome = work();
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

fn hold(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI32;

    fn obeys<D: Dref>() {
        let object = D::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..2000 {
                        object.get();
                        if n % 50 == 0 {
                            object.locked(|| ());
                        }
                        object.put();
                    }
                });
            }
        });
        assert_eq!(object.count(), 1);
        object.put();
        assert_eq!(object.count(), 0);
    }

    #[test]
    fn every_design_counts_right() {
        obeys::<Locked>();
        obeys::<CasSplit>();
        obeys::<Lockref>();
        obeys::<Atomic>();
    }

    /// A design with a defect: dropped references stay.
    struct Leaking {
        count: AtomicI32,
        locked: AtomicBool,
    }

    impl Dref for Leaking {
        fn new(count: i32) -> Self {
            Leaking { count: AtomicI32::new(count), locked: AtomicBool::new(false) }
        }

        fn get(&self) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }

        fn put(&self) {}

        fn count(&self) -> i32 {
            self.count.load(Ordering::Relaxed)
        }

        fn locked(&self, work: impl FnOnce()) {
            work();
            self.locked.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_design_that_loses_references_is_refused() {
        let load = (2, Duration::from_millis(1));
        let lost = of::<Leaking>(Use::Shared, load, &()).expect_err("references stay");
        assert!(lost.to_string().contains("references were lost"), "{lost}");
    }

    #[test]
    fn a_holder_takes_the_lock_of_each_shared_object() {
        let objects = [Leaking::new(0), Leaking::new(0)].map(CachePadded::new);
        let all = || objects.iter().all(|object| object.locked.load(Ordering::Relaxed));
        let patience = Instant::now() + Duration::from_secs(10);
        let taken = with_holder(&objects, RATES[0], || {
            while !all() && Instant::now() < patience {
                std::thread::yield_now();
            }
            all()
        });
        assert!(taken);
    }
}
