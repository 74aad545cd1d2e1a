//! The context of attributes and directories: that of maps, known attributes and orphan records.

use super::AttrCache;
use crate::extent::MapEnv;
use crate::orphan::Orphans;
use std::ops::Deref;

/// The context of maps, known attributes and orphan records. Directories take it as well, since
/// small ones lie in the attribute area of their inode.
#[derive(Debug)]
pub struct AttrEnv {
    /// The context of maps.
    pub maps: MapEnv,
    /// Attribute blocks and inodes.
    pub attrs: AttrCache,
    /// Orphan records: of attribute inodes that are freed in part, and of files.
    pub orphans: Orphans,
}

impl Deref for AttrEnv {
    type Target = MapEnv;
    fn deref(&self) -> &MapEnv {
        &self.maps
    }
}
