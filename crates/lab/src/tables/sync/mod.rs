//! Sync: ways to find the writes for which it must wait, the cost of a sync of the engine, and the
//! gain of collecting writes.

mod designs;
mod engine;
mod find;
#[cfg(feature = "designs")]
mod plug;

use crate::options::Options;
use crate::stored::Results;
use std::io;

/// Arguments of `extant-lab sync`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Clean inodes in the engine's memory; each takes about a kilobyte.
    #[arg(long, default_value_t = 1_000_000)]
    inodes: usize,
}

pub fn run(args: &Args) -> io::Result<bool> {
    let options = &args.options;
    let mut grids = Vec::new();
    if options.wants("designs") {
        grids.extend(find::grids(options)?);
    }
    if options.wants("engine") {
        let inodes = if options.quick { args.inodes.min(50_000) } else { args.inodes };
        grids.extend(engine::grids(options, inodes)?);
    }
    #[cfg(feature = "designs")]
    if options.wants("plug") {
        grids.extend(plug::grids(options)?);
    }
    grids.print(options.json)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::least(&[])
    }

    #[test]
    fn lists_forget_inodes_at_their_end_or_when_they_are_trimmed() {
        let grids = find::grids(&options()).expect("every design waits for its writes");
        for (name, cells) in &grids[2].rows {
            let kept: Vec<f64> = cells.iter().map(|cell| cell[0]).collect();
            let all = kept[0];
            assert!(all >= 1000.0, "{name}: {kept:?}");
            assert_eq!(kept, [all, all, all, 0.0, 0.0, 0.0], "{name}");
        }
    }

    #[cfg(feature = "designs")]
    #[test]
    fn collected_writes_of_new_files_are_merged() {
        let plugs = plug::grids(&options()).expect("no error");
        let (_, requests) = &plugs[0].rows[0];
        assert!(requests[0][0] >= 10.0 * requests[1][0], "{requests:?}");
    }
}
