//! Which feature bits are read and written, only read, or refused.

use crate::error::{Error, Result};
use extant_format::features::{Features, Incompat, RoCompat};

/// The access that a file system's features allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Full,
    /// Reading; the text says why.
    ReadOnly(String),
}

/// The incompatible features of file systems that are opened, for reading and writing alike.
const READ: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::CASEFOLD)
    .union(Incompat::ENCRYPT);

/// The read-only compatible features of file systems that are opened for writing, too.
const WRITE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::BTREE_DIR)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT)
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// Decides by the feature bits. An unknown or unsupported incompat bit is an error that names it.
pub fn access(features: &Features) -> Result<Access> {
    let refused = features.incompat.difference(READ);
    if !refused.is_empty() {
        return Err(Error::Unsupported(format!(
            "incompatible feature {}",
            refused.names().join(", ")
        )));
    }
    let blocking = features.ro_compat.difference(WRITE).names();
    Ok(if blocking.is_empty() {
        Access::Full
    } else {
        Access::ReadOnly(format!("feature {} can be read only", blocking.join(", ")))
    })
}
