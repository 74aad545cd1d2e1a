//! The context of attributes and directories: the context of maps, known attributes, orphan
//! records.

use super::AttrCache;
use crate::extent::MapEnv;
use crate::orphan::Orphans;
use std::ops::Deref;

/// The context of maps, known attributes and orphan records. Directories take it, too, since small
/// ones lie in the attribute area of their inode.
#[derive(Debug)]
pub struct AttrEnv {
    /// The context of maps.
    pub maps: MapEnv,
    /// Known attribute blocks and attribute inodes.
    pub attrs: AttrCache,
    /// Orphan records of files, and of attribute inodes that are freed in part.
    pub orphans: Orphans,
}

impl Deref for AttrEnv {
    type Target = MapEnv;
    fn deref(&self) -> &MapEnv {
        &self.maps
    }
}
