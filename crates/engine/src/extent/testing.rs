//! Fixtures of the unit tests of this module.

use extant_format::features::{Features, Incompat, RoCompat};
use extant_format::{Geometry, Superblock};

/// A file system of `blocks` blocks with extents and metadata checksums.
pub(super) fn geometry(blocks: u64, block_size: u32) -> Geometry {
    let log = block_size.ilog2() - 10;
    let per_group = 8 * block_size;
    let mut sb = Superblock::empty();
    sb.set_features(Features {
        incompat: Incompat::EXTENTS | Incompat::FILETYPE,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
        ..Features::default()
    });
    sb.raw_mut().checksum_type = 1;
    sb.set_log_block_size(log);
    sb.set_log_cluster_size(log);
    sb.set_first_data_block(u32::from(log == 0));
    sb.set_blocks_count(blocks);
    sb.set_blocks_per_group(per_group);
    sb.set_clusters_per_group(per_group);
    sb.set_inodes_per_group(1024);
    sb.set_inodes_count(blocks.div_ceil(per_group.into()) as u32 * 1024);
    sb.set_inode_size(256);
    sb.set_first_ino(11);
    Geometry::new(&sb).unwrap()
}
