//! Runs that a thread's small files share, and those that its directories share.

use super::registry::PreallocRegistry;
use super::stats::count;
use crate::alloc::Request;
use crate::alloc::claim::Claim;
use crate::alloc::free_space::FreeSpace;
use extant_format::types::BlockNr;
use extant_space::prealloc::{Chunk, Locality, Piece};
use extant_sync::{Level, Mutex, Sharded};
use std::ops::Range;
use std::sync::Arc;

/// A shared run may be so many times as long as a window.
const CHUNK_SHARE: u64 = 8;

/// The users of a shared run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Small {
    /// Small files.
    File,
    /// Directories.
    Directory,
}

/// The shared runs of every thread.
#[derive(Debug)]
pub(super) struct Shared {
    files: Sharded<Mutex<Locality>>,
    directories: Sharded<Mutex<Locality>>,
}

impl Default for Shared {
    fn default() -> Shared {
        let new = || Sharded::new(|_| Mutex::new(Level::Alloc, Locality::default()));
        Shared { files: new(), directories: new() }
    }
}

impl Shared {
    fn of(&self, who: Small, sharer: usize) -> &Mutex<Locality> {
        match who {
            Small::File => self.files.at(sharer),
            Small::Directory => self.directories.at(sharer),
        }
    }
}

impl PreallocRegistry {
    /// Claims exactly `want.len` blocks (whole clusters) from the front of a shared run near the
    /// goal; where little is left, a hole that a file fits into. `None` if there is none, and none
    /// can be made.
    pub fn claim_small(self: &Arc<Self>, who: Small, want: &Request) -> Option<Claim> {
        let shared = self.shared.of(who, self.sharer()?);
        if who == Small::File
            && let Some(hole) = FreeSpace::claim_hole(self.space(), want)
        {
            return Some(hole);
        }
        let bits = self.cluster_bits();
        let (goal, len) = (want.goal.0 >> bits, want.len >> bits);
        let reach = self.reach(want);
        let found = shared.lock().take(goal, len, &reach);
        if let Some(chunk) = found {
            let counters = self.counters().local();
            count(&counters.small_hits, 1);
            count(&counters.held, -i64::from(len));
            return Some(Claim::new(
                self.space().clone(),
                BlockNr(chunk.physical << bits),
                want.len,
            ));
        }
        count(&self.counters().local().small_misses, 1);
        let goal_len = Locality::goal_len(0);
        // Many files share it, so it may take a larger part of the allowed preallocations than one
        // file's window.
        if self.capacity().saturating_mul(CHUNK_SHARE) < u64::from(goal_len) {
            return None;
        }
        let chunk = Request {
            len: goal_len << bits,
            min: want.len,
            privileged: false,
            reserved: false,
            ..*want
        };
        let mut claim = FreeSpace::claim(self.space(), &chunk).ok()?;
        let own = claim.split(want.len);
        self.share(shared, claim);
        Some(own)
    }

    /// Small files are worth being near their neighbours: those of the goal's flexible group. In
    /// clusters.
    fn reach(&self, want: &Request) -> Range<u64> {
        let geo = &self.space().vol.geo;
        let bits = self.cluster_bits();
        let (group, _) = geo.group_and_bit(want.goal).unwrap_or_default();
        let flex = u64::from(geo.blocks_per_group) << geo.flex_bits.min(16);
        let first =
            u64::from(geo.first_data_block) + (u64::from(group.0) >> geo.flex_bits.min(16)) * flex;
        let end = first.saturating_add(flex);
        (first >> bits)..(if want.low { end.min((1 << 32) - 512) } else { end }) >> bits
    }

    /// Shares the rest of a claim.
    fn share(&self, shared: &Mutex<Locality>, claim: Claim) {
        let bits = self.cluster_bits();
        let (start, len) = claim.into_parts();
        if len == 0 {
            return;
        }
        count(&self.counters().local().held, (len >> bits).into());
        let chunk = Chunk { physical: start.0 >> bits, len: len >> bits };
        let too_many = shared.lock().add(chunk);
        self.take_back(too_many);
    }

    fn take_back(&self, chunks: Vec<Chunk>) -> u64 {
        let clusters = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        count(&self.counters().local().held, -(clusters as i64));
        self.give_back(chunks.into_iter().map(|chunk| Piece {
            logical: 0,
            physical: chunk.physical,
            len: chunk.len,
        }));
        clusters
    }

    /// Gives all shared runs back.
    pub(super) fn drain_shared(&self) -> u64 {
        let all = self.shared.files.iter().chain(self.shared.directories.iter());
        let chunks: Vec<Chunk> = all.flat_map(|shared| shared.lock().drain()).collect();
        self.take_back(chunks)
    }
}
