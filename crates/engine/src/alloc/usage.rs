//! Numbers of used and free blocks and inodes.

use super::Alloc;
use crate::volume::Volume;
use extant_format::superblock::Superblock;
use extant_format::types::GroupNr;
use extant_sync::atomic::Ordering::Relaxed;

/// Usage of the file system, in blocks and inodes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Blocks in all, without overhead (bsddf).
    pub blocks: u64,
    /// Free blocks; delayed reservations count as used, preallocations as free.
    pub free: u64,
    /// Free blocks less the reserve for root and the margin for metadata.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Alloc {
    /// Usage for statfs.
    pub fn usage(&self) -> Usage {
        let bits = self.vol.geo.cluster_bits;
        let free =
            (self.space.budget.amount() + self.space.pending() + self.preallocs.held()) << bits;
        let (_, margin) = self.space.kept();
        // Relaxed, here and below: numbers for display.
        let kept = self.reserved_blocks.load(Relaxed).saturating_add(margin << bits);
        Usage {
            blocks: self.vol.geo.blocks_count.saturating_sub(self.overhead.load(Relaxed)),
            free,
            available: free.saturating_sub(kept),
            inodes: self.vol.geo.inodes_count.into(),
            inodes_free: self.groups.free_inodes(),
        }
    }
}

/// Blocks that never hold files: as the superblock says, else counted from the layout.
pub(super) fn overhead(vol: &Volume, sb: &Superblock) -> u64 {
    let geo = &vol.geo;
    match sb.overhead_clusters() {
        0 => count(vol, sb),
        clusters => u64::from(clusters) << geo.cluster_bits,
    }
}

fn count(vol: &Volume, sb: &Superblock) -> u64 {
    let geo = &vol.geo;
    let own = u64::from(geo.inode_table_blocks()) + 2;
    let base: u64 =
        (0..geo.groups_count).map(|g| u64::from(geo.base_meta_blocks(GroupNr(g)))).sum();
    let journal = sb.journal_backup().map_or(0, |backup| backup.size >> geo.block_bits);
    u64::from(geo.first_data_block)
        .saturating_add(base)
        .saturating_add(own.saturating_mul(geo.groups_count.into()))
        .saturating_add(journal)
}
