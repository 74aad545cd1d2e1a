//! The designs on the large disk: they only allocate.

use super::disk::Disk;
use super::{Row, Sizes, Write};
use crate::allocators::{self, Map, Policy, Want};
use std::time::Instant;

/// Blocks of a request, as writeback makes them.
const REQUEST: u32 = 2048;

/// Designs that also run when they know all groups beforehand.
const ALSO_KNOWN: [&str; 2] = ["lists of 2023", "arrays of 2025"];

/// Linear buddies, reading bitmap by bitmap and reading ahead.
pub const BUDDIES: [&str; 2] = ["buddy", "buddy, read ahead"];

/// Returns a row for each design.
pub fn rows(profile: &'static str, disk: &Disk, sizes: Sizes) -> Vec<Row> {
    let level = |kind| {
        let levels = ["0", "1", "2", "3", "3, 1 GB"];
        levels.map(|level| format!("{kind}, level {level}"))
    };
    let frsp = [level("frsp"), level("frsp mended")].concat();
    let names: Vec<&str> = frsp.iter().map(String::as_str).collect();
    let unknown = [&BUDDIES[..], &names, &ALSO_KNOWN].concat();
    let map = disk.map();
    let unknown = unknown.into_iter().map(|name| (name, false));
    unknown
        .chain(ALSO_KNOWN.map(|name| (name, true)))
        .filter_map(|(name, known)| row(profile, name, known, &map, sizes))
        .collect()
}

/// Runs a design, which knows all groups beforehand or none.
pub fn row(
    profile: &'static str,
    name: &str,
    prefetch: bool,
    map: &Map,
    sizes: Sizes,
) -> Option<Row> {
    let mut policy = allocators::named(name, map, true)?;
    let start = Instant::now();
    if prefetch {
        policy.prefetch();
    }
    let known = prefetch.then(|| start.elapsed().as_secs_f64() + policy.cost().waited as f64 / 1e9);
    let writes = sizes.map(|bytes| write(policy.as_mut(), bytes));
    let name = if prefetch { format!("{name}, all known") } else { name.to_owned() };
    eprintln!("{profile}: {name} done");
    let (profile, name) = (profile.into(), name.into());
    Some(Row { profile, name, plays: true, mount: None, known, writes })
}

fn write(policy: &mut dyn Policy, bytes: u64) -> Write {
    let (start, before) = (Instant::now(), policy.cost());
    let (mut pieces, mut end, mut left) = (0, None, (bytes >> 12) as u32);
    while left > 0 {
        let window = left.min(REQUEST);
        let mut rest = window;
        while rest > 0 {
            let want = Want { goal: end.unwrap_or(0), len: rest, file: 0 };
            let Some(taken) = policy.allocate(&want) else { break };
            pieces += u64::from(end != Some(taken.start));
            end = Some(taken.end());
            rest -= taken.len;
        }
        left -= window;
    }
    let cost = policy.cost();
    let waited = (cost.waited - before.waited) as f64 / 1e9;
    Write {
        seconds: start.elapsed().as_secs_f64() + waited,
        runs: Vec::new(),
        waited,
        pieces,
        tree_bytes: cost.bytes,
        index_bytes: 0,
        trees: cost.cached,
        bitmaps: cost.bitmaps,
        looked: cost.looked,
        claims: [0; 6],
    }
}
