//! The images that sides start from.

use crate::scratch::Scratch;
use crate::tool;
use std::io;
use std::path::PathBuf;

/// Bytes of an image; it is sparse.
pub const IMAGE_BYTES: u64 = 6 << 30;

/// Where an engine's image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on tmpfs.
    File,
    /// Memory of the process.
    Memory,
}

/// Differences from the usual file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Inodes, if not as many as mke2fs thinks right.
    pub inodes: Option<u64>,
    /// Memory of the engine in bytes, if not the usual share of the machine's.
    pub memory: Option<u64>,
}

impl Setup {
    /// Makes a setup with space for so many files, and memory for all their inodes.
    pub fn for_inodes(files: u64) -> Setup {
        // An eighth of the engine's memory is for inodes, and one takes up to a kilobyte.
        Setup {
            inodes: Some(files + files / 8 + 4096),
            memory: Some((files + files / 4 + 8192) * 8 * 1024),
        }
    }
}

/// Makes a fresh image in `scratch`.
pub fn make(scratch: &Scratch) -> io::Result<PathBuf> {
    make_with(scratch, &Setup::default())
}

/// Makes a fresh image of another shape.
pub fn make_with(scratch: &Scratch, setup: &Setup) -> io::Result<PathBuf> {
    let path = scratch.join("image");
    std::fs::File::create(&path)?.set_len(IMAGE_BYTES)?;
    let inodes = setup.inodes.map(|n| n.to_string());
    let mut more = vec!["-O", "orphan_file,metadata_csum_seed"];
    more.extend(inodes.iter().flat_map(|n| ["-N", n]));
    tool::mke2fs(&path, &more)?;
    Ok(path)
}
