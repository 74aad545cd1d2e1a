//! Mounting, and the life of a mount.
//!
//! There are three ways to get a connection: the kernel claims the block device first
//! ([`block_claim`]), root calls mount(2) ([`root`]), and other users run fusermount3
//! ([`fusermount`]). The connection then gets its transport, INIT is answered, and threads serve
//! until the mount ends. [`Mounted::wait`] joins them and returns the result of the last unmount.

mod block_claim;
mod fusermount;
mod limits;
mod root;

pub use block_claim::Claim;

use crate::connection::{self, init};
use crate::handler::Handler;
use crate::interrupts::Interrupts;
use crate::options::{MountOptions, Transport};
use crate::server::Server;
use crate::transport::ring::Rings;
use crate::transport::{device, ring};
use extant_engine::Fs;
use rustix::mount::UnmountFlags;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mounted file system. [`Mounted::wait`] returns when it is unmounted and clean.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    thread: JoinHandle<io::Result<()>>,
    outcome: std::sync::mpsc::Receiver<Result<(), extant_engine::Error>>,
    instead: Option<String>,
    interrupts: Option<Arc<Interrupts>>,
}

/// Mounts `fs` on `dir` and serves it from threads of its own. The file system is unmounted cleanly
/// when the mount ends, however it ends.
///
/// # Errors
/// Errors of mount(2) or fusermount3(1); the file system is then closed.
pub fn mount(fs: Fs, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    mount_claimed(fs, dir, options, None)
}

/// As [`mount`], with a claim of the block device, if there is one.
///
/// # Errors
/// As [`mount`].
pub fn mount_claimed(
    fs: Fs,
    dir: &Path,
    options: &MountOptions,
    claim: Option<Claim>,
) -> io::Result<Mounted> {
    let read_only = fs.is_read_only();
    let (server, outcome) = Server::new(fs, options)?;
    let interrupts = server.interrupts().cloned();
    let (thread, instead) = start(&Arc::new(server), dir, options, read_only, claim)?;
    Ok(Mounted { dir: dir.into(), thread, outcome, instead, interrupts })
}

type Serving = JoinHandle<io::Result<()>>;

/// Mounts a handler on `dir` and starts the threads that serve it; joining them gives the result of
/// serving. The text is the reason why the transport is another one than the requested one.
pub(crate) fn start(
    handler: &Arc<impl Handler>,
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
    claim: Option<Claim>,
) -> io::Result<(Serving, Option<String>)> {
    let fuse = Arc::new(File::from(connect(dir, options, read_only, claim)?));
    let started = serve(handler, fuse, dir, options);
    if started.is_err() {
        unmount_dir(dir, true)?;
    }
    let (thread, missing) = started?;
    limits::raise_limits(dir);
    Ok((thread, missing.filter(|_| options.transport == Transport::IoUring)))
}

/// Mounts and returns the descriptor of the connection.
fn connect(
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
    claim: Option<Claim>,
) -> io::Result<OwnedFd> {
    match claim {
        Some(claim) => claim.mount(dir, options, read_only),
        None if is_root() => root::mount(dir, options, read_only),
        None => fusermount::mount(dir, options, read_only),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Builds rings for a connection, or returns the reason why there are none.
fn rings(fuse: &File, transport: Transport) -> Result<Rings, String> {
    if transport == Transport::Device {
        return Err("the transport is `dev`".into());
    }
    if let Some(missing) = ring::missing() {
        return Err(missing);
    }
    let remedy = "see the sysctl kernel.io_uring_disabled, and filters of system calls";
    Rings::build(fuse).map_err(|e| format!("io_uring cannot be used here: {e} ({remedy})"))
}

/// Answers INIT and starts the threads that serve a connection. The text is the reason why requests
/// do not come through rings, if they do not.
fn serve(
    handler: &Arc<impl Handler>,
    fuse: Arc<File>,
    dir: &Path,
    options: &MountOptions,
) -> io::Result<(Serving, Option<String>)> {
    let rings = rings(&fuse, options.transport);
    let over_rings = init::agree(&fuse, &**handler, rings.is_ok())?;
    handler.connect(connection::teller(fuse.clone()));
    let missing = match rings {
        Ok(rings) if over_rings => {
            return Ok((ring::start(handler.clone(), fuse, dir, rings)?, None));
        }
        Ok(_) => "this kernel does not offer FUSE over io_uring".into(),
        Err(missing) => missing,
    };
    Ok((device::start(handler.clone(), fuse, dir, options.thread_count())?, Some(missing)))
}

impl Mounted {
    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the reason why another transport serves than the requested one, if so.
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }

    /// Returns a handle that unmounts from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { dir: self.dir.clone(), interrupts: self.interrupts.clone() }
    }

    /// Waits until the mount has ended and everything is written.
    ///
    /// # Errors
    /// Errors of serving, or of writing the last changes.
    pub fn wait(self) -> io::Result<()> {
        let served = match self.thread.join() {
            Ok(served) => served,
            Err(_) => Err(io::Error::other("the serving thread panicked")),
        };
        let closed = self.outcome.recv().unwrap_or(Ok(())).map_err(io::Error::other);
        served.and(closed)
    }

    /// Unmounts and waits until everything is written.
    pub fn unmount(self) -> io::Result<()> {
        self.unmounter().unmount()?;
        self.wait()
    }
}

/// Unmounts a mounted file system, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    interrupts: Option<Arc<Interrupts>>,
}

impl Unmounter {
    /// Returns a handle for the mount on `dir`.
    pub fn of(dir: &Path) -> Unmounter {
        Unmounter { dir: dir.into(), interrupts: None }
    }

    /// Makes the kernel write its cache, and unmounts. Long requests end with `EINTR`. Returns
    /// `EBUSY` while files are open.
    pub fn unmount(&self) -> io::Result<()> {
        self.interrupt();
        // A failure to write is reported, but the mount ends nevertheless.
        let synced = sync(&self.dir);
        unmount_dir(&self.dir, false).and(synced)
    }

    /// Detaches the mount at once; it ends with its last user. Long requests end with `EINTR`.
    pub fn detach(&self) -> io::Result<()> {
        self.interrupt();
        unmount_dir(&self.dir, true)
    }
}

impl Unmounter {
    fn interrupt(&self) {
        if let Some(interrupts) = &self.interrupts {
            interrupts.interrupt_all();
        }
    }
}

/// Makes the kernel write its cache of a mount. This happens in another process: if this process
/// serves the mount and is killed meanwhile, a thread that waits for replies would keep the
/// connection open and wait forever.
fn sync(dir: &Path) -> io::Result<()> {
    match std::process::Command::new("sync").arg("-f").arg(dir).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            Err(io::Error::other(String::from_utf8_lossy(done.stderr.trim_ascii()).into_owned()))
        }
        Err(_) => Ok(rustix::fs::syncfs(std::fs::File::open(dir)?)?),
    }
}

fn unmount_dir(dir: &Path, lazy: bool) -> io::Result<()> {
    if !is_root() {
        return fusermount::unmount(dir, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(rustix::mount::unmount(dir, flags)?)
}
