//! The acts of a mount that need privileges: to mount, to unmount, to look into other processes.
//!
//! A server that parses the image of a stranger gives up its privileges before it reads it. A
//! second process of the same program, the *keeper*, does these acts on its behalf. The keeper
//! never looks at the image. A server that is taken over can ask it to mount and unmount the one
//! mount, to send some requests to it, and for the user namespaces of threads, and nothing else.
//!
//! There are two sockets between server and keeper. Requests of [`Channel::Acts`] may wait for the
//! server itself, as the write of the kernel's cache before an unmount does. Those of
//! [`Channel::Quick`] wait for no process, so a request of the mount may wait for them.
//!
//! The keeper of a mount service is a client's program. It may lie about its own mount, and may not
//! answer: each request but that of an unmount has a limit ([`PATIENCE`]), after which its socket
//! is shut down, since a late answer would be taken for that to the next request.
//!
//! # The end of a server
//! Before a server ends in order it dismisses its keeper. A keeper whose sockets are closed without
//! that has lost its server ([`ServerEnd`]), and leaves the dead mount where it is: programs get
//! `ENOTCONN` there, and do not write into the directory below. The keeper of the next server
//! replaces the dead mount ([`Keep::replaces`], [`beneath`]), when that server has recovered the
//! image.

use super::acts::{Act, Channel, MESSAGE, QUIETLY, decode, decode_reply, encode, request};
use super::block_claim::Claim;
use super::identity::{MountIdentity, ServerEnd};
use super::line::{Line, is_connection};
use super::wakers::Wakers;
use super::{beneath, fusermount, is_root, limits, root, sync};
use crate::messages::{receive_message, send_message};
use crate::options::MountOptions;
use crate::server::credentials::is_in_own_user_namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::SendFlags;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Does the acts of one mount, in this process or in another one.
#[derive(Clone)]
pub struct Keeper(Arc<Kind>);

enum Kind {
    Own(Box<Own>),
    Other(Other),
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeper").field(&self.dir()).finish()
    }
}

/// A keeper in another process.
struct Other {
    dir: PathBuf,
    acts: Line,
    quick: Line,
    /// It was asked to end.
    ended: AtomicBool,
    /// How long an answer may take.
    patience: Duration,
}

/// The mount as the process knows it that mounts.
struct Own {
    dir: PathBuf,
    /// The directory above, held from the beginning: others may rename directories on the way.
    parent: Option<OwnedFd>,
    /// The mount is for reading only, even if the server asks for more.
    read_only: bool,
    options: MountOptions,
    /// The block device that may be claimed.
    disk: Option<PathBuf>,
    set_flags: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    claim: Mutex<Option<Claim>>,
    /// A dead mount that the new one takes the place of.
    replaces: Option<MountIdentity>,
    /// A mount that another keeper made.
    adopts: Mutex<Option<MountIdentity>>,
    /// The mount that was made, or adopted, and when.
    mounted: Mutex<Option<(MountIdentity, Instant)>>,
    /// The server ends in order.
    is_dismissed: AtomicBool,
    /// The flags were set. Others may have changed them since.
    has_flags: AtomicBool,
    wakers: Wakers,
}

/// The mount of a keeper.
pub struct Keep {
    /// Where to mount.
    pub dir: PathBuf,
    /// Mount for reading only.
    pub read_only: bool,
    /// How to mount.
    pub options: MountOptions,
    /// The block device that may be claimed.
    pub disk: Option<PathBuf>,
    /// A claim that the mount takes.
    pub claim: Option<Claim>,
    /// A mount at the same place whose server is gone. It is detached when the new one is made; its
    /// open files get `ENOTCONN`.
    pub replaces: Option<MountIdentity>,
    /// A mount at the place that another keeper made, and whose connection another server hands
    /// over.
    pub adopts: Option<MountIdentity>,
    /// Sets flags of the mount that cannot be given at mounting.
    pub set_flags: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
}

/// How long the answer of another process may take. A disk may have to spin up before its claim.
const PATIENCE: Duration = Duration::from_secs(60);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Returns a keeper that acts in this process.
    pub fn own(keep: Keep) -> Keeper {
        let Keep { dir, read_only, options, disk, claim, replaces, adopts, set_flags } = keep;
        let (claim, mounted) = (Mutex::new(claim), Mutex::default());
        let parent = dir.parent().and_then(|parent| directory(parent, OFlags::empty()).ok());
        Keeper(Arc::new(Kind::Own(Box::new(Own {
            dir,
            parent,
            read_only,
            options,
            disk,
            set_flags,
            claim,
            replaces,
            adopts: Mutex::new(adopts),
            mounted,
            is_dismissed: AtomicBool::new(false),
            has_flags: AtomicBool::new(adopts.is_some()),
            wakers: Wakers::default(),
        }))))
    }

    /// Returns a keeper that asks another process, which serves the other ends of both sockets by
    /// [`Keeper::serve`]. From then on it also tells user namespaces of threads.
    pub fn other(dir: &Path, acts: OwnedFd, quick: OwnedFd) -> Keeper {
        Keeper::patient(dir, [acts, quick], PATIENCE)
    }

    fn patient(dir: &Path, sockets: [OwnedFd; 2], patience: Duration) -> Keeper {
        let ([acts, quick], ended) = (sockets.map(Line::new), AtomicBool::new(false));
        Keeper(Arc::new(Kind::Other(Other { dir: dir.into(), acts, quick, ended, patience })))
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        match &*self.0 {
            Kind::Own(own) => &own.dir,
            Kind::Other(other) => &other.dir,
        }
    }

    /// Makes the kernel claim the block device, if it can. Returns whether it has.
    ///
    /// # Errors
    /// `ResourceBusy` if the device is in use.
    pub fn claim(&self, read_only: bool) -> io::Result<bool> {
        self.act(Act::Claim, read_only.into()).map(|(answer, _)| answer)
    }

    /// Releases a claim that no mount has taken.
    pub fn release(&self) {
        // A keeper that has ended has released it, too.
        let _ = self.act(Act::Release, 0);
    }

    /// Mounts and returns the descriptor of the connection.
    pub(crate) fn mount(&self, read_only: bool) -> io::Result<OwnedFd> {
        let (_, connection) = self.act(Act::Mount, read_only.into())?;
        // The keeper may be another program, which then could act as the kernel.
        connection
            .filter(is_connection)
            .ok_or_else(|| io::Error::other("the keeper gave no connection"))
    }

    /// Sets the flags of the mount that cannot be given at mounting.
    ///
    /// # Errors
    /// Those of mount(2).
    pub fn set_flags(&self) -> io::Result<()> {
        self.act(Act::SetFlags, 0).map(drop)
    }

    pub(crate) fn raise_limits(&self) {
        if let Err(e) = self.act(Act::RaiseLimits, 0) {
            tracing::debug!("the limits of the mount stay as they are: {e}");
        }
    }

    pub(crate) fn unmount(&self) -> io::Result<()> {
        self.act(Act::Unmount, 0).map(drop)
    }

    pub(crate) fn detach(&self) -> io::Result<()> {
        self.act(Act::Detach, 0).map(drop)
    }

    pub(crate) fn abort(&self) -> io::Result<()> {
        self.act(Act::Abort, 0).map(drop)
    }

    /// Notes that this process serves the mount that another keeper made ([`Keep::adopts`]).
    pub(crate) fn adopt(&self) -> io::Result<()> {
        self.act(Act::Adopt, 0).map(drop)
    }

    /// Sends so many requests to the server, without a wait for the answers.
    pub(crate) fn wake(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Err(error) = self.act(Act::Wake, count) {
            tracing::warn!("the threads that serve cannot be woken: {error}");
        }
    }

    /// Returns whether a thread is in the user namespace of this process.
    pub(crate) fn shares_user_namespace(&self, thread: u32) -> bool {
        self.act(Act::Namespace, thread).is_ok_and(|(answer, _)| answer)
    }

    /// Returns whether another process does the acts.
    pub(crate) fn is_other(&self) -> bool {
        matches!(*self.0, Kind::Other(_))
    }

    /// Returns whether another process did the acts and has ended before it was asked to.
    pub fn is_lost(&self) -> bool {
        let Kind::Other(other) = &*self.0 else { return false };
        let mut told = [PollFd::new(&other.quick.socket, PollFlags::empty())];
        let polled = poll(&mut told, Some(&Timespec::default()));
        let hung_up = polled.is_ok() && told[0].revents().contains(PollFlags::HUP);
        hung_up && !other.ended.load(Ordering::Acquire)
    }

    /// Tells the other process, if there is one, that this one ends in order.
    pub fn dismiss(&self) {
        if let Kind::Other(other) = &*self.0 {
            // It is received before the end of the socket. No answer is waited for: the process may
            // be another program's, which may also have left no space for it.
            let flags = QUIETLY | SendFlags::DONTWAIT;
            let _ = rustix::net::send(&other.quick.socket, &request(Act::Dismiss, 0), flags);
        }
    }

    /// Dismisses the other process, if there is one. No act is possible from then on.
    pub fn end(&self) {
        if let Kind::Other(other) = &*self.0 {
            other.ended.store(true, Ordering::Release);
            self.dismiss();
            for line in [&other.acts, &other.quick] {
                // The answer to an unmount may be on its way.
                line.await_turn();
                line.shut();
            }
        }
    }

    fn act(&self, act: Act, argument: u32) -> io::Result<(bool, Option<OwnedFd>)> {
        match (&*self.0, act.channel()) {
            (Kind::Own(own), _) => own.act(act, argument),
            (Kind::Other(other), Channel::Acts) => other.ask(&other.acts, act, argument),
            (Kind::Other(other), Channel::Quick) => other.ask(&other.quick, act, argument),
        }
    }

    /// Serves a server that has the other ends of the sockets, until it has closed both.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(&self, acts: OwnedFd, quick: OwnedFd) -> io::Result<ServerEnd> {
        let other = self.clone();
        let quick = Builder::new()
            .name("extant-keeper".into())
            .spawn(move || other.answer_all(&quick, Channel::Quick))?;
        self.answer_all(&acts, Channel::Acts);
        drop(acts);
        // A dismissal may still be on its way there.
        quick.join().map_err(|_| io::Error::other("a thread of the keeper panicked"))?;
        Ok(match &*self.0 {
            Kind::Own(own) => own.server_end(),
            Kind::Other(_) => ServerEnd::InOrder,
        })
    }

    fn answer_all(&self, socket: &OwnedFd, channel: Channel) {
        let mut buf = [0; MESSAGE];
        while let Ok((len @ 1.., _)) = receive_message(socket, &mut buf) {
            let request = decode(&buf[..len]).filter(|(act, _)| act.channel() == channel);
            let done = request
                .ok_or_else(|| Errno::INVAL.into())
                .and_then(|(act, argument)| self.act(act, argument));
            if matches!(request, Some((Act::Dismiss, _))) {
                continue;
            }
            let (bytes, descriptor) = encode(done);
            let descriptor = descriptor.as_ref().map(OwnedFd::as_fd);
            if send_message(socket, &bytes, descriptor.as_slice()).is_err() {
                break;
            }
        }
    }
}

impl Own {
    fn act(&self, act: Act, argument: u32) -> io::Result<(bool, Option<OwnedFd>)> {
        let read_only = self.read_only || argument != 0;
        match act {
            Act::Claim => return Ok((self.claim(read_only)?, None)),
            Act::Release => *lock(&self.claim) = None,
            Act::Mount => return Ok((true, Some(self.mount(read_only)?))),
            Act::SetFlags => {
                self.only_own()?;
                if self.has_flags.swap(true, Ordering::AcqRel) {
                    return Err(Errno::PERM.into());
                }
                (self.set_flags)()?;
            }
            Act::RaiseLimits => self.only_own().map(|()| limits::raise_limits(&self.place()))?,
            Act::Unmount => {
                self.only_own()?;
                // A failure to write is reported, but the mount ends nevertheless.
                let synced = sync(&self.place());
                self.only_own()?;
                unmount_dir(&self.place(), false).and(synced)?;
            }
            Act::Detach => self.only_own().and_then(|()| unmount_dir(&self.place(), true))?,
            Act::Abort => {
                self.only_own()?;
                let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                unmount(self.place(), flags)?;
            }
            Act::Namespace => return Ok((is_in_own_user_namespace(argument), None)),
            Act::Dismiss => self.is_dismissed.store(true, Ordering::Release),
            Act::Wake => self.wakers.wake(&self.place(), argument)?,
            Act::Adopt => {
                let adopts = lock(&self.adopts).take().ok_or(Errno::INVAL)?;
                adopts.check(&self.place())?;
                *lock(&self.mounted) = Some((adopts, Instant::now()));
            }
        }
        Ok((true, None))
    }

    fn server_end(&self) -> ServerEnd {
        let made = lock(&self.mounted).map(|(mount, made)| (mount, Some(made.elapsed())));
        let there = made.or_else(|| self.replaces.map(|mount| (mount, None)));
        match there.filter(|(mount, _)| mount.check(&self.place()).is_ok()) {
            Some((mount, served)) if !self.is_dismissed.load(Ordering::Acquire) => {
                ServerEnd::Lost { mount, served }
            }
            _ => ServerEnd::InOrder,
        }
    }

    fn claim(&self, read_only: bool) -> io::Result<bool> {
        let mut claim = lock(&self.claim);
        // An earlier claim would be in the way.
        *claim = None;
        if let Some(disk) = &self.disk {
            *claim = Claim::of(disk, &self.options, read_only)?;
        }
        Ok(claim.is_some())
    }

    fn mount(&self, read_only: bool) -> io::Result<OwnedFd> {
        let mut mounted = lock(&self.mounted);
        if mounted.is_some() {
            return Err(Errno::BUSY.into());
        }
        let connection = match self.replaces {
            Some(dead) => self.replace(dead, read_only)?,
            None => self.connect(read_only)?,
        };
        // Without an identity it could not be ended: it must not stay.
        let place = self.place();
        let identity =
            MountIdentity::at(&place).inspect_err(|_| drop(unmount_dir(&place, true)))?;
        *mounted = Some((identity, Instant::now()));
        Ok(connection)
    }

    /// Mounts in the directory and returns the descriptor of the connection.
    fn connect(&self, read_only: bool) -> io::Result<OwnedFd> {
        if !is_root() {
            return fusermount::mount(&self.dir, &self.options, read_only);
        }
        // Not where a symlink leads that has taken its place.
        let target = directory(&self.place(), OFlags::NOFOLLOW)?;
        let target = by_descriptor(&target);
        match lock(&self.claim).take() {
            Some(claim) => claim.mount(&target, &self.options, read_only),
            None => root::mount(&target, &self.options, read_only),
        }
    }

    /// Mounts in place of a dead mount, which is detached.
    ///
    /// # Errors
    /// It is not there any more, or another mount lies over it: others have changed the place
    /// meanwhile. Those of mounting.
    fn replace(&self, dead: MountIdentity, read_only: bool) -> io::Result<OwnedFd> {
        let place = self.place();
        dead.check(&place)?;
        if !is_root() {
            fusermount::unmount(&self.dir, true)?;
            return self.connect(read_only);
        }
        let beneath = beneath::mount(&place, &self.options, read_only)?;
        // Others may have unmounted it meanwhile: then the new mount is the topmost one.
        if beneath.is_some() && dead.check(&place).is_err() {
            return beneath.ok_or_else(|| Errno::INVAL.into());
        }
        // By force: a server that is dying may hold the connection for a moment, and requests that
        // it has not answered would wait for that.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        unmount(&place, flags)?;
        beneath.map_or_else(|| self.connect(read_only), Ok)
    }

    /// Returns a path of the mount point. fusermount3(1) needs the plain one, and has checks of its
    /// own.
    fn place(&self) -> PathBuf {
        match (&self.parent, self.dir.file_name()) {
            (Some(parent), Some(name)) if is_root() => by_descriptor(parent).join(name),
            _ => self.dir.clone(),
        }
    }

    /// Fails unless the mount that this keeper made is the one at its place.
    fn only_own(&self) -> io::Result<()> {
        let own = lock(&self.mounted).map(|(mount, _)| mount);
        let own =
            own.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it is not mounted"))?;
        own.check(&self.place())
    }
}

/// Holds a directory, without a question to its server.
fn directory(dir: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, dir, flags, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", dir.display())))
}

/// Returns a path that leads to a held directory. By the number of the process: another program
/// may use the path.
fn by_descriptor(held: &OwnedFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd()).into()
}

/// Ends the mount at a place, perhaps lazily.
pub(super) fn unmount_dir(dir: &Path, lazy: bool) -> io::Result<()> {
    if !is_root() {
        return fusermount::unmount(dir, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    // Symlinks that others put there would lead to other mounts.
    Ok(unmount(dir, flags | UnmountFlags::NOFOLLOW)?)
}

impl Other {
    fn ask(&self, line: &Line, act: Act, argument: u32) -> io::Result<(bool, Option<OwnedFd>)> {
        let _turn = lock(&line.turn);
        let request = request(act, argument);
        // A sandbox has no sendmsg(2), by which a datagram gets an address.
        let flags = QUIETLY | SendFlags::DONTWAIT;
        match rustix::net::send(&line.socket, &request, flags) {
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(self.is_gone()),
            Err(Errno::AGAIN) => return Err(self.is_silent(line)),
            sent => sent?,
        };
        // An unmount writes the kernel's cache, which may take any time.
        if act != Act::Unmount && !line.has_answer(self.patience)? {
            return Err(self.is_silent(line));
        }
        let mut buf = [0; MESSAGE];
        match receive_message(&line.socket, &mut buf) {
            Ok((len @ 1.., descriptor)) => {
                decode_reply(&buf[..len]).map(|answer| (answer, descriptor))
            }
            Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                line.shut();
                Err(error)
            }
            _ => Err(self.is_gone()),
        }
    }

    fn is_silent(&self, line: &Line) -> io::Error {
        line.shut();
        io::Error::other(format!(
            "the process that keeps the privileges does not answer; `umount {}` ends the mount",
            self.dir.display()
        ))
    }

    fn is_gone(&self) -> io::Error {
        io::Error::other(format!(
            "the process that keeps the privileges has ended; `umount {}` ends the mount",
            self.dir.display()
        ))
    }
}

#[cfg(test)]
mod tests;
