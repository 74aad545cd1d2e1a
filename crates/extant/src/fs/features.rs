//! Which feature bits are read and written, only read, or refused.

use crate::error::{Error, Result};
use extant_format::features::{Compat, Features, Incompat, RoCompat};

/// What may be done with a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Full,
    /// Reading; the text says why.
    ReadOnly(String),
}

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
    .union(Incompat::INLINE_DATA);

const WRITE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::BTREE_DIR)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT);

/// Compat bits that must be understood to write (to ignore them would break what they stand for).
const NOT_WRITTEN: Compat = Compat::FAST_COMMIT;

/// Decides by the feature bits. An unknown or unsupported incompat bit is an error that names it.
pub fn access(features: &Features) -> Result<Access> {
    let refused = features.incompat.difference(READ);
    if !refused.is_empty() {
        return Err(Error::Unsupported(format!("incompatible feature {}", refused.names().join(", "))));
    }
    let mut blocking = features.ro_compat.difference(WRITE).names();
    blocking.extend((features.compat & NOT_WRITTEN).names());
    Ok(match blocking.is_empty() {
        true => Access::Full,
        false => Access::ReadOnly(format!("feature {} can be read only", blocking.join(", "))),
    })
}
