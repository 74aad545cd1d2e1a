//! The list of all inodes, their table by number, and the list of unused ones: designs beside each
//! other, and the engine as a whole.

mod engine;
mod hash;
mod list;
mod lru;

use super::Grid;
use crate::options::Options;
use crate::stored::Results;
use std::io;

/// Inodes that may be in memory where they cycle through it, and files of the engine's tree.
const BOUND: u32 = 20_000;
const FILES: usize = 120_000;

/// Numbers of threads.
const THREADS: [usize; 4] = [1, 2, 4, 16];

pub fn run(options: &Options) -> io::Result<bool> {
    grids(options, BOUND, FILES)?.print(options.json)?;
    Ok(true)
}

/// Measures every design.
pub fn grids(options: &Options, bound: u32, files: usize) -> io::Result<Vec<Grid>> {
    let (bound, files) =
        if options.quick { (bound.min(2000), files.min(60_000)) } else { (bound, files) };
    let mut grids = vec![
        list::grid(options, bound)?,
        hash::grid(options, bound)?,
        hash::skip_grid(options, bound)?,
    ];
    grids.push(lru::grid(options)?);
    grids.extend(engine::grids(options, files)?);
    Ok(grids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_keeps_no_more_inodes_than_fit_into_memory() {
        let options = Options::least(&[2]);
        let grids = grids(&options, 300, 60_000).expect("no invariant broken");
        let share = grids.last().expect("the engine's tree");
        let (_, cells) = &share.rows[0];
        assert!(cells[0][0] >= 1.5 * cells[1][0], "{cells:?}");
    }
}
