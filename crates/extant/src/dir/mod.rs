//! Directory blocks: linear, hashed (htree of up to three levels), inline.
//!
//! # Locking
//! The caller holds the directory's `rw` lock: for reading in [`lookup`], [`read`], [`is_empty`], [`parent`]; for writing in the rest.

use crate::error::Result;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::types::{FileType, InodeNr};
use extant_journal::Handle;
use std::sync::Arc;

/// An entry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Inode number.
    pub ino: InodeNr,
    /// Type in the entry; Unknown where the file system keeps none.
    pub ftype: FileType,
}

/// An entry handed out by [`read`].
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Name, not UTF-8.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: InodeNr,
    /// Type in the entry.
    pub ftype: FileType,
    /// Where reading continues behind this entry.
    pub next: u64,
}

/// Finds a name (`.` and `..` too).
pub fn lookup(st: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    let _ = (st, dir, name);
    todo!()
}

/// Adds a name that is known to be absent. Splits, indexes, grows the directory as needed (updates size and blocks; not times or links).
pub fn insert(st: &Store, h: &mut Handle<'_>, dir: &Arc<Inode>, name: &[u8], ino: InodeNr, ftype: FileType) -> Result<()> {
    let _ = (st, h, dir, name, ino, ftype);
    todo!()
}

/// Removes a name; ENOENT if it is not there.
pub fn remove(st: &Store, h: &mut Handle<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Found> {
    let _ = (st, h, dir, name);
    todo!()
}

/// Points an existing name (also `..`) at another inode.
pub fn replace(st: &Store, h: &mut Handle<'_>, dir: &Arc<Inode>, name: &[u8], ino: InodeNr, ftype: FileType) -> Result<()> {
    let _ = (st, h, dir, name, ino, ftype);
    todo!()
}

/// Makes the first block (or the inline area) of a new directory, with `.` and `..`; sets the size.
pub fn init(st: &Store, h: &mut Handle<'_>, dir: &Arc<Inode>, parent: InodeNr) -> Result<()> {
    let _ = (st, h, dir, parent);
    todo!()
}

/// Whether only `.` and `..` are there.
pub fn is_empty(st: &Store, dir: &Inode) -> Result<bool> {
    let _ = (st, dir);
    todo!()
}

/// Where `..` leads.
pub fn parent(st: &Store, dir: &Inode) -> Result<InodeNr> {
    let _ = (st, dir);
    todo!()
}

/// Hands out entries from `cookie` on (0: from the start, `.` and `..` first) until `each` returns false or the end is reached. Cookies are stable
/// while entries come and go: hash order where the file system has dir_index.
pub fn read(st: &Store, dir: &Inode, cookie: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
    let _ = (st, dir, cookie, each);
    todo!()
}

/// Credits that one [`insert`] may cost (splits at every level, growth, conversion).
pub fn insert_credits(st: &Store, dir: &Inode) -> u32 {
    let _ = (st, dir);
    todo!()
}

/// Credits of [`remove`] or [`replace`].
pub const CHANGE_CREDITS: u32 = 2;
