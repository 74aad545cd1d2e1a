//! Sync: ways to find the writes for which it must wait, the cost of a sync of the engine, and the
//! gain of collecting writes.

mod engine;
mod find;
mod plug;

use extant_measure::grid::Grid;
use extant_measure::options::Options;
use std::io;

/// Arguments of `extant-lab sync`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub options: Options,
    /// Clean inodes in the engine's memory; each takes about a kilobyte.
    #[arg(long, default_value_t = 1_000_000)]
    inodes: usize,
}

/// Returns the tables of all wanted parts.
pub fn grids(args: &Args) -> io::Result<Vec<Grid>> {
    let options = &args.options;
    let mut grids = Vec::new();
    if options.wants("designs") {
        grids.extend(find::grids(options)?);
    }
    if options.wants("engine") {
        let inodes = if options.quick { args.inodes.min(50_000) } else { args.inodes };
        grids.extend(engine::grids(options, inodes)?);
    }
    if options.wants("plug") {
        grids.extend(plug::grids(options)?);
    }
    Ok(grids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::least(&[])
    }

    #[test]
    fn designs_remember_inodes_as_long_as_they_are_described_to() {
        let grids = find::grids(&options()).expect("no error");
        for (name, cells) in &grids[2].rows {
            let kept: Vec<f64> = cells.iter().map(|cell| cell[0]).collect();
            let [all, serial, lazy, trimmed, rest @ ..] = &kept[..] else { panic!("{kept:?}") };
            assert!(*all >= 1000.0 && *serial >= 1000.0, "{name}: {kept:?}");
            assert!(*lazy >= find::WRITTEN as f64 && *trimmed <= 64.0, "{name}: {kept:?}");
            assert_eq!(rest, &[0.0, 0.0], "{name}");
        }
    }

    #[test]
    fn collected_writes_of_new_files_are_merged() {
        let plugs = plug::grids(&options()).expect("no error");
        let (_, requests) = &plugs[0].rows[0];
        assert!(requests[0][0] >= 10.0 * requests[1][0], "{requests:?}");
    }
}
