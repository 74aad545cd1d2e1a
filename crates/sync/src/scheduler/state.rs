//! Which tasks wait, which run, and which may: no thread is started or woken here.

use super::{Lane, Lanes, NextRun, SchedulerStats};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::thread::{JoinHandle, ThreadId};
use std::time::Instant;

/// Threads for `Lane::Device` and `Lane::General`.
pub(super) const FOREGROUND: usize = 0;

/// Threads for `Lane::Background`.
pub(super) const BACKGROUND: usize = 1;

/// The kind of thread that serves a lane.
pub(super) fn kind_of(lane: Lane) -> usize {
    match lane {
        Lane::Device | Lane::General => FOREGROUND,
        Lane::Background => BACKGROUND,
    }
}

/// Lanes in the order in which a kind of thread serves them.
fn lanes_of(kind: usize) -> &'static [Lane] {
    if kind == FOREGROUND { &[Lane::Device, Lane::General] } else { &[Lane::Background] }
}

pub(super) type Job = Box<dyn FnMut() -> NextRun + Send>;

/// A registered task.
pub(super) struct Record {
    owner: u64,
    lane: Lane,
    name: &'static str,
    /// `None` while it runs.
    job: Option<Job>,
    /// Waits for a thread.
    queued: bool,
    /// Woken while it runs.
    again: bool,
    timer: Option<Instant>,
    /// It is not to run again; the thread that runs it removes it.
    retired: bool,
}

impl Record {
    pub fn new(owner: u64, lane: Lane, name: &'static str, job: Job) -> Record {
        let (queued, again, timer, retired) = (false, false, None, false);
        Record { owner, lane, name, job: Some(job), queued, again, timer, retired }
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A job that a thread runs.
#[derive(Debug)]
struct Running {
    id: u64,
    owner: u64,
    lane: Lane,
    since: Instant,
    thread: ThreadId,
}

impl Running {
    fn is_stuck(&self, lanes: &Lanes, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= lanes.stuck_after
    }
}

/// Threads of one kind.
#[derive(Debug, Default)]
pub(super) struct Kind {
    /// Those that live.
    pub threads: usize,
    /// Those that wait without a deadline of their own.
    pub idle: usize,
    /// Those among them that were told to look.
    pub called: usize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub tasks: BTreeMap<u64, Record>,
    last_number: u64,
    timers: BTreeSet<(Instant, u64)>,
    /// Tasks that wait for a thread, by lane.
    queues: [VecDeque<u64>; 3],
    running: Vec<Running>,
    kinds: [Kind; 2],
    /// Until when the thread that looks after timers waits; `None` without such a thread.
    pub watched_until: Option<Option<Instant>>,
    /// No task is left and none comes.
    pub closed: bool,
    pub handles: Vec<JoinHandle<()>>,
    pub counts: SchedulerStats,
}

impl State {
    pub fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn kind(&self, kind: usize) -> &Kind {
        &self.kinds[kind]
    }

    pub fn kind_mut(&mut self, kind: usize) -> &mut Kind {
        &mut self.kinds[kind]
    }

    pub fn threads(&self) -> usize {
        self.kinds.iter().map(|kind| kind.threads).sum()
    }

    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats { threads: self.threads(), tasks: self.tasks.len(), ..self.counts }
    }

    /// Lets a task wait for a thread; false if it is not to run any more.
    pub fn queue(&mut self, id: u64) -> bool {
        let Some(record) = self.tasks.get_mut(&id).filter(|record| !record.retired) else {
            return false;
        };
        if record.job.is_none() {
            record.again = true;
        } else if !record.queued {
            record.queued = true;
            self.queues[record.lane as usize].push_back(id);
        }
        if let Some(at) = record.timer.take() {
            self.timers.remove(&(at, id));
        }
        true
    }

    /// The lane in which a task waits for a thread.
    pub fn waits_in(&self, id: u64) -> Option<Lane> {
        self.tasks.get(&id).filter(|record| record.queued).map(|record| record.lane)
    }

    /// Arms a task's timer unless an earlier one is armed; whether that is the first of all timers.
    pub fn arm(&mut self, id: u64, at: Instant) -> bool {
        let Some(record) = self.tasks.get_mut(&id) else { return false };
        if record.retired || record.queued || record.timer.is_some_and(|timer| timer <= at) {
            return false;
        }
        if let Some(later) = record.timer.replace(at) {
            self.timers.remove(&(later, id));
        }
        self.timers.insert((at, id));
        self.timers.first().is_some_and(|(first, _)| *first == at)
    }

    /// Queues the tasks whose timers have expired.
    pub fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.counts.expired += 1;
            // Takes the timer away; of a task that is not to run any more none is armed.
            self.queue(id);
        }
    }

    /// Running jobs that count for a bound, and all of them.
    fn counted(
        &self,
        lanes: &Lanes,
        now: Instant,
        which: impl Fn(&Running) -> bool,
    ) -> (usize, usize) {
        let running = self.running.iter().filter(|running| which(running));
        running.fold((0, 0), |(fresh, all), running| {
            (fresh + usize::from(!running.is_stuck(lanes, now)), all + 1)
        })
    }

    /// Whether a bound leaves a place. Stuck jobs do not count, as long as there are spares.
    fn fits(&self, lanes: &Lanes, now: Instant, bound: usize, these: &[Lane]) -> bool {
        let (fresh, all) = self.counted(lanes, now, |running| these.contains(&running.lane));
        fresh < bound && all < bound + lanes.spares
    }

    /// Whether the bounds let a task run now.
    pub fn may_run(&self, lanes: &Lanes, id: u64, now: Instant) -> bool {
        let Some(record) = self.tasks.get(&id) else { return false };
        if record.lane == Lane::Background {
            return self.fits(lanes, now, lanes.background, lanes_of(BACKGROUND));
        }
        // A stuck job counts for its own owner: one that hangs gets no spare threads.
        let same = |running: &Running| {
            running.owner == record.owner && kind_of(running.lane) == FOREGROUND
        };
        self.counted(lanes, now, same).1 < lanes.per_owner
            && self.fits(lanes, now, lanes.foreground, lanes_of(FOREGROUND))
            && (record.lane == Lane::Device
                || self.fits(lanes, now, lanes.general, &[Lane::General]))
    }

    /// Whether another thread of a kind may live: one for each job, one for the timers, and one in
    /// place of each stuck one.
    pub fn may_spawn(&self, lanes: &Lanes, kind: usize, now: Instant) -> bool {
        let bound = if kind == FOREGROUND { lanes.foreground + 1 } else { lanes.background };
        let (fresh, all) = self.counted(lanes, now, |running| kind_of(running.lane) == kind);
        !self.closed && self.kind(kind).threads < bound + (all - fresh).min(lanes.spares)
    }

    /// The next task that a thread of a kind may run, if one waits.
    pub fn next(&self, lanes: &Lanes, kind: usize, now: Instant) -> Option<u64> {
        lanes_of(kind).iter().find_map(|lane| {
            let mut queue = self.queues[*lane as usize].iter();
            queue.find(|id| self.may_run(lanes, **id, now)).copied()
        })
    }

    /// Takes the job of the next task.
    pub fn take(&mut self, lanes: &Lanes, kind: usize, now: Instant) -> Option<(u64, Job)> {
        let id = self.next(lanes, kind, now)?;
        let record = self.tasks.get_mut(&id)?;
        record.queued = false;
        let (owner, lane, job) = (record.owner, record.lane, record.job.take()?);
        self.queues[lane as usize].retain(|queued| *queued != id);
        let thread = std::thread::current().id();
        self.running.push(Running { id, owner, lane, since: now, thread });
        self.counts.runs += 1;
        Some((id, job))
    }

    /// A job has ended, with `next`, or with a panic. Gives it back if it is not to run any more:
    /// [`State::finish`] is to follow once it is dropped.
    pub fn give_back(&mut self, id: u64, job: Job, next: Option<NextRun>) -> Option<Job> {
        let Some(record) = self.tasks.get_mut(&id) else { return Some(job) };
        if next.is_none() {
            tracing::error!("a job of the engine has panicked: {}", record.name);
        }
        let Some(next) = next.filter(|next| *next != NextRun::Never && !record.retired) else {
            record.retired = true;
            return Some(job);
        };
        self.running.retain(|running| running.id != id);
        record.job = Some(job);
        if std::mem::take(&mut record.again) || next == NextRun::Again {
            self.queue(id);
            return None;
        }
        let at = match next {
            NextRun::At(at) => Some(at),
            NextRun::After(delay) => Instant::now().checked_add(delay),
            NextRun::Again | NextRun::WhenWoken | NextRun::Never => None,
        };
        if let Some(at) = at {
            self.arm(id, at);
        }
        None
    }

    /// The last run of a task has ended, and its job is dropped.
    pub fn finish(&mut self, id: u64) {
        self.running.retain(|running| running.id != id);
    }

    /// Lets a task run no more, and gives its job unless that runs.
    pub fn retire(&mut self, id: u64) -> Option<Job> {
        let record = self.tasks.get_mut(&id)?;
        record.retired = true;
        let (lane, job) = (record.lane, record.job.take());
        if let Some(at) = record.timer.take() {
            self.timers.remove(&(at, id));
        }
        if std::mem::take(&mut record.queued) {
            self.queues[lane as usize].retain(|queued| *queued != id);
        }
        job
    }

    /// Removes a task that is not to run any more, and whose job is dropped.
    pub fn remove(&mut self, id: u64) {
        self.tasks.remove(&id);
    }

    /// Whether another thread than `me` runs a task's job.
    pub fn runs_elsewhere(&self, id: u64, me: ThreadId) -> bool {
        self.running.iter().any(|running| running.id == id && running.thread != me)
    }

    /// When timers and waiting tasks have to be looked at: the first timer, or when a job that runs
    /// stops counting for the bounds that a task waits for.
    pub fn deadline(&self, lanes: &Lanes, now: Instant) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        if self.queues.iter().all(VecDeque::is_empty) {
            return timer;
        }
        let fresh = self.running.iter().filter(|running| !running.is_stuck(lanes, now));
        let stuck = fresh.filter_map(|running| running.since.checked_add(lanes.stuck_after)).min();
        timer.into_iter().chain(stuck).min()
    }

    /// Whether a thread has to look after timers and waiting tasks.
    pub fn needs_watcher(&self) -> bool {
        !self.timers.is_empty() || self.queues.iter().any(|queue| !queue.is_empty())
    }
}
