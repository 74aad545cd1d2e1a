//! The removal of an object's last name against the release of its last hold.

use super::model;
use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::{Arc, life::HoldState, thread};

#[derive(Default)]
struct Object {
    life: HoldState,
    nameless: AtomicBool,
    /// Written by each holder before its release; the thread that ends the object must see both.
    left: [AtomicBool; 2],
    ends: AtomicUsize,
}

impl Object {
    fn try_end(&self) {
        if self.life.begin_end() {
            self.ends.fetch_add(1, Ordering::Relaxed);
            // Relaxed, as above.
            assert!(self.left.iter().all(|left| left.load(Ordering::Relaxed)), "it was held still");
        }
    }

    fn unname(&self) {
        // Relaxed: only the word orders it.
        self.nameless.store(true, Ordering::Relaxed);
        self.try_end();
    }

    fn let_go(&self, holder: usize) {
        self.left[holder].store(true, Ordering::Relaxed);
        if self.life.release(1) && self.nameless.load(Ordering::Relaxed) {
            self.try_end();
        }
    }
}

#[test]
fn either_the_last_unlink_or_the_last_release_ends_it() {
    model(|| {
        let object = Arc::new(Object::default());
        assert!(object.life.hold(1));
        let other = object.clone();
        object.left[1].store(true, Ordering::Relaxed);
        let holder = thread::spawn(move || other.let_go(0));
        object.unname();
        holder.join().unwrap();
        assert_eq!(object.ends.load(Ordering::Relaxed), 1, "it was ended not once");
    });
}

#[test]
fn two_holders_and_the_last_name() {
    model(|| {
        let object = Arc::new(Object::default());
        assert!(object.life.hold(2));
        let threads = [0, 1].map(|holder| {
            let other = object.clone();
            thread::spawn(move || other.let_go(holder))
        });
        object.unname();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(object.ends.load(Ordering::Relaxed), 1, "it was ended not once");
    });
}
