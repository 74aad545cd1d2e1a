//! The context of maps: the parts of the file system that they use besides the inode.

use crate::alloc::Alloc;
use crate::inode::InodeTable;
use crate::quota::Quotas;
use std::ops::Deref;
use std::sync::Arc;

/// Slots of inodes, space and usage. Functions of this module take it and can reach nothing else.
#[derive(Debug)]
pub struct MapEnv {
    /// Slots of inodes; the volume and its groups.
    pub table: InodeTable,
    /// Blocks and inodes.
    pub alloc: Arc<Alloc>,
    /// Usage of owners, and its limits.
    pub quota: Quotas,
}

impl Deref for MapEnv {
    type Target = InodeTable;
    fn deref(&self) -> &InodeTable {
        &self.table
    }
}
