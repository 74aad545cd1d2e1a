//! Data that lies in the inode: the first 60 bytes in `i_block`, the rest as the value of the
//! attribute `system.data`.

use crate::bytes::{le32, put_bytes, put_le32};
use crate::inode::I_BLOCK_SIZE;
use crate::types::InodeNr;

/// Bytes that lie in `i_block`.
pub const INLINE_FIRST: usize = I_BLOCK_SIZE;

/// Bytes before the entries of an inline directory: the parent's inode.
const PARENT_SIZE: usize = 4;

/// Bytes of entries of an inline directory in `i_block`.
pub const INLINE_DIR_FIRST: usize = I_BLOCK_SIZE - PARENT_SIZE;

/// The parent of an inline directory.
pub fn parent(i_block: &[u8; I_BLOCK_SIZE]) -> InodeNr {
    InodeNr(le32(i_block, 0))
}

/// Sets the parent of an inline directory.
pub fn set_parent(i_block: &mut [u8; I_BLOCK_SIZE], parent: InodeNr) {
    put_le32(i_block, 0, parent.0);
}

/// The first area of entries of an inline directory; the second is the whole attribute value.
pub fn dir_area(i_block: &[u8; I_BLOCK_SIZE]) -> &[u8] {
    &i_block[PARENT_SIZE..]
}

/// The first area of entries of an inline directory, to be changed.
pub fn dir_area_mut(i_block: &mut [u8; I_BLOCK_SIZE]) -> &mut [u8] {
    &mut i_block[PARENT_SIZE..]
}

/// Joins the two parts of an inline file of `size` bytes; missing bytes are zero. `size` is limited
/// to the capacity of both parts.
pub fn join(i_block: &[u8; I_BLOCK_SIZE], rest: &[u8], size: u64) -> Vec<u8> {
    let mut data = i_block.to_vec();
    data.extend_from_slice(rest);
    data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    data
}

/// Returns the two parts of an inline file's data: `i_block`, padded with zeros, and the
/// attribute's value.
pub fn split(data: &[u8]) -> ([u8; I_BLOCK_SIZE], &[u8]) {
    let mut i_block = [0; I_BLOCK_SIZE];
    let (first, rest) = data.split_at(data.len().min(I_BLOCK_SIZE));
    put_bytes(&mut i_block, 0, first);
    (i_block, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_split_and_joined() {
        for len in [0, 1, 59, 60, 61, 130] {
            let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let (first, rest) = split(&data);
            assert_eq!(join(&first, rest, len), data);
        }
        assert_eq!(join(&[1; 60], &[2; 4], 99).len(), 64);
    }

    #[test]
    fn directories_know_their_parent() {
        let mut i_block = [0; 60];
        set_parent(&mut i_block, InodeNr(77));
        assert_eq!(parent(&i_block), InodeNr(77));
        dir_area_mut(&mut i_block).fill(9);
        assert_eq!(parent(&i_block), InodeNr(77));
        assert_eq!(dir_area(&i_block), [9; INLINE_DIR_FIRST]);
    }
}
