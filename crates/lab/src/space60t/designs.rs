//! The designs on the large disk: they only allocate.

use super::disk::Disk;
use super::{Row, Sizes, Write};
use crate::allocators::{Buddy, Defects, Engine, Lists, Policy, Posted, Reading, Want};
use std::time::Instant;

/// Blocks of a request, as writeback makes them.
const REQUEST: u32 = 2048;

/// A design: its name, whether it knows all groups beforehand, and its constructor.
type Player<'a> = (&'static str, bool, Box<dyn FnOnce() -> Box<dyn Policy + 'a> + 'a>);

fn buddies<'a>(map: &'a crate::allocators::Map) -> Vec<Player<'a>> {
    let buddy = move |lists, reading| -> Box<dyn FnOnce() -> Box<dyn Policy + 'a> + 'a> {
        Box::new(move || Box::new(Buddy::new(map, lists, reading, true)))
    };
    vec![
        ("buddy", false, buddy(Lists::None, Reading::Single)),
        ("buddy, read ahead", false, buddy(Lists::None, Reading::Ahead)),
        ("lists of 2023", false, buddy(Lists::Queues, Reading::Ahead)),
        ("lists of 2023, all known", true, buddy(Lists::Queues, Reading::Ahead)),
        ("arrays of 2025", false, buddy(Lists::Arrays, Reading::Ahead)),
        ("arrays of 2025, all known", true, buddy(Lists::Arrays, Reading::Ahead)),
    ]
}

fn trees<'a>(map: &'a crate::allocators::Map) -> Vec<Player<'a>> {
    const AS_POSTED: Defects = Defects { unlinked: true, lost: true };
    let posted = move |level, limit, defects| -> Box<dyn FnOnce() -> Box<dyn Policy + 'a> + 'a> {
        Box::new(move || Box::new(Posted::new(map, level, limit, defects, true)))
    };
    vec![
        ("frsp, level 0", false, posted(0, 0, AS_POSTED)),
        ("frsp, level 1", false, posted(1, 0, AS_POSTED)),
        ("frsp, level 2", false, posted(2, 0, AS_POSTED)),
        ("frsp, level 3", false, posted(3, 0, AS_POSTED)),
        ("frsp, level 3, 1 GB", false, posted(3, 1 << 30, AS_POSTED)),
        ("frsp mended, level 0", false, posted(0, 0, Defects::default())),
        ("frsp mended, level 1", false, posted(1, 0, Defects::default())),
        ("frsp mended, level 2", false, posted(2, 0, Defects::default())),
        ("frsp mended, level 3", false, posted(3, 0, Defects::default())),
        ("frsp mended, level 3, 1 GB", false, posted(3, 1 << 30, Defects::default())),
        ("Extant's rules", false, Box::new(move || Box::new(Engine::new(map, true)))),
        ("Extant's rules, all known", true, Box::new(move || Box::new(Engine::new(map, true)))),
    ]
}

/// Returns a row for each design.
pub fn rows(profile: &'static str, disk: &Disk, sizes: Sizes) -> Vec<Row> {
    let map = disk.map();
    let players = buddies(&map).into_iter().chain(trees(&map));
    players
        .map(|(name, prefetch, make)| row(profile, name, prefetch, make().as_mut(), sizes))
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
            let want = Want { goal: end.unwrap_or(0), len: rest, least: 1, file: 0, busy: None };
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
