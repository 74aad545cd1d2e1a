//! Hosts without space: mounts of tmpfs(5) of a few megabytes.

use crate::kernel::unmount_patiently;
use crate::tool::{arg, need_root, run};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A mounted tmpfs(5), which is unmounted when dropped.
#[derive(Debug)]
pub struct SmallHost {
    dir: PathBuf,
    mounted: bool,
}

impl SmallHost {
    /// Mounts one of `size`, as mount(8) takes it, at a directory.
    #[track_caller]
    pub fn new(dir: PathBuf, size: &str) -> SmallHost {
        need_root("mounting a tmpfs");
        let words = ["-t", "tmpfs", "-o", &format!("size={size}"), "none"].map(Into::into);
        run("mount", &[&words[..], &[arg(&dir)]].concat()).must_succeed();
        SmallHost { dir, mounted: true }
    }

    /// Returns the path of `name` on it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Takes all free space, until the result is dropped.
    #[track_caller]
    pub fn fill(&self) -> Filler {
        let path = self.join("filler");
        let file = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        while (&file).write_all(&[2; 4096]).is_ok() {}
        Filler { file, path }
    }

    /// Unmounts it.
    #[track_caller]
    pub fn unmount(mut self) {
        self.mounted = false;
        let ended = unmount_patiently(&self.dir);
        ended.unwrap_or_else(|e| panic!("umount {}: {e}", self.dir.display()));
    }
}

impl Drop for SmallHost {
    /// A test that failed may have left a program that uses it.
    fn drop(&mut self) {
        if self.mounted
            && let Err(e) = unmount(&self.dir, UnmountFlags::DETACH)
        {
            eprintln!("umount {}: {e}", self.dir.display());
        }
    }
}

/// A file that takes all space of a host.
#[derive(Debug)]
pub struct Filler {
    file: File,
    path: PathBuf,
}

impl Drop for Filler {
    /// Gives the space back at once. A file that is removed alone may keep it for a moment: a
    /// program that another thread starts holds the descriptors of this process until it is
    /// executed.
    fn drop(&mut self) {
        let freed = self.file.set_len(0).and_then(|()| std::fs::remove_file(&self.path));
        freed.unwrap_or_else(|e| eprintln!("{}: {e}", self.path.display()));
    }
}
