//! Something mounted on a directory, and tmpfs, which is nothing more.

use crate::scratch::{MountGuard, Scratch};
use crate::target::{Directory, Target};
use rustix::mount::{MountFlags, mount};
use std::io;
use std::path::Path;

/// A mounted directory under measurement.
#[derive(Debug)]
pub struct Mounted {
    // Holds the mount busy, so it goes first.
    target: Directory,
    guard: MountGuard,
}

impl Mounted {
    /// Opens the mount on `dir`, which `guard` unmounts.
    pub fn new(dir: &Path, guard: MountGuard) -> io::Result<Mounted> {
        Ok(Mounted { target: Directory::new(dir)?, guard })
    }

    /// Returns the target of workloads.
    pub fn target(&self) -> &dyn Target {
        &self.target
    }

    /// Writes everything and unmounts.
    pub fn unmount(self) -> io::Result<()> {
        self.target.sync()?;
        drop(self.target);
        self.guard.unmount()
    }
}

/// A tmpfs.
pub struct Running {
    mounted: Mounted,
    _scratch: Scratch,
}

impl Running {
    /// Mounts one.
    pub fn start() -> io::Result<Running> {
        let scratch = Scratch::new()?;
        let dir = scratch.dir("mnt")?;
        let guard = MountGuard::new(&dir);
        mount("extant-lab", &dir, "tmpfs", MountFlags::empty(), None)?;
        Ok(Running { mounted: Mounted::new(&dir, guard)?, _scratch: scratch })
    }
}

impl super::Running for Running {
    fn target(&self) -> &dyn Target {
        self.mounted.target()
    }

    /// It has nothing to forget.
    fn cold(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn stop(self: Box<Self>) -> io::Result<()> {
        self.mounted.unmount()
    }
}
