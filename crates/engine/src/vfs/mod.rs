//! Names and inodes in memory: path walks, dentries, the inode cache.
//!
//! `resolve("/etc/hosts")` looks up (2, "etc") and (11, "hosts") in the dentry table, and inode 15
//! in the inode cache. If all three are there, it takes no lock; otherwise it reads the directory
//! under its `rw` lock.

mod caller;
mod dentries;
#[cfg(feature = "designs")]
pub mod designs;
mod evicted_holds;
mod inode_cache;
mod parents;
mod prefetch;
mod search;
mod tmpfiles;
mod walk;

pub use caller::Caller;
pub use dentries::Target;
pub use inode_cache::{InodeRef, alive};
pub use prefetch::Prefetch;
pub use walk::{Follow, check_name};

use crate::store::Store;
use dentries::Dentries;
use extant_sync::atomic::AtomicU32;
use extant_sync::parents::Moves;
use extant_sync::{Level, Mutex, OnceLock};
use inode_cache::InodeCache;
use search::Restrictions;
use std::sync::Arc;
use walk::Place;

/// The name space of an open file system.
#[derive(Debug)]
pub struct Vfs {
    /// The modules below.
    pub st: Arc<Store>,
    /// Inodes in memory, by number.
    pub inodes: InodeCache,
    /// Names in memory.
    pub dentries: Dentries,
    /// Held while a directory moves to another parent: the only lock of the whole file system that
    /// operations on names take.
    pub rename: Mutex<()>,
    /// Tells path walks about concurrent moves of directories. A walk resolves one component after
    /// the other. If a directory on the path moves meanwhile, the walk may see one component before
    /// the move and another one after it, and miss a path that existed all the time. For example, a
    /// walk to `/a/b` has resolved `/a` when `/a` and `/e` are exchanged, and then the former `/a`
    /// loses its name `b`. Both directories had a `b`, so `/a/b` existed all the time, but the walk
    /// finds none. So a walk that found nothing, or followed `..`, checks for overlapping moves,
    /// and starts again if there was one.
    pub moves: Moves,
    /// Directories that lost the permission of everyone to search them.
    restrictions: Restrictions,
    /// Inodes that are loaded before callers ask for them.
    pub prefetch: Arc<Prefetch>,
    root: OnceLock<Place>,
    /// The number that is stored with the root: see [`search`].
    root_noted: AtomicU32,
}

impl Vfs {
    /// Creates empty caches over `st`. `memory` bounds inodes and names together, in bytes. Without
    /// `names` each name is searched for in its directory. With `prefetch` a thread may load inodes
    /// before callers ask for them.
    pub fn new(st: Arc<Store>, memory: u64, names: bool, prefetch: bool) -> Self {
        let seed = u64::from(st.rng.next_u32()) << 32 | u64::from(st.rng.next_u32());
        Vfs {
            st,
            inodes: InodeCache::new(if names { memory / 4 * 3 } else { memory }),
            dentries: if names { Dentries::new(memory / 4, seed) } else { Dentries::empty() },
            rename: Mutex::new(Level::Rename, ()),
            moves: Moves::default(),
            restrictions: Restrictions::default(),
            prefetch: Arc::new(Prefetch::new(prefetch)),
            root: OnceLock::new(),
            root_noted: AtomicU32::new(0),
        }
    }

    /// Changes the bound on inodes and names together, in bytes.
    pub fn set_memory(&self, memory: u64) {
        let names = if self.dentries.remembers() { memory / 4 } else { 0 };
        self.inodes.set_memory(memory - names);
        self.dentries.set_memory(names);
    }
}
