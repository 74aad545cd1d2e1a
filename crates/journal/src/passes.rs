//! Passes of the checkpoint: durable copies are written home, and the log's tail moves.

use crate::checkpoint::Ended;
use crate::error::{Error, Result};
use crate::shared::{AbortOnPanic, Core, Logged};
use crate::stall::Work;
use crate::stats::count;
use extant_sync::atomic::Ordering;
use extant_sync::scheduler::NextRun;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Blocks written home at a time. A commit that frees blocks may have to wait for one such batch.
const BATCH: usize = 1024;

/// A run of the checkpoint task.
pub(crate) fn run(core: &Core) -> NextRun {
    let Some(logged) = &core.logged else { return NextRun::Never };
    match logged.checkpoint.begin_wanted() {
        Ok(empty) => {
            // A pass that lacked space has a deadline for the next one.
            let _ = make(core, logged, empty);
            logged.checkpoint.next_run()
        }
        Err(next) => next,
    }
}

/// Makes a pass unless another thread is at one.
pub(crate) fn try_lead(core: &Core, logged: &Logged) {
    if let Some(empty) = logged.checkpoint.try_begin() {
        // The caller asks for space, and looks whether it is there.
        let _ = make(core, logged, empty);
    }
}

/// Has a pass made that begins after this call, and waits for its end, or for the end of all, or
/// for a lack of space.
pub(crate) fn wait_for_one(core: &Core, logged: &Logged) {
    let pass = logged.checkpoint.request(false);
    while let Some(empty) = logged.checkpoint.wait_or_begin(pass) {
        if make(core, logged, empty).is_err() {
            break;
        }
    }
}

/// Waits until everything is home that is durable now, and for the log to be marked empty if it is.
/// False if that will not happen.
///
/// # Errors
/// [`Error::NoSpace`].
pub(crate) fn wait_for_all(core: &Core, logged: &Logged) -> Result<bool> {
    let pass = logged.checkpoint.request(true);
    while let Some(empty) = logged.checkpoint.wait_or_begin(pass) {
        make(core, logged, empty)?;
    }
    Ok(logged.checkpoint.has_ended(pass))
}

/// Waits until few enough copies are kept for another transaction's to be added; true if it had
/// to. The caller must hold nothing that a pass needs.
///
/// # Errors
/// [`Error::NoSpace`].
pub(crate) fn wait_for_room(core: &Core, logged: &Logged) -> Result<bool> {
    let waits = logged.checkpoint.is_full();
    while let Some(empty) = logged.checkpoint.wait_for_room_or_begin() {
        make(core, logged, empty)?;
    }
    Ok(waits)
}

/// Makes the pass that was begun, on whatever thread. A failure other than a lack of space aborts
/// the journal, and so does a panic.
///
/// # Errors
/// [`Error::NoSpace`]: the copies stay in the log and in memory.
fn make(core: &Core, logged: &Logged, empty: bool) -> Result<()> {
    let made = catch_unwind(AssertUnwindSafe(|| {
        let _guard = AbortOnPanic(core);
        write_copies(core, logged, empty)
    }));
    let ended = match made {
        Ok(Ok(())) => {
            core.stall.note(Work::Pass, None);
            Ended::Made
        }
        Ok(Err(error @ Error::NoSpace(_))) => {
            core.stall.note(Work::Pass, Some(&error));
            logged.checkpoint.end(Ended::Stalled(core.retry()));
            return Err(error);
        }
        Ok(Err(error)) => {
            core.abort(error);
            Ended::Failed
        }
        // The guard has aborted the journal after a panic.
        Err(_) => Ended::Failed,
    };
    logged.checkpoint.end(ended);
    Ok(())
}

/// Writes all durable copies home, and moves the tail of the log.
fn write_copies(core: &Core, logged: &Logged, empty: bool) -> Result<()> {
    let checkpoint = &logged.checkpoint;
    let mut written = Vec::new();
    // Its copy is taken first: all blocks of the same transaction are then among the others.
    let last = core.last_home.load(Ordering::SeqCst);
    let last = checkpoint.begin_batch(&[last]);
    checkpoint.end_batch();
    let is_other = |nr: &u64| last.iter().all(|(last, ..)| last != nr);
    let others: Vec<u64> = checkpoint.blocks().into_iter().filter(is_other).collect();
    for blocks in others.chunks(BATCH) {
        let copies = checkpoint.begin_batch(blocks);
        let result = core.write_home(copies.iter().map(|(nr, _, bytes)| (*nr, bytes)));
        checkpoint.end_batch();
        result?;
        written.extend(copies.iter().map(|(nr, tid, _)| (*nr, *tid)));
    }
    core.flush_home()?;
    if !last.is_empty() {
        core.write_home(last.iter().map(|(nr, _, bytes)| (*nr, bytes)))?;
        written.extend(last.iter().map(|(nr, tid, _)| (*nr, *tid)));
        core.flush_home()?;
    }
    checkpoint.are_home(&written);
    count(&core.counters.local().checkpoints, 1);
    count(&core.counters.local().blocks_checkpointed, written.len() as u64);
    // In this order: copies of a transaction are pending before it counts as durable.
    let not_durable = core.control.durable().next();
    let tail = checkpoint.oldest().map_or(not_durable, |oldest| oldest.min(not_durable));
    core.check_crash()?;
    logged.space.advance_tail(tail, empty, &core.gate, core.max_credits)
}
