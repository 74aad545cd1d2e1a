//! The kernel's ext4 on a loop device.

use super::directory::Mounted;
use super::image::{self, Setup};
use crate::scratch::{Loop, MountGuard, Scratch};
use crate::target::Target;
use std::io;
use std::path::{Path, PathBuf};

/// A mounted image. Fields in the order in which they have to go.
pub struct Running {
    mounted: Option<Mounted>,
    device: Loop,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Running {
    /// Makes and mounts one.
    pub fn start(setup: &Setup) -> io::Result<Running> {
        let scratch = Scratch::new()?;
        let image = image::make_with(&scratch, setup)?;
        let device = Loop::attach(&image)?;
        let dir = scratch.dir("mnt")?;
        let mounted = Some(mount_ext4(device.device(), &dir)?);
        Ok(Running { mounted, device, dir, _scratch: scratch })
    }
}

fn mount_ext4(device: &Path, dir: &Path) -> io::Result<Mounted> {
    let guard = MountGuard::ext4(device, dir, None)?;
    Mounted::new(dir, guard)
}

impl super::Running for Running {
    fn target(&self) -> &dyn Target {
        self.mounted.as_ref().expect("it is mounted").target()
    }

    fn cold(&mut self) -> io::Result<()> {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount()?;
        }
        self.mounted = Some(mount_ext4(self.device.device(), &self.dir)?);
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> io::Result<()> {
        self.mounted.take().map_or(Ok(()), Mounted::unmount)
    }
}
