//! The images that sides start from.

use crate::scratch::Scratch;
use crate::tool;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of an image; it is sparse.
pub const IMAGE_BYTES: u64 = 6 << 30;

/// What `mke2fs` is told, everywhere. Tables and journal are zeroed at once, so that nobody does it in the background.
const MKE2FS: [&str; 10] = [
    "-q",
    "-F",
    "-t",
    "ext4",
    "-b",
    "4096",
    "-O",
    "orphan_file,metadata_csum_seed",
    "-E",
    "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
];

/// Where an engine's image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on tmpfs.
    File,
    /// Memory of the process.
    Memory,
}

/// A fresh image in `scratch`.
pub fn make(scratch: &Scratch) -> io::Result<PathBuf> {
    let path = scratch.join("image");
    std::fs::File::create(&path)?.set_len(IMAGE_BYTES)?;
    mke2fs(&path)?;
    Ok(path)
}

fn mke2fs(path: &Path) -> io::Result<()> {
    let mut args: Vec<&std::ffi::OsStr> = MKE2FS.iter().map(AsRef::as_ref).collect();
    args.push(path.as_os_str());
    tool::run("mke2fs", &args).map(drop)
}
