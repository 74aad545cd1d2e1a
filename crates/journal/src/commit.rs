//! A commit: freezes the running transaction and makes it durable.
//!
//! For example, transaction 7 has blocks 100 to 107. Its handles end, the client writes its
//! objects, and copies of the eight blocks are taken. Transaction 8 starts. The log then gets a
//! descriptor and the copies; flush; the commit record; flush.
//!
//! A transaction that lacks space on the device stays frozen, and the next attempt writes it again:
//! see [`stall`](crate::stall).
//!
//! # Invariants
//! 1. From the end of the last handle until the successor opens, only the client's `freeze` changes
//!    blocks. The copies taken in between therefore hold all changes of the transaction and no
//!    others.
//! 2. The commit record is written after a flush that covers everything before it, and all file
//!    data noted before.
//! 3. If the record has a checksum, a flushed block of zeroes is in its place before it. The record
//!    is then complete once its first sector is written, or absent. Otherwise e2fsck would report a
//!    torn record as damaged, while the kernel takes it for a complete one.

use crate::checkpoint::FrozenBlock;
use crate::client::{Client, Freezer};
use crate::control::Attempt;
use crate::error::{Error, Result};
use crate::log::record::{Record, blocks_needed};
use crate::members::{Member, Taken};
use crate::passes;
use crate::shared::{AbortOnPanic, Core, Logged};
use crate::stall::{Frozen, Work};
use crate::stats::count;
use crate::tid::Tid;
use extant_blocks::{Piece, Plug};
use extant_format::types::Timestamp;
use extant_sync::scheduler::NextRun;
use extant_sync::{Arc, Weak};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

/// A run of the commit task.
pub(crate) fn run(core: &Core) -> NextRun {
    // The deadline is deferred first: the client may be done before it is asked.
    if core.control.defer(core.running()) && !prepare(core) {
        core.control.prepared();
    }
    match core.control.next_attempt(|| core.running()) {
        Ok(begun) => {
            attempt(core, begun);
            NextRun::Again
        }
        Err(next) => next,
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The transaction is durable.
    Durable,
    /// The transaction is empty and stays the running one.
    Empty,
    /// The device lacks space: nothing has become durable, and another attempt may succeed.
    Stalled,
    /// The journal is aborted.
    Failed,
}

/// Commits the running transaction on the calling thread, or one before it that lacked space. A
/// panic aborts the journal, and so does a failure other than a lack of space.
pub(crate) fn attempt(core: &Core, begun: Attempt) -> Outcome {
    let attempted = catch_unwind(AssertUnwindSafe(|| {
        let _guard = AbortOnPanic(core);
        commit(core).map(|committed| committed.inspect(|tid| announce(core, *tid)))
    }));
    match attempted {
        Ok(Ok(Some(_))) => return Outcome::Durable,
        Ok(Ok(None)) => {
            let is_empty = || core.members.is_empty();
            core.control.found_empty(begun, core.running(), is_empty);
            return Outcome::Empty;
        }
        Ok(Err(error @ Error::NoSpace(_))) => {
            core.stall.note(Work::Commit, Some(&error));
            core.control.stalled(core.retry());
            return Outcome::Stalled;
        }
        Ok(Err(error)) => core.abort(error),
        // The guard has aborted the journal.
        Err(_) => {}
    }
    core.control.gave_up();
    Outcome::Failed
}

/// Returns whether the client has begun work that belongs to the running transaction.
fn prepare(core: &Core) -> bool {
    core.client.get().and_then(Weak::upgrade).is_some_and(|client| client.prepare())
}

fn announce(core: &Core, tid: Tid) {
    count(&core.counters.local().commits, 1);
    if let Some(client) = core.client.get().and_then(Weak::upgrade) {
        client.committed(tid);
    }
    core.control.committed(tid);
}

/// Commits the running transaction, or the one that lacked space before. Returns `None` if it was
/// empty.
///
/// # Errors
/// [`Error::NoSpace`]: the transaction is kept for the next attempt.
fn commit(core: &Core) -> Result<Option<Tid>> {
    let frozen = match core.stall.take_frozen() {
        Some(frozen) => Some(frozen),
        None => freeze_running(core)?,
    };
    let Some(frozen) = frozen else {
        core.stall.note(Work::Commit, None);
        return Ok(None);
    };
    let tid = frozen.tid;
    if let Err(error) = write(core, &frozen) {
        if matches!(error, Error::NoSpace(_)) {
            core.stall.keep_frozen(frozen);
        }
        return Err(error);
    }
    core.stall.note(Work::Commit, None);
    if let Some(logged) = &core.logged {
        hand_over(core, logged, frozen);
    }
    Ok(Some(tid))
}

/// Freezes the running transaction once few enough copies are kept for its own.
fn freeze_running(core: &Core) -> Result<Option<Frozen>> {
    // Before handles have to wait: the copies of a log are not to take as much memory as the log is
    // long.
    if let Some(logged) = &core.logged
        && passes::wait_for_room(core, logged)?
    {
        count(&core.counters.local().room_waits, 1);
    }
    core.gate.stop();
    let frozen = freeze(core).inspect_err(|_| core.gate.close());
    core.gate.resume();
    frozen
}

/// Makes a frozen transaction durable.
fn write(core: &Core, frozen: &Frozen) -> Result<()> {
    // Behind the gate, so that the successor's handles do not wait for these writes, and before the
    // flush that precedes the commit record.
    write_ordered(core, frozen.tid)?;
    match &core.logged {
        Some(logged) => write_to_log(core, logged, frozen),
        None => write_home(core, frozen),
    }
}

/// Freezes the running transaction and opens its successor.
fn freeze(core: &Core) -> Result<Option<Frozen>> {
    let tid = core.running();
    ask_client(core, tid)?;
    let Taken { members, revoked } = core.members.take();
    if members.is_empty() && revoked.is_empty() {
        core.members.found_empty();
        return Ok(None);
    }
    let blocks: Vec<FrozenBlock> =
        members.into_iter().map(|(nr, member)| seal(nr, member)).collect();
    let start = match &core.logged {
        Some(logged) => {
            let needed = blocks_needed(logged.space.format(), blocks.len(), revoked.len());
            logged.space.allocate(tid, needed, &core.gate, core.max_credits)?
        }
        None => {
            core.gate.reset(core.max_credits);
            0
        }
    };
    core.open_successor(tid.next());
    Ok(Some(Frozen { tid, blocks, revoked, start }))
}

/// Returns the client, if the journal has one.
///
/// # Errors
/// [`Error::ShutDown`] if it is gone: without it the transaction is incomplete, and no thread waits
/// for it.
fn client(core: &Core) -> Result<Option<Arc<dyn Client>>> {
    core.client.get().map(|client| client.upgrade().ok_or(Error::ShutDown)).transpose()
}

/// Lets the client write its data that belong to a frozen transaction.
fn write_ordered(core: &Core, tid: Tid) -> Result<()> {
    core.check_crash()?;
    core.check_abort()?;
    client(core)?.map_or(Ok(()), |client| client.write_ordered(tid))
}

/// Lets the client write its objects into their blocks.
fn ask_client(core: &Core, tid: Tid) -> Result<()> {
    let Some(client) = client(core)? else { return Ok(()) };
    let spare = core.logged.as_ref().map_or(u32::MAX, |logged| logged.space.spare());
    client.freeze(tid, &mut Freezer { tid, members: &core.members, spare })
}

fn seal(nr: u64, member: Member) -> FrozenBlock {
    let Member { buffer: pinned, seal } = member;
    let bytes = if seal.is_none() {
        pinned.buffer().snapshot()
    } else {
        let mut block = pinned.buffer().write_unlogged();
        (seal.f)(&mut block, nr, seal.seed);
        block.snapshot()
    };
    FrozenBlock { nr, bytes, pinned }
}

fn write_home(core: &Core, frozen: &Frozen) -> Result<()> {
    core.write_home(frozen.blocks.iter().map(|block| (block.nr, &block.bytes)))?;
    core.flush_home()?;
    count(&core.counters.local().blocks_logged, frozen.blocks.len() as u64);
    Ok(())
}

fn write_to_log(core: &Core, logged: &Logged, frozen: &Frozen) -> Result<()> {
    let Frozen { tid, blocks, revoked, start } = frozen;
    let copies: Vec<(u64, Arc<[u8]>)> =
        blocks.iter().map(|block| (block.nr, Arc::clone(&block.bytes))).collect();
    let record = Record::build(logged.space.format(), tid.sequence(), &copies, revoked, now(core));
    let (written, escapes) = (record.body.len() as u64 + 1, record.escapes);
    let log = logged.space.log();
    // The order matters for crashes: body and blank; flush of data and log; commit record; flush;
    // then the copies are handed to the checkpoint. See *Each point of failure* in
    // `docs/design/journal.md`. After a lack of space all of it is done again, with the same bytes
    // but for the time: a record that reached the device in parts stands behind flushed copies.
    core.check_crash()?;
    core.check_abort()?;
    logged.space.begin(*tid, *start)?;
    let commit_at = record.body.iter().fold(*start, |at, _| log.after(at));
    let blank = record.blank.into_iter().map(Piece::from);
    write_pieces(core, logged, *start, record.body.into_iter().chain(blank))?;
    core.flush_home()?;
    // An internal log shares the flusher of the home device: this is then part of the same flush,
    // unless another write has ended since.
    logged.space.flusher().flush()?;
    write_pieces(core, logged, commit_at, [record.commit.into()])?;
    logged.space.flusher().flush()?;
    count(&core.counters.local().blocks_logged, copies.len() as u64);
    count(&core.counters.local().log_blocks, written);
    count(&core.counters.local().escapes, escapes);
    Ok(())
}

/// Hands the copies of a transaction that is durable in the log to the checkpoint.
fn hand_over(core: &Core, logged: &Logged, frozen: Frozen) {
    let Frozen { tid, blocks, revoked, .. } = frozen;
    let much = logged.checkpoint.add(tid, blocks, &revoked);
    if much || logged.space.is_crowded() {
        if core.deterministic {
            passes::wait_for_one(core, logged);
        } else {
            // In time or not: a handle that needs the space sees to it itself.
            logged.checkpoint.ask();
        }
    }
}

/// Writes blocks to the log from `at` on.
fn write_pieces(
    core: &Core,
    logged: &Logged,
    at: u32,
    pieces: impl IntoIterator<Item = Piece<'static>>,
) -> Result<()> {
    core.check_crash()?;
    core.check_abort()?;
    let log = logged.space.log();
    let mut plug = Plug::new(&**log.device());
    let mut at = at;
    for piece in pieces {
        plug.add(log.offset(at)?, piece);
        at = log.after(at);
    }
    core.count_plug(&plug.finish().map_err(Error::of_write)?);
    logged.space.flusher().note_write();
    Ok(())
}

/// Returns the client's time, so that a client with a clock of its own finds no other time in its
/// log.
fn now(core: &Core) -> Timestamp {
    let own = core.client.get().and_then(Weak::upgrade).and_then(|client| client.now());
    own.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
    })
}
