//! Temporary directories for images: in memory where there is room, on disk otherwise.

use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Memory that must be free in `/dev/shm` before images go there, in bytes.
const ROOM: u64 = 2 << 30;

/// A temporary directory, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// A new empty directory in `/dev/shm` if that has room, else in the system's temporary directory.
    pub fn new() -> Self {
        let dir = shm_with_room()
            .and_then(|base| below(&base).ok())
            .or_else(|| below(&std::env::temp_dir()).ok())
            .expect("cannot make a temporary directory");
        Self { dir }
    }

    /// A new empty directory that outlives the machine's start, and so is not in memory.
    pub fn on_disk() -> Self {
        Self { dir: below(Path::new("/var/tmp")).expect("a directory in /var/tmp") }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The path of `name` inside.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a sparse file of `bytes` bytes and returns its path.
    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        let file = std::fs::File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.set_len(bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Makes a directory inside and returns its path.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
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
