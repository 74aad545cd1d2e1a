//! Designs on small disks.

use super::*;
use extant_space::Run;
use std::collections::BTreeSet;

const SMALL: Shape = Shape { group_len: 1024, groups: 64, flex_bits: 3 };

/// Groups with a run of `len` in every `step` blocks.
fn comb(shape: Shape, len: u32, step: u32) -> Map {
    let runs = (0..shape.group_len / step).map(|i| Run { start: i * step + 1, len }).collect();
    Map::new(shape, [runs], vec![0; shape.groups as usize])
}

fn all(map: &Map) -> impl Iterator<Item = (&'static str, Box<dyn Policy + '_>)> {
    let names = ["buddy", "buddy, read ahead", "lists of 2023", "arrays of 2025"];
    let names = names.into_iter().chain(["frsp mended, level 0", "frsp, level 1"]);
    let little = Posted::new(map, 3, 64 * 1000, Defects::default(), true);
    let little: [(_, Box<dyn Policy>); 1] = [("frsp, level 3, little memory", Box::new(little))];
    names.map(|name| (name, named(name, map, true).expect("a design"))).chain(little)
}

fn want(goal: u64, len: u32) -> Want {
    Want { goal, len, file: 0 }
}

#[test]
fn every_design_hands_out_each_block_once_and_takes_it_back() {
    let map = comb(SMALL, 5, 16);
    for (name, mut policy) in all(&map) {
        let mut taken = Vec::new();
        let mut seen = BTreeSet::new();
        while let Some(run) = policy.allocate(&want(taken.len() as u64 * 97 % 60_000, 7)) {
            assert!(
                run.len > 0
                    && run.len <= 7
                    && (run.start..run.end()).all(|block| seen.insert(block)),
                "{name}: {run:?}"
            );
            assert!(
                (run.start..run.end()).all(|block| (1..6).contains(&(block % 16))),
                "{name}: {run:?}"
            );
            taken.push(run);
        }
        assert_eq!(seen.len(), 64 * 64 * 5, "{name}");
        taken.into_iter().step_by(2).for_each(|run| policy.free(run));
        let again = policy.allocate(&want(0, 3)).unwrap();
        assert!(seen.contains(&again.start), "{name}");
        let cost = policy.cost();
        assert!(cost.bitmaps == 64 && cost.waited > 0 && cost.looked > 0, "{name}: {cost:?}");
    }
}

#[test]
fn a_file_on_a_new_disk_is_one_piece_per_group_and_grows_at_its_end() {
    let map = Map::empty(SMALL, 100);
    for (name, mut policy) in all(&map) {
        let first = policy.allocate(&want(1024, 64)).unwrap();
        let second = policy.allocate(&want(first.end(), 64)).unwrap();
        assert_eq!((first.len, second.len), (64, 64), "{name}");
        // The posting has no goals.
        assert!(
            second.start == first.end() || name.starts_with("frsp"),
            "{name}: {first:?} {second:?}"
        );
    }
}

#[test]
fn a_linear_search_reads_every_bitmap_and_lists_only_those_that_are_needed() {
    let map = comb(Shape { group_len: 4096, groups: 4096, flex_bits: 4 }, 8, 32);
    let read = |lists, prefetch: bool| {
        let mut buddy = Buddy::new(&map, lists, Reading::Single, true);
        if prefetch {
            buddy.prefetch();
        }
        let before = buddy.cost();
        assert_eq!(buddy.allocate(&want(0, 512)).unwrap().len, 8);
        let after = buddy.cost();
        (after.bitmaps - before.bitmaps, after.looked - before.looked, after.waited - before.waited)
    };
    let (bitmaps, looked, waited) = read(Lists::None, false);
    assert!(
        bitmaps == 4096 && looked > 8192 && waited == 4096 * 3_200_000,
        "{bitmaps} {looked} {waited}"
    );
    let (bitmaps, looked, _) = read(Lists::Queues, true);
    assert!(bitmaps == 0 && looked < 10, "{bitmaps} {looked}");
}

#[test]
fn a_request_at_a_higher_level_of_aggression_loads_more() {
    let map = comb(Shape { group_len: 1024, groups: 16_384, flex_bits: 4 }, 8, 32);
    let loaded = [0, 1, 2, 3].map(|level| {
        let mut posted = Posted::new(&map, level, 0, Defects::default(), false);
        (0..20).for_each(|_| assert_eq!(posted.allocate(&want(0, 512)).unwrap().len, 8));
        posted.cost().cached
    });
    assert!(
        loaded[0] <= loaded[1] && loaded[1] < loaded[2] && loaded[2] <= loaded[3],
        "{loaded:?}"
    );
    assert_eq!((loaded[3], loaded[0] < 300), (1024, true), "{loaded:?}");
}

#[test]
fn the_limit_of_the_posting_is_kept_by_evicting() {
    let map = comb(Shape { group_len: 1024, groups: 1024, flex_bits: 4 }, 8, 32);
    let mut posted = Posted::new(&map, 3, 56 * 32 * 16 * 10, Defects::default(), false);
    (0..20).for_each(|_| assert!(posted.allocate(&want(0, 512)).is_some()));
    let cost = posted.cost();
    assert!(cost.evicted >= 50 && cost.cached == 64 && cost.bytes <= 56 * 32 * 16 * 12, "{cost:?}");
}

#[test]
fn a_shrunk_wish_is_satisfied_from_lists() {
    let map = comb(Shape { group_len: 4096, groups: 256, flex_bits: 4 }, 80, 100);
    let mut buddy = Buddy::new(&map, Lists::Arrays, Reading::Ahead, false);
    buddy.prefetch();
    let before = buddy.cost().looked;
    let taken = buddy.allocate(&want(0, 512)).unwrap();
    assert!(taken.len >= 64 && buddy.cost().looked - before < 5, "{taken:?} {:?}", buddy.cost());
}
