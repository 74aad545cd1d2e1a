//! File content: pages, delayed allocation, writeback, direct access, truncate, fallocate, seeking,
//! symlinks.
//!
//! *Data before mapping*: blocks are claimed in memory, the data are written to them, and only then
//! a handle sets bitmap, map and size.
//!
//! # Sizes
//! [`size`] is the size that users see. The body's size is the one on disk; it follows in the
//! handle that maps the data.
//!
//! # Locking
//! The caller holds the inode's `rw` lock: for reading in [`read`], [`seek`], [`fiemap`] and
//! [`read_link`], for writing in [`write`], [`truncate`], [`fallocate`] and [`log_data`].
//! [`read_direct`] and [`write_direct`] take it themselves. [`writeback`], [`fsync`], [`release`]
//! and [`free_blocks`] (of an unreachable inode) need no lock. Every change of the mapping of data
//! must hold [`crate::inode::Pages::work`].

mod behind;
mod cached;
mod deferred;
mod direct;
mod extents;
mod fsync;
mod inline;
mod limits;
mod logged;
mod map;
mod placement;
mod range;
mod seek;
mod symlink;
mod tail;
mod times;
mod verity;
mod writeback;
mod zero;

pub use behind::{may_wait, write_waiting};
pub use cached::read::read;
pub use cached::write::write;
pub use deferred::write_pending_zeroes;
pub use direct::{read_direct, write_direct};
pub use extents::{Extent, ExtentFlags, fiemap};
pub use fsync::fsync;
pub use logged::log_data;
pub use map::check_map;
pub use placement::space::{MAX_WAITS_FOR_SPACE, release_reserved};
pub use range::falloc::{Falloc, fallocate};
pub use range::truncate::{can_truncate, free_blocks, truncate};
pub use seek::seek;
pub use symlink::{read_link, set_link, target_len};
pub use times::{Note, strip_mode};
pub use verity::{applies as is_verified, measure};
pub use writeback::batch::writeback_all;
#[cfg(feature = "designs")]
pub use writeback::designs;
pub use writeback::writeback;

use cached::{fill, read, write};
use placement::{plan, space, window};
use range::{falloc, shift, truncate};
use writeback::{batch, submit};

use crate::inode::Inode;
use crate::store::Store;
use crate::{extent, xattr};
use extant_format::inode as disk;

/// The size that users see, in bytes.
pub fn size(inode: &Inode) -> u64 {
    inode.size()
}

/// Gives a new regular file's body an empty map. (Where inline data is on, its first small write
/// moves into the inode.)
pub fn init(st: &Store, body: &mut disk::Inode) {
    extent::init_body(st, body);
}

/// Whether a look at an inode without links tells that nothing but its number is to be freed:
/// neither blocks nor attributes, pages nor preallocations.
pub fn owns_nothing(inode: &Inode) -> bool {
    has_no_content(inode) && xattr::has_none(inode)
}

/// Whether a look at an inode tells that there is no content: neither blocks, nor pages, nor
/// preallocations.
fn has_no_content(inode: &Inode) -> bool {
    let pages = &inode.pages;
    let ahead =
        || pages.work.get().is_some_and(|work| work.try_lock().is_none_or(|work| work.is_some()));
    !pages.any() && !pages.maybe_busy() && !ahead() && extent::owns_nothing(inode)
}

/// Records that a client opens the file for writing: while it is open, space may be preallocated
/// for it. Must be paired with [`close_writer`].
pub fn open_writer(inode: &Inode) {
    inode.pages.open_writer();
}

/// Records that a client with write access has closed the file. The last close returns the
/// preallocations, unless dirty pages still need them.
pub fn close_writer(inode: &Inode) {
    if inode.pages.close_writer()
        && !inode.pages.busy()
        && let Some(work) = inode.pages.work.get()
    {
        window::discard(&mut work.lock());
    }
}

/// Sectors of 512 bytes that delayed blocks will take.
pub fn delayed_sectors(inode: &Inode) -> u64 {
    if inode.pages.maybe_busy() { inode.pages.read().reserved_bytes() / 512 } else { 0 }
}
