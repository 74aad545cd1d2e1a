//! The list of all inodes, their table by number, and the list of unused ones: designs beside each
//! other, and the engine as a whole.

mod engine;
mod hash;
mod list;
mod lru;

use super::{Common, Grid};
use crate::stored::Results;
use std::io;

/// Arguments of `extant-lab inodes`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Inodes that may be in memory where they cycle through it.
    #[arg(long, default_value_t = 20_000)]
    bound: u32,
    /// Files of the engine's tree.
    #[arg(long, default_value_t = 120_000)]
    files: usize,
}

/// Numbers of threads.
const THREADS: [usize; 4] = [1, 2, 4, 16];

/// Runs the command.
pub fn run(args: &Args) -> io::Result<bool> {
    grids(&args.common, args.bound, args.files)?.print(args.common.json)?;
    Ok(true)
}

/// Measures every design.
pub fn grids(common: &Common, bound: u32, files: usize) -> io::Result<Vec<Grid>> {
    let (bound, files) =
        if common.quick { (bound.min(2000), files.min(60_000)) } else { (bound, files) };
    let mut grids = vec![
        list::grid(common, bound)?,
        hash::grid(common, bound)?,
        hash::skip_grid(common, bound)?,
    ];
    grids.push(lru::grid(common)?);
    grids.extend(engine::grids(common, files)?);
    Ok(grids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_keeps_no_more_inodes_than_fit_into_memory() {
        let common = Common { runs: 1, quick: true, threads: vec![2], json: false };
        let grids = grids(&common, 300, 60_000).expect("no invariant broken");
        let share = grids.last().expect("the engine's tree");
        let (_, cells) = &share.rows[0];
        assert!(cells[0][0] >= 1.5 * cells[1][0], "{cells:?}");
    }
}
