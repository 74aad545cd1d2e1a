//! Facts of a new file system.

use extant_format::Features;

/// Description of the new file system.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Features of the file system.
    pub features: Features,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system; blocks at the device's end that are too few for a group are left
    /// out.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes of the file system.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks with copies of the superblock.
    pub copies: Vec<u64>,
    /// Blocks of the journal, 0 if there is none.
    pub journal_blocks: u32,
    /// UUID.
    pub uuid: [u8; 16],
    /// Bytes that were written, without zeroed ranges.
    pub written: u64,
}
