//! What the kernel keeps of files, and has to be told.
//!
//! With the writeback cache the kernel asks for attributes once and then trusts its own. Of what its writes do it knows all but the blocks
//! that they take: for that it is told that its attributes are old. And what it has not written yet nobody else knows: a search for holes has
//! it write first.
//!
//! # Locking
//! Notifications may wait for an inode that the kernel is evicting, thus for requests; so they come from a thread of their own ([`Notices`]).
//! Handlers send them only for a file that is open, since that cannot be evicted.

use fuser::{INodeNo, Notifier};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const SHARDS: usize = 16;

/// How long notices are gathered before the kernel is told.
const GATHER: Duration = Duration::from_millis(10);

/// An inode of which something is open for writing.
#[derive(Debug, Default)]
struct Written {
    opens: u64,
    /// Blocks of 512 bytes that the kernel believes it to have, if that is known.
    told: Option<u64>,
}

/// The files that are open for writing.
#[derive(Debug)]
pub struct Writers {
    shards: [Mutex<HashMap<u64, Written>>; SHARDS],
}

impl Default for Writers {
    fn default() -> Self {
        Writers { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are locked.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writers {
    fn shard(&self, ino: INodeNo) -> MutexGuard<'_, HashMap<u64, Written>> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }

    /// Opened for writing.
    pub fn open(&self, ino: INodeNo) {
        self.shard(ino).entry(ino.0).or_default().opens += 1;
    }

    /// Closed by one who could write.
    pub fn close(&self, ino: INodeNo) {
        let mut shard = self.shard(ino);
        if let Some(written) = shard.get_mut(&ino.0) {
            written.opens = written.opens.saturating_sub(1);
            if written.opens == 0 {
                shard.remove(&ino.0);
            }
        }
    }

    /// Whether the kernel may keep content that is not written yet.
    pub fn any(&self, ino: INodeNo) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// Whether the kernel has to be told that the file now has so many blocks; it counts as told then.
    pub fn blocks_changed(&self, ino: INodeNo, blocks: u64) -> bool {
        match self.shard(ino).get_mut(&ino.0) {
            Some(written) => written.told.replace(blocks) != Some(blocks),
            None => true,
        }
    }

    /// The kernel got new attributes in another way.
    pub fn blocks_unknown(&self, ino: INodeNo) {
        if let Some(written) = self.shard(ino).get_mut(&ino.0) {
            written.told = None;
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    inodes: HashSet<u64>,
    /// What the thread tells of just now.
    telling: Option<u64>,
    stop: bool,
}

/// Tells the kernel which attributes are old.
#[derive(Debug, Default)]
pub struct Notices {
    notifier: OnceLock<Notifier>,
    queue: Mutex<Queue>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
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
    pub fn connect(&self, notifier: Notifier) {
        // There is one session, so it is set once.
        let _ = self.notifier.set(notifier);
    }

    /// The inode's attributes changed.
    pub fn attributes(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.inodes.insert(ino.0) && queue.inodes.len() == 1 {
            self.changed.notify_all();
        }
    }

    /// What was queued of an open file is told when this returns.
    pub fn settle(&self, ino: INodeNo) {
        let mut queue = lock(&self.queue);
        if queue.inodes.remove(&ino.0) {
            drop(queue);
            return self.tell(ino);
        }
        while queue.telling == Some(ino.0) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the kernel write what it keeps of an open file, and forget it. Its writes are requests: for threads that do not receive only.
    pub fn write_back(&self, ino: INodeNo) {
        if let Some(notifier) = self.notifier.get() {
            // The kernel does not know the inode: then it keeps nothing of it.
            let _ = notifier.inval_inode(ino, 0, 0);
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
            let Some(ino) = queue.inodes.iter().next().copied() else {
                drop(self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner));
                // Many small files are told of together, at one switch of threads.
                std::thread::sleep(GATHER);
                queue = lock(&self.queue);
                continue;
            };
            queue.inodes.remove(&ino);
            queue.telling = Some(ino);
            drop(queue);
            self.tell(INodeNo(ino));
            queue = lock(&self.queue);
            queue.telling = None;
            self.changed.notify_all();
        }
    }

    fn tell(&self, ino: INodeNo) {
        // Behind a negative offset there are attributes only. An inode that the kernel has forgotten needs no notice.
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_inode(ino, -1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_once_of_each_number_of_blocks() {
        let (writers, ino) = (Writers::default(), INodeNo(12));
        writers.open(ino);
        assert!(writers.blocks_changed(ino, 8));
        assert!(!writers.blocks_changed(ino, 8));
        assert!(writers.blocks_changed(ino, 16));
        writers.blocks_unknown(ino);
        assert!(writers.blocks_changed(ino, 16));
        writers.close(ino);
        assert!(writers.blocks_changed(ino, 16), "nothing is known of a closed file");
    }

    #[test]
    fn a_file_is_written_until_its_last_writer_closes() {
        let (writers, ino) = (Writers::default(), INodeNo(12));
        writers.open(ino);
        writers.open(ino);
        writers.close(ino);
        assert!(writers.any(ino));
        writers.close(ino);
        assert!(!writers.any(ino));
    }

    #[test]
    fn the_thread_ends() {
        let notices = Notices::start().expect("a thread");
        notices.attributes(INodeNo(5));
        notices.settle(INodeNo(5));
        notices.stop();
    }
}
