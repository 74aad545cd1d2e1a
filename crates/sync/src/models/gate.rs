//! The gate: entries against shutting, lots against the bound, a reset, and each other.

use super::model;
use crate::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use crate::{Arc, Gate, Refused, thread};
use loom::cell::UnsafeCell;

struct Place {
    gate: Gate,
    inside: AtomicUsize,
    /// Credits used since the last reset.
    used: AtomicU32,
    /// Read by threads inside, written while no thread is inside.
    content: UnsafeCell<()>,
}

#[expect(unsafe_code, reason = "the checker watches the cell: the model checks its exclusive use")]
// SAFETY: the gate must ensure it, which the model checks; the cell is empty.
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

/// Enters with credits, uses some, and leaves.
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

/// Checks the state without threads inside: the drawn credits outside of lots were used.
fn settled(place: &Place) {
    let (drawn, bound) = place.gate.drawn_and_bound();
    assert!(drawn <= bound && place.gate.is_drained());
    assert_eq!(place.gate.reserved(), place.used.load(Relaxed), "credits came or went");
}

/// Shuts the gate, and resets its credits if no thread was inside.
fn turn(place: &Place, bound: u32) -> bool {
    place.gate.shut();
    let drained = place.gate.is_drained();
    if drained {
        assert_eq!(place.inside.load(Relaxed), 0, "a thread is inside");
        place.used.store(0, Relaxed);
        place.content.with_mut(|_| ());
        place.gate.reset(bound);
        settled(place);
    }
    place.gate.open();
    drained
}

#[test]
fn no_thread_is_inside_a_drained_gate() {
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
        // The first shard has a lot of two.
        visit(&place, 0, 2, 0).unwrap();
        assert_eq!(place.gate.drawn_and_bound(), (2, 3));
        let other = place.clone();
        let visitor = thread::spawn(move || visit(&other, 0, 1, 1));
        // May enter while the other thread holds credits.
        let came = visit(&place, 1, 2, 1);
        visitor.join().unwrap().expect("one always fits");
        assert!(matches!(came, Ok(()) | Err(Refused::NoRoom)));
        settled(&place);
        visit(&place, 1, 1, 1).expect("remaining credits are found in any lot");
        settled(&place);
    });
}

/// A thread that waits for the drain is told: it looks after shutting, and the last thread that
/// leaves a shut gate reports it.
#[test]
fn the_last_thread_to_leave_is_noticed() {
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
        assert!(drained || told, "the waiting thread is never told");
        assert!(place.gate.is_drained());
    });
}
