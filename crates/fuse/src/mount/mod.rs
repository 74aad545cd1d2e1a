//! Mounting, and the life of a mount.
//!
//! There are three ways to get a connection: the kernel claims the block device first
//! ([`block_claim`]), root calls mount(2) ([`root`]), and other users run fusermount3
//! ([`fusermount`]). A [`Keeper`] does that, in this process or another one. The connection then
//! gets its transport, INIT is answered, and threads serve until the mount ends. [`Mounted::wait`]
//! joins them and returns the result of the last unmount.

mod block_claim;
mod fusermount;
mod keeper;
mod limits;
mod root;

pub use block_claim::Claim;
pub use keeper::{Keep, Keeper};

use crate::connection::{self, ForcedEnd, init};
use crate::handler::Handler;
use crate::interrupts::Interrupts;
use crate::options::{MountOptions, Transport};
use crate::server::{Server, credentials};
use crate::transport::ring::Rings;
use crate::transport::{device, ring};
use extant_engine::Fs;
use keeper::unmount_dir;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mounted file system. [`Mounted::wait`] returns when it is unmounted and clean.
#[derive(Debug)]
pub struct Mounted {
    keeper: Keeper,
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
    mount_by(fs, &own_keeper(dir, options, claim), options)
}

/// Returns a keeper in this process.
pub(crate) fn own_keeper(dir: &Path, options: &MountOptions, claim: Option<Claim>) -> Keeper {
    let set_flags = Box::new(|| Ok(()));
    let (dir, options) = (dir.to_path_buf(), options.clone());
    Keeper::own(Keep { dir, read_only: false, options, disk: None, claim, set_flags })
}

/// As [`mount`], through a keeper, which may have claimed the block device.
///
/// # Errors
/// As [`mount`].
pub fn mount_by(fs: Fs, keeper: &Keeper, options: &MountOptions) -> io::Result<Mounted> {
    let read_only = fs.is_read_only();
    let (server, outcome) = Server::new(fs, options)?;
    let interrupts = server.interrupts().cloned();
    let (thread, instead) = start(&Arc::new(server), keeper, options, read_only)?;
    Ok(Mounted { keeper: keeper.clone(), thread, outcome, instead, interrupts })
}

type Serving = JoinHandle<io::Result<()>>;

/// Mounts a handler on `dir` and starts the threads that serve it; joining them gives the result of
/// serving. The text is the reason why the transport is another one than the requested one.
pub(crate) fn start(
    handler: &Arc<impl Handler>,
    keeper: &Keeper,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<(Serving, Option<String>)> {
    if keeper.is_other() {
        let keeper = keeper.clone();
        credentials::look_through(Box::new(move |thread| keeper.shares_user_namespace(thread)));
    }
    let fuse = Arc::new(File::from(keeper.mount(read_only)?));
    let started = serve(handler, fuse, keeper, options);
    if started.is_err() {
        keeper.detach()?;
    }
    let (thread, missing) = started?;
    keeper.raise_limits();
    Ok((thread, missing.filter(|_| options.transport == Transport::IoUring)))
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
    keeper: &Keeper,
    options: &MountOptions,
) -> io::Result<(Serving, Option<String>)> {
    let rings = rings(&fuse, options.transport);
    let aborting = keeper.clone();
    let forced = ForcedEnd { dir: keeper.dir().into(), end: Arc::new(move || aborting.abort()) };
    let over_rings = init::agree(&fuse, &**handler, rings.is_ok())?;
    handler.connect(connection::teller(fuse.clone()));
    let missing = match rings {
        Ok(rings) if over_rings => {
            return Ok((ring::start(handler.clone(), fuse, &forced, rings)?, None));
        }
        Ok(_) => "this kernel does not offer FUSE over io_uring".into(),
        Err(missing) => missing,
    };
    Ok((device::start(handler.clone(), fuse, &forced, options.thread_count())?, Some(missing)))
}

impl Mounted {
    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        self.keeper.dir()
    }

    /// Returns the reason why another transport serves than the requested one, if so.
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }

    /// Returns a handle that unmounts from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { place: Place::Served(self.keeper.clone()), interrupts: self.interrupts.clone() }
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
    place: Place,
    interrupts: Option<Arc<Interrupts>>,
}

/// The mount of an [`Unmounter`].
#[derive(Clone, Debug)]
enum Place {
    /// The mount that this process serves.
    Served(Keeper),
    /// The topmost mount at a place.
    Dir(PathBuf),
}

impl Unmounter {
    /// Returns a handle for the mount on `dir`.
    pub fn of(dir: &Path) -> Unmounter {
        Unmounter { place: Place::Dir(dir.into()), interrupts: None }
    }

    /// Makes the kernel write its cache, and unmounts. Long requests end with `EINTR`. Returns
    /// `EBUSY` while files are open.
    pub fn unmount(&self) -> io::Result<()> {
        self.interrupt();
        match &self.place {
            Place::Served(keeper) => keeper.unmount(),
            Place::Dir(dir) => {
                // A failure to write is reported, but the mount ends nevertheless.
                let synced = sync(dir);
                unmount_dir(dir, false).and(synced)
            }
        }
    }

    /// Detaches the mount at once; it ends with its last user. Long requests end with `EINTR`.
    pub fn detach(&self) -> io::Result<()> {
        self.interrupt();
        match &self.place {
            Place::Served(keeper) => keeper.detach(),
            Place::Dir(dir) => unmount_dir(dir, true),
        }
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
