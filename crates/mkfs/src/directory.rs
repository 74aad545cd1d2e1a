//! Blocks of the first directories.

use extant_format::dir::{DirFormat, fill, seal_dir_leaf};
use extant_format::{FileType, Geometry, InodeNr};

/// Returns a directory block with these entries, all directories; `seed` is that of the directory's
/// inode.
pub(super) fn block(geo: &Geometry, seed: u32, entries: &[(InodeNr, &[u8])]) -> Vec<u8> {
    let format = DirFormat::new(geo);
    let mut block = vec![0u8; geo.block_size as usize];
    format.init_block(&mut block);
    let list = entries.iter().map(|(ino, name)| (*ino, FileType::Directory, *name));
    let filled = fill(format.area_mut(&mut block), &format, list);
    debug_assert!(filled, "three names fit into any block");
    if geo.metadata_csum {
        // The block number is not part of the checksum.
        seal_dir_leaf(&mut block, 0, seed);
    }
    block
}
