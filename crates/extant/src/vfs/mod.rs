//! Names and inodes in memory: path walk, dentries, the inode table.

mod dentries;
mod table;
mod walk;

pub use dentries::Target;
pub use table::alive;
pub use walk::{Follow, check_name};

use crate::store::Store;
use dentries::Dentries;
use extant_sync::{Level, Mutex};
use std::sync::Arc;
use table::InodeTable;

/// The name space of an open file system.
#[derive(Debug)]
pub struct Vfs {
    /// Everything below.
    pub st: Arc<Store>,
    /// Inodes by number.
    pub inodes: InodeTable,
    /// Names.
    pub dentries: Dentries,
    /// Held while a directory moves to another parent: the only lock of the whole file system.
    pub rename: Mutex<()>,
}

impl Vfs {
    /// An empty cache over `st`; `memory` bounds inodes and names together, in bytes.
    pub fn new(st: Arc<Store>, memory: u64) -> Self {
        Vfs {
            st,
            inodes: InodeTable::new(memory / 2),
            dentries: Dentries::new(memory / 2),
            rename: Mutex::new(Level::Rename, ()),
        }
    }
}
