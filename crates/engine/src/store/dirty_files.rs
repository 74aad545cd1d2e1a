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
use std::io;
use std::sync::Arc;

/// Most inodes that stay in memory until their loss of data is asked for. A client that never syncs
/// the file system may lose data of any number of files on a dying device.
const MOST_LOSSES: usize = 1024;

/// Losses of data since they were last asked for.
#[derive(Debug, Default)]
struct Losses {
    /// Inodes by number and generation.
    inodes: BTreeMap<(InodeNr, u32), Arc<Inode>>,
    /// The first error of further inodes.
    further: Option<i32>,
}

/// Files whose content is to be written back, and the state that writers share.
#[derive(Debug)]
pub struct DirtyFiles {
    files: ShardedList<Arc<Inode>>,
    losses: Mutex<Losses>,
    /// Whether `losses` may hold something; changes under its lock.
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
            losses: Mutex::new(Level::Lru, Losses::default()),
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
        let mut losses = self.losses.lock();
        self.any_failed.store(true, Ordering::Release);
        let key = (inode.ino, inode.generation);
        if losses.inodes.len() < MOST_LOSSES {
            losses.inodes.entry(key).or_insert_with(|| inode.clone());
        } else if !losses.inodes.contains_key(&key) {
            losses.further.get_or_insert(errno);
        }
    }

    /// Returns the first unreported loss of data. All losses count as reported then.
    pub fn untold_loss(&self) -> Result<()> {
        let losses = {
            let mut losses = self.losses.lock();
            self.any_failed.store(false, Ordering::Release);
            std::mem::take(&mut *losses)
        };
        let further =
            losses.further.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno).into()));
        losses
            .inodes
            .into_values()
            .map(|inode| inode.pages.check_error(&mut inode.pages.error_seq()))
            .fold(Ok(()), Result::and)
            .and(further)
    }
}
