//! Files with pages that wait for being written, and files that lost data.
//!
//! # Invariants
//! An inode with dirty pages is on the list (from shortly after they become dirty, and before the
//! writer's operation ends), which keeps it in memory. It leaves when it has none; pages under
//! writeback are counted by the page budget by then. A thread that examines the list first and the
//! pages under writeback afterwards therefore misses no page that was dirty when it began.
//!
//! # Locking
//! The lists are of level Lru: they may be held while a page map is looked at, never the other way
//! round.

use super::plugs::PlugCounts;
use super::set_aside::SetAside;
use crate::error::Result;
use crate::inode::Inode;
use extant_format::types::InodeNr;
use extant_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use extant_sync::scheduler::Bell;
use extant_sync::{Level, Mutex, ShardedList, Walk};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The scope over which the device writes of writeback are collected.
#[cfg(feature = "designs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugPolicy {
    /// Many files: adjacent blocks of different files become one write.
    Batch,
    /// One file after the other.
    PerInode,
}

/// The chosen scope.
#[cfg(feature = "designs")]
pub static PLUG: extant_sync::designs::Choice<PlugPolicy> =
    extant_sync::designs::Choice::new(&[PlugPolicy::Batch, PlugPolicy::PerInode]);

/// Files whose content is to be written back, and the state that writers share.
#[derive(Debug)]
pub struct DirtyFiles {
    files: ShardedList<Arc<Inode>>,
    /// Inodes by number and generation that lost data since that was last asked for.
    failed: Mutex<BTreeMap<(InodeNr, u32), Arc<Inode>>>,
    /// Whether `failed` may hold something; changes under its lock.
    any_failed: AtomicBool,
    /// Requests to the device that the plugs made of writes.
    pub plugs: PlugCounts,
    /// How many threads are submitting data.
    pub submitting: AtomicUsize,
    /// Writers that set space aside for pages, and the one that lacks it.
    pub set_aside: SetAside,
    /// Wakes the task that writes pages back: rung by the first inode that gets waiting pages.
    pub writeback_bell: Bell,
}

impl DirtyFiles {
    /// None yet.
    pub fn new() -> DirtyFiles {
        DirtyFiles {
            files: ShardedList::new(Level::Lru),
            failed: Mutex::new(Level::Lru, BTreeMap::new()),
            any_failed: AtomicBool::new(false),
            plugs: PlugCounts::default(),
            submitting: AtomicUsize::new(0),
            set_aside: SetAside::new(),
            writeback_bell: Bell::default(),
        }
    }

    /// Adds an inode with waiting pages.
    pub(super) fn note(&self, inode: &Arc<Inode>) {
        if self.files.add(&inode.pages.dirty_link, || inode.clone()) {
            self.writeback_bell.ring();
        }
    }

    /// Takes the inode off the list if it has no waiting pages.
    pub fn note_clean(&self, inode: &Inode) {
        let gone = self.files.remove_unless(&inode.pages.dirty_link, || inode.pages.dirty());
        drop(gone);
    }

    /// A walk over the inodes with waiting pages, those that this thread has changed first.
    pub fn walk(&self) -> Walk<'_, Arc<Inode>> {
        self.files.walk()
    }

    /// Number of the inodes with waiting pages.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether no inode has waiting pages.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a loss may be unreported.
    pub fn any_failed(&self) -> bool {
        self.any_failed.load(Ordering::Acquire)
    }

    /// Records that data of the inode are lost. Open files report the loss, or else a sync or the
    /// close of the file system.
    pub fn note_failed(&self, inode: &Arc<Inode>, errno: i32) {
        inode.pages.note_error(errno);
        let mut failed = self.failed.lock();
        self.any_failed.store(true, Ordering::Release);
        failed.entry((inode.ino, inode.generation)).or_insert_with(|| inode.clone());
    }

    /// Returns the first unreported loss of data. All losses count as reported then.
    pub fn untold_loss(&self) -> Result<()> {
        let failed = {
            let mut failed = self.failed.lock();
            self.any_failed.store(false, Ordering::Release);
            std::mem::take(&mut *failed)
        };
        failed
            .into_values()
            .map(|inode| inode.pages.check_error(&mut inode.pages.error_seq()))
            .fold(Ok(()), Result::and)
    }
}
