//! Tells the kernel which attributes are old.
//!
//! A notice makes the kernel ask for attributes before the next write, too. So a file that goes on growing is told of now and then only, and
//! once more when it is closed. Mostly none is needed: before it closes a file the kernel sets the times that it kept, and the reply to that
//! has all attributes.
//!
//! # Locking
//! Notifications may wait for an inode that the kernel is evicting, thus for requests; so they come from a thread of their own. Handlers send
//! them only for a file that is open, since that cannot be evicted.

use crate::service::{Old, Tell};
use fuser::INodeNo;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long notices are gathered: most are needed no more then, and many small files cost one switch of threads.
const GATHER: Duration = Duration::from_millis(10);

/// The least time between two notices of one open file.
const INTERVAL: Duration = Duration::from_millis(100);

/// When the kernel is asked to forget an inode.
const FORGETTING: [Duration; 2] = [Duration::from_micros(300), Duration::from_millis(2)];

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are locked.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Queue {
    /// Inodes that the kernel is to be told of, and whether only because of their blocks.
    waiting: HashMap<u64, bool>,
    /// When it was told of those that it was told of lately.
    told: HashMap<u64, Instant>,
    /// Inodes that the kernel is to forget, once nobody uses them.
    leaving: HashSet<u64>,
    /// Inodes whose pages the kernel is to drop.
    outdated: HashSet<u64>,
    /// What the thread tells of just now.
    telling: Option<u64>,
    /// Whether the thread waits for work.
    idle: bool,
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
    pub fn attributes(&self, ino: INodeNo) {
        self.add(ino, false);
    }

    /// Of the inode's attributes only its blocks changed.
    pub fn blocks(&self, ino: INodeNo) {
        self.add(ino, true);
    }

    fn add(&self, ino: INodeNo, only_blocks: bool) {
        let mut queue = lock(&self.queue);
        match queue.waiting.entry(ino.0) {
            Entry::Occupied(mut known) => *known.get_mut() &= only_blocks,
            Entry::Vacant(place) => {
                place.insert(only_blocks);
                self.wake(&mut queue);
            }
        }
    }

    /// The kernel hears of the inode's blocks in another way.
    pub fn blocks_told(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.waiting.get(&ino.0) == Some(&true) {
            queue.waiting.remove(&ino.0);
        }
    }

    /// The file is closed: nothing more will come soon, so the kernel is told at once.
    pub fn closed(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.told.remove(&ino.0).is_some() && queue.waiting.contains_key(&ino.0) {
            self.wake(&mut queue);
        }
    }

    /// The kernel is to forget the inode as soon as nobody uses it: what it keeps of it is not so, and it would ask nobody.
    pub fn forget(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.leaving.insert(ino.0) {
            self.wake(&mut queue);
        }
    }

    /// As [`Notices::write_back`], soon.
    pub fn write_back_later(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.outdated.insert(ino.0) {
            self.wake(&mut queue);
        }
    }

    fn wake(&self, queue: &mut Queue) {
        if std::mem::take(&mut queue.idle) {
            self.changed.notify_all();
        }
    }

    /// What was queued of an open file is told when this returns, unless it was told of lately.
    pub fn settle(&self, ino: INodeNo) {
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

    /// Has the kernel write what it keeps of an open file, and forget it. Its writes are requests: for threads that do not receive only.
    pub fn write_back(&self, ino: INodeNo) {
        if let Some(tell) = self.tell.get() {
            // The kernel does not know the inode: then it keeps nothing of it.
            let _ = tell(Old::Pages(ino, 0, 0));
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
        while !queue.stop {
            if !queue.leaving.is_empty() || !queue.outdated.is_empty() {
                queue = self.drop_kept(queue);
                continue;
            }
            let now = Instant::now();
            let Some(ino) = queue.take_due(now) else {
                queue.tidy(now);
                queue = self.wait(queue);
                continue;
            };
            queue.telling = Some(ino);
            drop(queue);
            self.tell(INodeNo(ino));
            queue = lock(&self.queue);
            queue.telling = None;
            if queue.settling > 0 {
                self.changed.notify_all();
            }
        }
    }

    /// Has the kernel drop what is not so. Who has closed a file may use the inode for a moment longer than this hears of it.
    fn drop_kept<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let (leaving, outdated) = (std::mem::take(&mut queue.leaving), std::mem::take(&mut queue.outdated));
        drop(queue);
        outdated.into_iter().for_each(|ino| self.write_back(INodeNo(ino)));
        for pause in FORGETTING {
            std::thread::sleep(pause);
            for ino in &leaving {
                // Older kernels do not know the notice.
                let _ = self.tell.get().map(|tell| tell(Old::Inode(INodeNo(*ino))));
            }
        }
        lock(&self.queue)
    }

    /// Waits for an inode that may be told of, and a little longer for others.
    fn wait<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.idle = true;
        let mut queue = match queue.waiting.is_empty() {
            true => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            false => self.changed.wait_timeout(queue, INTERVAL).unwrap_or_else(PoisonError::into_inner).0,
        };
        if queue.leaving.is_empty() && queue.outdated.is_empty() {
            drop(queue);
            std::thread::sleep(GATHER);
            queue = lock(&self.queue);
        }
        queue.idle = false;
        queue
    }

    fn tell(&self, ino: INodeNo) {
        // Behind a negative offset there are attributes only. An inode that the kernel has forgotten needs no notice.
        if let Some(tell) = self.tell.get() {
            let _ = tell(Old::Pages(ino, -1, 0));
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
    fn a_closed_file_is_due() {
        let notices = Notices::default();
        let (ino, now) = (INodeNo(5), Instant::now());
        notices.attributes(ino);
        notices.settle(ino);
        notices.attributes(ino);
        assert!(!lock(&notices.queue).is_due(5, now));
        notices.closed(ino);
        assert!(lock(&notices.queue).is_due(5, now));
    }

    #[test]
    fn a_notice_of_blocks_alone_is_needed_no_more_once_they_are_told() {
        let (notices, ino) = (Notices::default(), INodeNo(5));
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
        notices.attributes(INodeNo(5));
        notices.settle(INodeNo(5));
        notices.stop();
    }
}
