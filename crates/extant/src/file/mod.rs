//! File content: pages, delayed allocation, writeback, direct access, truncate, fallocate, seeking.
//!
//! *Data before mapping*: blocks are claimed in memory, the data are written to them, and only then a handle sets bitmap, map and size.
//!
//! # Locking
//! The caller holds the inode's `rw` lock: for reading in `read` (and in `write` that stays within the size and within mapped blocks, direct), for
//! writing in the rest. Writeback takes `PageWriteback`, then handle, then map.

use crate::error::Result;
use crate::inode::Inode;
use crate::store::Store;
use crate::extent::Run;
use std::sync::Arc;

/// Reads through the page cache; returns bytes read (short at the end of the file).
pub fn read(st: &Store, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _ = (st, inode, offset, buf);
    todo!()
}

/// Writes into the page cache, reserves space, extends the size in memory (on disk with the writeback). `append` ignores the offset. Updates mtime and ctime lazily
/// within a handle no more than once a clock tick; clears suid and sgid if `strip`.
pub fn write(st: &Store, inode: &Arc<Inode>, offset: u64, data: &[u8], strip: bool) -> Result<usize> {
    let _ = (st, inode, offset, data, strip);
    todo!()
}

/// Reads past the page cache (dirty pages of the range are written back first).
pub fn read_direct(st: &Store, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _ = (st, inode, offset, buf);
    todo!()
}

/// Writes past the page cache: claims, writes, maps. Edges of blocks are read, changed and written under a range lock. When it returns the data are on the device
/// (not flushed), and the map and the size are in the running transaction.
pub fn write_direct(st: &Store, inode: &Arc<Inode>, offset: u64, data: &[u8], strip: bool) -> Result<usize> {
    let _ = (st, inode, offset, data, strip);
    todo!()
}

/// Writes dirty pages of `[start, end)` back and waits for them.
pub fn writeback(st: &Store, inode: &Arc<Inode>, start: u64, end: u64) -> Result<()> {
    let _ = (st, inode, start, end);
    todo!()
}

/// Inodes with dirty pages, for the writeback thread and sync.
pub fn dirty_inodes(st: &Store) -> Vec<Arc<Inode>> {
    let _ = st;
    todo!()
}

/// Data and metadata of one file durable; `datasync` leaves out what is not needed to read the data. A writeback error is told once to each holder (see `ops`).
pub fn fsync(st: &Store, inode: &Arc<Inode>, datasync: bool) -> Result<()> {
    let _ = (st, inode, datasync);
    todo!()
}

/// Sets the size; frees what lies behind, zeroes the tail of the last block. Uses an orphan record over several transactions.
pub fn truncate(st: &Store, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let _ = (st, inode, size);
    todo!()
}

/// Frees everything behind the size (replay of an orphan with links) or everything (inode without links); leaves the orphan record to the caller.
pub fn free_blocks(st: &Store, inode: &Arc<Inode>, from: u64) -> Result<()> {
    let _ = (st, inode, from);
    todo!()
}

/// What fallocate(2) can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Falloc {
    /// Allocate; grow the size.
    Allocate,
    /// Allocate; keep the size.
    KeepSize,
    /// Make a hole.
    Punch,
    /// Zero; grow the size.
    Zero,
    /// Zero; keep the size.
    ZeroKeepSize,
    /// Take out.
    Collapse,
    /// Push apart.
    Insert,
}

/// fallocate(2).
pub fn fallocate(st: &Store, inode: &Arc<Inode>, how: Falloc, offset: u64, len: u64) -> Result<()> {
    let _ = (st, inode, how, offset, len);
    todo!()
}

/// SEEK_DATA (`data`) or SEEK_HOLE from `offset`; ENXIO behind the end.
pub fn seek(st: &Store, inode: &Arc<Inode>, offset: u64, data: bool) -> Result<u64> {
    let _ = (st, inode, offset, data);
    todo!()
}

/// Mapped runs of a byte range, in order (dirty pages are written back first); stops when `each` returns false.
pub fn fiemap(st: &Store, inode: &Arc<Inode>, start: u64, len: u64, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
    let _ = (st, inode, start, len, each);
    todo!()
}

/// Reads a symlink's target.
pub fn read_link(st: &Store, inode: &Arc<Inode>) -> Result<Vec<u8>> {
    let _ = (st, inode);
    todo!()
}

/// Stores the target of a new symlink within `h`: in the inode if it is shorter than 60 bytes, else inline or in one block.
pub fn set_link(st: &Store, h: &mut extant_journal::Handle<'_>, inode: &Arc<Inode>, target: &[u8]) -> Result<()> {
    let _ = (st, h, inode, target);
    todo!()
}
