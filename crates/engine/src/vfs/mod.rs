//! Names and inodes in memory: path walk, dentries, the inode table.

mod ahead;
mod dentries;
mod moves;
mod nameless;
mod parked;
mod search;
mod table;
mod walk;

pub use ahead::Ahead;
pub use dentries::Target;
pub use search::Identity;
pub use table::{InodeRef, alive};
pub use walk::{Follow, check_name};

use crate::store::Store;
use dentries::Dentries;
use extant_sync::{Level, Mutex, OnceLock};
use moves::Moves;
use std::sync::Arc;
use table::InodeTable;
use walk::Place;

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
    /// Tells walks that directories have moved meanwhile.
    pub moves: Moves,
    /// What is loaded before it is asked for.
    pub ahead: Arc<Ahead>,
    root: OnceLock<Place>,
}

impl Vfs {
    /// An empty cache over `st`; `memory` bounds inodes and names together, in bytes. Without
    /// `names` each is looked for in its directory. With `ahead` a thread may load inodes before
    /// they are asked for.
    pub fn new(st: Arc<Store>, memory: u64, names: bool, ahead: bool) -> Self {
        let seed = u64::from(st.rng.next_u32()) << 32 | u64::from(st.rng.next_u32());
        Vfs {
            st,
            inodes: InodeTable::new(if names { memory / 4 * 3 } else { memory }),
            dentries: if names { Dentries::new(memory / 4, seed) } else { Dentries::empty() },
            rename: Mutex::new(Level::Rename, ()),
            moves: Moves::default(),
            ahead: Arc::new(Ahead::new(ahead)),
            root: OnceLock::new(),
        }
    }
}
