//! e2fsprogs' fuse2fs, kept in the foreground as a child.

use super::directory::Mounted;
use super::{Open, Setup, Source, make_with};
use crate::target::Target;
use extant_measure::scratch::{self, MountGuard, Scratch, Server};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// An image that fuse2fs mounts.
pub struct Fuse2fs {
    image: PathBuf,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Fuse2fs {
    pub fn new() -> io::Result<Fuse2fs> {
        let scratch = Scratch::new()?;
        let image = make_with(&scratch, &Setup::default())?;
        Ok(Fuse2fs { image, dir: scratch.dir("mnt")?, _scratch: scratch })
    }
}

impl Source for Fuse2fs {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        let Fuse2fs { image, dir, .. } = self;
        let before = std::fs::metadata(&*dir)?.dev();
        let guard = MountGuard::new(dir);
        let mut command = Command::new(scratch::need("fuse2fs")?);
        command.arg(image).arg(&*dir).args(["-f", "-o", "rw,fakeroot,allow_other"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut server = Server::new(command.spawn()?);
        wait_for_mount(dir, before, &mut server)?;
        Ok(Box::new(Serving { mounted: Box::new(Mounted::new(dir, guard)?), server }))
    }
}

fn wait_for_mount(dir: &Path, before: u64, server: &mut Server) -> io::Result<()> {
    let mounted = scratch::poll(Duration::from_secs(20), || {
        if std::fs::metadata(dir)?.dev() != before {
            return Ok(Some(()));
        }
        match server.child.try_wait()? {
            Some(status) => Err(io::Error::other(format!("fuse2fs ended with {status}"))),
            None => Ok(None),
        }
    })?;
    mounted.ok_or_else(|| io::Error::other("fuse2fs does not mount"))
}

struct Serving {
    mounted: Box<Mounted>,
    server: Server,
}

impl Open for Serving {
    fn target(&self) -> &dyn Target {
        self.mounted.target()
    }

    fn server(&self) -> Option<u32> {
        Some(self.server.child.id())
    }

    fn close(mut self: Box<Self>) -> io::Result<()> {
        self.mounted.close()?;
        self.server.wait()
    }
}
