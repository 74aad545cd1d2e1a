//! The memory of free-space trees, measured. The only test of its process: no other one allocates
//! meanwhile.

use extant_space::{FreeTree, Run};

/// Groups of a tree, units of a group, and free runs of a group, as on the disk of the free-space
/// tree postings of 2020.
const GROUPS: u32 = 16;
const GROUP_LEN: u32 = 32_768;
const RUNS: u32 = 250;

/// Trees: as many as make the growth much larger than its measure's unit.
const TREES: usize = 400;

/// Returns the bytes of this process that are in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("pages");
    pages * 4096
}

/// A tree whose groups were loaded one after the other.
fn loaded() -> FreeTree {
    let mut tree = FreeTree::new(GROUP_LEN);
    let every = GROUP_LEN / RUNS;
    for group in 0..GROUPS {
        let run = |i| Run { start: group * GROUP_LEN + i * every, len: 1 + i % 32 };
        tree.load(&(0..RUNS).map(run).collect::<Vec<_>>());
    }
    tree
}

/// The same after space was taken from its runs and given back, in no order.
fn worn() -> FreeTree {
    let mut tree = loaded();
    let mut turn = 1u32;
    for _ in 0..2 * GROUPS * RUNS {
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let unit = (turn >> 8) % (GROUPS * GROUP_LEN);
        let run = Run { start: unit, len: 1 };
        assert!(if tree.overlaps(run) { tree.take(run) } else { tree.add(run) });
    }
    tree
}

/// Returns bytes measured and counted, for a run, and the trees: memory that was freed would be
/// used again without growth.
fn measured(make: fn() -> FreeTree) -> (f64, f64, Vec<FreeTree>) {
    let before = resident();
    let trees: Vec<FreeTree> = (0..TREES).map(|_| make()).collect();
    let grown = resident().saturating_sub(before);
    let runs: usize = trees.iter().map(FreeTree::runs).sum();
    let counted: usize = trees.iter().map(FreeTree::bytes).sum();
    (grown as f64 / runs as f64, counted as f64 / runs as f64, trees)
}

#[test]
fn counted_bytes_are_those_of_the_process() {
    let mut all = Vec::new();
    for (name, make) in [("loaded", loaded as fn() -> FreeTree), ("worn", worn)] {
        let (measured, counted, trees) = measured(make);
        all.push(trees);
        eprintln!("{name}: {measured:.1} bytes of a run measured, {counted:.1} counted");
        assert!((0.85..=1.15).contains(&(counted / measured)), "{name}: {measured} and {counted}");
    }
}
