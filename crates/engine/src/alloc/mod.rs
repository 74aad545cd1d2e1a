//! Blocks and inodes: goals, claims, booking, freeing, delayed reservations.
//!
//! Space has four states in memory: free, *claimed* (taken in memory only, by a writeback or a
//! preallocation), *booked* (bit set in the bitmap within a handle) and *leaving* (bit cleared by a
//! transaction that is not durable yet). A claim needs no handle. Freed blocks of files stay booked
//! until their batch is booked. For example, writeback of 8 pages claims blocks 100 to 107, writes
//! them, and books and maps them in one handle.
//!
//! Free space in memory is a tree for each flexible group, made group by group from bitmaps when
//! needed and dropped when memory is short. All groups, in memory or not, have a summary, and all
//! trees are ordered by their longest runs.
//!
//! # Invariants
//! - The free space of a group is its bitmap's clear bits less the runs *held* by claims, and less
//!   frees that are not durable yet. Both are recorded separately, whether or not the group's free
//!   space is in memory. The free space may therefore be dropped, and made again from the bitmap,
//!   at any time, and uncommitted frees are never allocated. Returned runs are first listed beside
//!   their tree, and moved into it before the next search there.
//! - The free clusters of all groups are the budget, plus the reserved clusters, plus those taken
//!   from the budget by claims without a position yet. A claim takes from the budget before it
//!   takes from a tree, and space is returned to its tree before it is returned to the budget. A
//!   thread that holds a part of the budget therefore finds space.
//! - Preallocated space is claimed, and returned before a request fails with ENOSPC.
//! - Summaries and the order of trees are hints. Space is taken from a locked tree.
//!
//! # Locking
//! A group's lock (Group; one for its block bitmap, one for its inodes, never both) is held to book
//! and to free, and while the group is loaded. A tree's lock (FreeSpace) is inward of it and held
//! for changes of memory only; a claim in a tree in memory takes no other lock. No function of this
//! module waits for a commit.

mod book;
mod claim;
mod discard;
mod free_batches;
mod free_space;
mod grow;
mod inodes;
mod orlov;
mod prealloc;
mod replay_frees;
mod tables;
mod tune;
mod usage;

pub use claim::Claim;
pub use free_space::{Fragmentation, Scanned, SpaceStats};
pub use inodes::NewInode;
pub use prealloc::{Prealloc, PreallocStats, Small, Taken};
pub use replay_frees::{in_order, without};
pub use tune::MAX_AGGRESSION;
pub use usage::Usage;

use crate::error::{Errno, Result};
use crate::groups::Groups;
use crate::volume::Volume;
use extant_format::types::{BlockNr, GroupNr, InodeNr};
use extant_sync::atomic::{AtomicU64, Ordering};
use free_space::FreeSpace;
use inodes::Inodes;
use prealloc::PreallocRegistry;
use replay_frees::ReplayFrees;
use std::sync::Arc;
use tables::Tables;

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// File content.
    Data,
    /// Directory, extent and attribute blocks.
    Metadata,
}

/// A wish for blocks.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Best position of the first block: behind the file's last one, or [`Alloc::inode_goal`].
    pub goal: BlockNr,
    /// Blocks wanted.
    pub len: u32,
    /// Fewest blocks that help (at least 1).
    pub min: u32,
    /// The purpose. Metadata may use a margin that data must leave, so that accepted data can be
    /// mapped.
    pub purpose: Purpose,
    /// The request may use root's reserve, and for metadata the whole margin. Set for root, and for
    /// writeback.
    pub privileged: bool,
    /// The blocks were reserved before ([`Alloc::reserve`]); the claim consumes as much of the
    /// reservation as it got.
    pub reserved: bool,
    /// Blocks must lie below 2^32 (indirect maps).
    pub low: bool,
}

/// The allocator of a file system.
#[derive(Debug)]
pub struct Alloc {
    vol: Arc<Volume>,
    groups: Arc<Groups>,
    space: Arc<FreeSpace>,
    inodes: Inodes,
    tables: Tables,
    replay_frees: ReplayFrees,
    /// The preallocations of all files.
    preallocs: Arc<PreallocRegistry>,
    /// Blocks that never hold files.
    overhead: AtomicU64,
    /// Blocks that only root may use.
    reserved_blocks: AtomicU64,
    /// Claims and reservations that failed for lack of blocks.
    refused: AtomicU64,
}

impl Alloc {
    /// Nothing is read yet: a group's map is made from its bitmap when first needed.
    ///
    /// # Errors
    /// None for now.
    pub fn open(vol: Arc<Volume>, groups: Arc<Groups>) -> Result<Alloc> {
        let space = Arc::new(FreeSpace::new(vol.clone(), groups.clone()));
        let inodes = Inodes::new(vol.clone(), groups.clone());
        let preallocs = PreallocRegistry::new(space.clone());
        let sb = groups.superblock();
        let (overhead, reserved_blocks) = (usage::overhead(&vol, &sb), sb.r_blocks_count());
        let (tables, replay_frees) = (Tables::default(), ReplayFrees::default());
        Ok(Alloc {
            vol,
            groups,
            space,
            inodes,
            tables,
            replay_frees,
            preallocs,
            overhead: AtomicU64::new(overhead),
            reserved_blocks: AtomicU64::new(reserved_blocks),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes between `min` and `len` contiguous blocks near the goal.
    ///
    /// # Errors
    /// ENOSPC if there are none; blocks freed by transactions that are not durable yet do not count
    /// (see [`Self::pending`]).
    pub fn claim(&self, want: &Request) -> Result<Claim> {
        match FreeSpace::claim(&self.space, want) {
            // Preallocations near the goal are returned first: they suffice for most requests, and
            // files elsewhere keep theirs.
            Err(e) if e.is(Errno::NoSpc) => {
                self.preallocs.shed_near(want.goal);
                self.unless_preallocated(|| FreeSpace::claim(&self.space, want))
            }
            done => done,
        }
    }

    /// Runs `f`. If it lacks space, returns preallocations, waits for other threads that do, and
    /// runs it again, as long as any were returned. Then waits for slices that are being discarded,
    /// and takes space out of the queue of discards.
    fn unless_preallocated<R>(&self, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        let mut result = f();
        while let Err(e) = &result
            && e.is(Errno::NoSpc)
        {
            let given = self.preallocs.given();
            self.preallocs.shed_all();
            result = f();
            if self.preallocs.given() == given {
                break;
            }
        }
        match result {
            Err(e) if e.is(Errno::NoSpc) => {
                let _lacking = self.space.discards.wait_for_slices();
                loop {
                    match f() {
                        Err(e) if e.is(Errno::NoSpc) && self.space.cancel_queued() => {}
                        Err(e) if e.is(Errno::NoSpc) => {
                            // Relaxed: each thread looks for its own refusals.
                            self.refused.fetch_add(1, Ordering::Relaxed);
                            return Err(e);
                        }
                        result => return result,
                    }
                }
            }
            result => result,
        }
    }

    /// The preallocations of a file: none yet.
    pub fn prealloc(&self) -> Arc<Prealloc> {
        Prealloc::new(self.preallocs.clone())
    }

    /// Blocks that one more preallocation may have now, in whole clusters; 0 when space is scarce.
    pub fn prealloc_capacity(&self) -> u64 {
        self.preallocs.capacity_for_file() << self.vol.geo.cluster_bits
    }

    /// Blocks that are free, more or less, and not needed for anything else.
    pub fn spare(&self) -> u64 {
        self.preallocs.spare() << self.vol.geo.cluster_bits
    }

    /// Claims exactly `want.len` blocks (whole clusters, few) where other small files of this
    /// thread have theirs. `None` if there is no such place: [`Self::claim`] will do.
    pub fn claim_small(&self, who: Small, want: &Request) -> Option<Claim> {
        self.preallocs.claim_small(who, want)
    }

    /// Returns the preallocated space and its counters.
    pub fn prealloc_stats(&self) -> PreallocStats {
        self.preallocs.stats()
    }

    /// Sets space aside for `blocks` delayed blocks, and for `map` clusters of the map that they
    /// may need. The map's may be of the margin: half of it, or all of it if the file owns its
    /// blocks already.
    ///
    /// # Errors
    /// ENOSPC if there is not so much; nothing is set aside then.
    pub fn reserve(&self, blocks: u32, map: u32, privileged: bool) -> Result<()> {
        let (clusters, map) = (self.space.clusters(blocks), u64::from(map));
        let budget = &self.space.budget;
        let of_margin = self.space.min_free(Purpose::Metadata, blocks == 0);
        let min_free = self.space.min_free(Purpose::Data, privileged);
        self.unless_preallocated(|| {
            if budget.take(clusters + map, min_free) {
                return Ok(());
            }
            if budget.take(clusters, if clusters > 0 { min_free } else { 0 }) {
                if budget.take(map, of_margin) {
                    return Ok(());
                }
                budget.give(clusters);
            }
            Err(Errno::NoSpc.into())
        })
    }

    /// Gives a reservation back, in whole clusters.
    pub fn unreserve(&self, blocks: u32) {
        self.space.budget.give(self.space.clusters(blocks));
    }

    /// Claims and reservations that failed for lack of blocks until now. The same number before and
    /// after an operation of this thread means that the operation met no lack of blocks.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks with frees that are not durable yet. If a claim fails while
    /// this is not zero, commit and try again.
    pub fn pending(&self) -> u64 {
        self.space.pending() << self.vol.geo.cluster_bits
    }

    /// Where data of a file without blocks should go: in its inode's group, apart from where other
    /// threads put theirs.
    pub fn inode_goal(&self, ino: InodeNr) -> BlockNr {
        let group = self.vol.geo.inode_location(ino).map_or(GroupNr(0), |(group, _)| group);
        self.space.start_goal(group, self.vol.placing_shard())
    }
}

#[cfg(test)]
mod tests;
