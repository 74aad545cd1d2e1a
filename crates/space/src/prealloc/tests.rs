use super::*;
use extant_sync::{Level, Mutex};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const NO_LIMIT: u64 = u64::MAX;

fn piece(logical: u32, physical: u64, len: u32) -> Piece {
    Piece { logical, physical, len }
}

fn take(tree: &mut Tree, logical: u32, len: u32) -> Found {
    tree.take(logical, len, NO_LIMIT, &mut 0)
}

fn taken(logical: u32, physical: u64, len: u32, of: Key) -> Found {
    Found::Taken { piece: piece(logical, physical, len), of }
}

fn discard_all(tree: &mut Tree) -> Vec<Piece> {
    let mut given = Vec::new();
    tree.discard(|_| true, |part| given.push(part));
    given
}

fn ask(logical: u32, len: u32, size: u64, block: u32) -> Ask {
    Ask { logical, len, size, block, unit: block, group: block * 8, limit: u64::from(u32::MAX) }
}

#[test]
fn windows_are_those_of_the_table() {
    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;
    // Size in bytes, block, request in blocks; window in bytes.
    let rows = [
        (16 * K, 4096, 0..1, 0..16 * K),
        (16 * K + 1, 4096, 0..1, 0..32 * K),
        (32 * K, 4096, 7..8, 0..32 * K),
        (64 * K, 4096, 8..9, 0..64 * K),
        (100 * K, 4096, 8..9, 0..128 * K),
        (256 * K, 4096, 8..9, 0..256 * K),
        (257 * K, 4096, 8..9, 0..512 * K),
        (M, 4096, 255..256, 0..M),
        (M + 1, 4096, 256..257, 0..2 * M),
        (4 * M, 4096, 1000..1001, 2 * M..4 * M),
        (8 * M, 4096, 1024..1025, 4 * M..8 * M),
        (8 * M + 1, 4096, 2048..2049, 8 * M..16 * M),
        (100 * M, 4096, 5000..5001, 16 * M..24 * M),
        // Small blocks have smaller windows, however large the file is.
        (100 * M, 1024, 20_000..20_001, 18 * M..20 * M),
        (100 * M, 2048, 20_000..20_001, 36 * M..40 * M),
        // A long request in a large file is its own window, unless blocks are small enough. No
        // window is longer than a group.
        (100 << 30, 4096, 2045..2055, 0..8 * M),
        (100 << 30, 8192, 1000..1000 + 1025, 1000 * 8 * K..2025 * 8 * K),
        (100 << 30, 65536, 3..1000, 3 * 64 * K..1000 * 64 * K),
    ];
    for (size, block, request, bytes) in rows {
        let asked = ask(request.start, request.end - request.start, size, block);
        let blocks = bytes.start / u64::from(block)..bytes.end / u64::from(block);
        assert_eq!(asked.window(), blocks, "{asked:?}");
    }
}

#[test]
fn windows_at_the_ends_of_numbers() {
    // A regression test: an end at block 2^32 once wrapped to 0.
    let last = Ask { limit: 1 << 32, ..ask(u32::MAX, 1, 1 << 44, 4096) };
    assert_eq!(last.window(), (1 << 32) - 2048..1 << 32);
    assert_eq!(ask(u32::MAX - 1, 1, 1 << 44, 4096).window().end, u64::from(u32::MAX));
    // A group that is shorter than the window.
    let small = Ask { group: 256, ..ask(1000, 1, 100 << 20, 4096) };
    assert_eq!(small.window(), 768..1024);
    // Clusters of 64 KiB with blocks of 4 KiB.
    let clusters = Ask { unit: 65536, group: 32768, ..ask(200, 1, 100 << 20, 4096) };
    assert_eq!(clusters.window(), 128..256);
    let clusters = Ask { unit: 65536, group: 32768, ..ask(0, 1, 10, 4096) };
    assert_eq!(clusters.window(), 0..1);
}

proptest! {
    #[test]
    fn windows_contain_the_first_unit(
        logical in any::<u32>(), len in 1u32..100_000, size in 0u64..1 << 45,
        block in prop::sample::select(vec![
            1024u32, 2048, 4096, 8192, 65536,
        ]), ratio in 0u32..5, group in 1u32..70_000,
    ) {
        let unit = block << ratio;
        let limit = (1u64 << 32) >> ratio;
        let logical = logical >> ratio;
        let window = Ask { logical, len, size, block, unit, group, limit }.window();
        prop_assert!(window.contains(&logical.into()));
        prop_assert!(window.end <= limit && window.end - window.start <= group.into());
    }

    #[test]
    fn places_lie_in_the_window(
        start in 0u64..100,
        goal_len in 1u64..50,
        at in 0u64..50,
        len in 1u64..60,
        found in 1u32..50,
    ) {
        let goal = start..start + goal_len;
        let request = start + at % goal_len..start + at % goal_len + len;
        let found = found.min(goal_len as u32);
        let first = place(found, &goal, &request);
        prop_assert!(first >= goal.start && first + u64::from(found) <= goal.end);
        prop_assert!(first <= request.start && request.start < first + u64::from(found));
    }
}

#[test]
fn the_goals_end_is_tried_first() {
    assert_eq!(place(4, &(0..10), &(6..8)), 6);
    assert_eq!(place(6, &(0..10), &(1..3)), 0);
    // A start that covers only the start of the request is not used.
    assert_eq!(place(9, &(0..11), &(1..10)), 1);
    assert_eq!(place(9, &(0..20), &(2..10)), 2);
    assert_eq!(place(20, &(0..20), &(2..10)), 0);
}

#[test]
fn taken_units_keep_their_offset() {
    let mut tree = Tree::default();
    assert!(tree.insert(piece(100, 5000, 50), 0));
    assert_eq!(take(&mut tree, 99, 5), Found::Nothing);
    assert_eq!(take(&mut tree, 120, 5), taken(120, 5020, 5, 100));
    assert_eq!(take(&mut tree, 100, 100), taken(100, 5000, 20, 100));
    assert_eq!(take(&mut tree, 122, 1), Found::Spent(1));
    assert_eq!(take(&mut tree, 122, 100), Found::Spent(3));
    assert_eq!(tree.free(), 25);
    assert_eq!(take(&mut tree, 125, 100), taken(125, 5025, 25, 100));
    assert_eq!(take(&mut tree, 150, 1), Found::Nothing);
    // Its blocks are about to be mapped: no other request may plan for them.
    assert_eq!(tree.trim(90, 0..200, &mut 0), 0..100);
    assert_eq!(tree.trim(160, 0..200, &mut 0), 150..200);
    assert!(tree.trim(110, 0..200, &mut 0).is_empty());
    (0..3).for_each(|_| tree.finish(100));
    assert!(tree.is_empty() && tree.is_sound());
    assert_eq!(tree.trim(110, 0..200, &mut 0), 0..200);
}

#[test]
fn nothing_above_the_limit_is_taken() {
    let mut tree = Tree::default();
    tree.insert(piece(0, (1 << 32) - 10, 20), 0);
    assert_eq!(tree.take(4, 20, 1 << 32, &mut 0), taken(4, (1 << 32) - 6, 6, 0));
    assert_eq!(tree.take(10, 1, 1 << 32, &mut 0), Found::Nothing);
    assert_eq!(tree.take(10, 1, NO_LIMIT, &mut 0), taken(10, 1 << 32, 1, 0));
}

#[test]
fn only_unused_parts_are_returned() {
    let mut tree = Tree::default();
    tree.insert(piece(0, 100, 10), 0);
    tree.insert(piece(20, 300, 10), 0);
    take(&mut tree, 3, 2);
    let given = discard_all(&mut tree);
    assert_eq!(given, [piece(0, 100, 3), piece(5, 105, 5), piece(20, 300, 10)]);
    assert_eq!((tree.free(), tree.len()), (0, 1));
    assert_eq!(take(&mut tree, 6, 1), Found::Spent(1));
    assert_eq!(take(&mut tree, 25, 1), Found::Nothing);
    assert!(discard_all(&mut tree).is_empty() && tree.is_sound());
    tree.finish(0);
    tree.sweep();
    assert!(tree.is_sound() && tree.is_empty() && tree.bytes() == 0);
}

#[test]
fn a_new_one_may_start_where_a_deleted_one_did() {
    let mut tree = Tree::default();
    tree.insert(piece(10, 100, 10), 0);
    discard_all(&mut tree);
    assert!(tree.insert(piece(10, 500, 5), 0));
    assert_eq!(take(&mut tree, 12, 9), taken(12, 502, 3, 10));
    assert!(tree.is_sound());
    tree.sweep();
    assert!(tree.is_sound() && tree.len() == 1);
}

/// A search that goes left or right at each node and stops at the first one that contains the unit,
/// or at a leaf. Correct only while nothing is deleted. `nodes` are in the order of their
/// insertion.
fn naive_descent(nodes: &[(Piece, bool)], logical: u32) -> Option<Piece> {
    let (&(root, deleted), rest) = nodes.split_first()?;
    let side = |left: bool| {
        rest.iter()
            .copied()
            .filter(|(node, _)| (node.logical < root.logical) == left)
            .collect::<Vec<_>>()
    };
    if logical < root.logical {
        naive_descent(&side(true), logical)
    } else if u64::from(logical) >= root.end() {
        naive_descent(&side(false), logical)
    } else {
        (!deleted).then_some(root)
    }
}

/// A regression test: deleted preallocations between live ones hid those from a descent, and a new
/// one collided with the missed one.
#[test]
fn deleted_ones_hide_no_live_one() {
    let nodes =
        [(piece(0, 1000, 100), true), (piece(0, 5000, 40), false), (piece(60, 9000, 10), true)];
    let mut tree = Tree::default();
    tree.insert(nodes[0].0, 0);
    discard_all(&mut tree);
    tree.insert(piece(60, 9000, 10), 0);
    discard_all(&mut tree);
    tree.insert(nodes[1].0, 0);
    assert_eq!(naive_descent(&nodes, 30), None, "the naive search fails");
    assert_eq!(take(&mut tree, 30, 5), taken(30, 5030, 5, 0));
    // Here the left neighbor itself is deleted, and the live one is farther left.
    let mut tree = Tree::default();
    for start in [20, 30, 40] {
        tree.insert(piece(start, 100 * u64::from(start), 10), 0);
    }
    discard_all(&mut tree);
    assert!(tree.insert(piece(10, 7000, 40), 0), "deleted ones do not collide");
    let nodes =
        [(piece(30, 3000, 10), true), (piece(20, 2000, 10), true), (piece(10, 7000, 40), false)];
    assert_eq!(naive_descent(&nodes, 35), None);
    let mut visits = 0;
    assert_eq!(tree.take(35, 5, NO_LIMIT, &mut visits), taken(35, 7025, 5, 10));
    assert_eq!(visits, 3);
    assert_eq!(tree.trim(5, 0..100, &mut visits), 0..10);
    assert!(tree.is_sound());
}

/// The regression test for discards of a group that looked at all preallocations.
#[test]
fn a_discard_of_a_group_looks_at_no_other_group() {
    let mut tree = Tree::default();
    for i in 0..1000u32 {
        assert!(tree.insert(piece(i * 10, 1000 + u64::from(i) * 10, 5), i % 100));
        *tree.slot_mut(i % 100).unwrap() = Some(i % 100 + 7);
    }
    // One is in use, one was used up.
    assert_eq!(take(&mut tree, 420, 2), taken(420, 1420, 2, 420));
    assert_eq!(take(&mut tree, 1420, 5), taken(1420, 2420, 5, 1420));
    tree.finish(1420);
    let (mut given, mut visits) = (Vec::new(), 0);
    tree.discard_group(42, |part| given.push(part), &mut visits);
    assert!(visits <= 10, "{visits} visits");
    assert_eq!(given.len(), 9);
    assert_eq!(given[0], piece(422, 1422, 3));
    assert_eq!((tree.len(), tree.take_left()), (991, None));
    assert!(tree.is_sound());
    tree.finish(420);
    assert_eq!((tree.len(), tree.take_left()), (990, None));
    assert_eq!(tree.slot_mut(42), Some(&mut Some(49)), "it is the last one without any");
    assert!(tree.is_sound());
    tree.discard_group(42, |_| panic!("nothing is left"), &mut visits);
    assert_eq!((tree.take_left(), tree.slot_mut(42)), (Some((42, 49)), None));
    assert!(visits <= 10, "{visits} visits");
    discard_all(&mut tree);
    tree.sweep();
    assert_eq!(std::iter::from_fn(|| tree.take_left()).count(), 99);
    assert_eq!(tree.slots().count(), 0);
    assert!(tree.is_sound() && tree.is_empty() && tree.bytes() == 0);
}

/// A file that is written on does not leave its group's list and enter it again each time.
#[test]
fn the_last_group_without_preallocations_keeps_its_number() {
    let mut tree = Tree::default();
    for (i, group) in [5u32, 5, 9, 9, 5].into_iter().enumerate() {
        let start = i as u32 * 10;
        assert!(tree.insert(piece(start, u64::from(start), 5), group));
        let slot = tree.slot_mut(group).unwrap();
        let known = [false, true, false, true, false][i];
        assert_eq!(slot.is_some(), known, "{i}");
        *slot = Some(group);
        assert!(matches!(take(&mut tree, start, 5), Found::Taken { .. }));
        tree.finish(start);
        // Of two groups without preallocations, the earlier one goes.
        let left = [None, None, Some((5, 5)), None, Some((9, 9))][i];
        assert_eq!(tree.take_left(), left, "{i}");
        assert!(tree.is_sound());
    }
}

/// A list of a group stays short however many preallocations came and went.
#[test]
fn ended_preallocations_leave_the_list_of_their_group() {
    let mut tree = Tree::default();
    assert!(tree.insert(piece(0, 0, 1), 3));
    for i in 0..1000u32 {
        // The same place of the file again and again, in one group and another.
        let key = 10 + i % 3 * 10;
        assert!(tree.insert(piece(key, u64::from(i) * 100, 2), i % 2 * 3));
        assert!(matches!(take(&mut tree, key, 2), Found::Taken { .. }));
        tree.finish(key);
        assert!(tree.is_sound());
    }
    let mut visits = 0;
    tree.discard_group(3, |part| assert_eq!(part, piece(0, 0, 1)), &mut visits);
    assert!(visits <= 10, "{visits} visits");
    assert!(tree.is_empty() && tree.is_sound());
}

/// Units of a group of the model.
const GROUP: u64 = 200;

fn group(piece: &Piece) -> u32 {
    (piece.physical / GROUP) as u32
}

/// A plain model beside the tree: the physical unit for each logical unit, and the owner of each
/// physical unit.
#[derive(Default)]
struct Model {
    tree: Tree,
    /// The physical unit of each preallocated, unused logical unit.
    unused: BTreeMap<u32, u64>,
    /// Logical units of preallocations in use that are spent.
    spent: BTreeSet<u32>,
    uses: Vec<(Key, Range<u32>)>,
    next: u64,
}

impl Model {
    fn take(&mut self, logical: u32, len: u32) {
        match take(&mut self.tree, logical, len) {
            Found::Taken { piece, of } => {
                assert!(piece.logical == logical && piece.len >= 1 && piece.len <= len);
                for i in 0..piece.len {
                    assert_eq!(
                        self.unused.remove(&(logical + i)),
                        Some(piece.physical + u64::from(i))
                    );
                    self.spent.insert(logical + i);
                }
                self.uses.push((of, logical..logical + piece.len));
            }
            Found::Spent(n) => {
                assert!((logical..logical + n).all(|l| !self.unused.contains_key(&l)))
            }
            Found::Nothing => {
                assert!(!self.unused.contains_key(&logical), "{logical} was missed");
                self.create(logical, len);
            }
        }
    }

    fn create(&mut self, logical: u32, len: u32) {
        let window = Ask { group: 64, ..ask(logical, len, 0, 4096) }.window();
        let window = self.tree.trim(logical, window, &mut 0);
        assert!(window.contains(&logical.into()));
        assert!(window.clone().all(|l| !self.unused.contains_key(&(l as u32))));
        let most = (window.end - window.start) as u32;
        let found = (1 + (self.next % 17) as u32).min(most);
        let start = place(found, &window, &(logical.into()..u64::from(logical) + u64::from(len)));
        let new = piece(start as u32, self.next, found);
        self.next += u64::from(found) + 1;
        // No run spans two groups.
        let behind = self.next + 17;
        if behind / GROUP > self.next / GROUP {
            self.next = behind / GROUP * GROUP;
        }
        assert!(self.tree.insert(new, group(&new)));
        self.unused.extend((0..found).map(|i| (new.logical + i, new.physical + u64::from(i))));
    }

    fn discard(&mut self, from: u32) {
        let given = &mut self.unused;
        self.tree.discard(
            |whole| whole.logical >= from,
            |part| {
                for i in 0..part.len {
                    assert_eq!(
                        given.remove(&(part.logical + i)),
                        Some(part.physical + u64::from(i))
                    );
                }
            },
        );
    }

    fn discard_group(&mut self, chosen: u32) {
        let given = &mut self.unused;
        let give = |part: Piece| {
            assert_eq!(group(&part), chosen);
            for i in 0..part.len {
                assert_eq!(given.remove(&(part.logical + i)), Some(part.physical + u64::from(i)));
            }
        };
        self.tree.discard_group(chosen, give, &mut 0);
        assert!(given.values().all(|physical| (physical / GROUP) as u32 != chosen));
    }

    fn check(&self) {
        assert!(self.tree.is_sound());
        assert_eq!(self.tree.free(), self.unused.len() as u64);
    }
}

proptest! {
    #[test]
    fn equals_a_plain_model(steps in prop::collection::vec(
        (0u8..12, 0u32..600, 1u32..40),
        1..300,
    )) {
        let mut model = Model::default();
        for (step, logical, len) in steps {
            match step {
                0 => model.discard(logical),
                1 => model.tree.sweep(),
                2 if len > 30 => model.discard_group(logical % 12),
                2..=4 if !model.uses.is_empty() => {
                    let (of, _) = model.uses.swap_remove(logical as usize % model.uses.len());
                    model.tree.finish(of);
                }
                _ => model.take(logical, len),
            }
            model.check();
        }
        model.discard(0);
        model.uses.iter().for_each(|(of, _)| model.tree.finish(*of));
        model.tree.sweep();
        prop_assert!(model.tree.is_empty() && model.tree.bytes() == 0 && model.unused.is_empty());
    }
}

/// Many threads on one tree: each physical unit has one owner at a time.
#[test]
fn threads_get_no_unit_twice() {
    const UNITS: u32 = 4000;
    let tree = Mutex::new(Level::Alloc, Tree::default());
    let next = Mutex::new(Level::Leaf, 0u64);
    let owned = Mutex::new(Level::Leaf, BTreeSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (tree, next, owned) = (&tree, &next, &owned);
            scope.spawn(move || {
                for round in 0..3000u32 {
                    let logical =
                        (round.wrapping_mul(2654435761) ^ thread.wrapping_mul(40503)) % UNITS;
                    let mut guard = tree.lock();
                    let found = take(&mut guard, logical, 3);
                    match found {
                        Found::Taken { piece, of } => {
                            drop(guard);
                            let mut owned = owned.lock();
                            (0..piece.len)
                                .for_each(|i| assert!(owned.insert(piece.physical + u64::from(i))));
                            drop(owned);
                            tree.lock().finish(of);
                        }
                        Found::Spent(_) => drop(guard),
                        Found::Nothing => {
                            let window =
                                guard.trim(logical, ask(logical, 3, 0, 4096).window(), &mut 0);
                            let len = (window.end - window.start) as u32;
                            let mut next = next.lock();
                            assert!(guard.insert(piece(window.start as u32, *next, len), 0));
                            *next += u64::from(len);
                            drop(next);
                            drop(guard);
                        }
                    }
                    if round % 97 == thread {
                        let mut guard = tree.lock();
                        discard_all(&mut guard);
                        assert!(guard.is_sound());
                    }
                    if round % 193 == thread {
                        tree.lock().sweep();
                    }
                }
            });
        }
    });
    assert!(tree.lock().is_sound());
}

#[test]
fn small_files_share_the_nearest_chunk() {
    let mut shared = Locality::default();
    assert!(shared.take(0, 1, &(0..u64::MAX)).is_none());
    shared.add(Chunk { physical: 1000, len: 512 });
    shared.add(Chunk { physical: 9000, len: 512 });
    assert_eq!(shared.take(8000, 4, &(0..u64::MAX)), Some(Chunk { physical: 9000, len: 4 }));
    assert_eq!(shared.take(9100, 4, &(0..u64::MAX)), Some(Chunk { physical: 9004, len: 4 }));
    assert_eq!(shared.take(9100, 1, &(0..2000)), Some(Chunk { physical: 1000, len: 1 }));
    assert_eq!(shared.take(9100, 1, &(2000..9000)), None);
    assert_eq!(shared.take(9100, 512, &(0..u64::MAX)), None);
    assert_eq!((shared.free(), shared.len()), (511 + 504, 2));
    assert_eq!(shared.take(0, 511, &(0..u64::MAX)), Some(Chunk { physical: 1001, len: 511 }));
    assert_eq!(shared.drain(), [Chunk { physical: 9008, len: 504 }]);
    assert!(shared.is_empty());
    assert_eq!((Locality::goal_len(0), Locality::goal_len(48)), (512, 528));
}

#[test]
fn a_list_that_becomes_too_long_is_cut() {
    let mut shared = Locality::default();
    let chunk = |i: u64| Chunk { physical: i * 100, len: 20 };
    assert!((0..8).all(|i| shared.add(chunk(i)).is_empty()));
    assert_eq!(shared.add(chunk(8)), (0..4).map(chunk).collect::<Vec<_>>());
    assert_eq!((shared.len(), shared.free()), (5, 100));
}
