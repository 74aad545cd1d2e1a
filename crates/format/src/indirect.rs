//! Block maps of pointers: 12 direct blocks, then one, two and three levels of pointer blocks.

use crate::bytes::{le32, put_le32};

/// Direct pointers in the inode.
pub const DIRECT: usize = 12;
/// Index of the single indirect pointer in the inode.
pub const IND: usize = 12;
/// Index of the double indirect pointer in the inode.
pub const DIND: usize = 13;
/// Index of the triple indirect pointer in the inode.
pub const TIND: usize = 14;

const POINTER_SIZE: usize = 4;
const POINTER_BYTES: u32 = POINTER_SIZE as u32;

/// Pointer `n` of a pointer block or of the inode's `i_block` area; 0 for a hole and past the end.
pub fn pointer(bytes: &[u8], n: usize) -> u32 {
    n.checked_mul(POINTER_SIZE).map_or(0, |offset| le32(bytes, offset))
}

/// Stores pointer `n`; writes past the end are ignored.
pub fn put_pointer(bytes: &mut [u8], n: usize, block: u32) {
    if let Some(offset) = n.checked_mul(POINTER_SIZE) {
        put_le32(bytes, offset, block);
    }
}

/// Returns all pointers of a block.
pub fn pointers(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    bytes.chunks_exact(POINTER_SIZE).map(|chunk| le32(chunk, 0))
}

/// Returns the number of pointers of a block.
pub const fn pointers_per_block(block_size: u32) -> u32 {
    block_size / POINTER_BYTES
}

/// The path through the pointer blocks to a logical block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    offsets: [u32; 4],
    len: usize,
}

impl Path {
    /// Returns the path to a logical block; `None` past the last block that a map can address.
    pub fn new(lblk: u32, block_size: u32) -> Option<Path> {
        let per_block = u64::from(pointers_per_block(block_size).max(1));
        let mut rest = u64::from(lblk);
        if rest < DIRECT as u64 {
            return Some(Path { offsets: [lblk, 0, 0, 0], len: 1 });
        }
        rest = rest.saturating_sub(DIRECT as u64);
        let mut reach = per_block;
        for (level, slot) in [IND, DIND, TIND].into_iter().enumerate() {
            if rest < reach {
                return Some(Path::through(slot, level.saturating_add(1), rest, per_block));
            }
            rest = rest.saturating_sub(reach);
            reach = reach.saturating_mul(per_block);
        }
        None
    }

    fn through(slot: usize, levels: usize, mut rest: u64, per_block: u64) -> Path {
        let mut offsets = [slot as u32, 0, 0, 0];
        for offset in offsets.iter_mut().skip(1).take(levels).rev() {
            *offset = rest.checked_rem(per_block).unwrap_or(0) as u32;
            rest = rest.checked_div(per_block).unwrap_or(0);
        }
        Path { offsets, len: levels.saturating_add(1) }
    }

    /// Indexes of pointers: the first in the inode, the others in one pointer block each.
    pub fn offsets(&self) -> &[u32] {
        self.offsets.get(..self.len).unwrap_or(&self.offsets)
    }

    /// Returns the number of pointer blocks on the path: 0 to 3.
    pub const fn levels(&self) -> usize {
        self.len.saturating_sub(1)
    }
}

/// Returns the number of logical blocks that a map can address.
pub fn max_blocks(block_size: u32) -> u64 {
    let n = u64::from(pointers_per_block(block_size));
    let powers = [1, 2, 3].map(|levels| n.saturating_pow(levels));
    powers.into_iter().fold(DIRECT as u64, u64::saturating_add).min(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(lblk: u32) -> Vec<u32> {
        Path::new(lblk, 1024).map_or(Vec::new(), |path| path.offsets().to_vec())
    }

    #[test]
    fn paths_of_one_kib_blocks() {
        assert_eq!(path(11), [11]);
        assert_eq!(path(12), [12, 0]);
        assert_eq!(path(267), [12, 255]);
        assert_eq!(path(268), [13, 0, 0]);
        assert_eq!(path(268 + 257), [13, 1, 1]);
        assert_eq!(path(268 + 65535), [13, 255, 255]);
        assert_eq!(path(268 + 65536), [14, 0, 0, 0]);
        assert_eq!(path(268 + 65536 + 65536 * 255 + 65535), [14, 255, 255, 255]);
        assert!(path(268 + 65536 + 65536 * 256).is_empty());
        assert_eq!(max_blocks(1024), 12 + 256 + 65536 + 16_777_216);
    }

    #[test]
    fn every_path_is_its_own() {
        assert!(Path::new(u32::MAX, 65536).is_some());
        assert_eq!(Path::new(0, 0).map(|path| path.levels()), Some(0));
        assert_eq!(Path::new(99, 0), None);
    }

    #[test]
    fn pointers_past_the_end_are_holes() {
        let mut block = [0u8; 8];
        put_pointer(&mut block, 1, 5);
        put_pointer(&mut block, 2, 6);
        put_pointer(&mut block, usize::MAX, 6);
        assert_eq!(pointers(&block).collect::<Vec<_>>(), [0, 5]);
        assert_eq!(
            (pointer(&block, 1), pointer(&block, 2), pointer(&block, usize::MAX)),
            (5, 0, 0)
        );
    }
}
