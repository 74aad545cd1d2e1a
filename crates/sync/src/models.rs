//! Models of races, run through all their interleavings by `make loom`.

use crate::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::cache::{Cache, Held, Object, Verdict};
use crate::epoch::pin;
use crate::list_lru::{Answer, Link, ListLru};
use crate::lockref::{Lockref, LockrefGuard};
use crate::table::{Hashed, Table};
use crate::{Arc, Level, Link as Arrival, Mutex, ShardedList, thread};

mod arcs;
mod cache;
mod chains;
mod counter;
mod freeze;
mod gate;
mod keeping;
mod life;
mod parents;
mod rounds;
mod slots;
mod waiting;

/// Checks all interleavings with at most `LOOM_MAX_PREEMPTIONS` involuntary thread switches.
fn model(f: impl Fn() + Send + Sync + 'static) {
    loom::model(f);
}

mod arrivals {
    use super::*;

    /// An item that must be listed while its flag is set, as an inode with dirty pages.
    struct Item {
        list: ShardedList<()>,
        link: Arrival,
        flag: Mutex<bool>,
    }

    fn listed() -> Arc<Item> {
        let item = Item {
            list: ShardedList::new(Level::Lru),
            link: Arrival::default(),
            flag: Mutex::new(Level::Leaf, false),
        };
        assert!(item.list.add_to(0, &item.link, || ()));
        Arc::new(item)
    }

    fn set(item: &Item, shard: usize) {
        *item.flag.lock() = true;
        if !item.list.stays(&item.link) {
            item.list.add_to(shard, &item.link, || ());
        }
    }

    fn take_out(item: &Item) {
        item.list.remove_unless(&item.link, || *item.flag.lock());
    }

    fn check(item: &Item) {
        assert_eq!(
            item.list.len(),
            usize::from(item.link.is_linked()),
            "a link tells where its item is"
        );
        assert!(
            item.link.is_linked() || !*item.flag.lock(),
            "an item that has to be listed is lost"
        );
    }

    /// The flag is set while a remover, which saw it clear, removes the item. The item stays or is
    /// added again, perhaps to another shard.
    #[test]
    fn add_against_remove() {
        model(|| {
            let item = listed();
            let other = item.clone();
            let adder = thread::spawn(move || set(&other, 1));
            take_out(&item);
            adder.join().unwrap();
            check(&item);
            assert!(item.link.is_linked());
        });
    }

    /// Two threads remove the item while a third adds it: it is on the list at most once.
    #[test]
    fn two_removals_against_add() {
        model(|| {
            let item = listed();
            let (adding, removing) = (item.clone(), item.clone());
            let adder = thread::spawn(move || set(&adding, 1));
            let remover = thread::spawn(move || take_out(&removing));
            take_out(&item);
            adder.join().unwrap();
            remover.join().unwrap();
            check(&item);
        });
    }

    /// A waiting thread is woken, and waits only for items that were added before.
    #[test]
    fn a_waiting_thread_is_woken() {
        model(|| {
            let (item, gone) = (listed(), Arc::new(AtomicBool::new(false)));
            let arrived = item.list.arrived();
            let (other, done) = (item.clone(), gone.clone());
            let remover = thread::spawn(move || {
                done.store(true, Ordering::Relaxed);
                assert!(other.list.remove(&other.link).is_some());
                other.list.add_to(0, &other.link, || ());
            });
            item.list.wait_gone(&arrived);
            assert!(gone.load(Ordering::Relaxed), "writes before the removal are seen");
            remover.join().unwrap();
            check(&item);
        });
    }

    /// An item that was flagged before the check and is not removed is seen: the list is not empty.
    #[test]
    fn a_flagged_item_is_seen() {
        model(|| {
            let item = listed();
            set(&item, 1);
            let other = item.clone();
            let remover = thread::spawn(move || take_out(&other));
            assert!(!item.list.is_empty());
            remover.join().unwrap();
            check(&item);
        });
    }
}

mod lockref {
    use super::*;

    /// An object with a count; `live` until a thread tears it down.
    struct Object {
        refs: Lockref,
        live: AtomicBool,
    }

    fn object(count: i32) -> Arc<Object> {
        Arc::new(Object { refs: Lockref::new(count), live: AtomicBool::new(true) })
    }

    /// Drops a reference. The last one tears the object down.
    fn put(object: &Object) {
        if let Some(mut last) = object.refs.put_or_lock() {
            assert_eq!(last.count(), 1);
            last.mark_dead();
            object.live.store(false, Ordering::Relaxed);
        }
    }

    /// The last reference is dropped while another is taken: either it is taken in time, or it is
    /// refused.
    #[test]
    fn last_put_against_get() {
        model(|| {
            let object = object(1);
            let other = object.clone();
            let getter = thread::spawn(move || {
                if other.refs.get_not_dead() {
                    assert!(other.live.load(Ordering::Relaxed), "a dead object is in use");
                    put(&other);
                }
            });
            put(&object);
            getter.join().unwrap();
            assert!(
                object.refs.count() < 0 && !object.live.load(Ordering::Relaxed),
                "no thread tore it down"
            );
        });
    }

    /// Two references are dropped at once: exactly one finds itself the last, whichever thread
    /// holds the lock in between.
    #[test]
    fn two_puts() {
        model(|| {
            let object = object(2);
            let other = object.clone();
            let putter = thread::spawn(move || put(&other));
            put(&object);
            putter.join().unwrap();
            assert!(object.refs.count() < 0 && !object.live.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn mark_dead_against_get_not_dead() {
        model(|| {
            let object = object(0);
            let other = object.clone();
            let getter = thread::spawn(move || other.refs.get_not_dead());
            let killed = {
                let mut guard = object.refs.lock();
                let unused = guard.count() == 0;
                if unused {
                    guard.mark_dead();
                }
                unused
            };
            let got = getter.join().unwrap();
            assert_ne!(killed, got);
            assert_eq!(object.refs.count() < 0, killed);
        });
    }

    /// The holder of the lock sees a stable count, and loses no change of other threads.
    #[test]
    fn a_holder_sees_a_stable_count() {
        model(|| {
            let object = object(2);
            let other = object.clone();
            let changer = thread::spawn(move || {
                other.refs.get();
                assert!(other.refs.put_not_zero());
            });
            {
                let mut guard = object.refs.lock();
                let before = guard.count();
                assert_eq!(object.refs.count(), before);
                guard.set_count(before + 10);
            }
            changer.join().unwrap();
            assert_eq!(object.refs.count(), 12);
        });
    }

    /// A drop without the lock against a holder of the lock: either it is told to take the lock, or
    /// the holder sees the smaller count.
    #[test]
    fn put_return_against_a_holder() {
        model(|| {
            let object = object(1);
            let other = object.clone();
            let putter = thread::spawn(move || match other.refs.put_return() {
                -1 => {
                    let mut guard = other.refs.lock();
                    let count = guard.count();
                    guard.set_count(count - 1);
                }
                count => assert_eq!(count, 0),
            });
            {
                let guard = object.refs.lock();
                assert!((0..=1).contains(&guard.count()));
                assert_eq!(object.refs.count(), guard.count());
            }
            putter.join().unwrap();
            assert_eq!(object.refs.count(), 0);
        });
    }

    /// The thread that tears an object down sees the accesses of all reference owners, whichever
    /// way the references were dropped.
    #[test]
    fn teardown_sees_the_accesses_of_all_references() {
        let ways: [fn(&Lockref) -> Option<LockrefGuard<'_>>; 3] = [
            Lockref::put_or_lock,
            |refs| if refs.put_not_zero() { None } else { Some(refs.lock()) },
            |refs| if refs.put_return() > 0 { None } else { Some(refs.lock()) },
        ];
        for put in ways {
            model(move || {
                let object = Arc::new((Lockref::new(2), loom::cell::UnsafeCell::new(0)));
                let other = object.clone();
                // The checker reports accesses that are not ordered by happens-before.
                let finish = move |object: &(Lockref, loom::cell::UnsafeCell<i32>)| {
                    if let Some(last) = put(&object.0)
                        && last.count() <= 1
                    {
                        object.1.with_mut(|_| ());
                        drop(last);
                    }
                };
                let worker = thread::spawn(move || {
                    other.1.with(|_| ());
                    finish(&other);
                });
                finish(&object);
                worker.join().unwrap();
            });
        }
    }
}

mod table {
    use super::*;

    /// A value that records its drop.
    struct Item {
        key: u32,
        life: u32,
        gone: Arc<AtomicU32>,
    }

    impl Hashed for Item {
        fn hash(&self) -> u32 {
            self.key
        }
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.gone.fetch_add(1 << self.life, Ordering::Relaxed);
        }
    }

    /// A lookup against a removal and a new value of the same key: the lookup finds one of the two
    /// values, which is not dropped meanwhile.
    #[test]
    fn lookup_against_removal_and_reuse() {
        model(|| {
            let table = Arc::new(Table::new(Level::Leaf, 1));
            let gone = Arc::new(AtomicU32::new(0));
            let item = |life, gone: &Arc<AtomicU32>| Item { key: 1, life, gone: gone.clone() };
            table.lock(1).insert(item(0, &gone));
            let (other, flags) = (table.clone(), gone.clone());
            let reader = thread::spawn(move || {
                let pinned = pin();
                if let Some(found) = other.find(&pinned, 1, |i| i.key == 1) {
                    assert_eq!(
                        flags.load(Ordering::Relaxed) & (1 << found.life),
                        0,
                        "given back while looked at"
                    );
                }
            });
            {
                let mut shard = table.lock(1);
                assert!(shard.remove(1, |i| i.key == 1));
                shard.insert(item(1, &gone));
            }
            reader.join().unwrap();
            let pinned = pin();
            assert_eq!(table.find(&pinned, 1, |i| i.key == 1).map(|i| i.life), Some(1));
        });
    }

    /// A lookup while the table grows: a value that is in the table all the time is found,
    /// whichever chain the reader ends up on.
    #[test]
    fn lookup_against_growth() {
        model(|| {
            let table = Arc::new(Table::new(Level::Leaf, 1));
            let gone = Arc::new(AtomicU32::new(0));
            let item = |key, gone: &Arc<AtomicU32>| Item { key, life: key, gone: gone.clone() };
            table.lock(2).insert(item(2, &gone));
            let other = table.clone();
            let reader = thread::spawn(move || {
                let pinned = pin();
                assert!(
                    other.find(&pinned, 2, |i| i.key == 2).is_some(),
                    "it was there all the time"
                );
            });
            // One bucket holds one value: the second value makes the table grow.
            table.lock(1).insert(item(1, &gone));
            reader.join().unwrap();
        });
    }
}

mod list_lru {
    use super::*;

    /// Adding and deleting look before they lock. The item ends on the list or not, and the list
    /// agrees with the link.
    #[test]
    fn add_against_del() {
        model(|| {
            let lists = Arc::new((ListLru::with_shards(2), Link::new()));
            assert!(lists.0.add_to(0, &lists.1, 7));
            let other = lists.clone();
            let adder = thread::spawn(move || other.0.add_to(1, &other.1, 7));
            let deleted = lists.0.del(&lists.1);
            let added = adder.join().unwrap();
            assert!(deleted);
            check(&lists, usize::from(added));
        });
    }

    #[test]
    fn two_adds() {
        model(|| {
            let lists = Arc::new((ListLru::with_shards(2), Link::new()));
            let other = lists.clone();
            let adder = thread::spawn(move || other.0.add_to(1, &other.1, 7));
            let added = lists.0.add_to(0, &lists.1, 7);
            assert!(added != adder.join().unwrap(), "exactly one adds it");
            check(&lists, 1);
        });
    }

    #[test]
    fn walk_against_del() {
        model(|| {
            let lists = Arc::new((ListLru::with_shards(1), Link::new()));
            lists.0.add_to(0, &lists.1, 7);
            let other = lists.clone();
            let deleter = thread::spawn(move || usize::from(other.0.del(&other.1)));
            let isolated = lists.0.walk(0, &mut 1, |_, cursor| {
                cursor.isolate(&lists.1);
                Answer::Removed
            });
            assert_eq!(isolated + deleter.join().unwrap(), 1, "exactly one takes it off");
            check(&lists, 0);
        });
    }

    fn check(lists: &(ListLru<u32>, Link), count: usize) {
        assert_eq!(lists.0.count(), count);
        assert_eq!(lists.1.is_linked(), count == 1);
        let mut seen = 0;
        for shard in 0..2 {
            lists.0.walk(shard, &mut 10, |_, cursor| {
                seen += 1;
                assert!(cursor.at(&lists.1));
                Answer::Skip
            });
            if lists.0.shards() == 1 {
                break;
            }
        }
        assert_eq!(seen, count);
    }
}

mod seqcell {
    use super::*;
    use crate::seqcell::SeqCell;

    /// A reader sees the words of one write, or none.
    #[test]
    fn reader_against_writer() {
        model(|| {
            let cell = Arc::new(SeqCell::<2>::new([1, 1]));
            let other = cell.clone();
            let reader = thread::spawn(move || {
                if let Some([first, second]) = other.read() {
                    assert_eq!(first, second);
                }
            });
            cell.write([2, 2]);
            reader.join().unwrap();
            assert_eq!(cell.read(), Some([2, 2]));
        });
    }

    /// A reader of the first word alone sees all that happened before its write.
    #[test]
    fn the_first_word_alone() {
        model(|| {
            let shared = Arc::new((SeqCell::<2>::new([1, 1]), AtomicBool::new(false)));
            let other = shared.clone();
            let reader = thread::spawn(move || {
                if other.0.first() == 2 {
                    assert!(other.1.load(Ordering::Relaxed), "it was done before");
                }
            });
            shared.1.store(true, Ordering::Relaxed);
            shared.0.write([2, 2]);
            reader.join().unwrap();
        });
    }
}
