//! References of open files to the operations, without one count that all threads write.
//!
//! Each shard has an anchor, which refers to the operations; a file refers to the anchor of the
//! thread that opened it. The open file system keeps the anchors, the operations know them weakly.
//! A file that is opened when the file system is gone already gets an anchor of its own.

use super::Operations;
use extant_sync::{CachePadded, OnceLock, Sharded};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// One shard's; alone on its lines, with its count.
#[derive(Debug)]
pub(crate) struct Anchor(CachePadded<Arc<Operations>>);

impl Deref for Anchor {
    type Target = Operations;
    fn deref(&self) -> &Operations {
        &self.0
    }
}

/// The anchors that there are.
#[derive(Debug, Default)]
pub(super) struct Anchors(Sharded<OnceLock<Weak<Anchor>>>);

impl Operations {
    fn new_anchor(self: &Arc<Self>) -> Arc<Anchor> {
        Arc::new(Anchor(CachePadded::new(self.clone())))
    }

    /// Makes the anchors, which the caller keeps as long as files are opened.
    pub(crate) fn moor(self: &Arc<Self>) -> Vec<Arc<Anchor>> {
        let moor = |known: &OnceLock<Weak<Anchor>>| {
            let anchor = self.new_anchor();
            let _ = known.set(Arc::downgrade(&anchor));
            anchor
        };
        self.anchors.0.iter().map(moor).collect()
    }

    /// This thread's anchor.
    pub(super) fn anchor(self: &Arc<Self>) -> Arc<Anchor> {
        let known = self.anchors.0.local().get().and_then(Weak::upgrade);
        known.unwrap_or_else(|| self.new_anchor())
    }
}
