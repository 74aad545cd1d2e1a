//! Lookups of parents and walks upward against moves.

use super::*;
use crate::parents::{Moves, ParentLink};

/// A directory: whether it lives, and its references.
#[derive(Clone)]
struct Dir(Arc<(AtomicBool, Lockref)>);

impl Object for Dir {
    type Side = ();

    fn refs(&self) -> &Lockref {
        &self.0.1
    }

    fn depart(&self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

fn insert(cache: &Cache<Dir>, key: u32) -> Held<Dir> {
    cache.lock(key).insert(key, Dir(Arc::new((AtomicBool::new(true), Lockref::new(0))))).0
}

/// The lookup of a parent against a move away from it and its removal: a result lives, and was the
/// parent at some moment. Nothing is found if the first parent was dying, whose word need not show
/// the move; the caller then takes the lock. A lookup after the move finds the second parent.
#[test]
fn lookup_against_a_move() {
    model(|| {
        let cache = Arc::new(Cache::new(Level::Leaf, 1));
        let (first, second) = (insert(&cache, 1), insert(&cache, 2));
        let link = Arc::new(ParentLink::default());
        link.set(1, 0);
        let (other, at) = (cache.clone(), link.clone());
        let reader = thread::spawn(move || {
            let found = other.get_parent(&pin(), &at, |_, generation| generation == 0);
            let lives = |found: &Held<Dir>| found.0.0.load(Ordering::Relaxed);
            assert!(found.as_ref().is_none_or(lives), "the parent is gone");
        });
        link.set(2, 0);
        drop(first);
        // Only a parent without references may be torn down.
        drop(cache.lock(1).remove_if(1, |count, _| count == 0));
        reader.join().unwrap();
        let after = cache.get_parent(&pin(), &link, |_, generation| generation == 0);
        assert!(after.is_some_and(|after| after.same(&second)));
    });
}

/// Directory 4 is in 1, and 1 in 10; 2 is in 20. Directory 4 moves to 2, then 1 moves to 30. A walk
/// from 4 upward that the sequence confirms saw 10 or 20: 4 was never below 30.
#[test]
fn walk_upward_against_two_moves() {
    model(|| {
        let links: Arc<[ParentLink; 3]> = Arc::default();
        let moves = Arc::new(Moves::default());
        let link_of = |key: u32| match key {
            4 => 0,
            key => key as usize,
        };
        for (key, parent) in [(4, 1), (1, 10), (2, 20)] {
            links[link_of(key)].set(parent, 0);
        }
        let (seen, sequence) = (links.clone(), moves.clone());
        let walker = thread::spawn(move || {
            let began = sequence.now();
            let (parent, _) = seen[0].get()?;
            let (above, _) = seen[parent as usize].get()?;
            sequence.still(began).then_some((parent, above))
        });
        for (key, parent) in [(4, 2), (1, 30)] {
            let _moving = moves.begin();
            links[link_of(key)].set(parent, 0);
        }
        let walked = walker.join().unwrap();
        assert!([None, Some((1, 10)), Some((2, 20))].contains(&walked), "{walked:?}");
    });
}
