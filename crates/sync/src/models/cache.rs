//! The cache: lookups, evictions, last references and the end of the cache, against each other.

use super::*;

/// An object that must depart only once. Its memory reports its drop to the checker.
#[derive(Clone)]
struct Value {
    live: Arc<AtomicBool>,
    memory: Arc<Memory>,
}

struct Memory(loom::cell::UnsafeCell<bool>, Lockref);

#[expect(unsafe_code, reason = "the checker watches the cell: the model checks its exclusive use")]
// SAFETY: it is written only when it is dropped.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.with_mut(|_| ());
    }
}

impl Object for Value {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.memory.1
    }

    fn depart(&self) {
        assert!(self.live.swap(false, Ordering::Relaxed), "departed twice");
    }
}

fn value() -> (Value, Arc<AtomicBool>) {
    let live = Arc::new(AtomicBool::new(true));
    let memory = Arc::new(Memory(loom::cell::UnsafeCell::new(true), Lockref::new(0)));
    (Value { live: live.clone(), memory }, live)
}

fn use_it(held: &Held<Value>) {
    held.memory.0.with(|_| ());
    assert!(held.live.load(Ordering::Relaxed), "a reference to an object that is gone");
}

/// A lookup against eviction: it gets the whole object, or nothing.
#[test]
fn lookup_against_eviction() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (value, live) = value();
        drop(cache.lock(1).insert(1, value));
        let other = cache.clone();
        let reader = thread::spawn(move || {
            if let Some(held) = other.get(1) {
                use_it(&held);
            }
        });
        let evicted = cache.shrink(2, |_| Verdict::Evict);
        reader.join().unwrap();
        match evicted.is_empty() {
            true => assert_eq!(
                (cache.len(), cache.unused()),
                (1, 1),
                "unreferenced objects are on the lists"
            ),
            false => assert_eq!((cache.len(), cache.unused()), (0, 0)),
        }
        drop(evicted);
        assert_eq!(live.load(Ordering::Relaxed), cache.len() == 1);
    });
}

/// A look without a reference against eviction: the memory stays during the look.
#[test]
fn look_against_eviction() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        drop(cache.lock(1).insert(1, value().0));
        let other = cache.clone();
        let reader = thread::spawn(move || {
            let pinned = pin();
            if let Some(found) = other.look(&pinned, 1) {
                found.memory.0.with(|_| ());
            }
        });
        drop(cache.lock(1).remove_if(1, |count, _| count == 0));
        reader.join().unwrap();
        assert!(cache.is_empty());
    });
}

/// The last reference is dropped while a walk takes the referenced object off the lists: in the end
/// the object is listed.
#[test]
fn last_reference_against_a_walk() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (value, _live) = value();
        drop(cache.lock(1).insert(1, value));
        let held = cache.get(1).unwrap();
        let other = cache.clone();
        let walker = thread::spawn(move || assert!(other.shrink(2, |_| Verdict::Keep).is_empty()));
        drop(held);
        walker.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 1));
    });
}

/// Another object takes the number while the last reference to the first is dropped: each value is
/// dropped once.
#[test]
fn last_reference_against_displacement() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (first, live) = value();
        let (held, _) = cache.lock(1).insert(1, first);
        let other = cache.clone();
        let (second, _) = value();
        let maker = thread::spawn(move || {
            let (held, before) = other.lock(1).insert(1, second);
            use_it(&held);
            drop(before);
        });
        use_it(&held);
        drop(held);
        maker.join().unwrap();
        assert!(!live.load(Ordering::Relaxed));
        assert_eq!((cache.len(), cache.unused()), (1, 1));
    });
}

/// An object enters the table during a lookup: it is found whole or not at all, and in the end it
/// is listed.
#[test]
fn entering_against_a_lookup() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (value, live) = value();
        let held = Held::unlisted(1, value);
        let other = cache.clone();
        let reader = thread::spawn(move || {
            if let Some(held) = other.get(1) {
                use_it(&held);
            }
        });
        assert!(cache.lock(1).enter(&held).is_none());
        drop(held);
        reader.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 1));
        assert!(live.load(Ordering::Relaxed) && cache.get(1).is_some());
    });
}

/// An object enters the table while another reference is dropped: whichever reference is the last
/// leaves the object to the table.
#[test]
fn entering_against_a_last_reference() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (value, live) = value();
        let held = Held::unlisted(1, value);
        let another = held.clone();
        let user = thread::spawn(move || drop(another));
        assert!(cache.lock(1).enter(&held).is_none());
        drop(held);
        user.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 1));
        assert!(live.load(Ordering::Relaxed) && cache.get(1).is_some());
    });
}

/// Two threads enter an object at once: it is in the table once, and departs once.
#[test]
fn entering_twice() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (value, live) = value();
        let held = Held::unlisted(1, value);
        let (another, other) = (held.clone(), cache.clone());
        let user = thread::spawn(move || drop(other.lock(1).enter(&another)));
        drop(cache.lock(1).enter(&held));
        drop(held);
        user.join().unwrap();
        assert_eq!((cache.len(), cache.unused()), (1, 1));
        drop(cache.lock(1).remove_if(1, |count, _| count == 0));
        assert!(!live.load(Ordering::Relaxed) && cache.is_empty());
    });
}

/// A reference outlives the cache, or is dropped while the cache is.
#[test]
fn last_reference_against_the_end_of_the_cache() {
    model(|| {
        let cache = Cache::new(Level::Leaf, 1);
        let (value, live) = value();
        let (held, _) = cache.lock(1).insert(1, value);
        let user = thread::spawn(move || {
            use_it(&held);
            drop(held);
        });
        drop(cache);
        user.join().unwrap();
        assert!(!live.load(Ordering::Relaxed));
    });
}
