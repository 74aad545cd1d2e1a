//! The handover of a mount to another process, such as one of a newer program, without an unmount.
//!
//! 1. *Halt*: the threads that receive requests park, when no request is in work. Requests from now
//!    on wait in the kernel.
//! 2. *Close*: the file system is closed, but inodes that the kernel remembers stay held, also
//!    those without a name ([`Fs::hand_over`]).
//! 3. *Give*: the other process has the connection and the file of the image
//!    ([`Offer`](super::Offer)). It gets the table of the server's state, opens the file system,
//!    and starts its threads ([`HandedOver`], [`adopt`]). They receive no request yet.
//! 4. *End*: it says that it is ready, and this one lets it start, and receives no request any
//!    more.
//!
//! If the other process fails before that, this one opens the file system again and goes on, as if
//! it were the other one. So a handover that failed changes nothing. This process keeps the device,
//! and with it the lock of the image, so the path of the image does not matter, and no other
//! program gets between. If the file system cannot be opened all the same, the process must end as
//! one that was killed ([`Handover::is_lost`]): everything is durable, and its keeper may start
//! another server.

use super::keeper::Keeper;
use super::line::is_connection;
use super::offer::{Offer, SharedMount};
use super::{Mounted, MountedParts, Served};
use crate::connection::{self, ForcedEnd};
use crate::handler::Handler;
use crate::kernel_cache::notices::PendingNotices;
use crate::options::MountOptions;
use crate::server::handover::{Adopting, ServerTable};
use crate::server::{Server, credentials};
use crate::transport::device;
use crate::transport::halt::Halt;
use extant_engine::device::BlockDevice;
use extant_engine::{Error, Fs, HeldInodes};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the file system is tried to be opened again.
const REOPENING: Duration = Duration::from_secs(3);

/// Time between two attempts.
const BETWEEN: Duration = Duration::from_millis(100);

/// How long threads may take to start.
const STARTING: Duration = Duration::from_secs(10);

/// The server that serves a mount at the moment.
#[derive(Debug)]
pub struct Serving {
    pub server: Arc<Server>,
    pub halt: Arc<Halt>,
    /// The threads that serve have it.
    pub fuse: Weak<File>,
    /// Requests come through rings.
    pub rings: bool,
}

/// Hands a mount over to another process, from any thread.
#[derive(Clone, Debug)]
pub struct Handover {
    pub(super) keeper: Keeper,
    pub(super) options: MountOptions,
    pub(super) serving: Arc<Mutex<Serving>>,
    /// Threads that serve after those before.
    pub(super) next: Sender<Served>,
    pub(super) is_offered: Arc<AtomicBool>,
    /// Why no process serves the mount any more.
    pub(super) lost: Arc<OnceLock<String>>,
}

/// State of a server that another process hands over.
#[derive(Clone, Debug)]
pub struct HandedOver(ServerTable);

impl HandedOver {
    /// Decodes the state.
    ///
    /// # Errors
    /// `InvalidData` if the other program has another form of it.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<HandedOver> {
        ServerTable::from_bytes(bytes).map(HandedOver).ok_or_else(|| {
            let text = "the program that serves has another form of its state: unmount, and mount \
                again";
            io::Error::new(ErrorKind::InvalidData, text)
        })
    }

    /// Returns the inodes that the file system must adopt
    /// ([`OpenOptions::adopt`](extant_engine::OpenOptions::adopt)).
    pub fn held(&self) -> Arc<HeldInodes> {
        self.0.held().clone()
    }
}

impl Handover {
    /// Offers the mount to a process.
    ///
    /// # Errors
    /// `ResourceBusy` if there is an offer already.
    pub fn offer(&self, process: u32) -> io::Result<Offer> {
        Offer::to(process, &self.is_offered)
    }

    /// Returns the descriptors that another process needs.
    ///
    /// # Errors
    /// The mount has ended; `Unsupported` if another process cannot go on with it.
    pub fn share(&self) -> io::Result<SharedMount> {
        let serving = self.try_lock()?;
        serving.check()?;
        let fuse = serving.fuse.upgrade().ok_or_else(ended)?;
        let image = serving.server.share_file().map_err(io::Error::other)?;
        Ok(SharedMount { image, connection: fuse.try_clone()?.into() })
    }

    fn try_lock(&self) -> io::Result<MutexGuard<'_, Serving>> {
        match self.serving.try_lock() {
            Ok(serving) => Ok(serving),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(ErrorKind::ResourceBusy.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether another process serves the mount.
    pub fn is_done(&self) -> bool {
        !self.is_lost() && self.lock().halt.is_replaced()
    }

    /// Returns whether no process serves the mount any more. This one must end without dismissing
    /// its keeper.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Makes all changes durable, by the server that serves when no handover runs.
    ///
    /// # Errors
    /// Those of [`Fs::sync`].
    pub fn sync(&self) -> io::Result<()> {
        self.lock().server.sync().map_err(io::Error::other)
    }

    /// Hands the mount over. `give` must pass the state to the other process and return when that
    /// process is ready; the caller then lets it [start](Adopted::start), and ends. If `give`
    /// fails, the other process must have ended, and `reopen` opens the file system of the device
    /// again.
    ///
    /// # Errors
    /// `TimedOut` if requests take too long; errors of the last changes; those of `give`. The mount
    /// is served as before then, unless it [is lost](Handover::is_lost).
    pub fn run(
        &self,
        give: impl FnOnce(&[u8]) -> io::Result<()>,
        reopen: impl Fn(Arc<dyn BlockDevice>, Arc<HeldInodes>) -> Result<Fs, Error>,
    ) -> io::Result<()> {
        let mut serving = self.try_lock()?;
        serving.check()?;
        let fuse = serving.fuse.upgrade().ok_or_else(ended)?;
        let device = serving.server.device().map_err(io::Error::other)?;
        // With all requests served meanwhile: little is left to write during the halt.
        serving.server.prepare_hand_over().map_err(io::Error::other)?;
        if !serving.halt.stop(|count| self.keeper.wake(count)) {
            let text = "requests of the mount take too long; try again";
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        let prepared = serving.server.prepare_hand_over();
        prepared.map_err(io::Error::other).inspect_err(|_| serving.halt.resume())?;
        let loss = Loss(self, serving.halt.clone());
        let (table, closed) = serving.server.hand_over();
        let given = closed.map_err(io::Error::other).and_then(|()| give(&table.to_bytes()));
        let handed = match given {
            Ok(()) => {
                serving.halt.replace();
                Ok(())
            }
            Err(refused) => {
                let reopen = || reopen(device.clone(), table.held().clone());
                self.go_on(&mut serving, fuse, &table, reopen).and(Err(refused))
            }
        };
        std::mem::forget(loss);
        handed
    }

    /// Opens the file system again, and serves it by a new server on the same connection.
    fn go_on(
        &self,
        serving: &mut Serving,
        fuse: Arc<File>,
        table: &ServerTable,
        reopen: impl Fn() -> Result<Fs, Error>,
    ) -> io::Result<()> {
        let begin = Instant::now();
        let next = loop {
            let opened = reopen();
            let may_pass = !opened.as_ref().is_err_and(is_lasting);
            let next = opened.map_err(io::Error::other).and_then(|fs| {
                let mut adopting = Server::adopting(fs, &self.options, table)?;
                adopting.server.follow(&serving.server);
                Parked::start(adopting, fuse.clone(), &self.keeper, &self.options)
            });
            match next {
                Ok(next) => break next,
                Err(error) if may_pass && begin.elapsed() < REOPENING => {
                    tracing::warn!("the file system is not opened again yet: {error}");
                    sleep(BETWEEN);
                }
                Err(error) => {
                    self.lose(&serving.halt, format!("it cannot be opened again: {error}"));
                    return Err(error);
                }
            }
        };
        let (next, served) = next.begin();
        // The receiver is gone if `Mounted` was dropped.
        let _ = self.next.send(served);
        let before = std::mem::replace(serving, next);
        before.halt.replace();
        Ok(())
    }

    fn lose(&self, halt: &Halt, why: String) {
        let _ = self.lost.set(why);
        halt.replace();
    }
}

/// Returns whether an error of opening comes again: other bytes are on the device than before. A
/// disk may answer again, and memory may be free again.
fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt(_) | Error::Foreign(_) | Error::Unsupported(_) | Error::Invalid(_)
    )
}

/// Ends the threads that are halted, if a panic would leave them so.
struct Loss<'a>(&'a Handover, Arc<Halt>);

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        self.0.lose(&self.1, "a panic ended its handover".into());
    }
}

impl Serving {
    fn check(&self) -> io::Result<()> {
        if self.rings {
            let text = "requests come through io_uring: only a mount through /dev/fuse can be \
                handed over (mount option transport=dev)";
            return Err(io::Error::new(ErrorKind::Unsupported, text));
        }
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::NotConnected, "the mount has ended")
}

/// Threads that serve a connection on which server and kernel have agreed before. They receive no
/// request yet. They end by [`Parked::leave`], or serve.
#[derive(Debug)]
#[must_use]
struct Parked {
    server: Arc<Server>,
    /// Not sent before the threads receive: the kernel may answer a notice by requests.
    pending: PendingNotices,
    halt: Arc<Halt>,
    fuse: Arc<File>,
    /// Whether the end of a thread ends the mount.
    serves: Arc<AtomicBool>,
    served: Served,
}

impl Parked {
    /// Starts the threads.
    ///
    /// # Errors
    /// One of them cannot be started. The file system is closed then.
    fn start(
        adopting: Adopting,
        fuse: Arc<File>,
        keeper: &Keeper,
        options: &MountOptions,
    ) -> io::Result<Parked> {
        let Adopting { server, outcome, pending } = adopting;
        let (server, halt, serves) = (Arc::new(server), Arc::new(Halt::halted()), Arc::default());
        let failed = Arc::<AtomicBool>::default();
        let (aborting, begun, failing) =
            (keeper.clone(), Arc::<AtomicBool>::clone(&serves), failed.clone());
        let end = move || {
            failing.store(true, Ordering::Release);
            if begun.load(Ordering::Acquire) { aborting.abort() } else { Ok(()) }
        };
        let forced = ForcedEnd { dir: keeper.dir().into(), end: Arc::new(end) };
        let threads = options.thread_count();
        let started = device::start(server.clone(), fuse.clone(), &forced, threads, halt.clone());
        let thread = started.inspect_err(|_| server.leave())?;
        let served = Served { thread, outcome };
        let parked = Parked { server, pending, halt, fuse, serves, served };
        let is_over = || failed.load(Ordering::Acquire) || parked.served.thread.is_finished();
        if parked.halt.await_parked(threads.max(1), STARTING, is_over) {
            return Ok(parked);
        }
        parked.leave();
        Err(io::Error::other("the threads that serve cannot be started"))
    }

    /// Lets the threads receive requests.
    fn begin(self) -> (Serving, Served) {
        self.serves.store(true, Ordering::Release);
        self.server.connect(connection::teller(self.fuse.clone()));
        self.server.note_transport(false);
        self.server.put_notices(&self.pending);
        self.halt.resume();
        let fuse = Arc::downgrade(&self.fuse);
        (Serving { server: self.server, halt: self.halt, fuse, rings: false }, self.served)
    }

    /// Ends the threads and closes the file system, which leaves the held inodes to another server.
    fn leave(self) {
        self.halt.replace();
        // An error of starting one of them, or none.
        let _ = self.served.thread.join();
        self.server.leave();
    }
}

/// A mount of another process that is ready to be served by this one.
#[derive(Debug)]
#[must_use]
pub struct Adopted {
    parked: Parked,
    keeper: Keeper,
    options: MountOptions,
}

/// Goes on with a mount of another process. `fs` has adopted the inodes of the state. The keeper
/// must know the mount ([`Keep::adopts`](super::Keep)).
///
/// # Errors
/// The descriptor is none of a FUSE connection; the options show other owners; a thread cannot be
/// started; another mount is at the place. The file system is closed then.
pub fn adopt(
    fs: Fs,
    state: &HandedOver,
    connection: OwnedFd,
    keeper: &Keeper,
    options: &MountOptions,
) -> io::Result<Adopted> {
    if !is_connection(&connection) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no connection of a mount"));
    }
    if keeper.is_other() {
        let keeper = keeper.clone();
        credentials::look_through(Box::new(move |thread| keeper.shares_user_namespace(thread)));
    }
    let adopting = Server::adopting(fs, options, &state.0)?;
    let parked = Parked::start(adopting, Arc::new(File::from(connection)), keeper, options)?;
    if let Err(refused) = keeper.adopt() {
        parked.leave();
        return Err(refused);
    }
    Ok(Adopted { parked, keeper: keeper.clone(), options: options.clone() })
}

impl Adopted {
    /// Leaves the mount to the other process.
    pub fn leave(self) {
        self.parked.leave();
    }

    /// Receives requests from now on: the other process receives none any more.
    pub fn start(self) -> Mounted {
        let interrupts = self.parked.server.interrupts().cloned();
        let (serving, served) = self.parked.begin();
        Mounted::of(MountedParts {
            keeper: self.keeper,
            options: self.options,
            serving,
            served,
            interrupts,
            instead: None,
        })
    }
}
