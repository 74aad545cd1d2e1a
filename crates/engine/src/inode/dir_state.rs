//! The state in memory of one directory besides its blocks: plain data, maintained by `dir`, and
//! the ACL, maintained by `xattr`.
//!
//! # Locking
//! Changes of the directory need its `rw` lock; the mutex only protects the fields. It is
//! innermost. The ACL is read without a lock, filled in under `rw` for reading and dropped under
//! `rw` for writing.

use super::lazy::Make;
use extant_format::acl::Acl;
use extant_format::types::FileType;
use extant_sync::parents::ParentLink;
use extant_sync::{Level, Mutex, MutexGuard, Swap};
use std::sync::Arc;

/// Entries and bytes of a name that a window has room for from the beginning.
const USUAL_ENTRIES: usize = 16;
const USUAL_NAME: usize = 16;

/// The state in memory of one directory.
#[derive(Debug)]
pub struct DirCaches {
    state: Mutex<DirState>,
    /// Its access ACL, or that it has none; empty if that is not known.
    pub acl: Swap<Option<Acl>>,
    /// The directory that it is in, if that is known (`vfs::parents`).
    pub parent: ParentLink,
}

impl DirCaches {
    /// Of its entries.
    pub fn lock(&self) -> MutexGuard<'_, DirState> {
        self.state.lock()
    }
}

impl Make for DirCaches {
    fn make() -> Self {
        DirCaches {
            state: Mutex::new(Level::Leaf, DirState::default()),
            acl: Swap::default(),
            parent: ParentLink::default(),
        }
    }
}

/// Caches of one directory. All of them can be made again from the blocks.
#[derive(Debug, Default)]
pub struct DirState {
    /// Largest gap of each block (units of 4 bytes) of a linear directory.
    pub gaps: Option<Vec<u16>>,
    /// The entries that were last read.
    pub window: Option<Arc<Window>>,
    /// No block stands in two places of the directory.
    pub map_checked: bool,
    /// Whether the hash tree leads to each leaf and node once, as far as that was looked at.
    pub tree_is_sound: Option<bool>,
    /// Counts changes that move entries within or between blocks.
    pub layout: u32,
}

/// Entries of a stretch of positions, in order of position.
#[derive(Debug, Default)]
pub struct Window {
    /// First position covered.
    pub start: u64,
    /// Position behind the last one covered; [`Window::END`] if nothing follows.
    pub end: u64,
    /// The entries.
    pub entries: Vec<WindowEntry>,
    /// All their names.
    pub names: Vec<u8>,
    /// Whether each name can be a component of a path.
    pub has_components_only: bool,
}

/// One entry of a [`Window`].
#[derive(Debug, Clone, Copy)]
pub struct WindowEntry {
    /// Position (cookie) of the entry.
    pub pos: u64,
    /// Inode number.
    pub ino: u32,
    /// Start of the name in `names`.
    pub name_at: u32,
    /// Length of the name.
    pub name_len: u8,
    /// Type in the entry.
    pub ftype: FileType,
}

impl Window {
    /// End of a window behind which the directory has nothing.
    pub const END: u64 = u64::MAX;

    /// The name of an entry of this window.
    pub fn name(&self, e: &WindowEntry) -> &[u8] {
        let start = e.name_at as usize;
        self.names.get(start..start + usize::from(e.name_len)).unwrap_or_default()
    }

    /// Adds an entry; the caller sorts and gives positions.
    pub fn push(&mut self, pos: u64, ino: u32, ftype: FileType, name: &[u8]) {
        if self.entries.is_empty() {
            self.entries.reserve(USUAL_ENTRIES);
            self.names.reserve(USUAL_ENTRIES * USUAL_NAME);
        }
        let name_at = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.entries.push(WindowEntry {
            pos,
            ino,
            name_at,
            name_len: name.len().min(255) as u8,
            ftype,
        });
    }
}
