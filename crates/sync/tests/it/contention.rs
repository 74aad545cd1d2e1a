//! The report of the counting types.

use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::contention::{Line, Report, event, start, stop, worker};
use extant_sync::{CachePadded, Condvar, Level, Mutex, RwLock};

const ROUNDS: u64 = 100;

struct Shared {
    lock: CachePadded<Mutex<u64>>,
    map: CachePadded<RwLock<()>>,
    all: CachePadded<AtomicU64>,
    own: [CachePadded<AtomicU64>; 2],
}

fn count() -> Report {
    let shared = Shared {
        lock: CachePadded::new(Mutex::new(Level::Group, 0)),
        map: CachePadded::new(RwLock::new(Level::Map, ())),
        all: CachePadded::default(),
        own: Default::default(),
    };
    start();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let shared = &shared;
            scope.spawn(move || {
                worker();
                for _ in 0..ROUNDS {
                    *shared.lock.lock() += 1;
                    drop(shared.map.read());
                    shared.all.fetch_add(1, Ordering::Relaxed);
                    shared.own[thread].store(7, Ordering::Relaxed);
                    let _ = shared.own[thread].compare_exchange(
                        1,
                        2,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
                event("a round's end");
            });
        }
    });
    let report = stop();
    assert_eq!(*shared.lock.lock(), 2 * ROUNDS);
    report
}

/// A single test, since counting is on for the whole process.
#[test]
fn writes_locks_and_failures_are_counted() {
    let report = count();
    assert_eq!(report.workers, 2);
    assert_eq!(report.locks(), 4 * ROUNDS);
    assert_eq!(report.failed(), 2 * ROUNDS);
    // Two writes for each acquisition of a lock.
    assert_eq!(report.writes(), (4 + 4 + 2 + 4) * ROUNDS);
    assert_eq!(report.shared_writes(), (4 + 4 + 2) * ROUNDS);
    assert_eq!(report.events["a round's end"], 2);
    let (shared, own): (Vec<&Line>, Vec<&Line>) =
        report.lines.iter().partition(|line| line.is_shared());
    assert_eq!((shared.len(), own.len()), (3, 2));
    assert!(own.iter().all(|line| line.workers == 1 && line.failed == ROUNDS));
    let levels: Vec<_> = report.levels.iter().map(|l| (l.level, l.taken)).collect();
    assert_eq!(levels, [(Level::Map, 2 * ROUNDS), (Level::Group, 2 * ROUNDS)]);
    let here = report.sites.iter().filter(|site| site.place.contains("contention.rs")).count();
    assert_eq!(here, report.sites.len(), "places are those of the callers: {:?}", report.sites);
    waits_on_conditions_hold_nothing();
    a_line_moves_when_another_thread_writes_it();
}

/// Two threads take turns: each first write of a turn fetches the line, other writes find it there.
fn a_line_moves_when_another_thread_writes_it() {
    let lock = CachePadded::new(Mutex::new(Level::Group, ()));
    let all: CachePadded<AtomicU64> = CachePadded::default();
    let turn = || {
        worker();
        drop(lock.lock());
        all.fetch_add(1, Ordering::Relaxed);
        all.fetch_add(1, Ordering::Relaxed);
    };
    start();
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| drop(scope.spawn(turn)));
    }
    let report = stop();
    assert_eq!(report.lines.len(), 2);
    for line in &report.lines {
        assert_eq!((line.writes, line.transfers), (2 * ROUNDS, ROUNDS - 1), "{line:?}");
        let locked = line.taken == ROUNDS && line.held > std::time::Duration::ZERO;
        assert!(locked != (line.taken == 0 && line.held.is_zero()), "{line:?}");
    }
}

fn waits_on_conditions_hold_nothing() {
    let (lock, condvar) = (Mutex::new(Level::Group, ()), Condvar::new());
    let long = std::time::Duration::from_millis(30);
    start();
    worker();
    let begin = std::time::Instant::now();
    let mut guard = lock.lock();
    condvar.wait_for(&mut guard, long);
    drop(guard);
    let report = stop();
    assert_eq!(report.locks(), 2);
    assert!(report.levels[0].held + long <= begin.elapsed());
}
