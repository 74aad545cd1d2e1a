//! Mounting, and the life of a mount.

use crate::claim::Claim;
use crate::connection::{self, hello};
use crate::interrupts::Interrupts;
use crate::ring::Rings;
use crate::server::Server;
use crate::service::Service;
use crate::{fusermount, kernel, reader, ring, tune};
use extant::{AccessTimes, Fs};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By reading `/dev/fuse`: everywhere.
    #[default]
    Device,
    /// Through io_uring: fewer system calls and switches of threads. Linux 6.14, enabled by its
    /// administrator. Where it cannot be had, the other one serves, and [`Mounted::instead`] says
    /// why.
    IoUring,
    /// Through io_uring where that can be had.
    Auto,
}

impl Transport {
    /// Why it cannot be had here, if it cannot.
    pub fn missing(self) -> Option<String> {
        match self {
            Transport::IoUring => ring::missing(),
            Transport::Device | Transport::Auto => None,
        }
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(name: &str) -> Result<Transport, ()> {
        match name {
            "dev" => Ok(Transport::Device),
            "uring" => Ok(Transport::IoUring),
            "auto" => Ok(Transport::Auto),
            _ => Err(()),
        }
    }
}

/// How a file system is served.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the table of mounts shows as the source.
    pub source: String,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// Options passed on to the kernel: `nosuid`, `nodev`, `noexec`, `noatime`, …
    pub kernel: Vec<String>,
    /// Threads that receive requests; 0: two for each CPU.
    pub threads: usize,
    /// How long the kernel may keep names and attributes. Nobody else changes the image, so for
    /// long.
    pub time_to_live: Duration,
    /// The kernel collects writes.
    pub writeback_cache: bool,
    /// POSIX ACLs are honoured.
    pub acl: bool,
    /// The kernel may show it at further places with ids mapped (idmapped mounts, Linux 6.12). It
    /// then tells of creations only whose they are, so that of other requests for which that
    /// matters `/proc` is asked: direct writes cost more.
    pub id_maps: bool,
    /// Which opens for reading, and which readings of directories and symlinks, set access times;
    /// None: none do. What the kernel has in its cache it reads without telling anybody.
    pub access_times: Option<AccessTimes>,
    /// Access times of directories are kept, too.
    pub directory_access_times: bool,
    /// The type shows as `fuse.SUBTYPE`.
    pub subtype: String,
    /// How requests come.
    pub transport: Transport,
    /// The options as the user gave them, to be shown with the counters.
    pub shown_options: String,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "extant".into(),
            allow_other: nix::unistd::geteuid().is_root(),
            kernel: Vec::new(),
            threads: 0,
            time_to_live: Duration::from_secs(86_400),
            writeback_cache: true,
            acl: true,
            id_maps: false,
            access_times: None,
            directory_access_times: true,
            subtype: "extant".into(),
            transport: Transport::default(),
            shown_options: String::new(),
        }
    }
}

/// A mounted file system. [`Mounted::wait`] returns when it is unmounted and clean.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    thread: JoinHandle<io::Result<()>>,
    outcome: std::sync::mpsc::Receiver<Result<(), extant::Error>>,
    instead: Option<String>,
    interrupts: Option<Arc<Interrupts>>,
}

impl MountOptions {
    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => 2 * std::thread::available_parallelism().map_or(2, usize::from),
            n => n,
        }
    }
}

/// Mounts `fs` on `dir` and serves it from threads of its own. The file system is unmounted cleanly
/// when the mount ends, however it ends.
///
/// # Errors
/// Those of mount(2) or fusermount3(1); the file system is closed then.
pub fn mount(fs: Fs, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    mount_claimed(fs, dir, options, None)
}

/// As [`mount`], of a device that the kernel has been given, if one was.
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

/// Mounts a service on `dir` and starts the threads that serve it; joined, they tell how the mount
/// ended. The text says why it is not the transport that was asked for.
pub(crate) fn start(
    service: &Arc<impl Service>,
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
    claim: Option<Claim>,
) -> io::Result<(Serving, Option<String>)> {
    let fuse = Arc::new(File::from(connect(dir, options, read_only, claim)?));
    let started = serve(service, fuse, dir, options);
    if started.is_err() {
        unmount_dir(dir, true)?;
    }
    let (thread, missing) = started?;
    tune::raise_limits(dir);
    Ok((thread, missing.filter(|_| options.transport == Transport::IoUring)))
}

/// Mounts; requests will arrive at the descriptor.
fn connect(
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
    claim: Option<Claim>,
) -> io::Result<OwnedFd> {
    match claim {
        Some(claim) => claim.mount(dir, options, read_only),
        None if is_root() => kernel::mount(dir, options, read_only),
        None => fusermount::mount(dir, options, read_only),
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Rings for a connection, or why there are none.
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

/// Starts the threads that serve a connection. The text says why requests do not come through
/// rings, if they do not.
fn serve(
    service: &Arc<impl Service>,
    fuse: Arc<File>,
    dir: &Path,
    options: &MountOptions,
) -> io::Result<(Serving, Option<String>)> {
    let rings = rings(&fuse, options.transport);
    let over_rings = hello::agree(&fuse, &**service, rings.is_ok())?;
    service.connect(connection::teller(fuse.clone()));
    let missing = match rings {
        Ok(rings) if over_rings => {
            return Ok((ring::start(service.clone(), fuse, dir, rings)?, None));
        }
        Ok(_) => "this kernel does not offer FUSE over io_uring".into(),
        Err(missing) => missing,
    };
    Ok((reader::start(service.clone(), fuse, dir, options.thread_count())?, Some(missing)))
}

impl Mounted {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Why it is not served through the transport that was asked for, if it is not.
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }

    /// What unmounts it from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { dir: self.dir.clone(), interrupts: self.interrupts.clone() }
    }

    /// Waits until the mount has ended and everything is written. Errors: of serving, or of writing
    /// the last changes.
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
    /// Of whatever is mounted on `dir`.
    pub fn of(dir: &Path) -> Unmounter {
        Unmounter { dir: dir.into(), interrupts: None }
    }

    /// Has the kernel write what it keeps, and unmounts; requests that take long end with EINTR.
    /// EBUSY while files are open.
    pub fn unmount(&self) -> io::Result<()> {
        self.interrupt();
        // What cannot be written is told, but is no reason to stay.
        let synced = sync(&self.dir);
        unmount_dir(&self.dir, false).and(synced)
    }

    /// Detaches the mount at once; it ends when its last user is gone. Requests that take long end
    /// with EINTR.
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

/// Has the kernel write what it keeps of a mount. In a process of its own: if this one serves the
/// mount and is killed meanwhile, a thread that waits for requests to be answered would keep the
/// connection open, and wait for ever.
fn sync(dir: &Path) -> io::Result<()> {
    match std::process::Command::new("sync").arg("-f").arg(dir).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            Err(io::Error::other(String::from_utf8_lossy(done.stderr.trim_ascii()).into_owned()))
        }
        Err(_) => Ok(nix::unistd::syncfs(&std::fs::File::open(dir)?)?),
    }
}

fn unmount_dir(dir: &Path, lazy: bool) -> io::Result<()> {
    if !is_root() {
        return fusermount::unmount(dir, lazy);
    }
    let flags = if lazy { nix::mount::MntFlags::MNT_DETACH } else { nix::mount::MntFlags::empty() };
    Ok(nix::mount::umount2(dir, flags)?)
}
