//! The trace played on designs of allocators: no file system, no preallocation, no delayed
//! allocation; each write is a request.

use super::look::State;
use super::trace::{BLOCK, DIRS, Event, Scale, Trace};
use crate::allocators::{self, Map, Policy, Shape, Taken, Want};
use std::collections::HashMap;

/// Blocks of a group, groups of a flexible one as a power of two, and blocks of the flexible
/// group's metadata.
const GROUP: u32 = 32_768;
const FLEX_BITS: u32 = 4;
const METADATA: u32 = 8_192;

/// Names in tables, and the designs.
const DESIGNS: [(&str, &str); 5] = [
    ("buddy, linear", "buddy, read ahead"),
    ("lists of 2023", "lists of 2023"),
    ("arrays of 2025", "arrays of 2025"),
    ("frsp, level 1", "frsp, level 1"),
    ("frsp, level 3", "frsp mended, level 3"),
];

/// Makes a disk with so much space.
fn disk(scale: Scale) -> Map {
    let blocks = scale.room / BLOCK;
    let groups = blocks.div_ceil(GROUP.into()).max(4) as u32;
    Map::empty(Shape { group_len: GROUP, groups, flex_bits: FLEX_BITS }, METADATA)
}

/// Runs the trace on each design and returns the resulting fragmentation.
pub fn rows(scale: Scale, seed: u64) -> Vec<(&'static str, State)> {
    let map = disk(scale);
    let aged = |(name, design): &(&'static str, &str)| {
        let mut policy = allocators::named(design, &map, false)?;
        Some((*name, age(policy.as_mut(), Trace::new(scale, seed), &map)))
    };
    DESIGNS.iter().filter_map(aged).collect()
}

/// Runs of each file, and bytes.
#[derive(Default)]
struct Files(HashMap<u32, (Vec<Taken>, u64)>);

impl Files {
    fn give_back(&mut self, id: u32, policy: &mut dyn Policy) {
        let (runs, _) = self.0.remove(&id).unwrap_or_default();
        runs.into_iter().for_each(|run| policy.free(run));
    }

    fn append(&mut self, id: u32, bytes: u64, policy: &mut dyn Policy, start: u64) {
        let (runs, had) = self.0.entry(id).or_default();
        let mut left = ((*had + bytes).div_ceil(BLOCK) - had.div_ceil(BLOCK)) as u32;
        *had += bytes;
        while left > 0 {
            let goal = runs.last().map_or(start, |run| run.end());
            let want = Want { goal, len: left, file: id };
            let Some(taken) = policy.allocate(&want) else { return };
            left -= taken.len;
            match runs.last_mut().filter(|last| last.end() == taken.start) {
                Some(last) => last.len += taken.len,
                None => runs.push(taken),
            }
        }
    }
}

fn age(policy: &mut dyn Policy, trace: Trace, map: &Map) -> State {
    let mut files = Files::default();
    let shape = map.shape;
    // Directories are spread over groups, but not over those with metadata.
    let start = |id: u32| {
        let group = (id % DIRS) % shape.groups;
        shape.block(if shape.is_first(group) { (group + 1) % shape.groups } else { group }, 0)
    };
    for event in trace {
        match event {
            Event::Create(_) | Event::Sync => {}
            Event::Append(id, bytes) => files.append(id, bytes, policy, start(id)),
            Event::Empty(id) | Event::Remove(id) => files.give_back(id, policy),
        }
    }
    let mut state = State::default();
    let mut used: Vec<Taken> = Vec::new();
    for (runs, bytes) in files.0.into_values() {
        state.add_file(bytes.div_ceil(BLOCK), runs.len() as u64);
        used.extend(runs);
    }
    free_between(used, map, &mut state);
    state
}

/// Returns the free runs within groups, the gaps between runs in use.
fn free_between(mut used: Vec<Taken>, map: &Map, state: &mut State) {
    used.sort_unstable_by_key(|run| run.start);
    let mut used = used.into_iter().peekable();
    for g in 0..map.shape.groups {
        for free in map.runs(g) {
            let (mut at, end) = (map.shape.block(g, free.start), map.shape.block(g, free.end()));
            while let Some(run) = used.next_if(|run| run.start < end) {
                if run.start > at {
                    state.add_run((run.start - at) as u32);
                }
                at = run.end();
            }
            if end > at {
                state.add_run((end - at) as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_design_ends_with_the_same_files_and_as_much_free_space() {
        let scale = Scale { room: 512 << 20, fill: 80, churn: 0.5 };
        let rows = rows(scale, 1);
        let (_, first) = rows[0];
        assert!(first.files > 100 && first.free > 0 && first.runs > 0, "{first:?}");
        for (name, state) in &rows {
            assert_eq!((state.files, state.free), (first.files, first.free), "{name}: {state:?}");
            assert!(state.pieces >= state.files && state.whole > 0, "{name}: {state:?}");
        }
    }
}
