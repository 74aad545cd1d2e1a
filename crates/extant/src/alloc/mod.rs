//! Blocks and inodes: goals, claims, booking, freeing, delayed reservations.
//!
//! Space has three states in memory: free, *claimed* (taken in memory only, by a writeback, a preallocation or a free
//! that is not durable yet) and *booked* (bit set in the bitmap within a handle). A claim needs no handle.
//!
//! # Locking
//! A group's lock is taken only to claim or to give back. Nothing here waits for a commit.

use crate::error::Result;
use crate::groups::Groups;
use crate::inode::Inode;
use crate::volume::Volume;
use extant_format::types::{BlockNr, FileType, InodeNr};
use extant_journal::{Handle, Tid};
use std::sync::Arc;

/// What space is wanted for.
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
    /// Best place for the first block.
    pub goal: BlockNr,
    /// Blocks wanted.
    pub len: u32,
    /// Fewest blocks that help (at least 1).
    pub min: u32,
    /// What for.
    pub purpose: Purpose,
    /// The reserve for root may be used.
    pub privileged: bool,
    /// The blocks were reserved before ([`Alloc::reserve`]); claiming consumes that reservation.
    pub reserved: bool,
    /// Blocks must lie below 2^32 (indirect maps).
    pub low: bool,
}

/// Blocks taken in memory. Dropped without [`Alloc::book`], they go back.
#[derive(Debug)]
pub struct Claim {
    alloc: Arc<AllocInner>,
    /// First block (cluster aligned on bigalloc).
    pub start: BlockNr,
    /// Blocks (whole clusters).
    pub len: u32,
}

/// Shared state behind [`Alloc`] and its claims.
#[derive(Debug)]
pub struct AllocInner {}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = &self.alloc;
    }
}

/// The allocator of a file system.
#[derive(Debug)]
pub struct Alloc {}

/// Usage of the file system, in blocks and inodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Blocks in all, without overhead (bsddf).
    pub blocks: u64,
    /// Free blocks; delayed reservations count as used.
    pub free: u64,
    /// Free blocks less the reserve for root.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Alloc {
    /// Nothing is read yet: a group's map is made from its bitmap when first needed.
    pub fn open(vol: Arc<Volume>, groups: Arc<Groups>) -> Result<Alloc> {
        let _ = (vol, groups);
        todo!()
    }

    /// Takes between `min` and `len` contiguous blocks near the goal. ENOSPC if there are none; blocks freed by
    /// transactions that are not durable yet do not count (see [`Self::pending`]).
    pub fn claim(&self, want: &Request) -> Result<Claim> {
        let _ = want;
        todo!()
    }

    /// Books the first `len` blocks of the claim within `h`: bitmap, counts. The rest of the claim stays claimed.
    /// Returns the first booked block.
    pub fn book(&self, h: &mut Handle<'_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
        let _ = (h, claim, len);
        todo!()
    }

    /// Credits that booking or freeing a contiguous run of `blocks` may cost.
    pub fn credits(&self, blocks: u32) -> u32 {
        let _ = blocks;
        todo!()
    }

    /// Frees booked blocks within `h`. They become allocatable when the transaction is durable. Metadata (or data that
    /// was logged) is revoked. A block that is already free is corruption.
    pub fn free(&self, h: &mut Handle<'_>, start: BlockNr, len: u32, purpose: Purpose) -> Result<()> {
        let _ = (h, start, len, purpose);
        todo!()
    }

    /// Sets space aside for `blocks` delayed blocks (rounded up to clusters by the caller's accounting), ENOSPC if
    /// there is not so much.
    pub fn reserve(&self, blocks: u32, privileged: bool) -> Result<()> {
        let _ = (blocks, privileged);
        todo!()
    }

    /// Gives a reservation back.
    pub fn unreserve(&self, blocks: u32) {
        let _ = blocks;
        todo!()
    }

    /// Blocks whose freeing is not durable yet. If a claim fails while this is not zero, commit and try again.
    pub fn pending(&self) -> u64 {
        todo!()
    }

    /// Takes an inode number: Orlov for directories, the parent's group for the rest. Books it in the bitmap, the
    /// descriptor and the counts, initialises the group's bitmap or table part if it was uninitialised. The slot is
    /// the caller's to fill.
    pub fn new_inode(&self, h: &mut Handle<'_>, parent: &Inode, ftype: FileType) -> Result<InodeNr> {
        let _ = (h, parent, ftype);
        todo!()
    }

    /// Credits of [`Self::new_inode`] and [`Self::free_inode`].
    pub const INODE_CREDITS: u32 = 4;

    /// Frees an inode number. An inode that is already free is corruption.
    pub fn free_inode(&self, h: &mut Handle<'_>, ino: InodeNr, ftype: FileType) -> Result<()> {
        let _ = (h, ino, ftype);
        todo!()
    }

    /// Whether the inode bitmap has the number.
    pub fn inode_in_use(&self, ino: InodeNr) -> Result<bool> {
        let _ = ino;
        todo!()
    }

    /// First block of the inode's group, coloured: where data of a file without blocks should go.
    pub fn inode_goal(&self, ino: InodeNr) -> BlockNr {
        let _ = ino;
        todo!()
    }

    /// A transaction is durable: what it freed may be allocated again (and is discarded if asked for).
    pub fn committed(&self, tid: Tid) {
        let _ = tid;
        todo!()
    }

    /// Usage for statfs.
    pub fn usage(&self) -> Usage {
        todo!()
    }
}
