//! The cached state of a file with a hash tree: its descriptor, and the last verified blocks of the
//! tree.
//!
//! # Invariants
//! A block is cached only after its hash was found equal to the one in its parent, or in the
//! descriptor.

use extant_format::verity::{Descriptor, MAX_LEVELS, Tree};
use extant_sync::{Level, Mutex};
use std::sync::Arc;

/// The last verified block of a level, with its number there.
type Last = Option<(u64, Arc<[u8]>)>;

/// The verification state of a file, whose content never changes.
#[derive(Debug)]
pub struct Verity {
    /// How it is hashed.
    pub desc: Descriptor,
    /// The tree's shape.
    pub tree: Tree,
    /// Byte of the file that the tree begins at.
    pub start: u64,
    /// One block of each level: a sequential reader verifies each block of the tree once.
    last: Mutex<[Last; MAX_LEVELS]>,
}

impl Verity {
    /// Nothing of the tree is verified yet.
    pub fn new(desc: Descriptor, tree: Tree, start: u64) -> Verity {
        Verity { desc, tree, start, last: Mutex::new(Level::Leaf, Default::default()) }
    }

    /// A verified block, if it is the last one of its level.
    pub fn verified(&self, level: usize, index: u64) -> Option<Arc<[u8]>> {
        let last = self.last.lock();
        last.get(level)?.as_ref().filter(|(own, _)| *own == index).map(|(_, block)| block.clone())
    }

    /// A block was verified.
    pub fn keep(&self, level: usize, index: u64, block: &Arc<[u8]>) {
        if let Some(last) = self.last.lock().get_mut(level) {
            *last = Some((index, block.clone()));
        }
    }
}
