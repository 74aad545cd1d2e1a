//! Mounting, and the life of a mount.
//!
//! There are three ways to get a connection: the kernel claims the block device first
//! ([`block_claim`]), root calls mount(2) ([`root`]), and other users run fusermount3
//! ([`fusermount`]). A [`Keeper`] does that, in this process or another one. The connection then
//! gets its transport, INIT is answered, and threads serve until the mount ends. [`Mounted::wait`]
//! joins them and returns the result of the last unmount.

mod acts;
mod beneath;
mod block_claim;
mod fusermount;
mod handover;
mod identity;
mod keeper;
mod limits;
mod line;
mod offer;
mod root;
mod wakers;

pub use block_claim::Claim;
pub use handover::{Adopted, HandedOver, Handover, adopt};
pub use identity::{MountIdentity, ServerEnd};
pub use keeper::{Keep, Keeper};
pub use offer::{Offer, SharedMount, TakenOffer, await_message};

use crate::connection::{self, ForcedEnd, init};
use crate::handler::Handler;
use crate::interrupts::Interrupts;
use crate::options::{MountOptions, Transport};
use crate::server::{Server, UpgradeHook, credentials};
use crate::transport::halt::Halt;
use crate::transport::{device, ring};
use extant_engine::Fs;
use handover::Serving;
use keeper::unmount_dir;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// A mounted file system. [`Mounted::wait`] returns when it is unmounted and clean.
#[derive(Debug)]
pub struct Mounted {
    keeper: Keeper,
    served: Served,
    /// Threads that serve after those of `served`.
    next: Receiver<Served>,
    handover: Handover,
    instead: Option<String>,
    interrupts: Option<Arc<Interrupts>>,
}

/// The result of the last unmount.
type Outcome = Receiver<Result<(), extant_engine::Error>>;

/// Threads that serve.
#[derive(Debug)]
pub struct Served {
    thread: Threads,
    outcome: Outcome,
}

/// Parts of a new [`Mounted`].
struct MountedParts {
    keeper: Keeper,
    options: MountOptions,
    serving: Serving,
    served: Served,
    interrupts: Option<Arc<Interrupts>>,
    instead: Option<String>,
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
    let rings = PreparedRings::of(options.transport);
    mount_by(fs, &own_keeper(dir, options, claim), options, rings)
}

/// Returns a keeper in this process.
pub(crate) fn own_keeper(dir: &Path, options: &MountOptions, claim: Option<Claim>) -> Keeper {
    let set_flags = Box::new(|| Ok(()));
    let (dir, options) = (dir.to_path_buf(), options.clone());
    let (read_only, disk, replaces, adopts) = (false, None, None, None);
    Keeper::own(Keep { dir, read_only, options, disk, claim, replaces, adopts, set_flags })
}

/// As [`mount`], through a keeper, which may have claimed the block device, and with rings that
/// were made before.
///
/// # Errors
/// As [`mount`].
pub fn mount_by(
    fs: Fs,
    keeper: &Keeper,
    options: &MountOptions,
    rings: PreparedRings,
) -> io::Result<Mounted> {
    let read_only = fs.is_read_only();
    let (server, outcome) = Server::new(fs, options)?;
    let interrupts = server.interrupts().cloned();
    let server = Arc::new(server);
    let Started { thread, instead, halt, fuse, rings } =
        start(&server, keeper, options, (rings, read_only))?;
    Ok(Mounted::of(MountedParts {
        keeper: keeper.clone(),
        options: options.clone(),
        serving: Serving { server, halt, fuse, rings },
        served: Served { thread, outcome },
        interrupts,
        instead,
    }))
}

type Threads = JoinHandle<io::Result<()>>;

/// Threads that serve a new mount.
pub(crate) struct Started {
    /// Joining it gives the result of serving.
    pub thread: Threads,
    /// Why the transport is another one than the requested one.
    pub instead: Option<String>,
    halt: Arc<Halt>,
    fuse: Weak<File>,
    rings: bool,
}

/// Mounts a handler on `dir` and starts the threads that serve it.
pub(crate) fn start(
    handler: &Arc<impl Handler>,
    keeper: &Keeper,
    options: &MountOptions,
    (rings, read_only): (PreparedRings, bool),
) -> io::Result<Started> {
    if keeper.is_other() {
        let keeper = keeper.clone();
        credentials::look_through(Box::new(move |thread| keeper.shares_user_namespace(thread)));
    }
    let fuse = Arc::new(File::from(keeper.mount(read_only)?));
    let (weak, halt) = (Arc::downgrade(&fuse), Arc::<Halt>::default());
    let started = serve(handler, fuse, keeper, options, (rings, &halt));
    if started.is_err()
        && let Err(error) = keeper.detach()
    {
        // Why it cannot be served says more.
        tracing::error!("the mount cannot be detached: {error}");
    }
    let (thread, missing) = started?;
    keeper.raise_limits();
    let rings = missing.is_none();
    let instead = missing.filter(|_| options.transport == Transport::IoUring);
    Ok(Started { thread, instead, halt, fuse: weak, rings })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Rings of io_uring for a mount that is yet to be made, or the reason why there are none. They
/// take the operations of a server only. A process that restricts its system calls makes them
/// before, and keeps io_uring_enter(2) and, to start rings, io_uring_register(2).
pub struct PreparedRings(Result<ring::Rings, String>);

impl std::fmt::Debug for PreparedRings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PreparedRings").field(&self.0.as_ref().map(drop)).finish()
    }
}

impl PreparedRings {
    /// Makes rings for a transport, if it needs them and the kernel has them.
    pub fn of(transport: Transport) -> PreparedRings {
        PreparedRings(match (transport, ring::missing()) {
            (Transport::Device, _) => Err("the transport is `dev`".into()),
            (_, Some(missing)) => Err(missing),
            (_, None) => ring::Rings::build().map_err(|error| unusable(&error)),
        })
    }

    /// Returns whether there are rings.
    pub fn exist(&self) -> bool {
        self.0.is_ok()
    }
}

fn unusable(error: &io::Error) -> String {
    let remedy = "see the sysctl kernel.io_uring_disabled, and filters of system calls";
    format!("io_uring cannot be used here: {error} ({remedy})")
}

/// Answers INIT and starts the threads that serve a connection. The text is the reason why requests
/// do not come through rings, if they do not.
fn serve(
    handler: &Arc<impl Handler>,
    fuse: Arc<File>,
    keeper: &Keeper,
    options: &MountOptions,
    (rings, halt): (PreparedRings, &Arc<Halt>),
) -> io::Result<(Threads, Option<String>)> {
    let rings = rings.0.and_then(|rings| rings.connect(&fuse).map_err(|error| unusable(&error)));
    let aborting = keeper.clone();
    let forced = ForcedEnd { dir: keeper.dir().into(), end: Arc::new(move || aborting.abort()) };
    let over_rings = init::agree(&fuse, &**handler, rings.is_ok())?;
    handler.connect(connection::teller(fuse.clone()));
    handler.note_transport(rings.is_ok() && over_rings);
    let missing = match rings {
        Ok(rings) if over_rings => {
            return Ok((ring::start(handler.clone(), fuse, &forced, rings)?, None));
        }
        Ok(_) => "this kernel does not offer FUSE over io_uring".into(),
        Err(missing) => missing,
    };
    let threads = options.thread_count();
    let thread = device::start(handler.clone(), fuse, &forced, threads, halt.clone())?;
    Ok((thread, Some(missing)))
}

impl Mounted {
    fn of(parts: MountedParts) -> Mounted {
        let MountedParts { keeper, options, serving, served, interrupts, instead } = parts;
        let (sender, next) = channel();
        let serving = Arc::new(Mutex::new(serving));
        let handover = Handover {
            keeper: keeper.clone(),
            options,
            serving,
            next: sender,
            is_offered: Arc::default(),
            lost: Arc::default(),
        };
        Mounted { keeper, served, next, handover, instead, interrupts }
    }

    /// Returns a handle that hands the mount over to another process.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// Sets the function that begins a handover when a program asks for it
    /// ([`UPGRADE`](crate::control::UPGRADE)), with the number of its process. The function must
    /// not wait for the end of the handover, and returns the number of its [offer](Offer::number).
    pub fn when_upgraded(&self, begin: impl Fn(u32) -> io::Result<u64> + Send + Sync + 'static) {
        let serving = self.handover.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.server.when_upgraded(UpgradeHook(Box::new(begin)));
    }

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

    /// Waits until the mount has ended and everything is written, or another process serves it.
    ///
    /// # Errors
    /// Errors of serving, or of writing the last changes; that the mount is
    /// [lost](Handover::is_lost).
    pub fn wait(self) -> io::Result<()> {
        let mut served = self.served;
        loop {
            let ended = served.thread.join();
            let ended =
                ended.unwrap_or_else(|_| Err(io::Error::other("the serving thread panicked")));
            match self.next.try_recv() {
                // A handover failed, and they serve in the place of those that have ended.
                Ok(next) => served = next,
                // The threads have sent the result, unless another process serves, or none.
                Err(_) => {
                    if let Some(why) = self.handover.lost.get() {
                        return Err(io::Error::other(why.clone()));
                    }
                    let closed = served.outcome.try_recv().unwrap_or(Ok(()));
                    return ended.and(closed.map_err(io::Error::other));
                }
            }
        }
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
    /// A mount at a place.
    Dir(PathBuf, MountIdentity),
}

impl Unmounter {
    /// Returns a handle for a mount on `dir`. It ends no other mount that is there later.
    pub fn of(dir: &Path, mount: MountIdentity) -> Unmounter {
        Unmounter { place: Place::Dir(dir.into(), mount), interrupts: None }
    }

    /// Makes the kernel write its cache, and unmounts. Long requests end with `EINTR`. Returns
    /// `EBUSY` while files are open.
    pub fn unmount(&self) -> io::Result<()> {
        self.interrupt();
        match &self.place {
            Place::Served(keeper) => keeper.unmount(),
            Place::Dir(dir, mount) => {
                mount.check(dir)?;
                // A failure to write is reported, but the mount ends nevertheless.
                let synced = sync(dir);
                mount.check(dir)?;
                unmount_dir(dir, false).and(synced)
            }
        }
    }

    /// Detaches the mount at once; it ends with its last user. Long requests end with `EINTR`.
    pub fn detach(&self) -> io::Result<()> {
        self.interrupt();
        match &self.place {
            Place::Served(keeper) => keeper.detach(),
            Place::Dir(dir, mount) => mount.check(dir).and_then(|()| unmount_dir(dir, true)),
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
