//! Hashes of entries and blocks.

use super::{Entry, Value};
use crate::bytes::{array, le32};
use crate::checksum::crc32c_raw;

const NAME_TURN: u32 = 5;
const WORD_TURN: u32 = 16;

fn fold_word(hash: u32, word: u32) -> u32 {
    hash.rotate_left(WORD_TURN) ^ word
}

fn fold_name(name: &[u8], widen: fn(u8) -> u32) -> u32 {
    name.iter().fold(0, |hash: u32, byte| hash.rotate_left(NAME_TURN) ^ widen(*byte))
}

fn fold_value(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| fold_word(hash, le32(&array::<4>(chunk, 0), 0)))
}

/// Returns the hash of an entry whose value lies in its block.
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    fold_value(fold_name(name, u32::from), value)
}

/// Returns the same hash over signed bytes of the name, as older programs computed it. Verification
/// must accept both.
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    fold_value(fold_name(name, |byte| i32::from(byte as i8) as u32), value)
}

/// Returns the hash of an entry whose value lies in an inode; `crc` is the value's.
pub fn inode_entry_hash(name: &[u8], crc: u32) -> u32 {
    fold_word(fold_name(name, u32::from), crc)
}

/// Returns the checksum of a value that lies in an inode; `seed` is the file system's.
pub fn value_crc(seed: u32, value: &[u8]) -> u32 {
    crc32c_raw(seed, value)
}

/// Returns the hash that an entry of a block should have.
pub(super) fn hash_in_block(entry: &Entry) -> u32 {
    match &entry.value {
        Value::Inline(value) => entry_hash(&entry.name, value),
        Value::EaInode { .. } => entry.hash,
    }
}

/// Returns the hash of a block from the hashes of its entries; 0 if one of them is 0, which marks
/// the block as not shareable.
pub fn block_hash(hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut all = 0;
    for hash in hashes {
        if hash == 0 {
            return 0;
        }
        all = fold_word(all, hash);
    }
    all
}
