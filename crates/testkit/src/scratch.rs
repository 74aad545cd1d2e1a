//! Temporary directories for images: in memory if enough is free, on disk otherwise. Dropping one
//! judges the images in it.

use crate::judge;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Memory that must be free in `/dev/shm` before images go there, in bytes.
const ROOM: u64 = 2 << 30;

/// A temporary directory, removed when dropped. Before that, each file with an ext4 file system is
/// judged (see [`judge`]). Exceptions: the test failed already, the file was not written to since
/// it was made or judged, or [`Scratch::leave_unjudged`] excludes it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    known: Mutex<HashMap<PathBuf, Known>>,
}

/// State of an image.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// Clean, if its modification time is still this one, in nanoseconds.
    Fine(i128),
    /// Excluded from judgement.
    Unjudged,
}

impl Scratch {
    /// Makes an empty directory in `/dev/shm` if enough memory is free, otherwise in the system's
    /// temporary directory.
    pub fn new() -> Self {
        let dir = shm_with_room()
            .and_then(|base| below(&base).ok())
            .or_else(|| below(&std::env::temp_dir()).ok())
            .expect("cannot make a temporary directory");
        Self { dir, known: Mutex::default() }
    }

    /// Makes an empty directory on disk, never in memory.
    pub fn on_disk() -> Self {
        let dir = below(Path::new("/var/tmp")).expect("a directory in /var/tmp");
        Self { dir, known: Mutex::default() }
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of `name` inside.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a sparse file of `bytes` bytes and returns its path.
    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        let file = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.set_len(bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Makes a directory inside and returns its path.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Excludes the image of this name, or all images in the directory of this name, from
    /// judgement; `why` is the reason, for readers of the test.
    pub fn leave_unjudged(&self, name: impl AsRef<Path>, why: &str) {
        assert!(!why.is_empty(), "an image is left unjudged for a reason");
        self.known().insert(self.join(name), Known::Unjudged);
    }

    /// Marks an image as clean, so that it is judged only after another write.
    pub(crate) fn is_fine(&self, image: &Path) {
        let written = fs::metadata(image).map(|found| written_at(&found));
        let written = written.unwrap_or_else(|e| panic!("{}: {e}", image.display()));
        self.known()
            .entry(image.to_owned())
            .and_modify(|known| known.is_fine(written))
            .or_insert(Known::Fine(written));
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn to_be_judged(&self) -> Vec<PathBuf> {
        let known = self.known();
        let is_known =
            |path: &Path, found: &Metadata| match path.ancestors().find_map(|part| known.get(part))
            {
                Some(Known::Unjudged) => true,
                Some(Known::Fine(written)) => *written == written_at(found),
                None => false,
            };
        let mut images = Vec::new();
        let own = fs::metadata(self.path()).map(|found| found.dev());
        let mut pending = vec![self.path().to_owned()];
        while let Some(dir) = pending.pop() {
            // Errors are ignored: removed files, and mounts without a server, cannot be judged.
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                match fs::symlink_metadata(&path) {
                    Ok(found)
                        if found.is_dir() && own.as_ref().is_ok_and(|own| *own == found.dev()) =>
                    {
                        pending.push(path)
                    }
                    Ok(found) if found.is_file() && is_ext4(&path) && !is_known(&path, &found) => {
                        images.push(path)
                    }
                    _ => {}
                }
            }
        }
        images
    }
}

impl Known {
    fn is_fine(&mut self, at: i128) {
        if let Known::Fine(written) = self {
            *written = at;
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for image in self.to_be_judged() {
            let complaints = judge::judge_at_last(&image);
            assert!(complaints.is_clean(), "{}, left by this test: {complaints}", image.display());
        }
    }
}

fn written_at(found: &Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

/// Returns whether a file has the superblock of a file system.
fn is_ext4(path: &Path) -> bool {
    const SUPERBLOCK: u64 = 1024;
    let mut start = [0; 0x64];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut start, SUPERBLOCK));
    let journal_device = start[0x60] & 8 != 0;
    read.is_ok() && start[0x38..0x3a] == [0x53, 0xef] && !journal_device
}

fn below(base: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("extant-test-").tempdir_in(base)
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

fn shm_with_room() -> Option<PathBuf> {
    let base = PathBuf::from("/dev/shm");
    let stat = rustix::fs::statvfs(&base).ok()?;
    (stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM).then_some(base)
}
