//! Writers of a mount without requests for opens.
//!
//! A file has writers from its first WRITE on, until the kernel forgets it, or no WRITE has come
//! for a while. For example, a file of a copy is written to at 10:00:00; a copy of another file at
//! 10:01:05 finds that, and the first file counts as closed. Nothing depends on the exact time: a
//! later WRITE makes it a written file again. No timer is needed, since files that count as open
//! cost memory only: they hold preallocated space that is taken from them when space is short.
//!
//! # Locking
//! The queue of a shard, then its files.

use super::writers::{SHARDS, Writers, Written, lock};
use crate::types::NodeId;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

/// Time without a WRITE after which a file counts as closed. The kernel writes cached data that are
/// 30 seconds old.
const IDLE: Duration = Duration::from_secs(60);

/// Largest number of queued files of a shard. The engine keeps the inodes of written files in
/// memory.
const MAX_QUEUED: usize = 256;

/// Number of files that a new one looks at: more than one, so that the queue shrinks.
const LOOKS: usize = 2;

/// Written files of a shard, in the order of the last look at them.
#[derive(Debug, Default)]
pub struct Unseen(VecDeque<Queued>);

/// A file whose writers may have closed it.
#[derive(Debug)]
struct Queued {
    ino: NodeId,
    /// Its first write, by which a file is known that was forgotten and written to again.
    first: Instant,
    /// Time of the last look.
    looked: Instant,
}

impl Writers {
    /// Notes a write of a file whose opens are not seen. Returns whether it had no writers before.
    pub fn wrote(&self, ino: NodeId, now: Instant) -> bool {
        let new = match self.shard(ino).entry(ino.0) {
            Entry::Occupied(mut known) => {
                let written = known.get_mut();
                let first = written.wrote.map_or(now, |(first, _)| first);
                written.wrote = Some((first, now));
                false
            }
            Entry::Vacant(place) => {
                let written = place.insert(Written::new());
                written.wrote = Some((now, now));
                true
            }
        };
        if new {
            let queued = Queued { ino, first: now, looked: now };
            lock(&self.unseen[ino.0 as usize % SHARDS]).0.push_back(queued);
        }
        new
    }

    /// Removes and returns files of the shard of `ino` that count as closed.
    pub fn take_closed(&self, ino: NodeId, now: Instant) -> Vec<NodeId> {
        let mut queue = lock(&self.unseen[ino.0 as usize % SHARDS]);
        let mut closed = Vec::new();
        for _ in 0..LOOKS {
            let full = queue.0.len() > MAX_QUEUED;
            let is_old = |at: Instant| now.saturating_duration_since(at) >= IDLE;
            let Some(oldest) = queue.0.pop_front_if(|oldest| full || is_old(oldest.looked)) else {
                break;
            };
            let mut shard = self.shard(oldest.ino);
            match shard.get(&oldest.ino.0).and_then(|written| written.wrote) {
                Some((first, last)) if first == oldest.first => {
                    if full || is_old(last) {
                        self.remove(&mut shard, oldest.ino);
                        closed.push(oldest.ino);
                    } else {
                        queue.0.push_back(Queued { looked: now, ..oldest });
                    }
                }
                // The kernel has forgotten it since.
                _ => {}
            }
        }
        closed
    }

    /// Ends the writers of a file that the kernel forgets. Returns whether it had any.
    pub fn end(&self, ino: NodeId) -> bool {
        let mut shard = self.shard(ino);
        self.remove(&mut shard, ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of an inode in the first shard.
    fn of_shard(number: usize) -> NodeId {
        NodeId((number * SHARDS) as u64)
    }

    #[test]
    fn a_file_counts_as_closed_when_no_write_came_for_long() {
        let (writers, start) = (Writers::default(), Instant::now());
        let (old, busy, new) = (of_shard(1), of_shard(2), of_shard(3));
        assert!(writers.wrote(old, start));
        assert!(writers.wrote(busy, start));
        assert!(!writers.wrote(busy, start + IDLE));
        assert!(writers.take_closed(new, start + IDLE / 2).is_empty());
        assert!(writers.wrote(new, start + IDLE));
        assert_eq!(writers.take_closed(new, start + IDLE), [old]);
        assert!(!writers.any(old));
        assert!(writers.any(busy));
        assert_eq!(writers.take_closed(new, start + 2 * IDLE), [new, busy]);
        assert!(writers.wrote(old, start + 2 * IDLE), "a later write makes it a written file");
    }

    #[test]
    fn a_file_that_is_written_to_again_after_it_was_forgotten_is_a_new_one() {
        let (writers, start) = (Writers::default(), Instant::now());
        let (ino, later) = (of_shard(1), start + IDLE / 2);
        writers.wrote(ino, start);
        assert!(writers.end(ino));
        assert!(!writers.end(ino));
        assert!(writers.wrote(ino, later));
        assert!(writers.take_closed(ino, start + IDLE).is_empty(), "it is the first one's entry");
        assert_eq!(writers.take_closed(ino, later + IDLE), [ino]);
    }

    #[test]
    fn the_oldest_of_very_many_files_count_as_closed() {
        let (writers, start) = (Writers::default(), Instant::now());
        let closed: Vec<NodeId> = (0..2 * MAX_QUEUED)
            .flat_map(|number| {
                writers.wrote(of_shard(number), start);
                writers.take_closed(of_shard(number), start)
            })
            .collect();
        assert_eq!(closed, (0..MAX_QUEUED).map(of_shard).collect::<Vec<_>>());
    }

    #[test]
    fn pages_of_a_file_with_unseen_opens_do_not_change_append_only_content() {
        let (writers, ino) = (Writers::default(), of_shard(1));
        writers.wrote(ino, Instant::now());
        assert_eq!(writers.floor(ino, 50), 50);
    }
}
