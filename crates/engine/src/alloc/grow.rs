//! Groups that the file system gets while it is open.

use super::{Alloc, usage};
use crate::error::Result;
use crate::groups::Kind;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::types::GroupNr;
use extant_journal::Handle;
use extant_space::Run;
use extant_sync::atomic::Ordering::Relaxed;
use std::ops::Range;

impl Alloc {
    /// Credits of [`Self::open_tail`] and [`Self::free_tail`] together.
    pub const TAIL_CREDITS: u32 = 6;

    /// Initialises the bitmap of the last group, where it was never written: all clusters behind
    /// the end must be marked as used before the end moves. Checks that the given clusters are.
    ///
    /// # Errors
    /// `Corrupt` if they are not, or if the group's bitmap is wrong; `Io`.
    pub fn open_tail(&self, h: &mut Handle<'_>, g: GroupNr, clusters: &Range<u32>) -> Result<()> {
        let _bitmap = self.space.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        let bits = clusters.start as usize..clusters.end as usize;
        if bitmap::all_ones(&buffer.read(), bits) {
            return Ok(());
        }
        Err(Corrupt::new("block bitmap").field("blocks behind the end").at_group(g).into())
    }

    /// Frees the clusters that a short last group gets. They may be allocated once the transaction
    /// is durable. The geometry must have them.
    ///
    /// # Errors
    /// `Corrupt` if the group's bitmap or counts are wrong; `Io`.
    pub fn free_tail(&self, h: &mut Handle<'_>, g: GroupNr, clusters: &Range<u32>) -> Result<()> {
        let len = clusters.end.saturating_sub(clusters.start);
        self.space.free_clusters(h, g, Run { start: clusters.start, len })
    }

    /// Makes places for new groups in all tables, up to so many groups. Does nothing if they have
    /// as many. No two threads may do this at once.
    pub fn append_groups(&self, groups: u32) {
        self.space.append_groups(groups);
        self.preallocs.append_trees(self.space.shape.trees_of(groups));
        self.inodes.append_groups(groups);
    }

    /// Makes the space and the inodes of new groups available. The transaction that added them must
    /// be durable.
    pub fn publish_groups(&self) {
        let first = self.space.shape.groups();
        self.space.publish_groups();
        self.inodes.publish_groups(first);
        let sb = self.groups.superblock();
        self.overhead.store(usage::overhead(&self.vol, &sb), Relaxed);
        self.reserved_blocks.store(sb.r_blocks_count(), Relaxed);
    }
}
