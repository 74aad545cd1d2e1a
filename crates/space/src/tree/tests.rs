use super::*;
use crate::free_runs;
use crate::testing::Units;
use proptest::prelude::*;

/// Units of a group, and of the tree, whose last group is short.
const GROUP: u32 = 96;
const UNITS: u32 = 4 * GROUP - 17;

#[derive(Debug, Clone)]
enum Step {
    Add(Run),
    Take(Run),
    /// Takes the best fit, as an allocation does.
    Fit {
        want: u32,
        near: u32,
        avoid: u32,
    },
    /// Removes a group and loads it from its bitmap.
    Reload(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let run = || {
        (0..UNITS, prop_oneof![0u32..4, 1u32..GROUP]).prop_map(|(start, len)| Run { start, len })
    };
    prop_oneof![
        3 => run().prop_map(Step::Add),
        2 => run().prop_map(Step::Take),
        3 => (1..GROUP, 0..UNITS, prop_oneof![Just(0), Just(GROUP)])
            .prop_map(|(want, near, avoid)| Step::Fit { want, near, avoid }),
        1 => (0u32..4).prop_map(Step::Reload),
    ]
}

fn within_a_group(run: Run) -> bool {
    run.len > 0 && run.start / GROUP == (run.end() - 1) / GROUP
}

fn bitmap(model: &Units, group: u32) -> Vec<u8> {
    let free = |bit: usize| model.has(group * GROUP + bit as u32);
    (0..GROUP as usize / 8)
        .map(|byte| (0..8).fold(0, |bits, bit| bits | u8::from(!free(byte * 8 + bit)) << bit))
        .collect()
}

fn reload(tree: &mut FreeTree, model: &Units, group: u32) {
    let mut runs = Vec::new();
    let place = |run: Run| Run { start: run.start + group * GROUP, len: run.len };
    free_runs(&bitmap(model, group), GROUP, |run| runs.push(place(run)));
    tree.unload(group * GROUP..(group + 1) * GROUP);
    tree.load(&runs);
}

fn fit(tree: &mut FreeTree, model: &mut Units, want: u32, near: u32, avoid: u32) {
    let runs = model.runs(GROUP);
    let usable = || runs.iter().filter(|run| run.start >= avoid);
    let least = usable().map(|run| run.len).filter(|len| *len >= want).min();
    let found = tree.best_fit(want, near, avoid);
    assert_eq!(found.map(|run| run.len), least);
    assert_eq!(tree.longest_from(avoid).map(|run| run.len), usable().map(|run| run.len).max());
    let Some(run) = found else { return };
    let behind = usable().find(|other| other.len == run.len && other.start >= near);
    assert_eq!(
        run.start,
        behind.or_else(|| usable().find(|other| other.len == run.len)).unwrap().start
    );
    let part = Run { start: run.start, len: want };
    assert!(tree.take(part));
    model.set(part, false);
}

fn apply(tree: &mut FreeTree, model: &mut Units, step: &Step) {
    match *step {
        Step::Add(run) => {
            let possible = within_a_group(run) && model.all(run, false);
            // Units beyond the tree's end are the caller's to refuse.
            if run.end() <= UNITS {
                assert_eq!(tree.add(run), possible);
                if possible {
                    model.set(run, true);
                }
            }
        }
        Step::Take(run) => {
            let possible = within_a_group(run) && model.all(run, true);
            assert_eq!(tree.take(run), possible);
            if possible {
                model.set(run, false);
            }
        }
        Step::Fit { want, near, avoid } => fit(tree, model, want, near, avoid),
        Step::Reload(group) => reload(tree, model, group),
    }
}

/// Checks that both trees equal the model.
fn check(tree: &FreeTree, model: &Units) {
    let runs = model.runs(GROUP);
    let by_place: Vec<Run> = tree.within(0..u32::MAX).collect();
    assert_eq!(by_place, runs);
    let mut by_length: Vec<Run> = tree.by_length().collect();
    assert!(
        by_length
            .windows(2)
            .all(|pair| (Reverse(pair[0].len), pair[0].start)
                < (Reverse(pair[1].len), pair[1].start))
    );
    by_length.sort_unstable_by_key(|run| run.start);
    assert_eq!(by_length, runs);
    assert_eq!((tree.free(), tree.runs()), (runs.iter().map(|run| run.len).sum(), runs.len()));
}

proptest! {
    #[test]
    fn equals_the_model(
        steps in prop::collection::vec(step(), 0..100),
        from in 0..UNITS,
        len in 0..UNITS,
    ) {
        let (mut tree, mut model) = (FreeTree::new(GROUP), Units::new(UNITS as usize));
        for step in &steps {
            apply(&mut tree, &mut model, step);
            check(&tree, &model);
        }
        let part: Vec<u32> =
            tree.within(from..from + len).flat_map(|run| run.start..run.end()).collect();
        prop_assert_eq!(
            part,
            (from..from + len).filter(|unit| model.has(*unit)).collect::<Vec<_>>(),
        );
        let at = tree.at(from);
        prop_assert_eq!(
            at,
            model.runs(GROUP).into_iter().find(|run| run.start <= from && from < run.end()),
        );
    }
}

#[test]
fn runs_of_neighbouring_groups_stay_apart() {
    let mut tree = FreeTree::new(100);
    assert!(tree.add(Run { start: 90, len: 10 }) && tree.add(Run { start: 100, len: 10 }));
    assert_eq!(tree.runs(), 2);
    assert!(!tree.add(Run { start: 199, len: 2 }));
    assert!(!tree.add(Run { start: 199, len: u32::MAX }));
    assert!(tree.add(Run { start: 80, len: 10 }));
    assert_eq!(tree.longest(), Some(Run { start: 80, len: 20 }));
    tree.clear();
    assert_eq!((tree.runs(), tree.free(), tree.longest()), (0, 0, None));
}

#[test]
fn a_group_of_single_units_is_the_worst() {
    let mut tree = FreeTree::new(1000);
    (0..500).for_each(|unit| assert!(tree.add(Run { start: unit * 2, len: 1 })));
    assert_eq!(FreeTree::bytes_of(tree.runs() as u64), FreeTree::worst_bytes(1000));
}

proptest! {
    #[test]
    fn add_all_equals_single_adds(
        old in prop::collection::vec(
            (0..UNITS, 0u32..12),
            0..40,
        ), new in prop::collection::vec((0..UNITS, 0u32..9), 0..40),
    ) {
        let (mut one, mut many) = (FreeTree::new(GROUP), FreeTree::new(GROUP));
        for (start, len) in old {
            prop_assert_eq!(one.add(Run { start, len }), many.add(Run { start, len }));
        }
        let mut new: Vec<Run> = new.into_iter().map(|(start, len)| Run { start, len }).collect();
        new.sort_unstable_by_key(|run| run.start);
        let refused: Vec<Run> = new.iter().copied().filter(|run| !one.add(*run)).collect();
        prop_assert_eq!(many.add_all(&new), refused);
        prop_assert_eq!(
            (one.by_place, one.by_len, one.free),
            (many.by_place, many.by_len, many.free),
        );
    }
}
