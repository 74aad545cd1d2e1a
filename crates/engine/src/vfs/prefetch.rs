//! Prefetch of inodes: while a client walks a tree that is not in memory, a job loads the inodes
//! that the client is likely to ask for next.
//!
//! A client that waits for each answer leaves a processor idle. Its earlier requests suggest the
//! next ones: the other names of a directory, and the directories among them. For example, a client
//! that asks for two names of directory 12 probably asks for the other 30, too; the job loads
//! their inodes meanwhile.
//!
//! # Invariants
//! - Prefetch only affects speed: no result and no error depends on it. Errors and damage are left
//!   to the requests that meet them.
//! - A directory is prefetched after two lookups of its names whose inodes were not in memory, or
//!   when a listing reaches it from another listing. Each directory is prefetched once while its
//!   inode stays in memory.
//! - The work is bounded by its use: [`FIRST`] inodes to begin with, then [`GRANT`] for each
//!   prefetched inode that was asked for and for each directory that is listed, up to
//!   [`MAX_BUDGET`] in advance.
//!
//! # Locking
//! One lock (Leaf). A request takes it only if it meets an inode that was not in memory or was
//! prefetched.

use super::{InodeRef, Vfs, alive};
use crate::dir;
use crate::error::Result;
use crate::inode::{Hint, Inode};
use extant_format::types::InodeNr;
use extant_sync::scheduler::Bell;
use extant_sync::{Level, Mutex, MutexGuard, ShardedCounter};
use std::collections::VecDeque;

/// Inodes that may be loaded when a client begins to use a directory.
const FIRST: u32 = 16;

/// Inodes that may be loaded for each one that was of use.
const GRANT: u32 = 4;

/// Maximum number of inodes that may be loaded before any of them is of use.
const MAX_BUDGET: u32 = 256;

/// Maximum number of queued directories; further ones are ignored.
const MAX_WAITING: usize = 1024;

/// Names of a directory that one step reads.
const BATCH: usize = 32;

/// A directory to prefetch, with the cookie to begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    dir: InodeNr,
    /// Compared when the step runs: the number may belong to another inode by then.
    generation: u32,
    cookie: u64,
}

impl Step {
    /// Returns the first step into a directory.
    fn into(dir: &Inode) -> Step {
        Step { dir: dir.ino, generation: dir.generation, cookie: 0 }
    }

    /// Returns whether an inode is the directory of the step, and not a later inode with its
    /// number.
    fn means(&self, inode: &Inode) -> bool {
        inode.is_dir() && inode.ino == self.dir && inode.generation == self.generation
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Step>,
    /// Number of inodes that may still be loaded.
    budget: u32,
}

/// The queue of directories to prefetch, with the budget.
#[derive(Debug)]
pub struct Prefetch {
    on: bool,
    state: Mutex<State>,
    bell: Bell,
    loaded: ShardedCounter,
    used: ShardedCounter,
}

impl Prefetch {
    /// Creates an empty queue. Unless `on`, it stays empty.
    pub fn new(on: bool) -> Self {
        Prefetch {
            on,
            state: Mutex::new(Level::Leaf, State::default()),
            bell: Bell::default(),
            loaded: ShardedCounter::default(),
            used: ShardedCounter::default(),
        }
    }

    /// Returns the bell that wakes the prefetching task.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Returns whether a task prefetches.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Returns the number of prefetched inodes, and of those that were asked for.
    pub fn counts(&self) -> (u64, u64) {
        let count = |counter: &ShardedCounter| u64::try_from(counter.sum()).unwrap_or(0);
        (count(&self.loaded), count(&self.used))
    }

    /// Returns the next step, or `None` if there is none to be made.
    pub fn next(&self) -> Option<Step> {
        self.bell.begin();
        let mut state = self.state.lock();
        if state.budget > 0 { state.waiting.pop_front() } else { None }
    }

    /// Records a lookup in `dir` whose inode was not in memory.
    fn missed(&self, dir: &Inode) {
        if dir.hints.set(Hint::Missed) && !dir.hints.is_set(Hint::LookedThrough) {
            let mut state = self.state.lock();
            state.budget = state.budget.max(FIRST);
            self.first(state, dir);
        }
    }

    /// Records a request for an inode. A prefetched inode counts once; a directory among them is
    /// queued, since the client probably continues there.
    fn met(&self, inode: &Inode) {
        if !inode.hints.clear(Hint::Prefetched) {
            return;
        }
        self.used.add(1);
        let mut state = self.state.lock();
        state.budget = (state.budget + GRANT).min(MAX_BUDGET);
        if inode.is_dir() && !inode.hints.is_set(Hint::LookedThrough) {
            self.first(state, inode);
        } else if state.budget >= FIRST {
            self.go_on(state);
        }
    }

    /// Records that a listing returned a directory. `descends` tells whether the listing's
    /// directory was itself returned by a listing.
    fn listed(&self, dir: &Inode, descends: bool) {
        dir.hints.set(Hint::Listed);
        if descends && !dir.hints.is_set(Hint::LookedThrough) {
            let mut state = self.state.lock();
            state.budget = (state.budget + GRANT).min(MAX_BUDGET);
            self.first(state, dir);
        }
    }

    /// Queues a directory before all others.
    fn first(&self, mut state: MutexGuard<'_, State>, dir: &Inode) {
        state.waiting.truncate(MAX_WAITING - 1);
        state.waiting.push_front(Step::into(dir));
        self.go_on(state);
    }

    fn go_on(&self, state: MutexGuard<'_, State>) {
        let waits = !state.waiting.is_empty();
        drop(state);
        if waits {
            self.bell.ring();
        }
    }

    /// Records the result of a step: the number of loaded inodes, the rest of the directory, and
    /// the directories in it.
    fn done(&self, loaded: usize, rest: Option<Step>, below: &[Step]) {
        self.loaded.add(loaded as i64);
        let mut state = self.state.lock();
        // One more for the directory block that was read.
        state.budget = state.budget.saturating_sub(loaded as u32 + 1);
        rest.into_iter().for_each(|step| state.waiting.push_front(step));
        let room = MAX_WAITING.saturating_sub(state.waiting.len());
        state.waiting.extend(below.iter().take(room));
    }
}

impl Vfs {
    /// Returns the inode that a name in `dir` leads to, for a caller that asked for the name. The
    /// caller must hold the directory's lock.
    pub(super) fn asked_for(&self, dir: &Inode, ino: InodeNr) -> Result<InodeRef> {
        if !self.prefetch.is_on() {
            return self.node(ino);
        }
        match self.inodes.peek(ino) {
            Some(inode) => {
                self.prefetch.met(&inode);
                alive(inode)
            }
            None => {
                let inode = self.node(ino)?;
                self.prefetch.missed(dir);
                Ok(inode)
            }
        }
    }

    /// Returns the inode of an entry as [`Self::asked_for`] does, for a listing of `dir`.
    pub fn given_out(&self, dir: &Inode, entry: &dir::Entry<'_>) -> Result<InodeRef> {
        let inode = self.node(entry.ino)?;
        if self.prefetch.is_on() && !matches!(entry.name, b"." | b"..") {
            self.prefetch.met(&inode);
            if inode.is_dir() {
                self.prefetch.listed(&inode, dir.hints.is_set(Hint::Listed));
            }
        }
        Ok(inode)
    }

    /// Runs a step: loads the inodes that a part of a directory names. Ignores errors, which the
    /// requests for these inodes will report.
    pub fn look_ahead(&self, step: Step) {
        let Some(dir) = self.inodes.peek(step.dir).filter(|inode| step.means(inode)) else {
            return;
        };
        if step.cookie == 0 && dir.hints.set(Hint::LookedThrough) {
            return;
        }
        let part = dir.read_lock().and_then(|_lock| dir::part(&self.st, &dir, step.cookie));
        let Ok(part) = part else { return };
        let (mut names, mut cookie) = (Vec::with_capacity(BATCH), step.cookie);
        let all = part.each(|e| {
            if !matches!(e.name, b"." | b"..") {
                names.push(e.ino);
            }
            cookie = e.next;
            names.len() < BATCH
        });
        let rest = match (all, part.next) {
            (Ok(false), _) => Some(cookie),
            (Ok(true), Ok(next)) => next,
            _ => return,
        };
        let rest = rest.map(|cookie| Step { cookie, ..step });
        let (mut loaded, mut below) = (0, Vec::new());
        for ino in names {
            let known = self.inodes.peek(ino).is_some();
            // The name may have been removed since: then the inode is loaded by its number alone,
            // and a freed one is refused.
            let Ok(inode) = self.node(ino) else { continue };
            if !known {
                inode.hints.set(Hint::Prefetched);
                loaded += 1;
            }
            if inode.is_dir() && !inode.hints.is_set(Hint::LookedThrough) {
                below.push(Step::into(&inode));
            }
        }
        self.prefetch.done(loaded, rest, &below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenFlags, OpenOptions};
    use extant_testkit::FeatureSet;

    /// The number of a former directory belongs to a file when the step runs, and the file's
    /// content looks like directory entries.
    #[test]
    fn a_reused_number_is_not_read_as_a_directory() {
        let image = FeatureSet::named("ext2").make();
        image.leave_unjudged("the file system is not closed");
        let fs = Fs::open(image.path(), &OpenOptions::new().look_ahead(true)).unwrap();
        let root = fs.root().unwrap();
        let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap();
        let old = Step::into(&dir.0);
        let file = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        let lost = fs.lookup(&root, b"lost+found").unwrap().ino() as u8;
        let mut names = vec![0; 4096];
        names[..12].copy_from_slice(&[lost, 0, 0, 0, 0, 16, 1, 2, b'x', 0, 0, 0]);
        let writer = fs.open_file(&file, OpenFlags { write: true, ..Default::default() }).unwrap();
        writer.write_at(0, &names).unwrap();
        writer.sync().unwrap();
        for generation in [file.generation(), old.generation] {
            fs.vfs.look_ahead(Step { dir: file.0.ino, generation, cookie: 0 });
            assert!(!file.0.hints.is_set(Hint::LookedThrough), "a file is looked through");
        }
        fs.vfs.look_ahead(Step { generation: old.generation.wrapping_add(1), ..old });
        assert!(!dir.0.hints.is_set(Hint::LookedThrough), "another inode had the number");
        fs.vfs.look_ahead(old);
        assert!(dir.0.hints.is_set(Hint::LookedThrough));
        fs.crash();
    }
}
