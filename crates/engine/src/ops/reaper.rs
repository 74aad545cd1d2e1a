//! Inodes without a name: freed at once, or by the reaper. Those of a crash are freed by
//! `orphan_recovery`.
//!
//! An inode is freed when it has no link and no holder; [`Inode::begin_free`] lets exactly one
//! thread do it.

use super::Operations;
use super::unlink::Left;
use crate::alloc::Alloc;
use crate::bounds::Remark;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use crate::orphan::Orphans;
use crate::quota::Change;
use crate::vfs::alive;
use crate::{file, xattr};
use extant_format::error::Corrupt;
use extant_format::types::{InodeNr, Timestamp};
use extant_journal::Tid;
use extant_sync::scheduler::Bell;
use extant_sync::{Level, Mutex, Sharded};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Inodes, in a list for each shard of threads.
#[derive(Debug, Default)]
struct Queue(Sharded<Shard>);

/// A list, and its length for threads that only ask whether it is empty: callers of sync do, and
/// a hundred of them would wait for each other's locks.
#[derive(Debug)]
struct Shard {
    /// Changes only under the lock of `list`. A release publishes the thread's work so far.
    len: AtomicUsize,
    list: Mutex<Vec<Arc<Inode>>>,
}

impl Default for Shard {
    fn default() -> Self {
        Shard { len: AtomicUsize::new(0), list: Mutex::new(Level::Leaf, Vec::new()) }
    }
}

impl Shard {
    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    fn push(&self, inode: Arc<Inode>) {
        let mut list = self.list.lock();
        list.push(inode);
        self.len.store(list.len(), Ordering::Release);
    }

    fn take(&self) -> Vec<Arc<Inode>> {
        let mut list = self.list.lock();
        self.len.store(0, Ordering::Release);
        std::mem::take(&mut list)
    }
}

impl Queue {
    fn push(&self, inode: Arc<Inode>) {
        self.0.local().push(inode);
    }

    fn take(&self) -> Vec<Arc<Inode>> {
        self.0.iter().filter(|shard| !shard.is_empty()).flat_map(Shard::take).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Shard::is_empty)
    }
}

/// Freed inodes of transactions, those of older ones first in each list.
type FreedInodes = Sharded<Mutex<VecDeque<(Tid, Arc<Inode>)>>>;

/// Inodes that wait to be freed.
#[derive(Debug)]
pub(super) struct Reaper {
    bell: Bell,
    /// Held while queued inodes are freed, so that threads that need the space wait for it.
    turn: Mutex<()>,
    /// Whether a thread has taken queued inodes and may not have freed all of them.
    at_work: AtomicBool,
    queue: Queue,
    /// Freed inodes that the inode cache still has, since their slots do not say so before their
    /// transactions are durable.
    departed: FreedInodes,
    /// Freed inodes that the inode cache still has, because they have other users.
    lingering: Queue,
}

impl Default for Reaper {
    fn default() -> Self {
        let departed = Sharded::new(|_| Mutex::new(Level::Leaf, VecDeque::new()));
        Reaper {
            bell: Bell::default(),
            turn: Mutex::new(Level::Reaper, ()),
            at_work: AtomicBool::new(false),
            queue: Queue::default(),
            departed,
            lingering: Queue::default(),
        }
    }
}

impl Reaper {
    /// Returns whether all inodes queued before this call have been freed.
    ///
    /// A thread sets `at_work` before it takes a list, and the list's length publishes that to a
    /// thread that finds the list empty. It is therefore enough to examine the lists first. The end
    /// of the work is published by a release and read by an acquire.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.at_work.load(Ordering::Acquire)
    }

    fn queue(&self, inode: Arc<Inode>) {
        self.queue.push(inode);
        self.bell.ring();
    }

    /// Keeps a freed inode until its number may be another's.
    fn depart(&self, tid: Tid, inode: Arc<Inode>) {
        self.departed.local().lock().push_back((tid, inode));
        self.bell.ring();
    }

    /// Keeps a freed inode until it has no other user.
    fn linger(&self, inode: Arc<Inode>) {
        self.lingering.push(inode);
        self.bell.ring();
    }
}

/// The work that waits for the reaper's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToReap {
    /// Inodes to be freed, or freed ones that a commit retires.
    Soon,
    /// Freed inodes that callers still refer to, for as long as they like.
    Later,
    Nothing,
}

impl Operations {
    /// Queues an inode for the reaper.
    pub(super) fn queue_for_reaper(&self, inode: &Arc<Inode>) {
        self.reaper.queue(inode.clone());
    }

    /// Queues the attribute inodes that a change of attributes could not free.
    pub(super) fn queue_left_values(&self) {
        self.st().attrs.take_left().into_iter().for_each(|ea| self.reaper.queue(ea));
    }

    /// Frees an inode without a name if it has no holder; otherwise its last holder will. No lock
    /// may be held.
    pub(super) fn bury_or_free(&self, inode: &Arc<Inode>) {
        if inode.begin_free()
            && let Err(e) = self.record_corruption(self.free(inode))
        {
            // Its orphan record stays: the next open tries again. In this session no thread does,
            // since the inode stays marked as being freed (*Failures* in
            // `docs/design/orphans.md`).
            if self.st().remarks.tells(Remark::Orphan) {
                tracing::error!(ino = inode.ino.0, "an unlinked inode could not be freed: {e}");
            }
        }
    }

    /// Releases `n` holds; queues the inode if nothing keeps it. Ignores a node of another file
    /// system, since its inode must not be freed here.
    pub fn release(&self, node: &super::Node, n: u64) {
        let inode = &node.0;
        if self.is_own(node) && inode.release(n) && inode.stat().links == 0 {
            self.queue_for_reaper(inode);
        }
    }

    /// As [`Operations::release`], by number, without loading an inode that has left memory. ESTALE
    /// if the inode has no holder.
    pub fn forget(&self, ino: u64, n: u64) -> Result<()> {
        self.alive()?;
        let ino = u32::try_from(ino).map(InodeNr).map_err(|_| Errno::Stale)?;
        let inode = match self.vfs.inodes.peek(ino) {
            Some(inode) => inode,
            None => match self.vfs.inodes.release_evicted(ino, n)? {
                Some(inode) => inode,
                None => return Ok(()),
            },
        };
        self.release(&super::Node(alive(inode)?), n);
        Ok(())
    }

    /// Wakes the reaper's task.
    pub(crate) fn reaper_bell(&self) -> &Bell {
        &self.reaper.bell
    }

    /// The work that waits for the reaper's task.
    pub(crate) fn to_reap(&self) -> ToReap {
        let reaper = &self.reaper;
        // A thread that reaps takes the lists, and puts back the inodes that are in use.
        let _turn = reaper.turn.lock();
        if !reaper.queue.is_empty() || reaper.departed.iter().any(|list| !list.lock().is_empty()) {
            return ToReap::Soon;
        }
        if reaper.lingering.is_empty() { ToReap::Nothing } else { ToReap::Later }
    }

    /// Returns whether all inodes released before this call have been freed.
    pub(crate) fn is_all_freed(&self) -> bool {
        self.reaper.is_idle()
    }

    /// Frees the queued inodes, after another thread that does so. Returns their number.
    pub(crate) fn reap(&self) -> usize {
        let _turn = self.reaper.turn.lock();
        // Relaxed: the lengths of the lists publish it.
        self.reaper.at_work.store(true, Ordering::Relaxed);
        self.queue_left_values();
        let batch = self.reaper.queue.take();
        let count = batch.len();
        for inode in batch {
            if inode.links() == 0 {
                self.bury_or_free(&inode);
            }
        }
        self.reaper.at_work.store(false, Ordering::Release);
        self.retire_departed();
        count
    }

    /// Takes freed inodes out of the inode cache once their slots were written.
    fn retire_departed(&self) {
        let durable = self.st().journal.durable();
        let mut departed = self.reaper.lingering.take();
        for list in self.reaper.departed.iter() {
            let mut list = list.lock();
            let count = list.partition_point(|(tid, _)| *tid <= durable);
            departed.extend(list.drain(..count).map(|(_, inode)| inode));
        }
        // Without a ring: the task looks at those in use less and less often.
        let busy = departed.into_iter().filter_map(|inode| self.vfs.inodes.retire(inode));
        busy.for_each(|busy| self.reaper.lingering.push(busy));
    }

    /// An inode was freed in the transaction that made it: its slot needs nothing to be said.
    /// Nothing is locked.
    pub(super) fn forget_unmade(&self, inode: Arc<Inode>) {
        // In use it waits until it is not.
        if let Some(busy) = self.vfs.inodes.retire(inode) {
            self.reaper.linger(busy);
        }
    }

    /// Frees every inode without a name, in spite of holders: the last change before the file
    /// system is closed.
    pub(crate) fn free_nameless(&self) {
        for inode in self.vfs.inodes.unlinked() {
            inode.drop_holds();
            self.queue_for_reaper(&inode);
        }
    }

    /// Frees blocks, attributes and number. Freeing has begun, so the inode gets no new holder.
    pub(super) fn free(&self, inode: &Arc<Inode>) -> Result<()> {
        let st = self.st();
        // Dropped when nothing is locked any more.
        let unlisted;
        let _lock = inode.rw.write();
        if inode.links() > 0 {
            // A link that had been begun came first.
            inode.cancel_free();
            return Ok(());
        }
        file::free_blocks(st, inode, 0)?;
        let mut tx = st.begin(FREE_CREDITS)?;
        // With all that it needs: a transaction that has fewer credits left would go on for ever.
        while let Some(need) = xattr::release(st, &mut tx, inode)? {
            tx.restart(need.max(FREE_CREDITS))?;
        }
        self.queue_left_values();
        tx.with_credits(LAST_CREDITS)?;
        // Before anything is changed: the number can be given back. If not, the record stays.
        if !st.alloc.inode_in_use(inode.ino)? {
            return Err(Corrupt::new("inode bitmap")
                .field("freed inode is free")
                .at_inode(inode.ino)
                .into());
        }
        tx.touch(inode)?;
        unlisted = self.vfs.inodes.remove_nameless(inode);
        let left = tx.step(|step| self.free_number(step, inode, st.now()))?;
        if left == Left::Unmade && unlisted.is_none() {
            self.reaper.linger(inode.clone());
        }
        Ok(())
    }

    /// The last step of freeing: record, slot and number. The inode is locked, freeing has begun,
    /// and it has nothing else.
    pub(super) fn free_number(
        &self,
        step: &mut Step<'_>,
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<Left> {
        let st = self.st();
        st.orphans.remove(step, inode)?;
        self.discharge(step, inode)?;
        {
            let mut body = step.edit(inode)?;
            body.links = 0;
            body.size = 0;
            body.dtime = u32::try_from(now.sec).unwrap_or(u32::MAX).max(1);
        }
        // Before the number is free: a remaining reference to this inode must not write to the slot
        // of the next one.
        inode.end_free();
        let unmade = st.dirty.forget_new(step, inode);
        if !unmade && self.vfs.inodes.knows(inode) {
            self.reaper.depart(step.tid(), inode.clone());
        }
        st.alloc.free_inode(step.handle(), inode.ino, inode.ftype, unmade)?;
        st.attrs.forget(inode);
        Ok(if unmade { Left::Unmade } else { Left::Freed })
    }

    /// The owners of an inode that goes are no longer charged for it.
    fn discharge(&self, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
        let st = self.st();
        if !st.quota.is_on() {
            return Ok(());
        }
        st.quota.release_reservation(inode, u64::MAX);
        let (owners, left) = {
            let body = inode.body();
            (st.quota.owners(inode.ino, &body), body.blocks / u64::from(st.geo.sectors_per_block()))
        };
        // Blocks are left only where an image counted too many.
        let space = -st.quota.bytes(i64::try_from(left).unwrap_or(0));
        st.quota.charge_within(
            step.handle(),
            owners,
            Change { space, inodes: -1, promised: 0 },
            false,
        )
    }
}

/// Credits of the last transaction of freeing: attribute block, inode, bitmap, counts, record,
/// owners.
const FREE_CREDITS: u32 = 24 + 6;

/// The part of these that is needed when the attributes are gone.
const LAST_CREDITS: u32 = Orphans::CREDITS + 1 + Alloc::INODE_CREDITS + 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenOptions};
    use extant_testkit::FeatureSet;
    use std::time::{Duration, Instant};

    /// The job must stop polling: once at first, and again after it freed an inode.
    #[test]
    fn the_reaper_of_an_idle_file_system_sleeps() {
        let image = FeatureSet::named("default").make();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let wait_for_sleep = || {
            let end = Instant::now() + Duration::from_secs(60);
            // A run that has begun, and whose bell is not rung yet, still has something to do.
            let ops = fs.operations();
            while ops.reaper_bell().is_rung() || ops.to_reap() != ToReap::Nothing {
                assert!(Instant::now() < end, "the reaper polls");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for_sleep();
        let root = fs.root().unwrap();
        drop(fs.create(&root, b"file", 0o644, NodeKind::File).unwrap());
        fs.unlink(&root, b"file").unwrap();
        fs.sync().unwrap();
        wait_for_sleep();
        std::thread::sleep(Duration::from_millis(200));
        assert!(!fs.operations().reaper_bell().is_rung(), "the reaper polls");
        drop(root);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}
