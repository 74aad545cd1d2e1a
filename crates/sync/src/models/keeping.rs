//! Unreferenced objects of a cache: those that are worth keeping, and those that a walk spares at
//! the last moment.

use super::model;
use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::cache::{Cache, Object, Verdict};
use crate::lockref::Lockref;
use crate::{Arc, Level, thread};

/// An object that is worth keeping at times.
#[derive(Clone)]
struct Value(Arc<(AtomicBool, Lockref)>);

impl Object for Value {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.0.1
    }

    fn is_worth_keeping(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }
}

fn value(worth: bool) -> Value {
    Value(Arc::new((AtomicBool::new(worth), Lockref::new(0))))
}

/// A thread unlists the object, which is worth nothing. Meanwhile a user finds it worth keeping,
/// and drops its reference: the object ends on the lists.
#[test]
fn unlisting_against_a_last_reference() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        drop(cache.lock(1).insert(1, value(true)));
        let held = cache.get(1).unwrap();
        held.0.0.store(false, Ordering::Relaxed);
        let other = cache.clone();
        let user = thread::spawn(move || {
            held.0.0.store(true, Ordering::Relaxed);
            drop(held);
        });
        other.unlist(1);
        user.join().unwrap();
        assert_eq!(
            (cache.len(), cache.unused()),
            (1, 1),
            "nothing finds it any more but its number"
        );
    });
}

/// An object that is worth nothing leaves the lists, or never gets there, whichever thread is
/// first.
#[test]
fn a_worthless_object_is_not_listed() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (held, _) = cache.lock(1).insert(1, value(false));
        let other = cache.clone();
        let user = thread::spawn(move || drop(held));
        other.unlist(1);
        user.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 0));
    });
}

/// A walk has isolated the object when it is needed after all: the object is listed again, even if
/// another thread walks meanwhile.
#[test]
fn a_spared_object_is_listed_again() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        drop(cache.lock(1).insert(1, value(true)));
        let other = cache.clone();
        let walker = thread::spawn(move || assert!(other.shrink(2, |_| Verdict::Keep).is_empty()));
        let asked = AtomicUsize::new(0);
        let twice = |_: &Value| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Verdict::Evict,
            _ => Verdict::Keep,
        };
        assert!(cache.shrink(2, twice).is_empty(), "it was needed");
        walker.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 1));
    });
}
