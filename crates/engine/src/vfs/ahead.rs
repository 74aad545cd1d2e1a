//! Looking ahead: while a client goes through a tree that is not in memory, a job loads what it
//! will ask for next.
//!
//! A client that waits for each answer leaves a processor idle. What it has seen of the tree tells
//! where it goes on: the other names of a directory, and the directories among them.
//!
//! # Invariants
//! - Only hints: nothing is found, refused or reported because of what was or was not loaded ahead.
//!   What is damaged is left to who asks for it.
//! - A directory is looked through when two of its names were asked for that were not in memory, or
//!   when a listing came to it from another listing; and once, as long as its inode stays in
//!   memory.
//! - The work is bounded by what it is good for: [`FIRST`] inodes for a beginning, then [`GRANT`]
//!   for each inode that was loaded ahead and asked for and for each directory that is listed, up
//!   to [`MOST`] in advance.
//!
//! # Locking
//! One lock (Leaf), taken by requests only where they find what is cold or was loaded ahead.

use super::{InodeRef, Vfs, alive};
use crate::dir;
use crate::error::Result;
use crate::inode::{Hint, Inode};
use extant_format::types::InodeNr;
use extant_sync::scheduler::Bell;
use extant_sync::{Level, Mutex, MutexGuard, ShardedCounter};
use std::collections::VecDeque;

/// Inodes that may be loaded when somebody begins to look into a directory.
const FIRST: u32 = 16;

/// Inodes that may be loaded for each one that was of use.
const GRANT: u32 = 4;

/// The most that may be loaded before any of it is of use.
const MOST: u32 = 256;

/// Directories that may wait to be looked through; further ones are not noted.
const MAX_WAITING: usize = 1024;

/// Names of a directory that are taken at once.
const BATCH: usize = 32;

/// A directory, and from where on it is to be looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    dir: InodeNr,
    /// The number may be another inode's by the time of the step.
    generation: u32,
    cookie: u64,
}

impl Step {
    /// The first step into a directory.
    fn into(dir: &Inode) -> Step {
        Step { dir: dir.ino, generation: dir.generation, cookie: 0 }
    }

    /// Whether an inode is the directory that the step was noted for, and not a later one with its
    /// number.
    fn means(&self, inode: &Inode) -> bool {
        inode.is_dir() && inode.ino == self.dir && inode.generation == self.generation
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Step>,
    /// Inodes that may still be loaded.
    budget: u32,
}

/// What is to be looked through.
#[derive(Debug)]
pub struct Ahead {
    on: bool,
    state: Mutex<State>,
    bell: Bell,
    loaded: ShardedCounter,
    used: ShardedCounter,
}

impl Ahead {
    /// Nothing yet; never anything unless `on`.
    pub fn new(on: bool) -> Self {
        Ahead {
            on,
            state: Mutex::new(Level::Leaf, State::default()),
            bell: Bell::default(),
            loaded: ShardedCounter::default(),
            used: ShardedCounter::default(),
        }
    }

    /// Wakes the task that looks ahead.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Whether a task is to look ahead.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Inodes that were loaded ahead, and how many of them were asked for.
    pub fn counts(&self) -> (u64, u64) {
        let count = |counter: &ShardedCounter| u64::try_from(counter.sum()).unwrap_or(0);
        (count(&self.loaded), count(&self.used))
    }

    /// The next step, if there is one to be made.
    pub fn next(&self) -> Option<Step> {
        self.bell.begin();
        let mut state = self.state.lock();
        if state.budget > 0 { state.waiting.pop_front() } else { None }
    }

    /// A name of a directory was asked for whose inode was not in memory.
    fn missed(&self, dir: &Inode) {
        if dir.hints.set(Hint::Missed) && !dir.hints.is_set(Hint::LookedThrough) {
            let mut state = self.state.lock();
            state.budget = state.budget.max(FIRST);
            self.first(state, dir);
        }
    }

    /// An inode was asked for. Of those that were loaded ahead each is noted once; directories
    /// among them are where somebody goes next.
    fn met(&self, inode: &Inode) {
        if !inode.hints.clear(Hint::Ahead) {
            return;
        }
        self.used.add(1);
        let mut state = self.state.lock();
        state.budget = (state.budget + GRANT).min(MOST);
        if inode.is_dir() && !inode.hints.is_set(Hint::LookedThrough) {
            self.first(state, inode);
        } else if state.budget >= FIRST {
            self.go_on(state);
        }
    }

    /// A listing has given a directory out, maybe on the way down from another listing.
    fn listed(&self, dir: &Inode, descends: bool) {
        dir.hints.set(Hint::Listed);
        if descends && !dir.hints.is_set(Hint::LookedThrough) {
            let mut state = self.state.lock();
            state.budget = (state.budget + GRANT).min(MOST);
            self.first(state, dir);
        }
    }

    /// To be looked through before all others.
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

    /// A step loaded so many inodes and came to a place; below it are directories.
    fn done(&self, loaded: usize, rest: Option<Step>, below: &[Step]) {
        self.loaded.add(loaded as i64);
        let mut state = self.state.lock();
        // A directory's block was read as well.
        state.budget = state.budget.saturating_sub(loaded as u32 + 1);
        rest.into_iter().for_each(|step| state.waiting.push_front(step));
        let room = MAX_WAITING.saturating_sub(state.waiting.len());
        state.waiting.extend(below.iter().take(room));
    }
}

impl Vfs {
    /// The inode that a name in `dir` leads to, for somebody who asked for that name. The caller
    /// holds the directory's lock.
    pub(super) fn asked_for(&self, dir: &Inode, ino: InodeNr) -> Result<InodeRef> {
        if !self.ahead.is_on() {
            return self.node(ino);
        }
        match self.inodes.peek(ino) {
            Some(inode) => {
                self.ahead.met(&inode);
                alive(inode)
            }
            None => {
                let inode = self.node(ino)?;
                self.ahead.missed(dir);
                Ok(inode)
            }
        }
    }

    /// As [`Self::asked_for`], for a listing of `dir`.
    pub fn given_out(&self, dir: &Inode, entry: &dir::Entry<'_>) -> Result<InodeRef> {
        let inode = self.node(entry.ino)?;
        if self.ahead.is_on() && !matches!(entry.name, b"." | b"..") {
            self.ahead.met(&inode);
            if inode.is_dir() {
                self.ahead.listed(&inode, dir.hints.is_set(Hint::Listed));
            }
        }
        Ok(inode)
    }

    /// Loads inodes that a directory has names for. Errors are for those who ask.
    pub fn look_ahead(&self, step: Step) {
        let Some(dir) = self.inodes.peek(step.dir).filter(|inode| step.means(inode)) else {
            return;
        };
        if step.cookie == 0 && dir.hints.set(Hint::LookedThrough) {
            return;
        }
        let (mut names, mut cookie) = (Vec::with_capacity(BATCH), step.cookie);
        let read = dir.read_lock().and_then(|_lock| {
            dir::read(&self.st, &dir, step.cookie, &mut |e: dir::Entry<'_>| {
                if !matches!(e.name, b"." | b"..") {
                    names.push(e.ino);
                }
                cookie = e.next;
                names.len() < BATCH
            })
        });
        if read.is_err() {
            return;
        }
        let rest = (names.len() == BATCH).then_some(Step { cookie, ..step });
        let (mut loaded, mut below) = (0, Vec::new());
        for ino in names {
            let known = self.inodes.peek(ino).is_some();
            // Its name may be gone by now; then it is as if it was asked for by number.
            let Ok(inode) = self.node(ino) else { continue };
            if !known {
                inode.hints.set(Hint::Ahead);
                loaded += 1;
            }
            if inode.is_dir() && !inode.hints.is_set(Hint::LookedThrough) {
                below.push(Step::into(&inode));
            }
        }
        self.ahead.done(loaded, rest, &below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Fs, New, OpenFlags, OpenOptions};
    use extant_testkit::FeatureSet;

    /// A number that was a directory's is a file's by the time of the step, and its content looks
    /// like names.
    #[test]
    fn a_reused_number_is_not_read_as_a_directory() {
        let image = FeatureSet::named("ext2").make();
        image.leave_unjudged("the file system is not closed");
        let fs = Fs::open(image.path(), &OpenOptions::new().look_ahead(true)).unwrap();
        let (who, root) = (Caller::default(), fs.root().unwrap());
        let dir = fs.create(&who, &root, b"dir", 0o755, New::Dir).unwrap();
        let old = Step::into(&dir.0);
        let file = fs.create(&who, &root, b"file", 0o644, New::File).unwrap();
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
