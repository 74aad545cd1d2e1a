//! Notices that invalidate attributes in the kernel.
//!
//! A notice also makes the kernel request attributes before the next write. A growing file is
//! therefore announced at most every [`INTERVAL`], and once more when it is closed or synced: after
//! fsync(2) the kernel shows the number of blocks that the file has. Most notices
//! are unnecessary: before the kernel closes a file it sets its cached times, and the reply to that
//! has all attributes.
//!
//! # Locking
//! A notice may wait for an inode that the kernel is evicting, and thus for requests. So a thread
//! of its own sends notices. Handlers send them only for open files, which the kernel cannot evict.
//!
//! The kernel forgets only unused inodes, and the process that closes a file uses its inode for a
//! moment after the server receives the release. So the thread sends the notice at once, and
//! repeats it after the delays of [`FORGETTING`]. Where the server is not told of closes, it goes
//! on for longer.

use crate::handler::{Invalidation, Tell};
use crate::types::NodeId;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time for which the thread gathers notices. Most become unnecessary within it, and the notices of
/// many small files cost one switch of threads.
const GATHER: Duration = Duration::from_millis(10);

/// Shortest time between two notices of one open file.
const INTERVAL: Duration = Duration::from_millis(100);

/// Delays, from the close, of the notices that ask the kernel to forget an inode.
const FORGETTING: [Duration; 8] = [
    Duration::ZERO,
    Duration::from_micros(50),
    Duration::from_micros(300),
    Duration::from_millis(2),
    // From the change, where closes are not known.
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(20),
];

/// The number of these delays after a close.
const AFTER_CLOSE: usize = 4;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is valid: no code panics while it holds these locks.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleep state of the thread, which determines the events that wake it. The order is the depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
enum Rest {
    /// Not asleep.
    #[default]
    None,
    /// Asleep while notices gather: only urgent events wake the thread.
    Gathering,
    /// Asleep without work: any event wakes the thread.
    Idle,
}

/// An inode that the kernel must forget.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    since: Instant,
    /// Number of notices sent.
    asked: usize,
    /// Number of notices to send.
    most: usize,
}

impl Leaving {
    /// Returns the time of the next notice; `None` after the last one.
    fn due(self) -> Option<Instant> {
        let after = FORGETTING.get(self.asked).filter(|_| self.asked < self.most);
        after.map(|after| self.since + *after)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Inodes with a pending notice; the value is true if only the number of blocks changed.
    waiting: HashMap<u64, bool>,
    /// Times of recent notices by inode.
    told: HashMap<u64, Instant>,
    /// Inodes that the kernel must forget as soon as they are unused.
    leaving: HashMap<u64, Leaving>,
    /// Inodes whose pages the kernel must drop.
    outdated: HashSet<u64>,
    /// Inodes whose pages the thread makes the kernel drop at the moment.
    dropping: HashSet<u64>,
    /// Inode of the notice that the thread sends at the moment.
    telling: Option<u64>,
    rest: Rest,
    /// Number of threads that wait in [`Notices::settle`] for that notice.
    settling: usize,
    stop: bool,
}

impl Queue {
    fn is_due(&self, ino: u64, now: Instant) -> bool {
        self.told.get(&ino).is_none_or(|at| now.saturating_duration_since(*at) >= INTERVAL)
    }

    /// Removes and returns an inode whose notice is due.
    fn take_due(&mut self, now: Instant) -> Option<u64> {
        let ino = self.waiting.keys().copied().find(|ino| self.is_due(*ino, now))?;
        self.take(ino, now);
        Some(ino)
    }

    /// Removes the pending notice of an inode, due or not; false if it has none.
    fn take(&mut self, ino: u64, now: Instant) -> bool {
        let takes = self.waiting.remove(&ino).is_some();
        if takes {
            self.told.insert(ino, now);
        }
        takes
    }

    /// Returns the inodes for which a notice to forget is due, and counts that notice as sent.
    fn take_leaving(&mut self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        self.leaving.retain(|ino, leaving| {
            if leaving.due().is_some_and(|at| at <= now) {
                leaving.asked += 1;
                due.push(*ino);
            }
            leaving.due().is_some()
        });
        due
    }

    /// Returns the time of the next notice to forget an inode.
    fn next_leaving(&self) -> Option<Instant> {
        self.leaving.values().filter_map(|leaving| leaving.due()).min()
    }

    /// Removes the times of notices older than [`INTERVAL`].
    fn tidy(&mut self, now: Instant) {
        self.told.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
    }
}

/// Notices that were not sent, by inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingNotices {
    /// Of attributes; 1 if only the number of blocks changed.
    pub waiting: Vec<(u64, u64)>,
    /// To forget the inode; how often at most.
    pub leaving: Vec<(u64, u64)>,
    /// To drop pages.
    pub outdated: Vec<u64>,
}

/// The notices of a mount, and the thread that sends them.
#[derive(Default)]
pub struct Notices {
    tell: OnceLock<Tell>,
    queue: Mutex<Queue>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Notices {
    /// Starts the thread.
    pub fn start() -> io::Result<Arc<Notices>> {
        let notices = Arc::new(Notices::default());
        let own = notices.clone();
        let thread = Builder::new().name("extant-notify".into()).spawn(move || own.serve())?;
        *lock(&notices.thread) = Some(thread);
        Ok(notices)
    }

    /// Sets the function that sends notices. Earlier notices are dropped.
    pub fn connect(&self, tell: Tell) {
        // A mount has one connection, so this is the only call.
        let _ = self.tell.set(tell);
    }

    /// Queues a notice: attributes of the inode changed.
    pub fn attributes(&self, ino: NodeId) {
        self.add(ino, false);
    }

    /// Queues a notice: only the number of blocks of the inode changed.
    pub fn blocks(&self, ino: NodeId) {
        self.add(ino, true);
    }

    fn add(&self, ino: NodeId, only_blocks: bool) {
        let mut queue = lock(&self.queue);
        match queue.waiting.entry(ino.0) {
            Entry::Occupied(mut known) => *known.get_mut() &= only_blocks,
            Entry::Vacant(place) => {
                place.insert(only_blocks);
                self.wake(&mut queue, Rest::Idle);
            }
        }
    }

    /// Drops the pending notice of an inode if it is for the number of blocks only: a reply carries
    /// that number.
    pub fn blocks_told(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.waiting.get(&ino.0) == Some(&true) {
            queue.waiting.remove(&ino.0);
        }
    }

    /// Makes the pending notice of a closed file due at once, since no further changes are
    /// expected.
    pub fn closed(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.told.remove(&ino.0).is_some() && queue.waiting.contains_key(&ino.0) {
            self.wake(&mut queue, Rest::Idle);
        }
    }

    /// Makes the kernel forget an inode as soon as it is unused. Its cached times are wrong, and
    /// the kernel would never request them again.
    pub fn forget(&self, ino: NodeId) {
        self.leave(ino, AFTER_CLOSE);
    }

    /// As [`Notices::forget`], for an inode whose last close will not be known.
    pub fn forget_unseen(&self, ino: NodeId) {
        self.leave(ino, FORGETTING.len());
    }

    fn leave(&self, ino: NodeId, most: usize) {
        let mut queue = lock(&self.queue);
        queue.leaving.insert(ino.0, Leaving { since: Instant::now(), asked: 0, most });
        self.wake(&mut queue, Rest::Gathering);
    }

    /// Stops the notices to forget an inode: the kernel has sent FORGET.
    pub fn forgotten(&self, ino: NodeId) {
        lock(&self.queue).leaving.remove(&ino.0);
    }

    /// As [`Notices::write_back`], later on the thread of this object.
    pub fn write_back_later(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.outdated.insert(ino.0) {
            self.wake(&mut queue, Rest::Gathering);
        }
    }

    /// Wakes the thread if its sleep is `from` or deeper.
    fn wake(&self, queue: &mut Queue, from: Rest) {
        if queue.rest >= from {
            queue.rest = Rest::None;
            self.changed.notify_all();
        }
    }

    /// Sends the pending notice of an open file before it returns, however recent the last one is.
    /// Waits if the thread sends the notice at the moment.
    pub fn settle(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.take(ino.0, Instant::now()) {
            drop(queue);
            return self.tell(ino);
        }
        queue.settling += 1;
        while queue.telling == Some(ino.0) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.settling -= 1;
    }

    /// Sends a notice at once: attributes of an open file changed. Callers that request them after
    /// this returns get the new ones.
    pub fn attributes_now(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        queue.waiting.remove(&ino.0);
        queue.told.insert(ino.0, Instant::now());
        drop(queue);
        self.tell(ino);
    }

    /// Makes the kernel write its cached pages of an open file and drop them. These writes are
    /// requests, so the caller must not be a thread that receives requests.
    pub fn write_back(&self, ino: NodeId) {
        self.write_back_range(ino, 0, None);
    }

    /// As [`Notices::write_back`], limited to the pages of bytes `start` to `end` (`None`: to the
    /// end of the file).
    pub fn write_back_range(&self, ino: NodeId, start: u64, end: Option<u64>) {
        // In the protocol a length of 0 means the rest of the file.
        let len = end.map_or(0, |end| end.saturating_sub(start).max(1));
        let in_range = i64::try_from(start).ok().zip(i64::try_from(len).ok());
        if let (Some(tell), Some((start, len))) = (self.tell.get(), in_range) {
            // An error means that the kernel does not know the inode, and thus has no pages of it.
            let _ = tell(Invalidation::Pages(ino, start, len));
        }
    }

    /// Stops the thread, without a wait for the notice that it sends, and returns those that it
    /// has not sent. Another process, or other notices, send it.
    pub fn take(&self) -> PendingNotices {
        let mut queue = lock(&self.queue);
        queue.stop = true;
        self.changed.notify_all();
        // The one that is being sent may be lost with the thread.
        let waiting = queue.waiting.drain().map(|(ino, blocks)| (ino, u64::from(blocks)));
        let mut waiting: Vec<(u64, u64)> = waiting.collect();
        waiting.extend(queue.telling.map(|ino| (ino, 0)));
        let leaving = queue.leaving.drain().map(|(ino, leaving)| (ino, leaving.most as u64));
        let leaving = leaving.collect();
        let mut outdated = std::mem::take(&mut queue.outdated);
        outdated.extend(&queue.dropping);
        PendingNotices { waiting, leaving, outdated: outdated.into_iter().collect() }
    }

    /// Queues notices that were not sent.
    pub fn put(&self, pending: &PendingNotices) {
        for (ino, only_blocks) in &pending.waiting {
            self.add(NodeId(*ino), *only_blocks != 0);
        }
        for (ino, most) in &pending.leaving {
            self.leave(NodeId(*ino), (*most as usize).min(FORGETTING.len()));
        }
        pending.outdated.iter().for_each(|ino| self.write_back_later(NodeId(*ino)));
    }

    /// Ends the thread.
    pub fn stop(&self) {
        lock(&self.queue).stop = true;
        self.changed.notify_all();
        let thread = lock(&self.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that notifies the kernel had panicked");
        }
    }

    fn serve(&self) {
        let mut queue = lock(&self.queue);
        // Time from which on gathered notices are sent.
        let mut gathered = Instant::now();
        while !queue.stop {
            let now = Instant::now();
            let (outdated, leaving) =
                (std::mem::take(&mut queue.outdated), queue.take_leaving(now));
            if !outdated.is_empty() || !leaving.is_empty() {
                queue.dropping.clone_from(&outdated);
                queue = self.unlocked(queue, || self.drop_kept(outdated, leaving));
                queue.dropping.clear();
                continue;
            }
            if now >= gathered
                && let Some(ino) = queue.take_due(now)
            {
                queue.telling = Some(ino);
                queue = self.unlocked(queue, || self.tell(NodeId(ino)));
                queue.telling = None;
                if queue.settling > 0 {
                    self.changed.notify_all();
                }
                continue;
            }
            queue.tidy(now);
            queue = self.rest(queue, now, &mut gathered);
        }
    }

    fn unlocked<'a>(
        &'a self,
        queue: MutexGuard<'a, Queue>,
        work: impl FnOnce(),
    ) -> MutexGuard<'a, Queue> {
        drop(queue);
        work();
        lock(&self.queue)
    }

    /// Makes the kernel drop outdated pages and forget inodes with wrong times.
    fn drop_kept(&self, outdated: HashSet<u64>, leaving: Vec<u64>) {
        outdated.into_iter().for_each(|ino| self.write_back(NodeId(ino)));
        for ino in leaving {
            // Kernels before 6.18 refuse the notice.
            let _ = self.tell.get().map(|tell| tell(Invalidation::Inode(NodeId(ino))));
        }
    }

    /// Sleeps until a notice is due or an event wakes the thread. After a notice arrives, the next
    /// call gathers others for [`GATHER`]; urgent events end that, too.
    fn rest<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        now: Instant,
        gathered: &mut Instant,
    ) -> MutexGuard<'a, Queue> {
        let gathers = now < *gathered;
        queue.rest = if gathers { Rest::Gathering } else { Rest::Idle };
        let told = if gathers {
            Some(*gathered)
        } else {
            (!queue.waiting.is_empty()).then(|| now + INTERVAL)
        };
        queue = match queue.next_leaving().into_iter().chain(told).min() {
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let longest = until.saturating_duration_since(now);
                self.changed.wait_timeout(queue, longest).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        queue.rest = Rest::None;
        if !gathers {
            *gathered = Instant::now() + GATHER;
        }
        queue
    }

    fn tell(&self, ino: NodeId) {
        // A negative offset means attributes without pages. An error means that the kernel has
        // forgotten the inode, which then needs no notice.
        if let Some(tell) = self.tell.get() {
            let _ = tell(Invalidation::Pages(ino, -1, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_a_file_have_a_shortest_interval() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.waiting.extend([(5, true), (6, false)]);
        assert!(queue.take(5, start));
        assert!(!queue.take(5, start), "the notice was removed");
        queue.waiting.insert(5, true);
        assert_eq!(queue.take_due(start + INTERVAL / 2), Some(6));
        assert_eq!(queue.take_due(start + INTERVAL / 2), None);
        assert_eq!(queue.take_due(start + INTERVAL), Some(5));
        queue.tidy(start + 3 * INTERVAL);
        assert!(queue.told.is_empty());
    }

    #[test]
    fn notices_to_forget_an_inode_are_repeated() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        for most in [AFTER_CLOSE, FORGETTING.len()] {
            queue.leaving.insert(5, Leaving { since: start, asked: 0, most });
            for after in &FORGETTING[..most] {
                assert_eq!(queue.next_leaving(), Some(start + *after));
                assert_eq!(queue.take_leaving(start + *after), [5]);
                assert_eq!(queue.take_leaving(start + *after), [0; 0], "a notice was just sent");
            }
            assert!(queue.leaving.is_empty(), "after the last notice the thread stops asking");
        }
    }

    #[test]
    fn urgent_events_end_gathering() {
        let notices = Notices::default();
        let rests_after = |event: &dyn Fn()| {
            lock(&notices.queue).rest = Rest::Gathering;
            event();
            lock(&notices.queue).rest == Rest::Gathering
        };
        assert!(rests_after(&|| notices.attributes(NodeId(5))));
        assert!(!rests_after(&|| notices.forget(NodeId(5))));
        assert!(!rests_after(&|| notices.write_back_later(NodeId(5))));
        notices.forgotten(NodeId(5));
        assert!(lock(&notices.queue).leaving.is_empty());
    }

    #[test]
    fn a_closed_file_is_due() {
        let notices = Notices::default();
        let (ino, now) = (NodeId(5), Instant::now());
        notices.attributes(ino);
        notices.settle(ino);
        notices.attributes(ino);
        assert!(!lock(&notices.queue).is_due(5, now));
        notices.closed(ino);
        assert!(lock(&notices.queue).is_due(5, now));
    }

    #[test]
    fn a_notice_of_blocks_alone_is_needed_no_more_once_they_are_told() {
        let (notices, ino) = (Notices::default(), NodeId(5));
        let waits = || lock(&notices.queue).waiting.contains_key(&ino.0);
        notices.blocks(ino);
        notices.blocks_told(ino);
        assert!(!waits());
        notices.attributes(ino);
        notices.blocks(ino);
        notices.blocks_told(ino);
        assert!(waits(), "the notice was not for the number of blocks alone");
    }

    #[test]
    fn the_thread_ends() {
        let notices = Notices::start().expect("a thread");
        notices.attributes(NodeId(5));
        notices.settle(NodeId(5));
        notices.stop();
    }
}
