//! A counter whose threads share a shard: changes against the move of a batch, and against each
//! other.

use super::model;
use crate::{Arc, ShardedCounter, thread};

/// One less than a batch, so that either thread moves it.
#[test]
fn nothing_is_lost_when_a_batch_is_moved() {
    model(|| {
        let counter = Arc::new(ShardedCounter::new(10));
        counter.add(63);
        let other = counter.clone();
        let adder = thread::spawn(move || other.add(1));
        counter.add(1);
        adder.join().unwrap();
        assert_eq!(counter.sum(), 75);
        assert!((75 - counter.approximate()).abs() < counter.error_bound());
        assert!(counter.at_least(75) && !counter.at_least(76));
    });
}

/// A concurrent sum may miss a batch that is being moved, and counts nothing twice.
#[test]
fn a_sum_meanwhile_counts_nothing_twice() {
    model(|| {
        let counter = Arc::new(ShardedCounter::new(0));
        counter.add(63);
        let other = counter.clone();
        let adder = thread::spawn(move || other.add(1));
        assert!((0..=64).contains(&counter.sum()));
        adder.join().unwrap();
        assert_eq!(counter.sum(), 64);
    });
}
