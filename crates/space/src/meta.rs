//! All trees of a file system ordered by their longest runs, whether they are in memory or not.
//!
//! A tree is linked by the class of its longest run: eight classes for each power of two. So the
//! order changes only when a run changes by an eighth, not with each allocation, and of trees that
//! fit equally well the nearest is found.
//!
//! # Invariants
//! - Each tree is linked once, under the class noted for it. Class and link change together under
//!   the lock.
//! - The class noted is that of `longest` when nobody changes it, however many threads did at once:
//!   see [`Meta::relink`].
//! - `longest` of a tree that is in memory is its true longest run, or that of its groups not in
//!   memory, when nobody changes it; of other trees it is a hint.
//!
//! # Locking
//! The lock is held for a descent or one move. Searches only try it; who finds it busy goes by what
//! `longest` says of the trees nearby, which needs no lock.

use extant_sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use extant_sync::{Level, RwLock};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Trees that a search gives at most.
pub const ADVICE: usize = 8;
/// Trees of one class that a search looks at.
const CLASS_STEPS: usize = 64;
/// Trees behind the goal's that a look without the lock passes.
const NEAR: usize = 256;

/// Trees in the order in which they should be tried.
pub type Advice = SmallVec<[u32; ADVICE]>;

/// See the module's description.
#[derive(Debug)]
pub struct Meta {
    longest: Box<[AtomicU32]>,
    classes: Box<[AtomicU8]>,
    linked: RwLock<BTreeSet<(u8, u32)>>,
}

/// The class of a run: 0 for none, and longer runs never have a lower one.
fn class(len: u32) -> u8 {
    let Some(log) = len.checked_ilog2() else { return 0 };
    let eighths = if log >= 3 { len >> (log - 3) } else { len << (3 - log) };
    // At most 1 + 31 * 8 + 7, a byte.
    (1 + log * 8 + (eighths & 7)) as u8
}

impl Meta {
    /// Trees with these longest runs.
    pub fn new(longest: impl IntoIterator<Item = u32>) -> Meta {
        let longest: Box<[AtomicU32]> = longest.into_iter().map(AtomicU32::new).collect();
        let class_of = |len: &AtomicU32| class(len.load(Relaxed));
        let linked = (0..).zip(&longest).map(|(tree, len)| (class_of(len), tree)).collect();
        let classes = longest.iter().map(|len| AtomicU8::new(class_of(len))).collect();
        Meta { longest, classes, linked: RwLock::new(Level::Alloc, linked) }
    }

    /// Number of trees.
    pub fn len(&self) -> u32 {
        self.longest.len() as u32
    }

    /// Whether there are no trees.
    pub fn is_empty(&self) -> bool {
        self.longest.is_empty()
    }

    /// The longest run of a tree as far as is known; 0 if there is no such tree.
    pub fn get(&self, tree: u32) -> u32 {
        self.longest.get(tree as usize).map_or(0, |len| len.load(Relaxed))
    }

    /// Notes a tree's longest run. Of concurrent calls for one tree the last one counts.
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

    /// Links a tree under the class of its longest run, which was changed just now.
    ///
    /// Threads change the length first and look at the class noted then. One that finds its own
    /// class noted may be about to be overtaken: another one holds the lock, has read an older
    /// length, and notes that one's class afterwards. So the one under the lock reads the length
    /// again after it has noted a class. All of these are SeqCst: either the first sees the class
    /// that was noted, and takes the lock itself, or the other one sees the new length.
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

    /// Trees below `limit` with a run of at least `want` units: those whose longest run is the
    /// shortest first, of equals the next one from `near` on. `None` if the lock is busy.
    pub fn fitting(&self, want: u32, near: u32, limit: u32) -> Option<Advice> {
        let linked = self.linked.try_read()?;
        let mut advice = Advice::new();
        let mut least = class(want.max(1));
        while let Some((class, _)) = linked.range((least, 0)..).next() {
            self.of_class(
                &linked,
                *class,
                near,
                |tree| tree < limit && self.get(tree) >= want,
                &mut advice,
            );
            match class.checked_add(1).filter(|_| advice.len() < ADVICE) {
                Some(next) => least = next,
                None => break,
            }
        }
        Some(advice)
    }

    /// Trees below `limit` with the longest runs: the longest first, of equals the next one from
    /// `near` on. `None` if the lock is busy.
    pub fn longest(&self, near: u32, limit: u32) -> Option<Advice> {
        let linked = self.linked.try_read()?;
        let mut advice = Advice::new();
        let mut bound = u8::MAX;
        while let Some((class @ 1.., _)) = linked.range(..(bound, 0)).next_back() {
            self.of_class(
                &linked,
                *class,
                near,
                |tree| tree < limit && self.get(tree) > 0,
                &mut advice,
            );
            bound = *class;
            if advice.len() == ADVICE {
                break;
            }
        }
        Some(advice)
    }

    /// Adds those trees of a class that are good, from `near` on and then from the first.
    #[expect(clippy::too_many_arguments, reason = "the bounds of a search")]
    fn of_class(
        &self,
        linked: &BTreeSet<(u8, u32)>,
        class: u8,
        near: u32,
        good: impl Fn(u32) -> bool,
        advice: &mut Advice,
    ) {
        let behind = linked.range((class, near)..=(class, u32::MAX));
        let before = linked.range((class, 0)..(class, near));
        let trees = behind
            .chain(before)
            .take(CLASS_STEPS)
            .map(|(_, tree)| *tree)
            .filter(|tree| good(*tree));
        advice.extend(trees.take(ADVICE - advice.len()));
    }

    /// Trees below `limit` near `near` with a run of at least `want` units, the nearest behind it
    /// first. Takes no lock.
    pub fn nearby(&self, want: u32, near: u32, limit: u32) -> Advice {
        let end = self.longest.len().min(limit as usize);
        let from = (near as usize).min(end);
        let trees = (from..end.min(from + NEAR)).chain((0..from).rev().take(NEAR));
        let good = |tree: &usize| {
            self.longest.get(*tree).is_some_and(|len| len.load(Relaxed) >= want.max(1))
        };
        trees.filter(good).take(ADVICE).map(|tree| tree as u32).collect()
    }

    /// Bytes of memory: what the links take is estimated.
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
        fn gives_what_a_scan_gives(
            longest in prop::collection::vec(0u32..3000, 0..60), changes in prop::collection::vec((0u32..70, 0u32..3000), 0..60),
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
            let most = (0..meta.len()).filter(|tree| good(*tree, 1)).map(|tree| class(model[tree as usize])).max();
            prop_assert_eq!(advice.first().map(|tree| class(model[*tree as usize])), most);
            let near = meta.nearby(want, near, limit);
            prop_assert!(near.len() == fits.len().min(ADVICE) && near.iter().all(|tree| good(*tree, want)));
        }
    }

    /// Two threads change the length while the links are locked: both see the same class noted.
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
                // They come to the lock soon.
                (0..100).for_each(|_| std::thread::yield_now());
                drop(locked);
            });
            check_links(&meta);
        }
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
