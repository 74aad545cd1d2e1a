//! A table of references that is read without a lock, against removals of unreferenced values.

use super::model;
use crate::atomic::{AtomicBool, Ordering};
use crate::{Arc, ArcTable, Level, thread};

/// A value that records its removal.
struct Value {
    gone: AtomicBool,
}

fn table() -> Arc<ArcTable<Value>> {
    let table = Arc::new(ArcTable::new(Level::Leaf, 1));
    table.insert(1, Arc::new(Value { gone: AtomicBool::new(false) }));
    table
}

/// Either the reader gets the value or the writer removes it, never both. Fails without either of
/// the fences.
#[test]
fn lookup_against_removal_of_an_unused_value() {
    model(|| {
        let table = table();
        let other = table.clone();
        let reader = thread::spawn(move || other.get(1));
        let went = table.remove_unused(1, 0, |_| true);
        let found = reader.join().unwrap();
        assert!(!(went && found.is_some()), "a removed value is referenced");
        assert_eq!(table.get(1).is_some(), !went);
    });
}

/// The thread that removes the value sees the changes made by its users.
#[test]
fn removal_sees_the_changes_of_users() {
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

/// A value is removed regardless of references and replaced: a reader gets one of the two values,
/// or must ask under the lock.
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
