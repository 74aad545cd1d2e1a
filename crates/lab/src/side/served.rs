//! FUSE servers in a process of their own: this program, run again with `serve`.
//!
//! A line `mount` has the child mount, for the first time or again, and it answers `ready`. The end
//! of its input has it unmount and end, so that nothing stays mounted when its parent dies.

use super::directory::Mounted;
use super::{Open, Setup, Source, make_with};
use extant_fuse::Transport;
use extant_measure::scratch::{self, Loop, MountGuard, Scratch};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A server. Fields in the order in which they have to go.
pub struct Served {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    server: scratch::Server,
    dir: PathBuf,
    /// The child may have mounted when a signal comes before it is asked whether it has.
    _mount: MountGuard,
    _device: Option<Loop>,
    _scratch: Scratch,
}

impl Served {
    /// Starts the engine's server on a fresh image, or the null server.
    pub fn new(extant: Option<&Setup>, transport: Transport) -> io::Result<Served> {
        let scratch = Scratch::new()?;
        let dir = scratch.dir("mnt")?;
        let mount = MountGuard::new(&dir);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(&dir);
        let mut device = None;
        if let Some(setup) = extant {
            let image = make_with(&scratch, setup)?;
            device = setup.block_device.then(|| Loop::attach(&image)).transpose()?;
            command.arg("--image").arg(device.as_ref().map_or(&image, |device| &device.device));
        }
        if transport == Transport::IoUring {
            command.arg("--rings");
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let no_pipe = || io::Error::other("a child without a pipe");
        let input = child.stdin.take().ok_or_else(no_pipe)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
        let server = scratch::Server::new(child);
        Ok(Served { input, output, server, dir, _mount: mount, _device: device, _scratch: scratch })
    }
}

impl Source for Served {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        self.input.write_all(b"mount\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(io::Error::other("the FUSE server did not mount (its message is above)"));
        }
        Ok(Box::new(Mounted::new(&self.dir, MountGuard::new(&self.dir))?))
    }

    fn server(&self) -> Option<u32> {
        Some(self.server.child.id())
    }

    fn end(self: Box<Self>) -> io::Result<()> {
        let Served { input, mut server, .. } = *self;
        drop(input);
        server.wait()
    }
}
