//! Counters of the journal's work.

use extant_sync::Sharded;
use extant_sync::atomic::{AtomicU64, Ordering};

/// Counters by shards of threads, so that no cache line is written by all threads.
#[derive(Debug, Default)]
pub(crate) struct Counters(Sharded<Part>);

impl Counters {
    /// Returns the counters of the thread's shard.
    #[inline]
    pub fn local(&self) -> &Part {
        self.0.local()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The journal's work since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        /// The counters of one shard of threads.
        #[derive(Debug, Default)]
        pub(crate) struct Part { $(pub $name: AtomicU64,)* }

        impl Counters {
            pub fn read(&self) -> Stats {
                let mut stats = Stats::default();
                for part in self.0.iter() {
                    $(stats.$name += part.$name.load(Ordering::Relaxed);)*
                }
                stats
            }
        }
    };
}

counters! {
    /// Transactions made durable.
    commits,
    /// Waits for a transaction that was not durable yet.
    waits,
    /// Those of them whose transaction another thread had requested already.
    shared_waits,
    /// Copies of blocks written to the log (or home, without a log).
    blocks_logged,
    /// All blocks written to the log, including descriptors, revoke blocks and commit records.
    log_blocks,
    /// Blocks that were to be written to the log or home, with a request for several adjacent ones.
    writes,
    /// Requests to the devices for them.
    requests,
    /// Blocks named in revoke records.
    revokes,
    /// Copies that had to be escaped.
    escapes,
    /// Passes of the checkpointer.
    checkpoints,
    /// Blocks that the checkpointer wrote home.
    blocks_checkpointed,
    /// Commits that waited for the checkpointer, because of too many copies in memory.
    room_waits,
    /// Times the tail of the log moved.
    tail_moves,
    /// Flushes of devices.
    flushes,
    /// Flushes that were not needed, since another one covered them.
    flushes_shared,
    /// Handles that had to wait for space in the transaction or the log.
    start_waits,
    /// Credits that handles took beyond their request: the bound of an operation is too small.
    overdrawn,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
