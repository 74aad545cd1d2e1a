//! The jobs of a file system: writeback, freeing of inodes, scans of bitmaps, zeroing of inode
//! tables, discards, looking ahead. The journal and the multiple mount protection have their own.
//!
//! Each is a task of the [`Scheduler`](extant_sync::scheduler::Scheduler), and sleeps without a
//! timer while it has nothing to do: the first file that becomes dirty arms the timer of writeback,
//! a freed inode wakes the reaper.

use super::OpenOptions;
use crate::alloc::{Alloc, Scanned};
use crate::ops::{Operations, ToReap};
use extant_sync::scheduler::{Lane, NextRun, Task, TaskOwner};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the reaper looks for inodes to free, while there are any.
const REAP_EVERY: Duration = Duration::from_millis(50);

/// How often it looks for those that only wait until callers let go of them, at first and at last.
const RETIRE_EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];

/// How often a job of a frozen file system looks whether it is thawed.
const FROZEN: Duration = Duration::from_secs(1);

/// How long after the opening inode tables begin to be zeroed.
const BEFORE_ZEROING: Duration = Duration::from_millis(200);

/// How much longer than it takes to zero a table is waited before the next one.
const REST: u32 = 10;

/// The tasks of a file system that is open for writing.
#[derive(Debug)]
pub struct Jobs {
    ops: Arc<Operations>,
    tasks: Vec<Task>,
    /// The allocator whose freed space a task discards.
    discarding: Option<Arc<Alloc>>,
}

impl Jobs {
    /// No tasks.
    pub fn none(ops: &Arc<Operations>) -> Jobs {
        Jobs { ops: ops.clone(), tasks: Vec::new(), discarding: None }
    }

    /// Registers the tasks that the options ask for.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(
        ops: &Arc<Operations>,
        owner: &TaskOwner,
        options: &OpenOptions,
    ) -> std::io::Result<Jobs> {
        owner.scheduler().start()?;
        let mut jobs = Jobs::none(ops);
        let task = job(ops, owner, Lane::General, "writeback", write_back);
        ops.st().dirty_files.writeback_bell.set(task, options.commit_interval);
        let mut lingering = RETIRE_EVERY[0];
        let task = job(ops, owner, Lane::General, "reaper", move |ops| reap(ops, &mut lingering));
        ops.reaper_bell().set(task, REAP_EVERY);
        jobs.scan(owner);
        if options.zero_tables {
            let task = job(ops, owner, Lane::Background, "tables", zero_table);
            task.wake_after(BEFORE_ZEROING);
            jobs.tasks.push(task);
        }
        if options.discard {
            let alloc = ops.st().alloc.clone();
            alloc.begin_discard_task();
            alloc
                .discard_bell()
                .set(job(ops, owner, Lane::General, "discard", discard), Duration::ZERO);
            jobs.discarding = Some(alloc);
        }
        Ok(jobs)
    }

    /// Registers tasks that find out how much space each group has, where that is worth them. The
    /// bell is that of the first, which is enough where scanning is switched on later.
    fn scan(&mut self, owner: &TaskOwner) {
        for n in 0..self.ops.st().alloc.scanners() {
            let task = job(&self.ops, owner, Lane::Background, "scan", scan);
            if n == 0 {
                self.ops.scan_bell.set(task, Duration::ZERO);
            } else {
                task.wake();
                self.tasks.push(task);
            }
        }
    }

    /// Ends the tasks, each after the run that it is at.
    pub fn stop(self) {
        let ops = &self.ops;
        self.discarding.iter().for_each(|alloc| {
            alloc.end_discard_task();
            alloc.discard_bell().stop();
        });
        [&ops.st().dirty_files.writeback_bell, ops.reaper_bell(), &ops.scan_bell]
            .iter()
            .for_each(|bell| bell.stop());
        self.tasks.iter().for_each(Task::stop);
    }
}

/// Registers a task that looks ahead of clients that walk the tree.
pub fn look_ahead(ops: &Arc<Operations>, owner: &TaskOwner) -> std::io::Result<()> {
    owner.scheduler().start()?;
    let task = job(ops, owner, Lane::Background, "ahead", |ops| match ops.vfs.prefetch.next() {
        Some(step) => {
            ops.vfs.look_ahead(step);
            NextRun::Again
        }
        None => NextRun::WhenWoken,
    });
    ops.vfs.prefetch.bell().set(task, Duration::ZERO);
    Ok(())
}

/// A task over the operations, which it does not keep.
fn job(
    ops: &Arc<Operations>,
    owner: &TaskOwner,
    lane: Lane,
    name: &'static str,
    mut run: impl FnMut(&Operations) -> NextRun + Send + 'static,
) -> Task {
    let ops = Arc::downgrade(ops);
    owner.task(lane, name, move || ops.upgrade().map_or(NextRun::Never, |ops| run(&ops)))
}

/// Whether a change would wait for a thaw, with a thread, and with locks that readers need.
fn is_frozen(ops: &Operations) -> bool {
    ops.st().mounted.is_frozen()
}

fn write_back(ops: &Operations) -> NextRun {
    if is_frozen(ops) {
        return NextRun::After(FROZEN);
    }
    let st = ops.st();
    st.dirty_files.writeback_bell.begin();
    if let Err(e) = ops.write_back_all() {
        tracing::error!("writeback failed: {e}");
    }
    if let Err(e) = ops.record_writes() {
        tracing::warn!("the count of writes is not recorded: {e}");
    }
    if !st.is_written() {
        st.dirty_files.writeback_bell.ring();
    }
    // A commit may wait for these pages.
    st.journal.prepared();
    NextRun::WhenWoken
}

/// Frees inodes. Those that callers still refer to are looked at less and less often, since nothing
/// tells when they let go.
fn reap(ops: &Operations, lingering: &mut Duration) -> NextRun {
    if is_frozen(ops) {
        return NextRun::After(FROZEN);
    }
    ops.reaper_bell().begin();
    ops.reap();
    match ops.to_reap() {
        ToReap::Soon => {
            *lingering = RETIRE_EVERY[0];
            ops.reaper_bell().ring();
            NextRun::WhenWoken
        }
        ToReap::Later => {
            let pause = *lingering;
            *lingering = (pause * 2).min(RETIRE_EVERY[1]);
            NextRun::After(pause)
        }
        ToReap::Nothing => NextRun::WhenWoken,
    }
}

fn scan(ops: &Operations) -> NextRun {
    ops.scan_bell.begin();
    match ops.st().alloc.scan_some() {
        Scanned::Some => NextRun::Again,
        Scanned::Off => NextRun::WhenWoken,
        Scanned::All => NextRun::Never,
    }
}

/// Zeroes the next unused part of an inode table, until the last of them or the first error.
fn zero_table(ops: &Operations) -> NextRun {
    if is_frozen(ops) {
        return NextRun::After(FROZEN);
    }
    let start = Instant::now();
    match ops.st().alloc.zero_next_table() {
        Ok(true) => NextRun::After(start.elapsed() * REST),
        Ok(false) => NextRun::Never,
        Err(e) => {
            tracing::warn!("inode tables are not zeroed any further: {e}");
            NextRun::Never
        }
    }
}

fn discard(ops: &Operations) -> NextRun {
    if is_frozen(ops) {
        return NextRun::After(FROZEN);
    }
    if ops.st().alloc.discard_next() { NextRun::Again } else { NextRun::WhenWoken }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind};
    use extant_testkit::FeatureSet;

    #[test]
    fn inodes_that_callers_refer_to_are_looked_at_less_and_less_often() {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let options = OpenOptions::new().commit_interval(Duration::from_secs(3600));
        let fs = Fs::open(image.path(), &options).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        fs.sync().unwrap();
        fs.unlink(&root, b"file").unwrap();
        while fs.operations().to_reap() != ToReap::Later {
            fs.sync().unwrap();
        }
        let mut lingering = RETIRE_EVERY[0];
        for pause in [1, 2, 4] {
            assert_eq!(
                reap(fs.operations(), &mut lingering),
                NextRun::After(Duration::from_secs(pause))
            );
            assert!(!fs.operations().reaper_bell().is_rung(), "it would run at once");
        }
        drop(node);
        reap(fs.operations(), &mut lingering);
        assert_eq!(fs.operations().to_reap(), ToReap::Nothing);
        drop(root);
        fs.unmount().unwrap();
    }
}
