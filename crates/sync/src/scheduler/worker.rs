//! A thread: takes jobs, looks after timers, waits.

use super::state::{BACKGROUND, FOREGROUND, Job, State};
use super::{NextRun, Shared};
use crate::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long a thread stays without work.
const KEEP: Duration = Duration::from_secs(10);

/// Starts a thread of a kind.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    state: &mut MutexGuard<'_, State>,
    kind: usize,
) -> std::io::Result<()> {
    let own = Arc::clone(shared);
    let name = if kind == FOREGROUND { "extant-work" } else { "extant-scan" };
    let spawned = Builder::new().name(name.into()).spawn(move || serve(&own, kind));
    let handle = spawned.inspect_err(|e| tracing::warn!("a thread could not be started: {e}"))?;
    state.handles.retain(|handle| !handle.is_finished());
    state.handles.push(handle);
    state.kind_mut(kind).threads += 1;
    state.counts.most_threads = state.counts.most_threads.max(state.threads());
    Ok(())
}

fn serve(shared: &Arc<Shared>, kind: usize) {
    if kind == BACKGROUND {
        (shared.lanes.lower_priority)();
    }
    let mut state = shared.state.lock();
    // No work came for long.
    let mut unused = false;
    loop {
        let now = Instant::now();
        state.expire(now);
        if let Some((id, job)) = state.take(&shared.lanes, kind, now) {
            call_others(shared, &mut state, now);
            look_after_timers(shared, &mut state, now);
            drop(state);
            run(shared, id, job);
            state = shared.state.lock();
            unused = false;
            continue;
        }
        let watches = kind == FOREGROUND && state.watched_until.is_none();
        if state.closed || unused && !(watches && state.needs_watcher()) {
            break;
        }
        // It may have queued tasks of the other kind.
        call_others(shared, &mut state, now);
        if watches {
            watch(shared, &mut state, now);
            unused = false;
        } else {
            look_after_timers(shared, &mut state, now);
            unused = wait(shared, &mut state, kind);
        }
        state.counts.wakeups += 1;
    }
    state.kind_mut(kind).threads -= 1;
}

/// Runs a job, and has its task wait for its next run.
fn run(shared: &Shared, id: u64, mut job: Job) {
    let next: Option<NextRun> = catch_unwind(AssertUnwindSafe(&mut job)).ok();
    let unused = shared.state.lock().give_back(id, job, next);
    if let Some(unused) = unused {
        // Under no lock: it may hold the last reference to anything. A caller that stops the task
        // must find it dropped.
        drop(unused);
        shared.state.lock().finish(id);
        shared.ended.notify_all();
    }
}

/// Before a thread runs a job or waits: other tasks that may run get their threads.
fn call_others(shared: &Arc<Shared>, state: &mut MutexGuard<'_, State>, now: Instant) {
    for kind in [FOREGROUND, BACKGROUND] {
        if state.kind(kind).called > 0 || state.next(&shared.lanes, kind, now).is_none() {
            continue;
        }
        if state.kind(kind).idle > 0 {
            state.kind_mut(kind).called += 1;
            shared.idle[kind].notify_one();
        } else if kind == FOREGROUND && state.watched_until.is_some() {
            shared.watch.notify_one();
        } else if state.may_spawn(&shared.lanes, kind, now) {
            // Without it those that run jobs take these when they have ended.
            let _ = spawn(shared, state, kind);
        }
    }
}

/// Sees to it that another thread wakes up in time for timers and waiting tasks.
fn look_after_timers(shared: &Arc<Shared>, state: &mut MutexGuard<'_, State>, now: Instant) {
    if let Some(at) = state.deadline(&shared.lanes, now) {
        shared.find_watcher(state, Some(at));
    }
}

/// Waits for work, or for the time to look after timers and waiting tasks.
fn watch(shared: &Shared, state: &mut MutexGuard<'_, State>, now: Instant) {
    let until = state.deadline(&shared.lanes, now);
    state.watched_until = Some(until);
    match until {
        Some(at) => drop(shared.watch.wait_until(state, at)),
        None => shared.watch.wait(state),
    }
    state.watched_until = None;
}

/// Waits for work; true if none came for long.
fn wait(shared: &Shared, state: &mut MutexGuard<'_, State>, kind: usize) -> bool {
    state.kind_mut(kind).idle += 1;
    let ended = shared.idle[kind].wait_for(state, KEEP);
    let own = state.kind_mut(kind);
    own.idle -= 1;
    // A call that came at the last moment is this thread's, too.
    let called = own.called > 0;
    own.called = own.called.saturating_sub(1);
    ended.timed_out() && !called
}
