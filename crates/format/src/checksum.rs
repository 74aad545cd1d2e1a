//! Checksum primitives and seeds.
//!
//! CRC-32C chains here are raw: no inversion before or after. They start at [`CRC32C_INIT`], and
//! the disk stores the running value.

use crate::bytes::part;
use crate::types::InodeNr;

/// The start of every CRC-32C chain.
pub const CRC32C_INIT: u32 = 0xFFFF_FFFF;

/// Continues a raw CRC-32C chain over `data`.
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// Continues a raw CRC-32C chain over a little-endian 32-bit number.
pub fn crc32c_le32(seed: u32, value: u32) -> u32 {
    crc32c_raw(seed, &value.to_le_bytes())
}

/// Continues a raw CRC-32C chain over `count` zero bytes.
pub fn crc32c_zeros(seed: u32, count: usize) -> u32 {
    const ZEROS: [u8; 64] = [0; 64];
    let mut seed = seed;
    let mut left = count;
    while left > 0 {
        let step = left.min(ZEROS.len());
        seed = crc32c_raw(seed, part(&ZEROS, 0, step));
        left = left.saturating_sub(step);
    }
    seed
}

/// Continues a chain over `data` as if `len` bytes at `hole` were zero.
pub fn crc32c_with_hole(seed: u32, data: &[u8], hole: usize, len: usize) -> u32 {
    let hole = hole.min(data.len());
    let end = hole.saturating_add(len).min(data.len());
    let seed = crc32c_raw(seed, part(data, 0, hole));
    let seed = crc32c_zeros(seed, end.saturating_sub(hole));
    crc32c_raw(seed, part(data, end, data.len()))
}

/// The file system's seed from its UUID (without the stored seed of `metadata_csum_seed`).
pub fn uuid_seed(uuid: &[u8; 16]) -> u32 {
    crc32c_raw(CRC32C_INIT, uuid)
}

/// Returns the seed of everything that belongs to an inode: the inode, its extent and directory
/// blocks.
pub fn inode_seed(fs_seed: u32, ino: InodeNr, generation: u32) -> u32 {
    let numbers = u64::from(generation) << 32 | u64::from(ino.0);
    crc32c_raw(fs_seed, &numbers.to_le_bytes())
}

/// Returns the seed of the blocks whose checksum covers their own place.
pub fn block_seed(seed: u32, block: u64) -> u32 {
    crc32c_raw(seed, &block.to_le_bytes())
}

const CRC16_TABLE: [u16; 256] = crc16_table();

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut n = 0;
    while n < 256 {
        let mut value = n as u16;
        let mut bit = 0u8;
        while bit < 8 {
            value = if value & 1 != 0 { (value >> 1) ^ 0xA001 } else { value >> 1 };
            bit = bit.saturating_add(1);
        }
        table[n] = value;
        n = n.saturating_add(1);
    }
    table
}

/// Continues a CRC-16 (polynomial 0x8005, reflected) as the `uninit_bg` feature uses it; chains
/// start at 0xFFFF.
#[expect(clippy::indexing_slicing, reason = "a byte is an index of 256 numbers")]
pub fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, byte| (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)])
}

const CRC32_BE_TABLE: [u32; 256] = crc32_be_table();

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn crc32_be_table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut n = 0;
    while n < 256 {
        let mut value = (n as u32) << 24;
        let mut bit = 0u8;
        while bit < 8 {
            value = if value & 0x8000_0000 != 0 { (value << 1) ^ 0x04C1_1DB7 } else { value << 1 };
            bit = bit.saturating_add(1);
        }
        table[n] = value;
        n = n.saturating_add(1);
    }
    table
}

/// Continues a big-endian CRC-32 (polynomial 0x04C11DB7, not reflected, no inversion), as version 1
/// journal checksums use it; chains start at 0xFFFFFFFF.
#[expect(clippy::indexing_slicing, reason = "a byte is an index of 256 numbers")]
pub fn crc32_be(seed: u32, data: &[u8]) -> u32 {
    data.iter().fold(seed, |crc, byte| {
        (crc << 8) ^ CRC32_BE_TABLE[usize::from(((crc >> 24) as u8) ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values() {
        const NINE: &[u8] = b"123456789";
        assert_eq!(!crc32c_raw(CRC32C_INIT, NINE), 0xE306_9283);
        assert_eq!(crc16(0xFFFF, NINE), 0x4B37);
        assert_eq!(crc32_be(0xFFFF_FFFF, NINE), 0x0376_E6E7);
    }

    #[test]
    fn holes_count_as_zeros() {
        let mut data = *b"some bytes with a number in the middle";
        let holed = crc32c_with_hole(7, &data, 10, 4);
        data[10..14].fill(0);
        assert_eq!(holed, crc32c_raw(7, &data));
        assert_eq!(crc32c_with_hole(7, &data, 1000, 4), crc32c_raw(7, &data));
    }
}
