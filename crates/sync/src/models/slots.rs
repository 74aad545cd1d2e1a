//! Slots: claims against releases, claims against claims, hints against both.

use super::model;
use crate::{Arc, Hints, Slots, thread};

/// Checks the state without concurrent threads: the count is that of the empty slots, and the hints
/// lead to each of them.
fn settled(slots: &Slots) {
    let empty = slots.numbers().filter(|number| *number == 0).count();
    assert_eq!(slots.free() as usize, empty, "the count is off");
    let mut led = 0;
    while slots.reserve() {
        assert!(slots.claim_by_hint(0, 99, &mut 0).is_some(), "no hint leads to an empty slot");
        led += 1;
    }
    assert_eq!(led, empty);
}

/// Takes a slot and releases it. No other thread has it in between.
fn pass(slots: &Slots, start: usize, number: u32) {
    if slots.reserve() {
        let slot = slots.claim(start, number).expect("a reservation is the promise of a slot");
        assert_eq!(slots.get(slot), number);
        slots.release(slot);
    }
}

#[test]
fn two_claim_and_release_one_slot() {
    model(|| {
        let slots = Arc::new(Slots::new([0]));
        let other = slots.clone();
        let thread = thread::spawn(move || pass(&other, 0, 1));
        pass(&slots, 0, 2);
        thread.join().unwrap();
        settled(&slots);
    });
}

#[test]
fn a_release_against_a_claim_that_doubts_the_slot() {
    model(|| {
        // Slot 0 is taken with its hint still set, as a claim leaves it.
        let slots = Arc::new(Slots::new([0, 0]));
        assert!(slots.reserve());
        assert_eq!(slots.claim(0, 7), Some(0));
        let other = slots.clone();
        let thread = thread::spawn(move || other.release(0));
        assert!(slots.reserve());
        let slot = slots.claim(0, 8).expect("a reservation is the promise of a slot");
        thread.join().unwrap();
        assert_eq!(slots.get(slot), 8);
        settled(&slots);
    });
}

#[test]
fn a_reservation_sees_released_slots() {
    model(|| {
        let slots = Arc::new(Slots::new([5, 6]));
        let owners = [0, 1].map(|slot| {
            let slots = slots.clone();
            thread::spawn(move || slots.release(slot))
        });
        if slots.reserve() {
            assert!(slots.claim(1, 8).is_some(), "a reservation is the promise of a slot");
        }
        for owner in owners {
            owner.join().unwrap();
        }
        settled(&slots);
    });
}

/// Hints over several [`Slots`], as for the blocks of a file: a release into a full block against a
/// search that finds nothing.
#[test]
fn a_block_that_was_full_is_found_again() {
    model(|| {
        let block = Arc::new(Slots::new([5]));
        let hints = Arc::new(Hints::new(1, |_| true));
        let (slots, noted) = (block.clone(), hints.clone());
        let owner = thread::spawn(move || {
            if slots.release(0) {
                noted.note(0);
            }
        });
        let found = hints.find(0, |_| block.reserve().then_some(()), |_| block.has_free());
        owner.join().unwrap();
        let again = hints.find(0, |_| block.reserve().then_some(()), |_| block.has_free());
        assert!(found.is_some() != again.is_some(), "a hint was lost");
    });
}
