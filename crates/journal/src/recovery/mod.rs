//! Replay of a log that a crash left.
//!
//! [`scan`] reads the log and determines the replay without changing anything. [`Replay::apply`]
//! writes the copies home. [`Replay::overlay`] shows readers the file system as if the copies were
//! home.
//!
//! Fast commits follow the last full commit. They describe changes of files and names, so the file
//! system replays them in memory, on top of the full commits. [`Replay::append`] makes a full
//! commit of the blocks that this changes.
//!
//! For example, the log has transactions 7 and 8, and descriptors of 9 without a commit record. The
//! replay writes the newest copy of each block from 7 and 8 home; 9 is dropped as torn.
//!
//! # Invariants
//! 1. Nothing is written before everything was checked.
//! 2. A scan takes time and memory in proportion to the log's length on its device, whatever the
//!    log contains.
//! 3. The replay depends only on the log, and changes the log only when all copies are home. It can
//!    therefore be interrupted and repeated.

mod fast_commit;
mod overlay;
mod replay;
mod resolve;
mod scan;

pub use fast_commit::FastCommits;
pub use replay::{Replay, recover};

use crate::error::Result;
use crate::log::Log;

/// The reason why the log ended before its apparent end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// A transaction without a commit record, the usual trace of a crash.
    Torn,
    /// The commit record's checksum is wrong.
    CommitChecksum,
    /// Blocks of an earlier use of the log.
    Stale,
    /// The last transaction's blocks do not match its commit record (with `async_commit`).
    Incomplete,
}

/// The treatment of damage in committed transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Fails,
    IsSkipped,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Transactions to replay.
    pub transactions: u32,
    /// Blocks that they write home.
    pub blocks: u64,
    /// Copies that are not replayed because their block was revoked.
    pub revoked: u64,
    /// The first transaction's sequence.
    pub first: u32,
    /// The sequence after the last transaction's.
    pub end: u32,
    /// The reason why the log continues at `end` without a complete transaction.
    pub dropped: Option<Dropped>,
    /// The errno that an aborted session left; 0 for none.
    pub errno: i32,
    /// The log has a fast-commit area.
    pub fast_commit: bool,
    /// Records of fast commits to replay.
    pub fast_records: u64,
}

/// Determines the replay onto the file system's device, which has `device_blocks` blocks. A log
/// that is marked empty gives an empty replay.
///
/// # Errors
/// [`Corrupt`](crate::Error::Corrupt) if a committed transaction is damaged, or names blocks that
/// do not exist or belong to the log; [`Unsupported`](crate::Error::Unsupported) for unknown kinds
/// of fast commits; I/O errors.
pub fn scan(log: &Log, device_blocks: u64) -> Result<Replay> {
    replay_of(log, device_blocks, Damage::Fails)
}

/// Determines the replay of a damaged log: as [`scan`], without the copies that are damaged or have
/// no possible home, and without the transactions from a damaged descriptor on. The result is no
/// consistent state, which a repair must make of it.
///
/// # Errors
/// As [`scan`], without the damage that is skipped.
pub fn salvage(log: &Log, device_blocks: u64) -> Result<Replay> {
    replay_of(log, device_blocks, Damage::IsSkipped)
}

fn replay_of(log: &Log, device_blocks: u64, damage: Damage) -> Result<Replay> {
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
    let mut found = scan::transactions(log, device_blocks, damage)?;
    let copies = resolve::copies(log, &mut found, &mut outcome, damage)?;
    outcome.transactions = found.transactions.len() as u32;
    outcome.end = outcome.first.wrapping_add(outcome.transactions);
    outcome.dropped = found.dropped;
    outcome.blocks = copies.len() as u64;
    // `end` is final only after `resolve`, which may have dropped the last transaction. Fast
    // commits count only if they follow it.
    let fast = fast_commit::find(log, outcome.end)?;
    outcome.fast_records = fast.len() as u64;
    Ok(Replay::new(log.clone(), copies, fast, outcome, found.end_block(log)))
}
