//! Random operations by several threads. In a thread's own directory all results must equal those
//! of the kernel's ext4, since they depend on that thread only. In the common directory results
//! vary, and only the image is checked.

use crate::oracle::{Notes, same_after_remount};
use extant_testkit::rng::Rng;
use extant_testkit::tree::content_hash;
use rustix::fs::{
    CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, getxattr, removexattr, renameat_with,
    setxattr,
};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Number of operations of all threads together.
const OPERATIONS: u64 = 6000;

/// Largest file in bytes.
const LARGEST: u64 = 200_000;

struct Worker<'a> {
    dir: PathBuf,
    common: &'a Path,
    rng: Rng,
    /// Open files, with or without names.
    held: Vec<File>,
    notes: Notes,
}

impl Worker<'_> {
    /// Returns one of a few names, so that operations collide.
    fn name(&mut self) -> PathBuf {
        let dir = *self.rng.pick(&["", "d0", "d1", "d0/e"]);
        self.dir.join(dir).join(format!("n{}", self.rng.below(7)))
    }

    fn range(&mut self) -> (u64, u64) {
        (self.rng.below(LARGEST - 20_000), 1 + self.rng.below(20_000))
    }

    fn open(&mut self) -> io::Result<File> {
        let path = self.name();
        File::options().read(true).write(true).open(path)
    }

    fn write(&mut self) -> io::Result<usize> {
        let (path, (at, len)) = (self.name(), self.range());
        let file =
            File::options().write(true).create(true).truncate(self.rng.one_in(8)).open(path)?;
        let bytes = self.rng.bytes(len as usize);
        file.write_all_at(&bytes, at)?;
        if self.rng.one_in(10) {
            file.sync_all()?;
        }
        if self.rng.one_in(6) && self.held.len() < 4 {
            self.held.push(file);
        }
        Ok(bytes.len())
    }

    fn hold(&mut self) -> io::Result<(u64, u64)> {
        if self.held.is_empty() {
            return Ok((0, 0));
        }
        let file = self.held.swap_remove(self.rng.below(self.held.len() as u64) as usize);
        file.write_all_at(b"held", self.rng.below(LARGEST))?;
        file.metadata().map(|of| (of.len(), of.nlink()))
    }

    fn change_space(&mut self) -> io::Result<u64> {
        let (file, (at, len)) = (self.open()?, self.range());
        let keep = FallocateFlags::KEEP_SIZE;
        let how = *self.rng.pick(&[
            FallocateFlags::empty(),
            keep,
            keep | FallocateFlags::PUNCH_HOLE,
            FallocateFlags::ZERO_RANGE,
        ]);
        fallocate(&file, how, at, len)?;
        file.metadata().map(|of| of.len())
    }

    fn attribute(&mut self) -> io::Result<String> {
        let (path, name) = (self.name(), format!("user.{}", self.rng.below(3)));
        let value = vec![b'v'; self.rng.below(90) as usize];
        match self.rng.below(3) {
            0 => setxattr(path, name, &value, XattrFlags::empty())?,
            1 => removexattr(path, name)?,
            _ => {
                let mut found = vec![0; 100];
                let len = getxattr(path, name, found.as_mut_slice())?;
                return Ok(String::from_utf8_lossy(&found[..len]).into_owned());
            }
        }
        Ok(String::new())
    }

    fn rename(&mut self) -> io::Result<()> {
        let (from, to) = (self.name(), self.name());
        let how = *self.rng.pick(&[
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
        ]);
        Ok(renameat_with(CWD, from, CWD, to, how)?)
    }

    /// Runs an operation in the common directory and ignores its result.
    fn meddle(&mut self) {
        let mut name = || self.common.join(format!("c{}", self.rng.below(12)));
        let (one, other) = (name(), name());
        let (at, len) = self.range();
        let _ = match self.rng.below(7) {
            0 | 1 => File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(one)
                .and_then(|f| f.write_all_at(&vec![7; len as usize], at)),
            2 => fs::rename(one, other),
            3 => fs::hard_link(one, other),
            4 => fs::remove_file(one),
            5 => renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Into::into),
            _ => fs::create_dir(&one).and_then(|()| fs::remove_dir(one)),
        };
    }

    fn step(&mut self, n: u64) {
        let kind = self.rng.below(18);
        let what =
            format!("{} {n}, kind {kind}", self.dir.file_name().unwrap_or_default().display());
        match kind {
            0..=3 => self.note(what, Worker::write),
            4 => self.note(what, |w| read(&w.name())),
            5 => self.note(what, |w| {
                let len = w.rng.below(LARGEST);
                w.open()?.set_len(len)
            }),
            6 => self.note(what, |w| fs::remove_file(w.name())),
            7 => self.note(what, |w| fs::create_dir(w.name())),
            8 => self.note(what, |w| fs::remove_dir(w.name())),
            9 => self.note(what, Worker::rename),
            10 => self.note(what, |w| {
                let (from, to) = (w.name(), w.name());
                fs::hard_link(from, to)
            }),
            11 => self.note(what, |w| {
                let target = "t".repeat(1 + w.rng.below(120) as usize);
                symlink(target, w.name())
            }),
            12 => self.note(what, Worker::change_space),
            13 => self.note(what, Worker::attribute),
            14 => self.note(what, |w| {
                let mode = w.rng.below(0o1000) as u32;
                fs::set_permissions(w.name(), fs::Permissions::from_mode(mode))
            }),
            15 => self.note(what, |w| listing(w.name().parent().unwrap_or(Path::new("/")))),
            16 => self.note(what, Worker::hold),
            _ => self.meddle(),
        }
    }

    fn note<T: std::fmt::Debug>(
        &mut self,
        what: String,
        work: impl FnOnce(&mut Self) -> io::Result<T>,
    ) {
        let outcome = work(self);
        self.notes.call(what, outcome);
    }
}

fn read(path: &Path) -> io::Result<(usize, u64)> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok((bytes.len(), content_hash(&bytes)))
}

fn listing(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names.into_iter().filter_map(|path| path.file_name().map(PathBuf::from)).collect())
}

/// Notes the tree below a directory.
fn walk(dir: &Path, notes: &mut Notes) {
    let names = listing(dir).expect("a directory");
    notes.value("names", &names);
    for path in names.iter().map(|name| dir.join(name)) {
        let of = fs::symlink_metadata(&path).expect("metadata");
        notes.value("mode and links", (of.mode(), of.nlink()));
        if of.is_dir() {
            walk(&path, notes);
        } else if of.is_symlink() {
            notes.call("target", fs::read_link(&path));
        } else {
            notes.call("content", read(&path));
        }
    }
}

fn own(dir: &Path, worker: u64) -> PathBuf {
    dir.join(format!("w{worker}"))
}

fn work(dir: &Path, workers: u64) -> Vec<Notes> {
    let common = dir.join("common");
    fs::create_dir(&common).expect("mkdir");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|n| {
                let dir = own(dir, n);
                ["", "d0", "d1", "d0/e"]
                    .iter()
                    .for_each(|sub| fs::create_dir(dir.join(sub)).expect("mkdir"));
                let rng = Rng::new(100 * workers + n);
                let mut worker =
                    Worker { dir, common: &common, rng, held: Vec::new(), notes: Notes::default() };
                scope.spawn(move || {
                    (0..OPERATIONS / workers).for_each(|n| worker.step(n));
                    worker.notes
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker")).collect()
    })
}

fn mixed(workers: u64) {
    let walked = |dir: &Path, notes: &mut Notes| {
        (0..workers).for_each(|n| walk(&own(dir, n), notes));
        // All of the common directory must be readable; its content is arbitrary.
        walk(&dir.join("common"), &mut Notes::default());
    };
    let scenario = |dir: &Path, notes: &mut Notes| {
        work(dir, workers).into_iter().for_each(|own| notes.append(own));
        walked(dir, notes);
    };
    same_after_remount("default", scenario, walked);
}

#[test]
fn one_worker_gets_the_kernels_results() {
    mixed(1);
}

#[test]
fn two_workers_get_the_kernels_results() {
    mixed(2);
}

#[test]
fn eight_workers_get_the_kernels_results() {
    mixed(8);
}
