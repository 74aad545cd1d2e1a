//! The designs on the large disk: they only allocate.

use super::disk::Disk;
use super::{Row, Sizes, Write};
use crate::allocators::{self, Buddy, Lists, Policy, Reading, Want};
use std::time::Instant;

/// Blocks of a request, as writeback makes them.
const REQUEST: u32 = 2048;

/// The designs; those at the end also when they know all groups beforehand.
const NAMES: [&str; 14] = [
    "buddy",
    "buddy, read ahead",
    "frsp, level 0",
    "frsp, level 1",
    "frsp, level 2",
    "frsp, level 3",
    "frsp, level 3, 1 GB",
    "frsp mended, level 0",
    "frsp mended, level 1",
    "frsp mended, level 2",
    "frsp mended, level 3",
    "frsp mended, level 3, 1 GB",
    "lists of 2023",
    "arrays of 2025",
];
const ALSO_KNOWN: usize = 12;

/// Returns a row for each design.
pub fn rows(profile: &'static str, disk: &Disk, sizes: Sizes) -> Vec<Row> {
    let map = disk.map();
    let unknown = NAMES.iter().map(|name| (*name, false));
    let all = unknown.chain(NAMES[ALSO_KNOWN..].iter().map(|name| (*name, true)));
    all.filter_map(|(name, known)| {
        let mut policy = allocators::named(name, &map, true)?;
        let title = if known { format!("{name}, all known") } else { name.to_owned() };
        Some(row(profile, &title, known, policy.as_mut(), sizes))
    })
    .collect()
}

/// Linear buddies, reading bitmap by bitmap and reading ahead.
pub fn buddies_of_2020(disk: &Disk, sizes: Sizes) -> [Row; 2] {
    let map = disk.map();
    [Reading::Single, Reading::Ahead].map(|reading| {
        row("posted", "buddy", false, &mut Buddy::new(&map, Lists::None, reading, true), sizes)
    })
}

fn row(
    profile: &'static str,
    name: &str,
    prefetch: bool,
    policy: &mut dyn Policy,
    sizes: Sizes,
) -> Row {
    let start = Instant::now();
    if prefetch {
        policy.prefetch();
    }
    let known = prefetch.then(|| start.elapsed().as_secs_f64() + policy.cost().waited as f64 / 1e9);
    let writes = sizes.map(|bytes| write(policy, bytes));
    eprintln!("{profile}: {name} done");
    Row {
        profile: profile.into(),
        name: name.to_owned().into(),
        plays: true,
        mount: None,
        known,
        writes,
    }
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
