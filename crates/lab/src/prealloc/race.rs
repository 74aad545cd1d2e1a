//! The designs side by side, without a file system: sparse random writes of one block each into a
//! large file.

use super::designs::{AsList, AsTree, Design};
use extant_space::prealloc::{Ask, Piece, place};
use extant_sync::SplitMix64;
use std::time::Instant;

/// Blocks of 4 KiB in the file: 64 GiB.
const BLOCKS: u32 = 1 << 24;

/// Prints a row for each design.
pub fn run(quick: bool) {
    let writes = if quick { 40_000 } else { 200_000 };
    println!("{writes} sparse random writes of a block into 64 GiB, preallocations only:\n");
    println!(
        "{:<24} {:>12} {:>14} {:>12} {:>12}",
        "", "ns each", "looked at each", "locks each", "at the end"
    );
    let designs: [(&str, Box<dyn Design>); 3] = [
        ("tree", Box::new(AsTree::default())),
        ("list capped at 512", Box::new(AsList::new(true))),
        ("list", Box::new(AsList::new(false))),
    ];
    for (name, mut design) in designs {
        let start = Instant::now();
        write(design.as_mut(), writes);
        let nanos = start.elapsed().as_nanos() as f64 / f64::from(writes);
        let (visited, locks) = design.cost();
        let each = |n: u64| n as f64 / f64::from(writes);
        println!(
            "{name:<24} {nanos:>12.0} {:>14.2} {:>12.2} {:>12}",
            each(visited),
            each(locks),
            design.len()
        );
    }
}

fn write(design: &mut dyn Design, writes: u32) {
    let mut next_physical = 0;
    let mut random = SplitMix64::new(1);
    for _ in 0..writes {
        let logical = random.below(BLOCKS.into()) as u32;
        if design.take(logical, 1).is_some() {
            continue;
        }
        let size = u64::from(BLOCKS) << 12;
        let ask = Ask {
            logical,
            len: 1,
            size,
            block: 4096,
            unit: 4096,
            group: 32768,
            limit: BLOCKS.into(),
        };
        let window = design.trim(logical, ask.window());
        // A block that was written before lies in a used or removed piece.
        let len = window.end.saturating_sub(window.start) as u32;
        if !window.contains(&logical.into()) {
            continue;
        }
        let first = place(len, &window, &(logical.into()..u64::from(logical) + 1));
        design.insert(Piece { logical: first as u32, physical: next_physical, len });
        next_physical += u64::from(len);
        design.take(logical, 1);
    }
}
