//! How large a file can be.

use crate::error::{Errno, Result};
use crate::extent;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::features::RoCompat;

/// Returns the largest size of a file in bytes, by its map and its block count.
pub fn max_size(st: &Store, inode: &Inode) -> u64 {
    let mapped = extent::max_blocks(st, inode).min(u64::from(u32::MAX)) << st.geo.block_bits;
    // The map's own blocks are counted too: a share of one in 128 is more than any map takes.
    let counted = if st.geo.ro_compat(RoCompat::HUGE_FILE) {
        i64::MAX as u64
    } else {
        (u64::from(u32::MAX) << 9) / 128 * 127
    };
    mapped.min(counted).min(i64::MAX as u64)
}

/// How many of `len` bytes at `offset` may be written. EFBIG if none.
pub(super) fn writable_len(st: &Store, inode: &Inode, offset: u64, len: usize) -> Result<usize> {
    let room = max_size(st, inode).saturating_sub(offset);
    match len.min(usize::try_from(room).unwrap_or(usize::MAX)) {
        0 if len > 0 => Err(Errno::FBig.into()),
        n => Ok(n),
    }
}
