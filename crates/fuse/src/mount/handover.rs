//! The handover of a mount to another process, such as one of a newer program, without an unmount.
//!
//! 1. *Halt*: the threads that receive requests park, when no request is in work. Requests from now
//!    on wait in the kernel.
//! 2. *Close*: the file system is closed, but inodes that the kernel remembers stay held, also
//!    those without a name ([`Fs::hand_over`]).
//! 3. *Give*: the other process gets the connection and the table of the server's state, and opens
//!    the file system ([`HandedOver`], [`adopt`]). It receives no request yet.
//! 4. *End*: it says that it is ready, and this one lets it start, and receives no request any
//!    more.
//!
//! If the other process fails before that, this one opens the file system again and goes on, as if
//! it were the other one. So a handover that failed changes nothing.

use super::keeper::Keeper;
use super::line::is_connection;
use super::{Mounted, MountedParts, Served};
use crate::connection::{self, ForcedEnd};
use crate::handler::Handler;
use crate::options::MountOptions;
use crate::server::handover::ServerTable;
use crate::server::{Server, credentials};
use crate::transport::device;
use crate::transport::halt::Halt;
use extant_engine::{Error, Fs, HeldInodes};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

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
    /// Returns a descriptor of the connection.
    ///
    /// # Errors
    /// The mount has ended; `Unsupported` if requests come through rings.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        let serving = self.serving.try_lock();
        let serving = serving.map_err(|_| io::Error::from(ErrorKind::ResourceBusy))?;
        serving.check()?;
        let fuse = serving.fuse.upgrade().ok_or_else(ended)?;
        Ok(fuse.try_clone()?.into())
    }

    /// Hands a descriptor of the connection to the process that waits at a
    /// [meeting point](super::MeetingPoint). Returns a socket to it.
    ///
    /// # Errors
    /// No process of this user waits there; those of [`Handover::connection`].
    pub fn meet(&self, number: u32) -> io::Result<OwnedFd> {
        let serving = self.serving.try_lock();
        serving.map_err(|_| io::Error::from(ErrorKind::ResourceBusy))?.check()?;
        self.keeper.hand_over(number, || self.connection())
    }

    /// Returns whether another process serves the mount.
    pub fn is_done(&self) -> bool {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.halt.is_replaced()
    }

    /// Hands the mount over. `give` must pass the state to the other process and return when that
    /// process is ready; the caller then lets it [start](Adopted::start), and ends. If `give`
    /// fails, the other process must have ended, and `reopen` opens the file system again.
    ///
    /// # Errors
    /// `TimedOut` if requests take too long; errors of the last changes; those of `give`. The mount
    /// is served as before then, unless `reopen` failed.
    pub fn run(
        &self,
        give: impl FnOnce(&[u8]) -> io::Result<()>,
        reopen: impl FnOnce(Arc<HeldInodes>) -> Result<Fs, Error>,
    ) -> io::Result<()> {
        let mut serving = match self.serving.try_lock() {
            Ok(serving) => serving,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(ErrorKind::ResourceBusy.into()),
        };
        serving.check()?;
        let fuse = serving.fuse.upgrade().ok_or_else(ended)?;
        // With all requests served meanwhile: little is left to write during the halt.
        serving.server.prepare_hand_over().map_err(io::Error::other)?;
        if !serving.halt.stop(|count| self.keeper.wake(count)) {
            let text = "requests of the mount take too long; try again";
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        let closed = serving.server.prepare_hand_over().and_then(|()| serving.server.hand_over());
        let table = closed.map_err(io::Error::other).inspect_err(|_| serving.halt.resume())?;
        let Err(refused) = give(&table.to_bytes()) else {
            serving.halt.replace();
            return Ok(());
        };
        self.go_on(&mut serving, fuse, &table, reopen)?;
        Err(refused)
    }

    /// Opens the file system again, and serves it by a new server on the same connection.
    fn go_on(
        &self,
        serving: &mut Serving,
        fuse: Arc<File>,
        table: &ServerTable,
        reopen: impl FnOnce(Arc<HeldInodes>) -> Result<Fs, Error>,
    ) -> io::Result<()> {
        let held = HeldInodes { tried: true, ..HeldInodes::clone(table.held()) };
        let next = reopen(Arc::new(held)).map_err(io::Error::other).and_then(|fs| {
            let (mut server, outcome) = Server::adopting(fs, &self.options, table)?;
            server.follow(&serving.server);
            start(server, fuse, &self.keeper, &self.options, outcome)
        });
        let (next, served) = next.inspect_err(|error| {
            tracing::error!("the file system cannot be opened again, and the mount ends: {error}");
            serving.halt.resume();
            if let Err(error) = self.keeper.abort() {
                tracing::error!("it cannot be unmounted: {error}");
            }
        })?;
        // The receiver is gone if `Mounted` was dropped.
        let _ = self.next.send(served);
        let before = std::mem::replace(serving, next);
        before.halt.replace();
        Ok(())
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

/// Starts the threads that serve a connection on which server and kernel have agreed before.
fn start(
    server: Server,
    fuse: Arc<File>,
    keeper: &Keeper,
    options: &MountOptions,
    outcome: super::Outcome,
) -> io::Result<(Serving, Served)> {
    let (server, halt) = (Arc::new(server), Arc::<Halt>::default());
    server.connect(connection::teller(fuse.clone()));
    server.note_transport(false);
    let aborting = keeper.clone();
    let forced = ForcedEnd { dir: keeper.dir().into(), end: Arc::new(move || aborting.abort()) };
    let weak = Arc::downgrade(&fuse);
    let threads = options.thread_count();
    let thread = device::start(server.clone(), fuse, &forced, threads, halt.clone())?;
    Ok((Serving { server, halt, fuse: weak, rings: false }, Served { thread, outcome }))
}

/// A mount of another process that is ready to be served by this one. A drop leaves it to the other
/// process.
#[derive(Debug)]
pub struct Adopted {
    /// `None` once it serves.
    server: Option<(Server, super::Outcome)>,
    fuse: Arc<File>,
    keeper: Keeper,
    options: MountOptions,
}

/// Goes on with a mount of another process. `fs` has adopted the inodes of the state. The keeper
/// must know the mount ([`Keep::adopts`](super::Keep)).
///
/// # Errors
/// The descriptor is none of a FUSE connection; the options show other owners; a thread cannot be
/// started. The file system is closed then.
pub fn adopt(
    fs: Fs,
    state: &HandedOver,
    connection: OwnedFd,
    keeper: &Keeper,
    options: &MountOptions,
) -> io::Result<Adopted> {
    if !is_connection(&connection) {
        let _ = fs.hand_over();
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no connection of a mount"));
    }
    if keeper.is_other() {
        let keeper = keeper.clone();
        credentials::look_through(Box::new(move |thread| keeper.shares_user_namespace(thread)));
    }
    let server = Server::adopting(fs, options, &state.0).map(Some)?;
    let fuse = Arc::new(File::from(connection));
    Ok(Adopted { server, fuse, keeper: keeper.clone(), options: options.clone() })
}

impl Drop for Adopted {
    fn drop(&mut self) {
        if let Some((server, _)) = self.server.take()
            && let Err(error) = server.hand_over()
        {
            tracing::error!("the file system could not be closed: {error}");
        }
    }
}

impl Adopted {
    /// Receives requests from now on: the other process receives none any more.
    ///
    /// # Errors
    /// A thread cannot be started; the mount has no server then.
    pub fn start(mut self) -> io::Result<Mounted> {
        let (server, outcome) = self.server.take().ok_or_else(ended)?;
        let (keeper, options) = (self.keeper.clone(), self.options.clone());
        let fuse = self.fuse.clone();
        let interrupts = server.interrupts().cloned();
        let (serving, served) = start(server, fuse, &keeper, &options, outcome)?;
        // Without it signals do not unmount; programs do.
        if let Err(error) = keeper.adopt() {
            tracing::error!(
                "the mount is served, but cannot be unmounted by this program: {error}"
            );
        }
        Ok(Mounted::of(MountedParts {
            keeper,
            options,
            serving,
            served,
            interrupts,
            instead: None,
        }))
    }
}
