//! Locks, levels and counters among threads.
#![cfg(not(loom))]

#[cfg(feature = "contention")]
mod contention;

use extant_sync::{
    ArcRwLock, Condvar, Level, Mutex, RwLock, Sharded, ShardedCounter, levels, lock_two, thread,
    write_all_arc, write_two,
};
use std::collections::HashSet;

#[test]
fn pairs_in_any_order_do_not_deadlock() {
    let locks: Vec<Mutex<u64>> = (0..4).map(|_| Mutex::new(Level::Group, 100)).collect();
    thread::scope(|scope| {
        for seed in 0..4usize {
            let locks = &locks;
            scope.spawn(move || {
                for n in 0..2000 {
                    let (from, to) = ((seed + n) % 4, (seed + n * 3 + 1) % 4);
                    if from != to {
                        let (mut a, mut b) = lock_two((from, &locks[from]), (to, &locks[to]));
                        *a -= u64::from(*a > 0);
                        *b += 1;
                    }
                }
            });
        }
    });
    assert!(locks.iter().map(|lock| *lock.lock()).sum::<u64>() >= 400);
}

#[test]
fn groups_of_locks_do_not_deadlock() {
    let locks: Vec<ArcRwLock<u64>> = (0..5).map(|_| ArcRwLock::new(Level::Directory, 0)).collect();
    thread::scope(|scope| {
        for seed in 0..4usize {
            let locks = &locks;
            scope.spawn(move || {
                for n in 0..1000 {
                    let wanted = [(seed + n) % 5, (seed * 2 + n) % 5, n * 3 % 5];
                    let keys: HashSet<_> = wanted.into();
                    let guards = write_all_arc(wanted.map(|key| (key, &locks[key])));
                    assert_eq!(guards.len(), keys.len());
                    guards.into_iter().for_each(|(_, mut guard)| *guard += 1);
                }
            });
        }
    });
    let total: u64 = locks.iter().map(|lock| *lock.read()).sum();
    assert!((4000..=12_000).contains(&total));
}

#[test]
fn a_condition_is_handed_back_and_forth() {
    let (turn, changed) = (Mutex::new(Level::Leaf, 0u32), Condvar::new());
    thread::scope(|scope| {
        for parity in 0..2 {
            let (turn, changed) = (&turn, &changed);
            scope.spawn(move || {
                let mut turn = turn.lock();
                while *turn < 1000 {
                    if *turn % 2 == parity {
                        *turn += 1;
                        changed.notify_all();
                    } else {
                        changed.wait(&mut turn);
                    }
                }
            });
        }
    });
    assert_eq!(*turn.lock(), 1000);
}

#[test]
fn readers_see_both_or_neither() {
    let (a, b) = (RwLock::new(Level::Inode, 0), RwLock::new(Level::Inode, 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1000 {
                let (mut a, mut b) = write_two((1, &a), (2, &b));
                *a += 1;
                *b += 1;
            }
        });
        scope.spawn(|| {
            for _ in 0..1000 {
                let a = a.read();
                let b = b.read_nested();
                assert_eq!(*a, *b);
            }
        });
    });
}

#[test]
fn levels_are_each_threads_own() {
    let _inner = levels::enter(Level::Leaf);
    thread::scope(|scope| {
        scope.spawn(|| {
            let lock = Mutex::new(Level::FsState, 1);
            assert_eq!(*lock.lock(), 1);
        });
    });
}

#[cfg(debug_assertions)]
#[test]
fn a_handle_is_not_started_under_a_map_lock() {
    let map = RwLock::new(Level::Map, ());
    let guard = map.read();
    assert!(std::panic::catch_unwind(|| levels::enter(Level::Handle)).is_err());
    drop(guard);
    let handle = levels::enter(Level::Handle);
    drop(map.write());
    drop(handle);
}

#[cfg(debug_assertions)]
#[test]
fn a_lock_that_was_tried_counts_as_held() {
    let (outer, inner) = (Mutex::new(Level::Inode, ()), Mutex::new(Level::Map, ()));
    let _inner = inner.lock();
    let tried = outer.try_lock().expect("a lock that is free is taken in any order");
    levels::assert_held(Level::Inode);
    drop(tried);
    assert!(std::panic::catch_unwind(|| levels::assert_held(Level::Inode)).is_err());
}

#[test]
fn counters_and_shards_lose_nothing() {
    let (counter, sharded) = (
        ShardedCounter::new(0),
        Sharded::<Mutex<HashSet<usize>>>::new(|_| Mutex::new(Level::Leaf, HashSet::new())),
    );
    thread::scope(|scope| {
        for thread in 0..8i64 {
            let (counter, sharded) = (&counter, &sharded);
            scope.spawn(move || {
                (0..5000).for_each(|_| counter.add(thread - 3));
                sharded.local().lock().insert(sharded.local_index());
            });
        }
    });
    assert_eq!(counter.sum(), 5000 * (8 * 7 / 2 - 8 * 3));
    assert!(counter.at_least(counter.sum()) && !counter.at_least(counter.sum() + 1));
    for (index, seen) in sharded.iter().enumerate() {
        assert!(seen.lock().iter().all(|shard| *shard == index));
    }
}
