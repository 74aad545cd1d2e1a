//! Waiting for an object's lock: a sleeping thread is woken, takes the lock itself or is passed it,
//! and holds it alone.

use crate::lockref::Lockref;
use crate::parking::be_fair;
use crate::{Arc, thread};
use loom::cell::UnsafeCell;

/// As in other models, but with at most three switches: three threads that sleep and wake have very
/// many interleavings.
fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut all = loom::model::Builder::new();
    all.preemption_bound = all.preemption_bound.map(|most| most.min(3));
    all.check(f);
}

struct Object {
    refs: Lockref,
    content: UnsafeCell<u32>,
}

#[expect(unsafe_code, reason = "the checker watches the cell: the model checks its exclusive use")]
// SAFETY: it is accessed only under the lock.
unsafe impl Sync for Object {}

/// Locks the object, raises both counts, and unlocks it.
fn visit(object: &Object) {
    let mut guard = object.refs.lock();
    #[expect(unsafe_code, reason = "a cell of the checker is written through a pointer")]
    // SAFETY: this thread holds the lock.
    object.content.with_mut(|content| unsafe { *content += 1 });
    let count = guard.count();
    guard.set_count(count + 1);
}

/// Runs `threads` concurrent visits. A thread that is not woken would wait for ever, which fails a
/// model.
fn come(threads: u32, fair: bool) {
    model(move || {
        be_fair(fair);
        let object = Arc::new(Object { refs: Lockref::new(0), content: UnsafeCell::new(0) });
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let object = object.clone();
                thread::spawn(move || visit(&object))
            })
            .collect();
        visit(&object);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(object.refs.count(), threads as i32);
    });
}

#[test]
fn two_take_turns() {
    come(2, false);
    come(2, true);
}

#[test]
fn three_are_woken_one_by_one() {
    come(3, false);
}

#[test]
fn a_lock_is_passed_on() {
    come(3, true);
}

/// References are taken and dropped meanwhile, by the word or under its lock.
#[test]
fn references_against_waiting_threads() {
    model(|| {
        let object = Arc::new(Object { refs: Lockref::new(1), content: UnsafeCell::new(0) });
        let (first, second) = (object.clone(), object.clone());
        let visitor = thread::spawn(move || visit(&first));
        let user = thread::spawn(move || {
            assert!(second.refs.get_not_dead());
            assert!(second.refs.put_or_lock().is_none(), "it was not the last one");
        });
        visit(&object);
        visitor.join().unwrap();
        user.join().unwrap();
        assert_eq!(object.refs.count(), 3);
    });
}
