//! Notices that invalidate attributes in the kernel.
//!
//! A notice also makes the kernel request attributes before the next write. A growing file is
//! therefore announced at most every [`INTERVAL`], and once more when it is closed. Most notices
//! are unnecessary: before the kernel closes a file it sets its cached times, and the reply to that
//! has all attributes.
//!
//! # Locking
//! A notice may wait for an inode that the kernel is evicting, and thus for requests. So a thread
//! of its own sends notices. Handlers send them only for open files, which the kernel cannot evict.
//!
//! The kernel forgets only unused inodes, and the process that closes a file uses its inode for a
//! moment after the server receives the release. So the thread sends the notice at once, and
//! repeats it after the delays of [`FORGETTING`].

use crate::handler::{Invalidation, Tell};
use crate::types::NodeId;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long notices are gathered: most are needed no more then, and many small files cost one
/// switch of threads.
const GATHER: Duration = Duration::from_millis(10);

/// The least time between two notices of one open file.
const INTERVAL: Duration = Duration::from_millis(100);

/// When the kernel is asked to forget an inode, from when it was closed.
const FORGETTING: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_micros(50),
    Duration::from_micros(300),
    Duration::from_millis(2),
];

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are locked.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What wakes the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
enum Rest {
    /// It works.
    #[default]
    None,
    /// It gathers notices: what cannot wait for them.
    Gathering,
    /// Anything.
    Idle,
}

/// An inode that the kernel is to forget.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    since: Instant,
    /// How often the kernel was asked.
    asked: usize,
}

impl Leaving {
    /// When the kernel is asked again, unless it was asked often enough.
    fn due(self) -> Option<Instant> {
        FORGETTING.get(self.asked).map(|after| self.since + *after)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Inodes that the kernel is to be told of, and whether only because of their blocks.
    waiting: HashMap<u64, bool>,
    /// When it was told of those that it was told of lately.
    told: HashMap<u64, Instant>,
    /// Inodes that the kernel is to forget, once nobody uses them.
    leaving: HashMap<u64, Leaving>,
    /// Inodes whose pages the kernel is to drop.
    outdated: HashSet<u64>,
    /// What the thread tells of just now.
    telling: Option<u64>,
    rest: Rest,
    /// How many wait for what the thread tells of.
    settling: usize,
    stop: bool,
}

impl Queue {
    fn is_due(&self, ino: u64, now: Instant) -> bool {
        self.told.get(&ino).is_none_or(|at| now.saturating_duration_since(*at) >= INTERVAL)
    }

    /// Takes out an inode that may be told of now.
    fn take_due(&mut self, now: Instant) -> Option<u64> {
        let ino = self.waiting.keys().copied().find(|ino| self.is_due(*ino, now))?;
        self.take(ino, now);
        Some(ino)
    }

    /// Takes out this one; false if it does not wait, or may not be told of yet.
    fn take(&mut self, ino: u64, now: Instant) -> bool {
        let takes = self.is_due(ino, now) && self.waiting.remove(&ino).is_some();
        if takes {
            self.told.insert(ino, now);
        }
        takes
    }

    /// Counts that the kernel is asked to forget those that are due; which these are.
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

    /// When the kernel is asked next to forget something.
    fn next_leaving(&self) -> Option<Instant> {
        self.leaving.values().filter_map(|leaving| leaving.due()).min()
    }

    /// Forgets what was told long ago.
    fn tidy(&mut self, now: Instant) {
        self.told.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
    }
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

    /// From now on notices arrive.
    pub fn connect(&self, tell: Tell) {
        // There is one connection, so it is set once.
        let _ = self.tell.set(tell);
    }

    /// The inode's attributes changed.
    pub fn attributes(&self, ino: NodeId) {
        self.add(ino, false);
    }

    /// Of the inode's attributes only its blocks changed.
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

    /// The kernel hears of the inode's blocks in another way.
    pub fn blocks_told(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.waiting.get(&ino.0) == Some(&true) {
            queue.waiting.remove(&ino.0);
        }
    }

    /// The file is closed: nothing more will come soon, so the kernel is told at once.
    pub fn closed(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.told.remove(&ino.0).is_some() && queue.waiting.contains_key(&ino.0) {
            self.wake(&mut queue, Rest::Idle);
        }
    }

    /// The kernel is to forget the inode as soon as nobody uses it: what it keeps of it is not so,
    /// and it would ask nobody.
    pub fn forget(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        queue.leaving.insert(ino.0, Leaving { since: Instant::now(), asked: 0 });
        self.wake(&mut queue, Rest::Gathering);
    }

    /// The kernel has forgotten the inode.
    pub fn forgotten(&self, ino: NodeId) {
        lock(&self.queue).leaving.remove(&ino.0);
    }

    /// As [`Notices::write_back`], soon.
    pub fn write_back_later(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        if queue.outdated.insert(ino.0) {
            self.wake(&mut queue, Rest::Gathering);
        }
    }

    /// Wakes the thread if it rests like this, or deeper.
    fn wake(&self, queue: &mut Queue, from: Rest) {
        if queue.rest >= from {
            queue.rest = Rest::None;
            self.changed.notify_all();
        }
    }

    /// What was queued of an open file is told when this returns, unless it was told of lately.
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

    /// The attributes of an open file changed, and who asks for them from now on hears it.
    pub fn attributes_now(&self, ino: NodeId) {
        let mut queue = lock(&self.queue);
        queue.waiting.remove(&ino.0);
        queue.told.insert(ino.0, Instant::now());
        drop(queue);
        self.tell(ino);
    }

    /// Has the kernel write what it keeps of an open file, and forget it. Its writes are requests:
    /// for threads that do not receive only.
    pub fn write_back(&self, ino: NodeId) {
        self.write_back_range(ino, 0, None);
    }

    /// As [`Notices::write_back`], of the pages from byte `start` on, up to `end`.
    pub fn write_back_range(&self, ino: NodeId, start: u64, end: Option<u64>) {
        // In the protocol a length of 0 means all that follows.
        let len = end.map_or(0, |end| end.saturating_sub(start).max(1));
        let in_range = i64::try_from(start).ok().zip(i64::try_from(len).ok());
        if let (Some(tell), Some((start, len))) = (self.tell.get(), in_range) {
            // The kernel does not know the inode: then it keeps nothing of it.
            let _ = tell(Invalidation::Pages(ino, start, len));
        }
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
        // From when on what was gathered is told.
        let mut gathered = Instant::now();
        while !queue.stop {
            let now = Instant::now();
            let (outdated, leaving) =
                (std::mem::take(&mut queue.outdated), queue.take_leaving(now));
            if !outdated.is_empty() || !leaving.is_empty() {
                queue = self.unlocked(queue, || self.drop_kept(outdated, leaving));
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

    /// Has the kernel drop what is not so.
    fn drop_kept(&self, outdated: HashSet<u64>, leaving: Vec<u64>) {
        outdated.into_iter().for_each(|ino| self.write_back(NodeId(ino)));
        for ino in leaving {
            // Older kernels do not know the notice.
            let _ = self.tell.get().map(|tell| tell(Invalidation::Inode(NodeId(ino))));
        }
    }

    /// Waits for an inode that may be told of, and a little longer for others; or until something
    /// cannot wait.
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
        // Behind a negative offset there are attributes only. An inode that the kernel has
        // forgotten needs no notice.
        if let Some(tell) = self.tell.get() {
            let _ = tell(Invalidation::Pages(ino, -1, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_of_now_and_then() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.waiting.extend([(5, true), (6, false)]);
        assert!(queue.take(5, start));
        assert!(!queue.take(5, start), "it waits no more");
        queue.waiting.insert(5, true);
        assert!(!queue.take(5, start + INTERVAL / 2), "it was told of just now");
        assert_eq!(queue.take_due(start + INTERVAL / 2), Some(6));
        assert_eq!(queue.take_due(start + INTERVAL / 2), None);
        assert_eq!(queue.take_due(start + INTERVAL), Some(5));
        queue.tidy(start + 3 * INTERVAL);
        assert!(queue.told.is_empty());
    }

    #[test]
    fn an_inode_is_to_be_forgotten_at_once_and_again_a_little_later() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.leaving.insert(5, Leaving { since: start, asked: 0 });
        for after in FORGETTING {
            assert_eq!(queue.next_leaving(), Some(start + after));
            assert_eq!(queue.take_leaving(start + after), [5]);
            assert_eq!(queue.take_leaving(start + after), [0; 0], "asked just now");
        }
        assert!(queue.leaving.is_empty(), "somebody else uses it");
    }

    #[test]
    fn gathering_ends_for_what_cannot_wait() {
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
        assert!(waits(), "it was not for the blocks alone");
    }

    #[test]
    fn the_thread_ends() {
        let notices = Notices::start().expect("a thread");
        notices.attributes(NodeId(5));
        notices.settle(NodeId(5));
        notices.stop();
    }
}
