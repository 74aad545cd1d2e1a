//! All trees of a file system ordered by their longest runs, whether they are in memory or not.
//!
//! A tree is linked under the class of its longest run; there are eight classes for each power of
//! two. The order thus changes only when a longest run changes by an eighth, not with each
//! allocation, and among trees that fit equally well the nearest is found. For example, a tree with
//! a longest run of 1024 units stays in its class until the run has 1152 units or fewer than 1024.
//!
//! # Invariants
//! - Each tree is linked once, under the class noted for it. Class and link change together under
//!   the lock.
//! - Without concurrent changes, the noted class is that of `longest`, however many threads changed
//!   it at once before: see [`Meta::relink`].
//! - Without concurrent changes, `longest` of a tree in memory is its true longest run, or that of
//!   its groups not in memory. For other trees it is a hint.
//!
//! # Locking
//! The lock is held for one descent or one move. Searches only try it; a search that finds it busy
//! reads `longest` of the trees nearby, which needs no lock.

use extant_sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use extant_sync::{GrowingTable, Level, RwLock};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// The most trees that a search returns.
pub const ADVICE: usize = 8;
/// Trees of one class that a search examines.
const CLASS_STEPS: usize = 64;
/// Trees on each side of the goal's tree that a search without the lock examines.
const NEAR: usize = 256;

/// Trees in the order in which they should be tried.
pub type Advice = SmallVec<[u32; ADVICE]>;

/// All trees by their longest runs. See the module's documentation.
#[derive(Debug)]
pub struct Meta {
    longest: GrowingTable<AtomicU32>,
    classes: GrowingTable<AtomicU8>,
    linked: RwLock<BTreeSet<(u8, u32)>>,
}

/// Returns the class of a run: 0 for none. The class never decreases with the length.
fn class(len: u32) -> u8 {
    let Some(log) = len.checked_ilog2() else { return 0 };
    let eighths = if log >= 3 { len >> (log - 3) } else { len << (3 - log) };
    // At most 1 + 31 * 8 + 7, which fits a byte.
    (1 + log * 8 + (eighths & 7)) as u8
}

/// Returns the trees of a class that a search examines, from `near` on and then from the first.
fn of_class(
    linked: &BTreeSet<(u8, u32)>,
    class: u8,
    near: u32,
) -> impl Iterator<Item = u32> + use<'_> {
    let behind = linked.range((class, near)..=(class, u32::MAX));
    let before = linked.range((class, 0)..(class, near));
    behind.chain(before).take(CLASS_STEPS).map(|(_, tree)| *tree)
}

impl Meta {
    /// Makes an order of trees with these longest runs.
    pub fn new(longest: impl IntoIterator<Item = u32>) -> Meta {
        let longest: GrowingTable<AtomicU32> = longest.into_iter().map(AtomicU32::new).collect();
        let class_of = |len: &AtomicU32| class(len.load(Relaxed));
        let linked = (0..).zip(longest.iter()).map(|(tree, len)| (class_of(len), tree)).collect();
        let classes = longest.iter().map(|len| AtomicU8::new(class_of(len))).collect();
        Meta { longest, classes, linked: RwLock::new(Level::Alloc, linked) }
    }

    /// Appends trees with these longest runs. No two threads may append at once.
    pub fn append(&self, longest: impl IntoIterator<Item = u32>) {
        let longest: Vec<u32> = longest.into_iter().collect();
        let mut linked = self.linked.write();
        linked.extend((self.len()..).zip(&longest).map(|(tree, len)| (class(*len), tree)));
        // Before the lengths: a thread that changes one finds its class.
        self.classes.append(longest.iter().map(|len| AtomicU8::new(class(*len))));
        self.longest.append(longest.into_iter().map(AtomicU32::new));
    }

    /// Returns the number of trees.
    pub fn len(&self) -> u32 {
        self.longest.len() as u32
    }

    /// Returns whether there are no trees.
    pub fn is_empty(&self) -> bool {
        self.longest.is_empty()
    }

    /// Returns the longest run of a tree as far as known; 0 if there is no such tree.
    pub fn get(&self, tree: u32) -> u32 {
        self.longest.get(tree as usize).map_or(0, |len| len.load(Relaxed))
    }

    /// Sets the longest run of a tree. The last of concurrent calls for one tree determines the
    /// value.
    pub fn set(&self, tree: u32, len: u32) {
        if let Some(longest) = self.longest.get(tree as usize) {
            if longest.load(SeqCst) != len {
                longest.store(len, SeqCst);
            }
            self.relink(tree, longest);
        }
    }

    /// Notes that a tree has a run of `len` units, which may not be its longest.
    pub fn raise(&self, tree: u32, len: u32) {
        if let Some(longest) = self.longest.get(tree as usize)
            && longest.load(SeqCst) < len
            && longest.fetch_max(len, SeqCst) < len
        {
            self.relink(tree, longest);
        }
    }

    /// Links a tree under the class of its longest run, which the caller has just changed.
    ///
    /// Threads change the length first and read the noted class afterwards. A thread that finds its
    /// own class noted may be about to be overtaken: another thread holds the lock, has read an
    /// older length, and notes the class of that length afterwards. The thread under the lock
    /// therefore reads the length again after it has noted a class. All these accesses are SeqCst:
    /// either the first thread sees the class that was noted, and takes the lock itself, or the
    /// thread under the lock sees the new length.
    fn relink(&self, tree: u32, longest: &AtomicU32) {
        let Some(noted) = self.classes.get(tree as usize) else { return };
        if noted.load(SeqCst) == class(longest.load(SeqCst)) {
            return;
        }
        let mut linked = self.linked.write();
        loop {
            let (old, new) = (noted.load(SeqCst), class(longest.load(SeqCst)));
            if old == new {
                return;
            }
            linked.remove(&(old, tree));
            linked.insert((new, tree));
            noted.store(new, SeqCst);
        }
    }

    /// Returns trees below `limit` with a run of at least `want` units: those with the shortest
    /// longest run first, among equals the next from `near` on. Returns `None` if the lock is busy.
    pub fn fitting(&self, want: u32, near: u32, limit: u32) -> Option<Advice> {
        let linked = self.linked.try_read()?;
        let mut advice = Advice::new();
        let mut least = class(want.max(1));
        while let Some((class, _)) = linked.range((least, 0)..).next() {
            let fits = |tree: &u32| *tree < limit && self.get(*tree) >= want;
            let trees = of_class(&linked, *class, near).filter(fits);
            advice.extend(trees.take(ADVICE - advice.len()));
            match class.checked_add(1).filter(|_| advice.len() < ADVICE) {
                Some(next) => least = next,
                None => break,
            }
        }
        Some(advice)
    }

    /// Returns the trees below `limit` with the longest runs: the longest first, among equals the
    /// next from `near` on. Returns `None` if the lock is busy.
    pub fn longest(&self, near: u32, limit: u32) -> Option<Advice> {
        let linked = self.linked.try_read()?;
        let mut advice = Advice::new();
        let mut bound = u8::MAX;
        while let Some((class @ 1.., _)) = linked.range(..(bound, 0)).next_back() {
            let fits = |tree: &u32| *tree < limit && self.get(*tree) > 0;
            let trees = of_class(&linked, *class, near).filter(fits);
            advice.extend(trees.take(ADVICE - advice.len()));
            bound = *class;
            if advice.len() == ADVICE {
                break;
            }
        }
        Some(advice)
    }

    /// Returns trees below `limit` near `near` with a run of at least `want` units, those from
    /// `near` on first, then those before it. Takes no lock.
    pub fn nearby(&self, want: u32, near: u32, limit: u32) -> Advice {
        let end = self.longest.len().min(limit as usize);
        let from = (near as usize).min(end);
        let trees = (from..end.min(from + NEAR)).chain((0..from).rev().take(NEAR));
        let good = |tree: &usize| {
            self.longest.get(*tree).is_some_and(|len| len.load(Relaxed) >= want.max(1))
        };
        trees.filter(good).take(ADVICE).map(|tree| tree as u32).collect()
    }

    /// Returns the bytes of memory used, with an estimate for the links.
    pub fn bytes(&self) -> usize {
        const LINK: usize = 16;
        self.longest.len() * (size_of::<AtomicU32>() + size_of::<AtomicU8>() + LINK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_links(meta: &Meta) {
        let linked = meta.linked.read();
        assert_eq!(linked.len(), meta.longest.len());
        assert!((0..meta.len()).all(|tree| linked.contains(&(class(meta.get(tree)), tree))));
    }

    proptest! {
        #[test]
        fn advice_equals_that_of_a_scan(
            longest in prop::collection::vec(0u32..3000, 0..60), changes in prop::collection::vec(
                (0u32..70, 0u32..3000),
                0..60,
            ),
            want in 1u32..3000, near in 0u32..70, limit in 0u32..70,
        ) {
            let meta = Meta::new(longest.iter().copied());
            let mut model = longest;
            for (tree, len) in changes {
                meta.set(tree, len);
                if let Some(place) = model.get_mut(tree as usize) { *place = len; }
            }
            check_links(&meta);
            let good = |tree: u32, least: u32| tree < limit && model[tree as usize] >= least;
            let fits: Vec<u32> = (0..meta.len()).filter(|tree| good(*tree, want)).collect();
            let advice = meta.fitting(want, near, limit).unwrap();
            prop_assert_eq!(advice.len(), fits.len().min(ADVICE));
            prop_assert!(advice.iter().all(|tree| good(*tree, want)));
            let least = fits.iter().map(|tree| class(model[*tree as usize])).min();
            prop_assert_eq!(advice.first().map(|tree| class(model[*tree as usize])), least);
            let advice = meta.longest(near, limit).unwrap();
            let most = (0..meta.len()).filter(|tree| good(
                *tree,
                1,
            )).map(|tree| class(model[tree as usize])).max();
            prop_assert_eq!(advice.first().map(|tree| class(model[*tree as usize])), most);
            let near = meta.nearby(want, near, limit);
            prop_assert!(near.len() == fits.len().min(ADVICE) && near.iter().all(|tree| good(
                *tree,
                want,
            )));
        }
    }

    /// Two threads change the length while the links are locked, and both see the same noted class.
    #[test]
    fn threads_that_note_lengths_of_one_tree_leave_it_linked_once() {
        for round in 0..50 {
            let meta = Meta::new([0; 2]);
            let locked = meta.linked.write();
            std::thread::scope(|scope| {
                for len in [8 + round, 3000 + round] {
                    let meta = &meta;
                    scope.spawn(
                        move || if len % 2 == 0 { meta.set(1, len) } else { meta.raise(1, len) },
                    );
                    while meta.get(1) < len {
                        std::thread::yield_now();
                    }
                }
                // Both are about to take the lock.
                (0..100).for_each(|_| std::thread::yield_now());
                drop(locked);
            });
            check_links(&meta);
        }
    }

    #[test]
    fn appended_trees_are_found_and_change() {
        let meta = Meta::new([100; 2]);
        meta.append([0, 700, 300]);
        assert_eq!((meta.len(), meta.get(3)), (5, 700));
        check_links(&meta);
        assert_eq!(meta.fitting(200, 0, 5).unwrap()[..], [4, 3]);
        meta.set(2, 5000);
        assert_eq!(meta.longest(0, 5).unwrap()[0], 2);
        assert_eq!(meta.nearby(200, 0, 5)[..], [2, 3, 4]);
        check_links(&meta);
    }

    #[test]
    fn a_run_that_is_not_the_longest_changes_nothing() {
        let meta = Meta::new([100; 2]);
        meta.raise(1, 50);
        assert_eq!(meta.get(1), 100);
        meta.raise(1, 1000);
        assert_eq!((meta.get(1), meta.longest(0, 2).unwrap()[0]), (1000, 1));
        check_links(&meta);
    }

    #[test]
    fn classes_are_in_order_and_an_eighth_wide() {
        for len in 1..100_000u32 {
            assert!(class(len) <= class(len + 1));
            assert!(class(len) < class(len + len / 8 + 1), "{len}");
        }
        assert_eq!((class(0), class(1)), (0, 1));
        assert!(class(u32::MAX) < u8::MAX);
    }

    #[test]
    fn of_equals_the_nearest_is_first() {
        let meta = Meta::new([100; 20]);
        assert_eq!(meta.fitting(50, 13, 20).unwrap()[..3], [13, 14, 15]);
        assert_eq!(meta.longest(19, 20).unwrap()[..2], [19, 0]);
        assert_eq!(meta.nearby(50, 18, 20)[..4], [18, 19, 17, 16]);
        let _busy = meta.linked.write();
        assert!(meta.fitting(50, 13, 20).is_none() && meta.longest(13, 20).is_none());
    }
}
