//! A table of references looked at without a lock, against those who take out what nobody has.

use super::model;
use crate::atomic::{AtomicBool, Ordering};
use crate::{Arc, ArcTable, Level, thread};

/// A value that knows whether it was taken out.
struct Value {
    gone: AtomicBool,
}

fn table() -> Arc<ArcTable<Value>> {
    let table = Arc::new(ArcTable::new(Level::Leaf, 1));
    table.insert(1, Arc::new(Value { gone: AtomicBool::new(false) }));
    table
}

/// A reader gets the value or the writer takes it out: never both. Fails if either fence is left
/// out.
#[test]
fn lookup_against_what_nobody_has() {
    model(|| {
        let table = table();
        let other = table.clone();
        let reader = thread::spawn(move || other.get(1));
        let went = table.remove_unused(1, 0, |_| true);
        let found = reader.join().unwrap();
        assert!(!(went && found.is_some()), "somebody has what was taken out");
        assert_eq!(table.get(1).is_some(), !went);
    });
}

/// What a user did is seen by who takes the value out.
#[test]
fn who_takes_it_out_sees_what_was_done() {
    model(|| {
        let table = table();
        let other = table.clone();
        let user = thread::spawn(move || {
            let Some(value) = other.get(1) else { return false };
            value.gone.store(true, Ordering::Relaxed);
            true
        });
        let mut seen = None;
        let went = table.remove_unused(1, 0, |value| {
            seen = Some(value.gone.load(Ordering::Relaxed));
            true
        });
        let used = user.join().unwrap();
        if went && used {
            assert_eq!(seen, Some(true), "it was used and let go before");
        }
    });
}

/// Taking out whoever has it, and putting another there: a reader gets one of the two, or has to
/// ask under the lock.
#[test]
fn lookup_against_another_value() {
    model(|| {
        let table = table();
        let other = table.clone();
        let reader =
            thread::spawn(move || other.get(1).map(|value| value.gone.load(Ordering::Relaxed)));
        assert!(table.remove(1));
        table.insert(1, Arc::new(Value { gone: AtomicBool::new(true) }));
        let _either = reader.join().unwrap();
        assert!(table.get(1).is_some_and(|value| value.gone.load(Ordering::Relaxed)));
    });
}
