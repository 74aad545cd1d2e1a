//! Something mounted on a directory; tmpfs, which is nothing more; the kernel's ext4 on a loop
//! device.

use super::{Open, Setup, Source, make_with};
use crate::target::{Directory, Target};
use extant_measure::scratch::{Loop, MountGuard, Scratch};
use rustix::mount::{MountFlags, mount};
use std::io;
use std::path::{Path, PathBuf};

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
}

impl Open for Mounted {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.target.sync()?;
        drop(self.target);
        self.guard.unmount()
    }
}

/// Stays mounted when it is closed: it has nothing to forget.
impl Open for Directory {
    fn target(&self) -> &dyn Target {
        self
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.sync()
    }
}

/// A tmpfs. Fields in the order in which they have to go.
pub struct Tmpfs {
    dir: PathBuf,
    _guard: MountGuard,
    _scratch: Scratch,
}

impl Tmpfs {
    pub fn new() -> io::Result<Tmpfs> {
        let scratch = Scratch::new()?;
        let dir = scratch.dir("mnt")?;
        let guard = MountGuard::new(&dir);
        mount("extant-lab", &dir, "tmpfs", MountFlags::empty(), None)?;
        Ok(Tmpfs { dir, _guard: guard, _scratch: scratch })
    }
}

impl Source for Tmpfs {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        Ok(Box::new(Directory::new(&self.dir)?))
    }
}

/// An image on a loop device. Fields in the order in which they have to go.
pub struct Kernel {
    device: Loop,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Kernel {
    pub fn new(setup: &Setup) -> io::Result<Kernel> {
        let scratch = Scratch::new()?;
        let device = Loop::attach(&make_with(&scratch, setup)?)?;
        Ok(Kernel { device, dir: scratch.dir("mnt")?, _scratch: scratch })
    }
}

impl Source for Kernel {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        let guard = MountGuard::ext4(&self.device.device, &self.dir, None)?;
        Ok(Box::new(Mounted::new(&self.dir, guard)?))
    }
}
