//! Sealing functions with one signature, so that a writer of blocks, such as the journal, need not
//! know their types.

pub use crate::dir::seal_dir_leaf;
pub use crate::extent::seal_extent_block;
pub use crate::htree::seal_htree;
pub use crate::orphan::seal_orphan_block;
pub use crate::xattr::seal_xattr_block;

use crate::dir::has_tail;

/// A function that writes a block's checksum: the block, its number, the seed (the file system's or
/// an inode's).
pub type SealFn = fn(block: &mut [u8], nr: u64, seed: u32);

/// For blocks without checksum.
pub fn seal_none(_block: &mut [u8], _nr: u64, _seed: u32) {}

/// Seals a directory block of either kind: a leaf has a tail, root and interior nodes of a hash
/// tree have none.
pub fn seal_dir_block(block: &mut [u8], nr: u64, seed: u32) {
    if has_tail(block) {
        seal_dir_leaf(block, nr, seed);
    } else {
        seal_htree(block, nr, seed);
    }
}
