//! Chains of a table: readers without a lock against those who put values on them, take them off,
//! and move them to other chains.

use super::model;
use crate::epoch::pin;
use crate::table::{Hashed, Table};
use crate::{Arc, Level, thread};
use loom::cell::UnsafeCell;

/// A value whose content the checker watches: whoever reads it has to come after whoever made it.
struct Item {
    key: u32,
    content: UnsafeCell<u32>,
}

#[expect(
    unsafe_code,
    reason = "the checker watches the cell: who may touch it is what the model asks"
)]
// SAFETY: it is written by none but its maker.
unsafe impl Sync for Item {}

impl Hashed for Item {
    fn hash(&self) -> u32 {
        self.key
    }
}

/// A table with one bucket, which becomes four with the second value and sixteen with the fifth.
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

/// Looks a key up, which may be there or not: what is found is whole.
fn meets(key: u32) -> impl Fn(&Table<Item>) + Copy {
    move |table| {
        finds(table, key);
    }
}

/// Whether a key is found, and whole.
fn finds(table: &Table<Item>, key: u32) -> bool {
    let pinned = pin();
    table.find(&pinned, key, |item| item.key == key).map(look).is_some()
}

/// As [`finds`]; `None` if that is not known.
fn tries(table: &Table<Item>, key: u32) -> Option<bool> {
    let pinned = pin();
    table.try_find(&pinned, key, |item| item.key == key).map(|found| found.map(look).is_some())
}

/// What `change` does, while another thread does `read`.
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

/// Two values of one chain part while a reader stands on the first: what it misses it looks for
/// again.
#[test]
fn a_chain_that_parts() {
    let grow = |table: &Table<Item>| insert(table, 3);
    // 8 stands before 4, and leaves for a chain of its own.
    against(&[4, 8, 1, 2], grow, |table| assert!(finds(table, 4), "it was there all the time"));
    against(&[4, 8, 1, 2], grow, |table| {
        assert_ne!(tries(table, 4), Some(false), "it was there all the time")
    });
}

/// Whatever a reader comes upon it sees whole: at a chain's head, behind an older value that was
/// moved, and behind what went.
#[test]
fn values_that_come_are_seen_whole() {
    against(&[4], |table| insert(table, 20), meets(20));
    // The newer one comes to stand behind the older.
    let turn = |table: &Table<Item>| [20, 3].iter().for_each(|key| insert(table, *key));
    against(&[4, 1, 2], turn, meets(20));
    // Between them stood another.
    let turn_and_take = |table: &Table<Item>| {
        [20, 36, 3].iter().for_each(|key| insert(table, *key));
        remove(table, 20);
    };
    against(&[4, 1], turn_and_take, meets(36));
    // What stood before it went.
    let cover_and_take = |table: &Table<Item>| {
        [20, 36].iter().for_each(|key| insert(table, *key));
        remove(table, 36);
    };
    against(&[4, 1, 2], cover_and_take, meets(20));
}
