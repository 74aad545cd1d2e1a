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
    let work = || {
        assert_eq!(place.running.fetch_add(1, SeqCst), 0, "two rounds at once");
        let begun = place.clock.fetch_add(1, SeqCst);
        place.running.fetch_sub(1, SeqCst);
        begun
    };
    let begun = place.rounds.share(|| true, work).expect("there is work");
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

/// Each thread changes something and requests a round, which is wanted if there are changes. Its
/// own change is done when the request returns, by whichever thread.
#[test]
fn a_round_that_is_not_wanted_leaves_no_change_behind() {
    model(|| {
        let (place, done) = (place(), Arc::new(AtomicUsize::new(0)));
        let change = |place: &Place, done: &AtomicUsize| {
            let own = place.clock.fetch_add(1, SeqCst) + 1;
            let wanted = || done.load(SeqCst) < place.clock.load(SeqCst);
            place.rounds.share(wanted, || {
                done.store(place.clock.load(SeqCst), SeqCst);
                0
            });
            assert!(done.load(SeqCst) >= own, "a change was left");
        };
        let (theirs, their_done) = (place.clone(), done.clone());
        let other = thread::spawn(move || change(&theirs, &their_done));
        change(&place, &done);
        other.join().unwrap();
    });
}
