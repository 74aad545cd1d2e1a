use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Counts departures. The flag says that the object is not worth keeping.
type Value = Arc<Departures>;

struct Departures(AtomicU64, Lockref, AtomicBool);

impl Default for Departures {
    fn default() -> Self {
        Departures(AtomicU64::new(0), Lockref::new(0), AtomicBool::new(false))
    }
}

impl OnEvict for Departures {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.1
    }

    fn depart(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_worth_keeping(&self) -> bool {
        !self.2.load(Ordering::Relaxed)
    }
}

fn gone(value: &Value) -> u64 {
    value.0.load(Ordering::Relaxed)
}

fn cache() -> Cache<Value> {
    Cache::new(Level::InodeCacheShard, 4)
}

fn all(_: &Value) -> Verdict {
    Verdict::Evict
}

#[test]
fn the_unused_are_evicted_and_the_held_are_not() {
    let cache = cache();
    let kept = Value::default();
    let (held, _) = cache.lock(1).insert(1, kept.clone());
    let (other, _) = cache.lock(2).insert(2, Value::default());
    assert!(cache.get(2).is_some_and(|found| found.same(&other)));
    drop(other);
    assert_eq!((cache.len(), cache.unused()), (2, 1));
    // The first walk clears the mark of the lookup.
    assert_eq!(cache.shrink(10, all).len(), 0);
    assert_eq!(cache.shrink(10, all).len(), 1);
    assert_eq!((cache.len(), cache.unused()), (1, 0));
    assert!(cache.get(2).is_none() && cache.look(&pin(), 2).is_none());
    drop(held);
    assert_eq!((cache.unused(), gone(&kept)), (1, 0));
    assert_eq!(cache.shrink(10, |_| Verdict::Keep).len(), 0);
    assert_eq!(cache.shrink(10, all).len(), 1);
    assert_eq!((cache.len(), gone(&kept)), (0, 1));
}

#[test]
fn one_in_use_leaves_the_lists_and_comes_back() {
    let cache = cache();
    drop(cache.lock(1).insert(1, Value::default()));
    let held = cache.get(1).unwrap();
    assert_eq!(cache.unused(), 1, "still there from before");
    assert_eq!(cache.shrink(10, all).len(), 0);
    assert_eq!(cache.unused(), 0);
    drop(held);
    assert_eq!(cache.unused(), 1);
}

#[test]
fn a_worthless_object_is_on_no_list() {
    let (cache, value) = (cache(), Value::default());
    drop(cache.lock(1).insert(1, value.clone()));
    cache.unlist(1);
    assert_eq!(cache.unused(), 1, "it is worth something");
    value.2.store(true, Ordering::Relaxed);
    cache.unlist(1);
    drop(cache.get(1));
    cache.unlist(1);
    assert_eq!((cache.len(), cache.unused()), (1, 0));
    value.2.store(false, Ordering::Relaxed);
    drop(cache.get(1));
    assert_eq!((cache.len(), cache.unused()), (1, 1));
    value.2.store(true, Ordering::Relaxed);
    assert!(cache.lock(1).remove_if(1, |count, _| count == 0).is_some() && cache.unused() == 0);
}

#[test]
fn a_number_has_one_object() {
    let cache = cache();
    let first = Value::default();
    let (held, _) = cache.lock(7).insert(7, first.clone());
    let (second, before) = cache.lock(7).insert(7, Value::default());
    assert!(before.is_none() && !held.same(&second));
    assert!(cache.get(7).is_some_and(|found| found.same(&second)));
    assert_eq!((cache.removals(7), cache.len()), (1, 1));
    // A displaced object departs with its last reference.
    let again = held.clone();
    drop(held);
    assert_eq!(gone(&first), 0);
    drop(again);
    assert_eq!(gone(&first), 1);
    drop(second);
    let (_third, before) = cache.lock(7).insert(7, Value::default());
    assert!(before.is_some(), "it had no references");
}

#[test]
fn referenced_objects_are_not_removed_as_unused() {
    let cache = cache();
    let (held, _) = cache.lock(7).insert(7, Value::default());
    assert!(cache.lock(7).remove_if(7, |count, _| count == 0).is_none());
    drop(held);
    assert!(cache.lock(7).remove_if(7, |_, _| false).is_none());
    assert!(cache.exceeds(0) && !cache.exceeds(1));
    assert!(cache.lock(7).remove_if(7, |count, _| count == 0).is_some());
    assert!(cache.get(7).is_none() && cache.unused() == 0 && cache.is_empty());
}

#[test]
fn references_outlive_the_cache() {
    let cache = cache();
    let (first, second, third) = (Value::default(), Value::default(), Value::default());
    let (held, _) = cache.lock(1).insert(1, first.clone());
    drop(cache.lock(2).insert(2, second.clone()));
    let unlisted = Held::unlisted(3, third.clone());
    drop(cache);
    assert_eq!((gone(&first), gone(&second), gone(&third)), (0, 1, 0));
    assert_eq!((held.key(), unlisted.count()), (1, 1));
    drop((held, unlisted));
    assert_eq!((gone(&first), gone(&third)), (1, 1));
}

#[test]
fn an_entered_object_is_found_and_stays() {
    let cache = cache();
    let (first, second) = (Value::default(), Value::default());
    drop(cache.lock(7).insert(7, first.clone()));
    let held = Held::unlisted(7, second.clone());
    assert!(cache.get(7).is_some_and(|found| !found.same(&held)));
    // The former object of the number had no references, so it is gone.
    assert!(cache.lock(7).enter(&held).is_some() && gone(&first) == 1);
    assert!(cache.lock(7).enter(&held).is_none(), "it is there");
    assert!(cache.get(7).is_some_and(|found| found.same(&held)));
    assert_eq!((cache.len(), cache.unused(), cache.removals(7)), (1, 0, 1));
    drop(held);
    assert_eq!((cache.unused(), gone(&second)), (1, 0));
    assert_eq!(
        cache.shrink(4, |_| Verdict::Evict).len() + cache.shrink(4, |_| Verdict::Evict).len(),
        1
    );
    assert_eq!((cache.len(), gone(&second)), (0, 1));
}

#[test]
fn a_walk_meets_all() {
    let cache = cache();
    let held: Vec<_> =
        (0..100).map(|key| cache.lock(key).insert(key, Value::default()).0).collect();
    let mut seen: Vec<_> = (0..cache.shard_count())
        .flat_map(|s| cache.all_in_shard(s))
        .map(|found| found.key())
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert!(held.iter().all(|held| held.count() == 1));
}

/// An object of the next test: its number, and the count of objects of all numbers that have not
/// departed.
type Numbered = Arc<(u32, Arc<AtomicU64>, Lockref)>;

impl OnEvict for (u32, Arc<AtomicU64>, Lockref) {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.2
    }

    fn depart(&self) {
        assert!(self.1.fetch_sub(1, Ordering::Relaxed) > 0);
    }
}

/// Concurrent lookups, loads, evictions and displacements: a number has one object, and no object
/// is lost.
#[test]
fn threads_see_one_object_for_a_number() {
    const KEYS: u32 = 40;
    let (cache, alive) =
        (Cache::<Numbered>::new(Level::InodeCacheShard, 2), Arc::new(AtomicU64::new(0)));
    let make = |key: u32| {
        alive.fetch_add(1, Ordering::Relaxed);
        Arc::new((key, alive.clone(), Lockref::new(0)))
    };
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (cache, make) = (&cache, &make);
            scope.spawn(move || {
                for n in 0..crate::times(30_000) {
                    let key = (n.wrapping_mul(31) + thread * 7) % KEYS;
                    match n % 16 {
                        0 => drop(cache.shrink(8, |_| Verdict::Evict)),
                        1 if n % 3 == 0 => drop(cache.lock(key).insert(key, make(key))),
                        2 => assert!(cache.look(&pin(), key).is_none_or(|found| found.0 == key)),
                        _ => {
                            let found = cache.get(key).unwrap_or_else(|| {
                                let mut shard = cache.lock(key);
                                let there = shard.get(key);
                                there.unwrap_or_else(|| shard.insert(key, make(key)).0)
                            });
                            assert_eq!((found.0, found.key()), (key, key));
                            let again = found.clone();
                            drop(found);
                            assert_eq!(again.0, key);
                        }
                    }
                }
            });
        }
    });
    assert!(cache.len() <= KEYS as usize);
    assert_eq!(cache.unused(), cache.len(), "unreferenced objects are on the lists");
    assert_eq!(alive.load(Ordering::Relaxed), cache.len() as u64);
    while !cache.is_empty() {
        cache.shrink(100, |_| Verdict::Evict);
    }
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}
