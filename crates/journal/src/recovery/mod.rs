//! Replaying a log that a crash left.
//!
//! [`scan`] reads the log and decides what is to be replayed, without changing anything.
//! [`Replay::apply`] writes it home; [`Replay::overlay`] shows the file system as if it were home,
//! for those who only read.
//!
//! Fast commits follow on the last full commit. They say what became of files and names, so the
//! file system replays them, in memory, over what the full commits give; [`Replay::append`] makes a
//! full commit of the blocks that this changes.
//!
//! # Invariants
//! 1. Nothing is written before everything was checked.
//! 2. A scan takes time and memory in proportion to the log's length on its device, whatever the
//!    log holds.
//! 3. Replay depends on the log alone, and changes it only when everything is home: it can be
//!    interrupted and repeated.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod fast_commit;
mod overlay;
mod replay;
mod resolve;
mod scan;

pub use fast_commit::FastCommits;
pub use replay::{Replay, recover};

use crate::error::Result;
use crate::log::Log;

/// Why the log ended before what looked like its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// A transaction without a commit record: the usual trace of a crash.
    Torn,
    /// The commit record's checksum is wrong.
    CommitChecksum,
    /// Blocks of an earlier use of the log.
    Stale,
    /// The last transaction's blocks are not those that its commit record was made for (with
    /// `async_commit`).
    Incomplete,
}

/// What a log held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Transactions to replay.
    pub transactions: u32,
    /// Blocks that they bring home.
    pub blocks: u64,
    /// Copies not replayed since their block was revoked.
    pub revoked: u64,
    /// The first transaction's sequence.
    pub first: u32,
    /// The sequence after the last transaction's.
    pub end: u32,
    /// The log goes on at `end`, but not with a whole transaction.
    pub dropped: Option<Dropped>,
    /// The errno that an aborted session left; 0 for none.
    pub errno: i32,
    /// The log has a fast-commit area.
    pub fast_commit: bool,
    /// Records of fast commits to replay.
    pub fast_records: u64,
}

/// Finds out what is to be replayed onto the file system's device, which has `device_blocks`
/// blocks. A log that is marked empty gives an empty replay.
///
/// # Errors
/// [`Corrupt`](crate::Error::Corrupt) if a committed transaction is damaged or names blocks that do
/// not exist or belong to the log; [`Unsupported`](crate::Error::Unsupported) for fast commits of a
/// kind that is not known; I/O errors.
pub fn scan(log: &Log, device_blocks: u64) -> Result<Replay> {
    let mut outcome = Outcome {
        first: log.superblock().sequence(),
        end: log.superblock().sequence(),
        errno: log.errno(),
        fast_commit: log.has_fast_commit(),
        ..Outcome::default()
    };
    if !log.needs_recovery() {
        return Ok(Replay::new(
            log.clone(),
            Vec::new(),
            FastCommits::default(),
            outcome,
            log.superblock().first(),
        ));
    }
    let mut found = scan::transactions(log, device_blocks)?;
    let copies = resolve::copies(log, &mut found, &mut outcome)?;
    outcome.transactions = found.transactions.len() as u32;
    outcome.end = outcome.first.wrapping_add(outcome.transactions);
    outcome.dropped = found.dropped;
    outcome.blocks = copies.len() as u64;
    let fast = fast_commit::find(log, outcome.end)?;
    outcome.fast_records = fast.len() as u64;
    Ok(Replay::new(log.clone(), copies, fast, outcome, found.end_block(log)))
}
