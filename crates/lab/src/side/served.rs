//! FUSE servers in a process of their own: this program, run again with `serve`.
//!
//! A line `mount` has the child mount, for the first time or again, and it answers `ready`. The end
//! of its input has it unmount and end, so that nothing stays mounted when its parent dies.

use super::directory::Mounted;
use super::{Open, Setup, Source, make_with};
use extant_measure::scratch::{self, Loop, MountGuard, Scratch};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A server. Fields in the order in which they have to go.
pub struct Served {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    server: scratch::Server,
    /// The kernel opens files without a request.
    fast: bool,
    dir: PathBuf,
    /// The child may have mounted when a signal comes before it is asked whether it has.
    _mount: MountGuard,
    _device: Option<Loop>,
    _scratch: Scratch,
}

impl Served {
    /// Starts the engine's server on a fresh image, or the null server, with these options.
    pub fn new(extant: Option<&Setup>, options: &[&str]) -> io::Result<Served> {
        let scratch = Scratch::new()?;
        let dir = scratch.dir("mnt")?;
        let mount = MountGuard::new(&dir);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(options).arg(&dir);
        let mut device = None;
        if let Some(setup) = extant {
            let image = make_with(&scratch, setup)?;
            device = setup.block_device.then(|| Loop::attach(&image)).transpose()?;
            command.arg("--image").arg(device.as_ref().map_or(&image, |device| &device.device));
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let no_pipe = || io::Error::other("a child without a pipe");
        let input = child.stdin.take().ok_or_else(no_pipe)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
        let server = scratch::Server::new(child);
        let fast = options.contains(&"--fast");
        Ok(Served {
            input,
            output,
            server,
            fast,
            dir,
            _mount: mount,
            _device: device,
            _scratch: scratch,
        })
    }
}

/// Opens a file that is there: from then on the kernel tells of no close either.
fn open_first(dir: &Path) -> io::Result<()> {
    let path = dir.join("first");
    File::create(&path)?;
    File::open(&path)?;
    fs::remove_file(&path)
}

impl Source for Served {
    fn open(&mut self) -> io::Result<Box<dyn Open>> {
        self.input.write_all(b"mount\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(io::Error::other("the FUSE server did not mount (its message is above)"));
        }
        if self.fast {
            open_first(&self.dir)?;
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
