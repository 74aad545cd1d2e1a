//! Blocks of the first directories.

use extant_format::{FileType, Geometry, InodeNr};

/// Bytes of the checksum at the end of a block.
const TAIL: usize = 12;

/// A block with these entries, and its checksum if `seed` is that of a checked directory.
pub(super) fn block(geo: &Geometry, seed: u32, entries: &[(InodeNr, &[u8])]) -> Vec<u8> {
    let mut block = vec![0u8; geo.block_size as usize];
    let end = block.len() - if geo.metadata_csum { TAIL } else { 0 };
    let kind = if geo.has_filetype() { FileType::Directory.to_dir_byte() } else { 0 };
    let mut at = 0;
    for (n, (ino, name)) in entries.iter().enumerate() {
        let last = n + 1 == entries.len();
        let len = if last { end - at } else { 8 + name.len().next_multiple_of(4) };
        put(&mut block[at..], ino.0, len, name, kind);
        at += len;
    }
    if entries.is_empty() {
        put(&mut block, 0, end, b"", 0);
    }
    if geo.metadata_csum {
        put(&mut block[end..], 0, TAIL, b"", 0xDE);
        let sum = extant_format::checksum::crc32c_raw(seed, &block[..end]);
        block[end + 8..].copy_from_slice(&sum.to_le_bytes());
    }
    block
}

fn put(at: &mut [u8], ino: u32, len: usize, name: &[u8], kind: u8) {
    let len = if len >= 65536 { 0xFFFF } else { len as u16 };
    at[..4].copy_from_slice(&ino.to_le_bytes());
    at[4..6].copy_from_slice(&len.to_le_bytes());
    at[6] = name.len() as u8;
    at[7] = kind;
    at[8..8 + name.len()].copy_from_slice(name);
}
