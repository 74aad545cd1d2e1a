//! FUSE servers in a process of their own: this program, run again with `serve`.
//!
//! The child answers `ready` once it is mounted. A line `remount` has it unmount and mount again;
//! the end of its input has it unmount and end, so that nothing stays mounted when its parent dies.

use super::directory::Mounted;
use super::image;
use crate::scratch::{self, MountGuard, Scratch};
use crate::target::Target;
use extant_fuse::Transport;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The engine behind FUSE.
    Extant,
    /// Names in memory, no data.
    Null,
}

/// A server and its mount. Fields in the order in which they have to go.
pub struct Running {
    mounted: Option<Mounted>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    server: scratch::Server,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Running {
    /// Makes an image where one is needed, and starts the server.
    pub fn start(which: Server, transport: Transport) -> io::Result<Running> {
        let scratch = Scratch::new()?;
        let dir = scratch.dir("mnt")?;
        let mut command = Command::new(std::env::current_exe()?);
        match which {
            Server::Extant => {
                command.arg("serve").arg("--image").arg(image::make(&scratch)?).arg(&dir)
            }
            Server::Null => command.arg("serve").arg(&dir),
        };
        if transport == Transport::IoUring {
            command.arg("--rings");
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
        let server = scratch::Server::new(child);
        let mut running = Running { mounted: None, input, output, server, dir, _scratch: scratch };
        running.wait_ready()?;
        Ok(running)
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(io::Error::other("the FUSE server did not mount (its message is above)"));
        }
        self.mounted = Some(Mounted::new(&self.dir, MountGuard::new(&self.dir))?);
        Ok(())
    }

    /// Lets go of the mount, which the server then unmounts.
    fn release(&mut self) -> io::Result<()> {
        self.mounted.take().map_or(Ok(()), Mounted::unmount)
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("a child without a pipe")
}

impl super::Running for Running {
    fn target(&self) -> &dyn Target {
        self.mounted.as_ref().expect("it is mounted").target()
    }

    fn cold(&mut self) -> io::Result<()> {
        self.release()?;
        let input = self.input.as_mut().ok_or_else(no_pipe)?;
        input.write_all(b"remount\n")?;
        self.wait_ready()
    }

    fn stop(mut self: Box<Self>) -> io::Result<()> {
        self.release()?;
        self.input = None;
        self.server.wait()
    }
}
