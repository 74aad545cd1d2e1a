//! Free blocks for contents that move, and for logs.
//!
//! The smallest run that can take a request serves it, so that long runs stay for long requests.
//! For example, of the free runs 40 to 47 and 90 to 99, a request for three blocks gets 40 to 42.
//!
//! # Invariants
//! A block is claimed in the map of the survey when it is given out. The runs are a copy: a part
//! of a run that was claimed meanwhile is left out.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use crate::claims::ClaimMap;
use extant_format::{Geometry, GroupNr, bitmap};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of runs in memory; others are found when these are used up.
const MAX_RUNS: usize = 1 << 20;

/// The free clusters of a file system. The blocks that are not to be had must be claimed.
pub struct FreeSpace<'f> {
    claims: &'f ClaimMap,
    geometry: Geometry,
    /// Runs: the number of clusters and the first block.
    runs: BTreeSet<(u64, u64)>,
}

impl<'f> FreeSpace<'f> {
    pub fn new(claims: &'f ClaimMap, geometry: Geometry) -> FreeSpace<'f> {
        FreeSpace { claims, geometry, runs: BTreeSet::new() }
    }

    /// Takes at most so many adjacent clusters. Returns their blocks; `None` if none is free.
    pub fn take(&mut self, clusters: u64) -> Option<Range<u64>> {
        loop {
            let fitting = self.runs.range((clusters, 0)..).next();
            let Some((len, start)) = fitting.or_else(|| self.runs.last()).copied() else {
                self.find_runs();
                if self.runs.is_empty() {
                    return None;
                }
                continue;
            };
            self.runs.remove(&(len, start));
            let bits = self.geometry.cluster_bits;
            if let Some(taken) = self.claims.first_claimed(start..start + (len << bits)) {
                let before = (taken - start) >> bits;
                self.add(start, before);
                self.add(start + ((before + 1) << bits), len - before - 1);
                continue;
            }
            let given = len.min(clusters);
            let blocks = start..start + (given << bits);
            self.add(blocks.end, len - given);
            self.claims.claim_all(blocks.clone());
            return Some(blocks);
        }
    }

    /// Takes a cluster. Returns its first block.
    pub fn take_one(&mut self) -> Option<u64> {
        self.take(1).map(|blocks| blocks.start)
    }

    fn add(&mut self, start: u64, clusters: u64) {
        if clusters > 0 {
            self.runs.insert((clusters, start));
        }
    }

    fn find_runs(&mut self) {
        let geometry = self.geometry;
        let mut used = vec![0; geometry.block_size as usize];
        for group in (0..geometry.groups_count).map(GroupNr) {
            self.claims.copy_group(group, &mut used);
            let end = geometry.clusters_in_group(group) as usize;
            let mut from = 0;
            while let Some(run) = bitmap::next_zero_run(&used, from, end) {
                if self.runs.len() >= MAX_RUNS {
                    return;
                }
                let start = geometry.block_of_bit(group, run.start as u32).0;
                self.add(start, run.len() as u64);
                from = run.end;
            }
        }
    }
}

/// Returns the number of claimed clusters from `from` to `to`, two blocks at which clusters begin.
pub fn count(claims: &ClaimMap, geometry: &Geometry, blocks: Range<u64>) -> u64 {
    let mut used = vec![0; geometry.block_size as usize];
    let mut sum = 0;
    for group in (0..geometry.groups_count).map(GroupNr) {
        let first = geometry.first_block_of_group(group).0;
        let end = first + u64::from(geometry.blocks_in_group(group));
        let (from, to) = (blocks.start.clamp(first, end), blocks.end.clamp(first, end));
        if from < to {
            claims.copy_group(group, &mut used);
            let bit = |block: u64| ((block - first) >> geometry.cluster_bits) as usize;
            sum += bitmap::count_ones(&used, bit(from)..bit(to - 1) + 1) as u64;
        }
    }
    sum
}
