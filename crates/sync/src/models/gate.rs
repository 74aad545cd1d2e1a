//! The gate: entering against shutting, lots against the bound, a reset, and each other.

use super::model;
use crate::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use crate::{Arc, Gate, Refused, thread};
use loom::cell::UnsafeCell;

struct Place {
    gate: Gate,
    inside: AtomicUsize,
    /// Credits used since the last reset.
    used: AtomicU32,
    /// Read by those inside, written while nobody is.
    content: UnsafeCell<()>,
}

#[expect(
    unsafe_code,
    reason = "the checker watches the cell: who may touch it is what the model asks"
)]
// SAFETY: the gate is to see to it; nothing is in there.
unsafe impl Sync for Place {}

fn place(bound: u32, shards: usize) -> Arc<Place> {
    let content = UnsafeCell::new(());
    Arc::new(Place {
        gate: Gate::with_shards(bound, shards),
        inside: AtomicUsize::new(0),
        used: AtomicU32::new(0),
        content,
    })
}

/// Comes in with credits, uses some, and leaves.
fn visit(place: &Place, shard: usize, credits: u32, used: u32) -> Result<(), Refused> {
    let entered = place.gate.enter(shard, credits);
    if entered == Err(Refused::NoRoom) {
        let _ = place.gate.leave(shard, 0);
    }
    entered?;
    place.inside.fetch_add(1, Relaxed);
    place.used.fetch_add(used, Relaxed);
    place.content.with(|_| ());
    place.inside.fetch_sub(1, Relaxed);
    let _ = place.gate.leave(shard, credits - used);
    Ok(())
}

/// What holds when nobody is inside: what is drawn and in no lot was used.
fn settled(place: &Place) {
    let (drawn, bound) = place.gate.room();
    assert!(drawn <= bound && place.gate.is_drained());
    assert_eq!(place.gate.reserved(), place.used.load(Relaxed), "credits came or went");
}

/// Shuts the gate, and begins to count anew if nobody was inside.
fn turn(place: &Place, bound: u32) -> bool {
    place.gate.shut();
    let drained = place.gate.is_drained();
    if drained {
        assert_eq!(place.inside.load(Relaxed), 0, "somebody is inside");
        place.used.store(0, Relaxed);
        place.content.with_mut(|_| ());
        place.gate.reset(bound);
        settled(place);
    }
    place.gate.open();
    drained
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut() {
    model(|| {
        let place = place(4, 2);
        let visitors = [0, 1].map(|shard| {
            let place = place.clone();
            thread::spawn(move || visit(&place, shard, 1, 1))
        });
        turn(&place, 4);
        for visitor in visitors {
            assert_ne!(visitor.join().unwrap(), Err(Refused::NoRoom));
        }
        settled(&place);
    });
}

#[test]
fn two_turns_and_a_visitor_with_a_lot() {
    model(|| {
        let place = place(3, 1);
        visit(&place, 0, 2, 0).unwrap();
        let other = place.clone();
        let visitor = thread::spawn(move || visit(&other, 0, 2, 1));
        turn(&place, 2);
        turn(&place, 3);
        let _ = visitor.join().unwrap();
        settled(&place);
    });
}

#[test]
fn lots_come_back_near_the_bound() {
    model(|| {
        let place = place(3, 2);
        // A lot of two lies with the first shard.
        visit(&place, 0, 2, 0).unwrap();
        assert_eq!(place.gate.room(), (2, 3));
        let other = place.clone();
        let visitor = thread::spawn(move || visit(&other, 0, 1, 1));
        // May come while the other has credits in its hands.
        let came = visit(&place, 1, 2, 1);
        visitor.join().unwrap().expect("one always fits");
        assert!(matches!(came, Ok(()) | Err(Refused::NoRoom)));
        settled(&place);
        visit(&place, 1, 1, 1).expect("what is left is found wherever it lies");
        settled(&place);
    });
}

/// A sleeper is told: it looks after shutting, and whoever leaves a shut gate last says so.
#[test]
fn whoever_leaves_last_is_noticed() {
    model(|| {
        let place = place(2, 1);
        place.gate.enter(0, 1).unwrap();
        let other = place.clone();
        let visitor = thread::spawn(move || {
            other.content.with(|_| ());
            other.gate.leave(0, 1)
        });
        place.gate.shut();
        let drained = place.gate.is_drained();
        if drained {
            place.content.with_mut(|_| ());
        }
        let told = visitor.join().unwrap();
        assert!(drained || told, "who waits is never told");
        assert!(place.gate.is_drained());
    });
}
