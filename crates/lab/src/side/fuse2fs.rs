//! e2fsprogs' fuse2fs, kept in the foreground as a child.

use super::directory::Mounted;
use super::image;
use crate::scratch::{MountGuard, Scratch, Server};
use crate::target::Target;
use crate::tool;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct Serving {
    mounted: Mounted,
    server: Server,
}

impl Serving {
    fn start(image: &Path, dir: &Path) -> io::Result<Serving> {
        let before = std::fs::metadata(dir)?.dev();
        let guard = MountGuard::new(dir);
        let mut command = Command::new(tool::need("fuse2fs")?);
        command.arg(image).arg(dir).args(["-f", "-o", "rw,fakeroot,allow_other"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut server = Server::new(command.spawn()?);
        wait_for_mount(dir, before, &mut server)?;
        Ok(Serving { mounted: Mounted::new(dir, guard)?, server })
    }

    fn stop(mut self) -> io::Result<()> {
        self.mounted.unmount()?;
        self.server.wait()
    }
}

fn wait_for_mount(dir: &Path, before: u64, server: &mut Server) -> io::Result<()> {
    let give_up = Instant::now() + Duration::from_secs(20);
    while std::fs::metadata(dir)?.dev() == before {
        if let Some(status) = server.child().try_wait()? {
            return Err(io::Error::other(format!("fuse2fs ended with {status}")));
        }
        if Instant::now() > give_up {
            return Err(io::Error::other("fuse2fs does not mount"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A mounted image.
pub struct Running {
    serving: Option<Serving>,
    image: PathBuf,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Running {
    /// Makes and mounts one.
    pub fn start() -> io::Result<Running> {
        let scratch = Scratch::new()?;
        let image = image::make(&scratch)?;
        let dir = scratch.dir("mnt")?;
        let serving = Some(Serving::start(&image, &dir)?);
        Ok(Running { serving, image, dir, _scratch: scratch })
    }
}

impl super::Running for Running {
    fn target(&self) -> &dyn Target {
        self.serving.as_ref().expect("it is mounted").mounted.target()
    }

    fn cold(&mut self) -> io::Result<()> {
        if let Some(serving) = self.serving.take() {
            serving.stop()?;
        }
        self.serving = Some(Serving::start(&self.image, &self.dir)?);
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> io::Result<()> {
        self.serving.take().map_or(Ok(()), Serving::stop)
    }
}
