//! The designs side by side, without a file system: sparse random writes of one block each into a
//! large file.

use super::designs::{AsList, AsTree, Design};
use crate::grid::Grid;
use crate::sheet::{Name, Sheet};
use extant_space::prealloc::{Ask, Piece, place};
use extant_sync::SplitMix64;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Blocks of 4 KiB in the file: 64 GiB.
const BLOCKS: u32 = 1 << 24;

/// A design after all writes.
#[derive(Debug, Deserialize, Serialize)]
pub struct Row {
    design: Name,
    writes: u32,
    /// Nanoseconds of a write.
    nanos: f64,
    /// Preallocations looked at, and locks taken, by all writes.
    looked_at: u64,
    locks: u64,
    /// Preallocations at the end.
    left: usize,
}

/// Returns a row for each design.
pub fn rows(quick: bool) -> Vec<Row> {
    let writes = if quick { 40_000 } else { 200_000 };
    let designs: [(&str, Box<dyn Design>); 3] = [
        ("tree", Box::new(AsTree::default())),
        ("list capped at 512", Box::new(AsList::new(true))),
        ("list", Box::new(AsList::new(false))),
    ];
    designs.into_iter().map(|(name, design)| row(name, design, writes)).collect()
}

fn row(design_name: &'static str, mut design: Box<dyn Design>, writes: u32) -> Row {
    let start = Instant::now();
    write(design.as_mut(), writes);
    let nanos = start.elapsed().as_nanos() as f64 / f64::from(writes);
    let (looked_at, locks) = design.cost();
    Row { design: design_name.into(), writes, nanos, looked_at, locks, left: design.len() }
}

/// Returns the table of the designs.
pub fn sheet(rows: &[Row]) -> Sheet {
    let writes = rows.first().map_or(0, |row| row.writes);
    let title =
        format!("{writes} sparse random writes of a block into 64 GiB, preallocations only");
    let head = ["", "ns each", "looked at each", "locks each", "at the end"];
    let mut sheet = Sheet::new(title, head);
    for Row { design, writes, nanos, looked_at, locks, left } in rows {
        let each = |n: &u64| format!("{:.2}", *n as f64 / f64::from(*writes));
        let nanos = format!("{nanos:.0}");
        sheet.row([design.to_string(), nanos, each(looked_at), each(locks), left.to_string()]);
    }
    sheet
}

/// Returns the same as values by workload and design.
pub fn grid(rows: Vec<Row>) -> Grid {
    let columns = rows.iter().map(|row| row.design.clone()).collect();
    let mut grid = Grid::of("preallocations alone", "see rows".into(), columns, 0).less();
    for (column, row) in rows.into_iter().enumerate() {
        let each = |n: u64| n as f64 / f64::from(row.writes);
        grid.add("time of a write, ns", column, row.nanos);
        grid.add("looked at by a write", column, each(row.looked_at));
        grid.add("locks of a write", column, each(row.locks));
    }
    grid
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
