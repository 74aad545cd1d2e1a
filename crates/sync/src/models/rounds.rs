//! Rounds: concurrent requests, requests during a round, and several threads that wait for the next
//! round. A lost wake-up leaves a thread waiting for ever, which fails a model.

use super::model;
use crate::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::{Arc, Coalescer, Level, thread};

struct Place {
    rounds: Coalescer<usize>,
    clock: AtomicUsize,
    running: AtomicUsize,
}

fn place() -> Arc<Place> {
    Arc::new(Place {
        rounds: Coalescer::new(Level::Leaf),
        clock: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
    })
}

/// Requests a round and checks that it began after the request.
fn ask(place: &Place) {
    let asked = place.clock.fetch_add(1, SeqCst);
    let begun = place.rounds.share(|| {
        assert_eq!(place.running.fetch_add(1, SeqCst), 0, "two rounds at once");
        let begun = place.clock.fetch_add(1, SeqCst);
        place.running.fetch_sub(1, SeqCst);
        begun
    });
    assert!(begun > asked, "a round that had begun before");
}

fn asked_by(threads: usize, times: usize) {
    model(move || {
        let place = place();
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let place = place.clone();
                thread::spawn(move || (0..times).for_each(|_| ask(&place)))
            })
            .collect();
        (0..times).for_each(|_| ask(&place));
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_threads_request_repeatedly() {
    asked_by(2, 2);
}

#[test]
fn two_wait_for_the_round_after_the_one_that_runs() {
    asked_by(3, 1);
}
