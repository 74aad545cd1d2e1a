//! The interface to the content of a new file system: the root directory and everything below it.

use super::error::Result;
use super::options::Options;
use extant_blocks::BlockDevice;
use extant_format::InodeNr;
use extant_format::quota::{QuotaKind, QuotaRecord};
use std::ops::Range;

/// The part of the content that the layout must know before it can place anything.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// Blocks of the root directory.
    pub root_blocks: u64,
    /// The users, groups and projects that own something, for the quota files; see
    /// [`QuotaKind::index`].
    pub owners: [Vec<u32>; 3],
    /// Whether the journal follows the other metadata, so that free space is in one run, and the
    /// last group may be as small as its metadata allows. Otherwise the journal lies in the middle,
    /// and the last group has some free blocks at least, as with mke2fs.
    pub packed: bool,
    /// Blocks of `lost+found` if the content has this directory: the file system then has its place
    /// alone. At least [`lost_found_blocks`](crate::lost_found_blocks).
    pub lost_found: Option<u64>,
    /// Blocks with content that was written before the layout is made; no structure goes there.
    pub kept: Vec<Range<u64>>,
}

impl Demand {
    /// Returns the demand of a root with `root_blocks` blocks.
    pub fn new(root_blocks: u64, owners: [Vec<u32>; 3], packed: bool) -> Demand {
        Demand { root_blocks, owners, packed, lost_found: None, kept: Vec::new() }
    }

    /// Returns the demand of an empty root.
    pub(super) fn empty(options: &Options) -> Demand {
        let (uid, gid) = options.root_owner;
        let owners = [uid, gid, 0].map(|id| if id == 0 { vec![0] } else { vec![id, 0] });
        Demand::new(1, owners, false)
    }

    pub(super) fn unused_records(&self, kind: QuotaKind) -> Vec<QuotaRecord> {
        let owners = self.owners.get(kind.index()).into_iter().flatten();
        owners.map(|id| QuotaRecord { id: *id, ..QuotaRecord::default() }).collect()
    }
}

/// The content of a new file system: inode 2, and the inodes from
/// [`FsLayout::first_inode`](crate::FsLayout::first_inode) on, without gaps. With
/// [`Demand::lost_found`], also the first ordinary inode, which is that of `lost+found`.
pub trait Population: Sync {
    /// Returns the number of inodes beside the root and `lost+found`.
    fn inodes(&self) -> u32;

    /// Returns the number of directories among these inodes, without the root and `lost+found`.
    fn directories(&self, inodes: Range<u32>) -> u32;

    /// Returns the number of inodes that count for an owner, and the bytes that they take.
    fn usage(&self, kind: QuotaKind, id: u32) -> (u64, u64);

    /// Writes an inode into its slot, which is zeroed.
    ///
    /// # Errors
    /// [`Error`](crate::Error) for an inode that the format cannot hold.
    fn encode(&self, ino: InodeNr, slot: &mut [u8]) -> Result<()>;

    /// Writes all blocks of the content; returns the number of bytes written.
    ///
    /// # Errors
    /// Those of the device and of the content's sources.
    fn write(&self, device: &dyn BlockDevice) -> Result<u64>;
}
