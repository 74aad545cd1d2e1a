//! Workloads of one operation that threads repeat, for comparisons in pairs and for counting the
//! shared memory of an operation.
//!
//! A job is prepared, run by threads that start together, and cleared away; only the run is
//! measured. Any number of jobs follow each other on one file system, and each leaves behind at
//! most directories and files that the next of its kind uses again.

mod look;
mod make;
mod orphans;
mod sync;

use crate::target::{How, OpenFile, Target};
use extant_measure::options::invalid;
use extant_measure::timing::{Done, Limit, run_threads};
use std::io;
use std::time::Duration;

pub use sync::{Crowd, SYNCERS, fill, sync_crowd, under_load};

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Files that are made or deleted, all threads together.
    pub files: usize,
    /// Bytes or blocks by which each thread cuts its file.
    pub cuts: u64,
    /// Rounds of each client that makes one file again and again.
    pub rounds: u64,
    /// How long jobs without an end of their own take.
    pub window: Duration,
}

impl Size {
    /// The size for bars.
    pub const FULL: Size =
        Size { files: 8_000, cuts: 1_000, rounds: 1_000, window: Duration::from_millis(60) };

    /// A look that takes little time.
    pub const QUICK: Size =
        Size { files: 2_000, cuts: 300, rounds: 300, window: Duration::from_millis(20) };

    /// The size for tests.
    pub const TINY: Size =
        Size { files: 160, cuts: 20, rounds: 10, window: Duration::from_millis(2) };
}

/// One operation: thread and number.
type Operation<'a> = Box<dyn Fn(usize, u64) -> io::Result<()> + Sync + 'a>;

/// A prepared job.
pub struct Job<'a> {
    limit: Limit,
    op: Operation<'a>,
    after: Box<dyn FnOnce() -> io::Result<()> + 'a>,
}

impl<'a> Job<'a> {
    /// Makes a job that leaves nothing to clear away.
    fn new(limit: Limit, op: impl Fn(usize, u64) -> io::Result<()> + Sync + 'a) -> Job<'a> {
        Job { limit, op: Box::new(op), after: Box::new(|| Ok(())) }
    }

    /// With something to do afterwards.
    fn then(self, after: impl FnOnce() -> io::Result<()> + 'a) -> Job<'a> {
        Job { after: Box::new(after), ..self }
    }

    /// Runs it, at most so many operations of each thread, and clears away.
    fn run(
        self,
        target: &dyn Target,
        (threads, most): (usize, u64),
        watch: &dyn Watch,
    ) -> io::Result<Done> {
        let limit = Limit { ops: self.limit.ops.min(most), time: self.limit.time };
        let (op, by_turns) = (&self.op, watch.by_turns());
        watch.start();
        let done = run_threads(threads, limit, |thread, n| {
            if n == 0 {
                watch.thread();
            }
            op(thread, n)?;
            if by_turns {
                std::thread::yield_now();
            }
            Ok(())
        });
        if watch.until_durable() {
            target.sync()?;
        }
        watch.stop();
        (self.after)()?;
        done
    }
}

/// Looks on while a job runs, not while it is prepared and cleared away.
pub trait Watch: Sync {
    /// It begins.
    fn start(&self) {}

    /// One of its threads begins.
    fn thread(&self) {}

    /// It is over.
    fn stop(&self) {}

    /// Whether a sync behind the job, which makes its changes durable, is a part of it.
    fn until_durable(&self) -> bool {
        false
    }

    /// Whether threads yield after each operation. With more threads than processors their
    /// operations then alternate, as they would on as many processors.
    fn by_turns(&self) -> bool {
        false
    }
}

/// Looks at nothing.
impl Watch for () {}

/// A kind of job.
pub struct Kind {
    /// Its name in tables.
    pub name: &'static str,
    /// Its name on command lines.
    pub word: &'static str,
    /// How many times the kernel's rate it has to reach.
    pub bar: Option<f64>,
    prepare: Prepare,
}

impl Kind {
    /// Prepares, lets everything come to rest, runs (at most `most` operations of each thread) and
    /// clears away.
    pub fn play(
        &self,
        target: &dyn Target,
        (threads, most): (usize, u64),
        size: &Size,
        watch: &dyn Watch,
    ) -> io::Result<Done> {
        let job = (self.prepare)(target, threads, size)?;
        target.sync()?;
        job.run(target, (threads, most), watch)
    }

    /// Returns the kind with this name on command lines.
    pub fn named(word: &str) -> io::Result<&'static Kind> {
        let unknown = || invalid(format!("there is no workload `{word}`"));
        KINDS.iter().find(|kind| kind.word == word).ok_or_else(unknown)
    }
}

type Prepare = for<'a> fn(&'a dyn Target, usize, &Size) -> io::Result<Job<'a>>;

const fn kind(name: &'static str, word: &'static str, bar: f64, prepare: Prepare) -> Kind {
    Kind { name, word, bar: if bar > 0.0 { Some(bar) } else { None }, prepare }
}

/// Kinds of the bench alone: files of one block.
pub const SMALL: [Kind; 2] = [
    kind("create 4 KiB files", "create-small", 0.0, |target, threads, size| {
        make::create(target, ("create-small", threads), size.files / 2, &make::BLOCK)
    }),
    kind("delete 4 KiB files", "unlink-small", 0.0, |target, threads, size| {
        make::unlink(target, ("unlink-small", threads), size.files / 2, &make::BLOCK)
    }),
];

/// All other kinds, in the order of tables. Those with a bar of 0 have none.
pub const KINDS: [Kind; 16] = [
    // All bytes but the last lie in a block that stays, so that a file system that looks first
    // needs no record.
    kind("stress-orphan, byte by byte", "stress-orphan", 3.0, |target, threads, size| {
        orphans::cut(target, ("bytes", threads), size.cuts, 1)
    }),
    // Each cut frees a block. A file system that frees it within one transaction needs no record.
    kind("stress-orphan, block by block", "stress-orphan-blocks", 3.0, |target, threads, size| {
        orphans::cut(target, ("blocks", threads), size.cuts, orphans::BLOCK)
    }),
    kind("stress-orphan, pieces at a time", "stress-orphan-pieces", 3.0, orphans::by_pieces),
    kind("creat_clo", "creat-clo", 3.0, orphans::creat_clo),
    kind("creat_clo, unlink each time", "creat-clo-unlink", 3.0, orphans::creat_clo_unlink),
    kind("creat_clo, unlink while open", "creat-clo-held", 0.0, orphans::creat_clo_held),
    kind("create empty files", "create", 2.0, |target, threads, size| {
        make::create(target, ("create", threads), size.files, &[])
    }),
    kind("unlink", "unlink", 2.0, |target, threads, size| {
        make::unlink(target, ("unlink", threads), size.files, &[])
    }),
    kind("stat one path of depth 6", "stat-path", 4.0, |target, _, size| {
        look::one(target, size, |target| target.stat(look::PATH))
    }),
    // A user needs permission to search each directory. The kernel checks that for root, too.
    kind("stat that path as a user", "stat-path-as", 0.0, |target, _, size| {
        look::one(target, size, |target| target.stat_as_user(look::PATH))
    }),
    kind("stat down and up again", "stat-up", 0.0, |target, _, size| {
        look::one(target, size, |target| target.stat(look::UP))
    }),
    kind("open and close", "open", 3.0, look::open),
    kind("stat files of one directory", "stat-files", 4.0, look::stat_files),
    kind("warm walk of a tree", "walk", 3.0, look::walk),
    kind("write 4 KiB to own file", "write", 0.0, make::write),
    kind("rename in own directory", "rename", 0.0, make::rename),
];

/// Files in a directory.
const IN_DIRECTORY: usize = 500;

/// Returns success for an error of this kind.
pub fn accept(kind: io::ErrorKind, outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|e| if e.kind() == kind { Ok(()) } else { Err(e) })
}

/// Makes a directory unless it is there.
pub fn ensure_dir(target: &dyn Target, path: &[u8]) -> io::Result<()> {
    accept(io::ErrorKind::AlreadyExists, target.mkdir(path))
}

/// Makes an empty file unless it is there.
pub fn ensure_file(target: &dyn Target, path: &[u8]) -> io::Result<()> {
    accept(io::ErrorKind::AlreadyExists, target.create(path))
}

/// One path for each thread, in a directory of its own.
pub fn own(target: &dyn Target, what: &str, threads: usize) -> io::Result<Vec<Vec<u8>>> {
    ensure_dir(target, what.as_bytes())?;
    (0..threads)
        .map(|t| {
            let dir = format!("{what}/own{t}");
            ensure_dir(target, dir.as_bytes())?;
            Ok(format!("{dir}/file").into_bytes())
        })
        .collect()
}

/// Opens a file for each thread, in a directory of its own, and fills it.
pub fn filled(
    target: &dyn Target,
    what: &str,
    threads: usize,
    fill: impl Fn(&dyn OpenFile) -> io::Result<()>,
) -> io::Result<Vec<Box<dyn OpenFile>>> {
    let open = |path: &Vec<u8>| {
        ensure_file(target, path)?;
        let file = target.open(path, How::Write)?;
        fill(&*file)?;
        file.fsync()?;
        Ok(file)
    };
    own(target, what, threads)?.iter().map(open).collect()
}

/// Paths for each thread, together `count`, in directories of the thread's own.
pub fn many(
    target: &dyn Target,
    what: &str,
    threads: usize,
    count: usize,
) -> io::Result<Vec<Vec<Vec<u8>>>> {
    ensure_dir(target, what.as_bytes())?;
    let each = (count / threads).max(1);
    for t in 0..threads {
        ensure_dir(target, format!("{what}/t{t}").as_bytes())?;
        (0..each.div_ceil(IN_DIRECTORY))
            .try_for_each(|d| ensure_dir(target, format!("{what}/t{t}/d{d}").as_bytes()))?;
    }
    let name =
        |t: usize, i: usize| format!("{what}/t{t}/d{}/file{i}", i / IN_DIRECTORY).into_bytes();
    Ok((0..threads).map(|t| (0..each).map(|i| name(t, i)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Engine;
    use extant_blocks::MemDevice;
    use extant_engine::{Fs, OpenOptions, mkfs};
    use std::sync::Arc;

    fn engine() -> Engine {
        let device = Arc::new(MemDevice::new(64 << 20));
        Engine::new(
            Fs::create(device, &mkfs::Options::default(), &OpenOptions::new())
                .expect("a file system"),
        )
    }

    #[test]
    fn every_kind_can_be_played_again_and_again() {
        let engine = engine();
        for kind in KINDS.iter().chain(&SMALL) {
            for threads in [1, 3, 1] {
                let done =
                    kind.play(&engine, (threads, u64::MAX), &Size::TINY, &()).expect(kind.name);
                assert_eq!(done.ops.len(), threads);
                assert!(
                    done.ops.iter().all(|ops| *ops > 0) && done.rate() > 0.0,
                    "{}: {done:?}",
                    kind.name
                );
            }
        }
        engine.unmount().expect("a clean end");
    }

    #[test]
    fn callers_of_sync_meet_creators() {
        let engine = engine();
        fill(&engine, "clean", 50, 2).expect("files");
        assert_eq!(engine.list(b"clean/d0").expect("a directory").len(), 50);
        let alone = Crowd { calls: 3, creators: 0 };
        assert_eq!(
            (alone.syncs(), sync_crowd(&engine, "crowd", alone, &()).expect("no error").1),
            (300, 0)
        );
        sync_crowd(&engine, "crowd", Crowd { calls: 1, creators: 2 }, &()).expect("no error");
        assert!(engine.list(b"crowd/c0").expect("a directory").is_empty());
        let noticed = under_load(&engine, Duration::ZERO, (2, SYNCERS)).expect("no error");
        assert!(noticed.p99 > 0.0 && noticed.created > 0.0);
        // Each creator has a directory, and removes its files in the end.
        let left = |thread: usize| engine.list(format!("load/c{thread}").as_bytes());
        (0..2).for_each(|thread| assert!(left(thread).expect("a directory").is_empty()));
        engine.unmount().expect("a clean end");
    }

    #[test]
    fn words_are_unique() {
        for kind in &KINDS {
            assert_eq!(Kind::named(kind.word).expect("a kind").name, kind.name);
        }
    }
}
