//! The chains of a table: readers without a lock against threads that add and remove values, and
//! move them to other chains.

use super::model;
use crate::epoch::pin;
use crate::table::{Hashed, Table};
use crate::{Arc, Level, thread};
use loom::cell::UnsafeCell;

/// A value whose content the checker watches: each read must be ordered after its creation.
struct Item {
    key: u32,
    content: UnsafeCell<u32>,
}

#[expect(unsafe_code, reason = "the checker watches the cell: the model checks its exclusive use")]
// SAFETY: only its maker writes it.
unsafe impl Sync for Item {}

impl Hashed for Item {
    fn hash(&self) -> u32 {
        self.key
    }
}

/// Makes a table with one bucket, which becomes four with the second value and sixteen with the
/// fifth.
fn table(keys: &[u32]) -> Arc<Table<Item>> {
    let table = Arc::new(Table::new(Level::Leaf, 1));
    keys.iter().for_each(|key| insert(&table, *key));
    table
}

fn insert(table: &Table<Item>, key: u32) {
    table.lock(key).insert(Item { key, content: UnsafeCell::new(key) });
}

fn remove(table: &Table<Item>, key: u32) {
    assert!(table.lock(key).remove(key, |item| item.key == key));
}

fn look(item: &Item) {
    item.content.with(|_| ());
}

/// Looks up a key that may be absent: a value that is found is whole.
fn meets(key: u32) -> impl Fn(&Table<Item>) + Copy {
    move |table| {
        finds(table, key);
    }
}

/// Returns whether a key is found. Checks that the value is whole.
fn finds(table: &Table<Item>, key: u32) -> bool {
    let pinned = pin();
    table.find(&pinned, key, |item| item.key == key).map(look).is_some()
}

/// As [`finds`]; `None` if the answer is unknown.
fn tries(table: &Table<Item>, key: u32) -> Option<bool> {
    let pinned = pin();
    table.try_find(&pinned, key, |item| item.key == key).map(|found| found.map(look).is_some())
}

/// Runs `change` while another thread runs `read`.
fn against(
    keys: &'static [u32],
    change: fn(&Table<Item>),
    read: impl Fn(&Table<Item>) + Copy + Send + Sync + 'static,
) {
    model(move || {
        let table = table(keys);
        let other = table.clone();
        let reader = thread::spawn(move || read(&other));
        change(&table);
        reader.join().unwrap();
    });
}

/// Two values of one chain are separated while a reader is at the first: the reader searches again
/// for the value that it misses.
#[test]
fn a_chain_that_parts() {
    let grow = |table: &Table<Item>| insert(table, 3);
    // 8 is before 4, and moves to a chain of its own.
    against(&[4, 8, 1, 2], grow, |table| assert!(finds(table, 4), "it was there all the time"));
    against(&[4, 8, 1, 2], grow, |table| {
        assert_ne!(tries(table, 4), Some(false), "it was there all the time")
    });
}

/// A reader sees every value whole: at a chain's head, behind an older value that was moved, and
/// behind a removed value.
#[test]
fn new_values_are_seen_whole() {
    against(&[4], |table| insert(table, 20), meets(20));
    // The newer value comes to be behind the older.
    let turn = |table: &Table<Item>| [20, 3].iter().for_each(|key| insert(table, *key));
    against(&[4, 1, 2], turn, meets(20));
    // Another value was between them.
    let turn_and_take = |table: &Table<Item>| {
        [20, 36, 3].iter().for_each(|key| insert(table, *key));
        remove(table, 20);
    };
    against(&[4, 1], turn_and_take, meets(36));
    // The value before it is removed.
    let cover_and_take = |table: &Table<Item>| {
        [20, 36].iter().for_each(|key| insert(table, *key));
        remove(table, 36);
    };
    against(&[4, 1, 2], cover_and_take, meets(20));
}
