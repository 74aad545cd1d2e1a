//! The acts of a mount that need privileges: to mount, to unmount, to look into other processes.
//!
//! A server that parses the image of a stranger gives up its privileges before it reads it. A
//! second process of the same program, the *keeper*, does these acts on its behalf. The keeper
//! never looks at the image. A server that is taken over can ask it to mount and unmount the one
//! mount, and for the user namespaces of threads, and for nothing else.
//!
//! There are two sockets between server and keeper. Requests of [`Channel::Acts`] may wait for the
//! server itself, as the write of the kernel's cache before an unmount does. Those of
//! [`Channel::Quick`] wait for no process, so a request of the mount may wait for them.

use super::block_claim::Claim;
use super::identity::MountIdentity;
use super::{fusermount, is_root, limits, root, sync};
use crate::options::MountOptions;
use crate::server::credentials::is_in_own_user_namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Longest message in bytes.
const MESSAGE: usize = 1024;

/// Bytes before the text of a reply: the number of the error, its kind, and the answer.
const HEAD: usize = 6;

/// Requests to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Make the kernel claim the block device, for reading only if the argument is not 0.
    Claim = 1,
    /// Release a claim that no mount has taken.
    Release,
    /// Mount, for reading only if the argument is not 0.
    Mount,
    /// Set flags of the mount that cannot be given at mounting.
    SetFlags,
    /// Raise the kernel's limits for the mount.
    RaiseLimits,
    /// Make the kernel write its cache, and unmount.
    Unmount,
    /// Detach the mount.
    Detach,
    /// End the mount by force.
    Abort,
    /// Whether the thread of this number is in the keeper's user namespace.
    Namespace,
}

impl Act {
    const ALL: [Act; 9] = [
        Act::Claim,
        Act::Release,
        Act::Mount,
        Act::SetFlags,
        Act::RaiseLimits,
        Act::Unmount,
        Act::Detach,
        Act::Abort,
        Act::Namespace,
    ];

    fn of(number: u8) -> Option<Act> {
        Act::ALL.into_iter().find(|act| *act as u8 == number)
    }

    fn channel(self) -> Channel {
        match self {
            Act::Abort | Act::Namespace => Channel::Quick,
            _ => Channel::Acts,
        }
    }
}

/// A socket between server and keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Acts,
    Quick,
}

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
    acts: Mutex<OwnedFd>,
    quick: Mutex<OwnedFd>,
    /// It was asked to end.
    ended: AtomicBool,
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
    /// The mount that was made.
    mounted: Mutex<Option<MountIdentity>>,
    /// The flags were set. Others may have changed them since.
    has_flags: AtomicBool,
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
    /// Sets flags of the mount that cannot be given at mounting.
    pub set_flags: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Returns a keeper that acts in this process.
    pub fn own(keep: Keep) -> Keeper {
        let Keep { dir, read_only, options, disk, claim, set_flags } = keep;
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
            mounted,
            has_flags: AtomicBool::new(false),
        }))))
    }

    /// Returns a keeper that asks another process, which serves the other ends of both sockets by
    /// [`Keeper::serve`]. From then on it also tells user namespaces of threads.
    pub fn other(dir: &Path, acts: OwnedFd, quick: OwnedFd) -> Keeper {
        let (dir, ended) = (dir.into(), AtomicBool::new(false));
        let (acts, quick) = (Mutex::new(acts), Mutex::new(quick));
        Keeper(Arc::new(Kind::Other(Other { dir, acts, quick, ended })))
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
        connection.ok_or_else(|| io::Error::other("the keeper gave no connection"))
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
        // A request of this channel waits for no process, so its lock is free soon.
        let quick = lock(&other.quick);
        let mut told = [PollFd::new(&*quick, PollFlags::empty())];
        let polled = poll(&mut told, Some(&Timespec::default()));
        let hung_up = polled.is_ok() && told[0].revents().contains(PollFlags::HUP);
        hung_up && !other.ended.load(Ordering::Acquire)
    }

    /// Ends the other process, if there is one. No act is possible from then on.
    pub fn end(&self) {
        if let Kind::Other(other) = &*self.0 {
            other.ended.store(true, Ordering::Release);
            for socket in [&other.acts, &other.quick] {
                // An error says that it has ended.
                let _ = shutdown(&*lock(socket), Shutdown::Both);
            }
        }
    }

    fn act(&self, act: Act, argument: u32) -> io::Result<(bool, Option<OwnedFd>)> {
        match (&*self.0, act.channel()) {
            (Kind::Own(own), _) => own.act(act, argument),
            (Kind::Other(other), Channel::Acts) => other.ask(&lock(&other.acts), act, argument),
            (Kind::Other(other), Channel::Quick) => other.ask(&lock(&other.quick), act, argument),
        }
    }

    /// Serves a server that has the other ends of the sockets, until it closes them.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(&self, acts: OwnedFd, quick: OwnedFd) -> io::Result<()> {
        let other = self.clone();
        Builder::new()
            .name("extant-keeper".into())
            .spawn(move || other.answer_all(&quick, Channel::Quick))?;
        self.answer_all(&acts, Channel::Acts);
        Ok(())
    }

    fn answer_all(&self, socket: &OwnedFd, channel: Channel) {
        let mut buf = [0; MESSAGE];
        while let Ok((len @ 1.., _)) = receive(socket, &mut buf) {
            let request = decode(&buf[..len]).filter(|(act, _)| act.channel() == channel);
            let done = request
                .ok_or_else(|| Errno::INVAL.into())
                .and_then(|(act, argument)| self.act(act, argument));
            let (bytes, descriptor) = encode(done);
            if send(socket, &bytes, descriptor.as_ref().map(OwnedFd::as_fd)).is_err() {
                return;
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
        }
        Ok((true, None))
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
        let connection = if is_root() {
            // Not where a symlink leads that has taken its place.
            let target = directory(&self.place(), OFlags::NOFOLLOW)?;
            let target = by_descriptor(&target);
            match lock(&self.claim).take() {
                Some(claim) => claim.mount(&target, &self.options, read_only),
                None => root::mount(&target, &self.options, read_only),
            }
        } else {
            fusermount::mount(&self.dir, &self.options, read_only)
        }?;
        // Without an identity it could not be ended: it must not stay.
        let place = self.place();
        let identity =
            MountIdentity::at(&place).inspect_err(|_| drop(unmount_dir(&place, true)))?;
        *mounted = Some(identity);
        Ok(connection)
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
        let own = *lock(&self.mounted);
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
    fn ask(
        &self,
        socket: &OwnedFd,
        act: Act,
        argument: u32,
    ) -> io::Result<(bool, Option<OwnedFd>)> {
        let mut request = vec![act as u8];
        request.extend(argument.to_ne_bytes());
        // A sandbox has no sendmsg(2), by which a datagram gets an address.
        match rustix::net::send(socket, &request, SendFlags::NOSIGNAL) {
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(self.is_gone()),
            sent => sent?,
        };
        let mut buf = [0; MESSAGE];
        match receive(socket, &mut buf) {
            Ok((len @ 1.., descriptor)) => {
                decode_reply(&buf[..len]).map(|answer| (answer, descriptor))
            }
            Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error),
            _ => Err(self.is_gone()),
        }
    }

    fn is_gone(&self) -> io::Error {
        io::Error::other(format!(
            "the process that keeps the privileges has ended; `umount {}` ends the mount",
            self.dir.display()
        ))
    }
}

fn decode(request: &[u8]) -> Option<(Act, u32)> {
    let (number, argument) = request.split_first()?;
    Some((Act::of(*number)?, u32::from_ne_bytes(argument.try_into().ok()?)))
}

/// Kinds of errors that callers tell apart, for errors without a number.
const KINDS: [ErrorKind; 4] = [
    ErrorKind::Other,
    ErrorKind::ResourceBusy,
    ErrorKind::PermissionDenied,
    ErrorKind::InvalidInput,
];

fn encode(done: io::Result<(bool, Option<OwnedFd>)>) -> (Vec<u8>, Option<OwnedFd>) {
    let (error, kind, answer, text, descriptor) = match done {
        Ok((answer, descriptor)) => (0, 0, answer, String::new(), descriptor),
        Err(e) => {
            let kind = KINDS.iter().position(|kind| *kind == e.kind()).unwrap_or(0);
            (e.raw_os_error().unwrap_or(-1), kind as u8, false, e.to_string(), None)
        }
    };
    let mut bytes = error.to_ne_bytes().to_vec();
    bytes.extend([kind, answer.into()]);
    bytes.extend(text.bytes().take(MESSAGE - HEAD));
    (bytes, descriptor)
}

fn decode_reply(reply: &[u8]) -> io::Result<bool> {
    let (head, text) = reply.split_at_checked(HEAD).unwrap_or((&[u8::MAX; HEAD], &[]));
    let (error, rest) = head.split_first_chunk().unwrap_or((&[u8::MAX; 4], &[]));
    match i32::from_ne_bytes(*error) {
        0 => Ok(rest.get(1) == Some(&1)),
        number @ 1.. => Err(io::Error::from_raw_os_error(number)),
        _ => {
            let kind = rest.first().and_then(|kind| KINDS.get(usize::from(*kind)));
            let text = String::from_utf8_lossy(text).into_owned();
            Err(io::Error::new(kind.copied().unwrap_or(ErrorKind::Other), text))
        }
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = SendAncillaryBuffer::new(&mut room);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !extra.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS.into());
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message: its length, 0 after the end, and its descriptor.
fn receive(socket: &OwnedFd, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut room);
    let got = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut extra, flags) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let descriptor = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    Ok((got.bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("sockets")
    }

    fn keep() -> Keep {
        Keep {
            dir: "/proc".into(),
            read_only: false,
            options: MountOptions::default(),
            disk: None,
            claim: None,
            set_flags: Box::new(|| Ok(())),
        }
    }

    #[test]
    fn another_process_acts_for_its_own_mount_only() {
        let (acts, quick) = (pair(), pair());
        let served = std::thread::spawn(move || Keeper::own(keep()).serve(acts.1, quick.1));
        let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
        assert!(!keeper.claim(false).expect("no disk"));
        assert!(keeper.shares_user_namespace(std::process::id()));
        assert!(!keeper.shares_user_namespace(0));
        // It has mounted nothing, so /proc stays.
        for refused in [keeper.unmount(), keeper.detach(), keeper.abort(), keeper.set_flags()] {
            assert_eq!(refused.expect_err("not its mount").kind(), ErrorKind::InvalidInput);
        }
        assert!(!keeper.is_lost());
        keeper.end();
        let refused = keeper.claim(false).expect_err("it has ended");
        assert!(refused.to_string().contains("`umount /proc` ends the mount"), "{refused}");
        assert!(!keeper.is_lost(), "it was asked to end");
        served.join().expect("the keeper").expect("its end");
    }

    #[test]
    fn a_keeper_that_was_ended_is_known() {
        let (acts, quick) = (pair(), pair());
        let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
        drop((acts.1, quick.1));
        assert!(keeper.is_lost());
        for refused in [keeper.unmount(), keeper.abort()] {
            let refused = refused.expect_err("it has ended");
            assert!(refused.to_string().contains("`umount /proc` ends the mount"), "{refused}");
        }
    }

    /// Numbers of devices are used again, and another place of the same file system has the same.
    #[test]
    fn a_mount_of_the_same_device_is_not_its_own() {
        let scratch = Scratch::new();
        let (dir, other) = (scratch.dir("mnt"), scratch.dir("other"));
        let keeper = Keeper::own(Keep { dir: dir.clone(), ..keep() });
        let _connection = keeper.mount(false).expect("a mount");
        rustix::mount::mount_bind(&dir, &other).expect("a second place");
        rustix::mount::unmount(&dir, UnmountFlags::DETACH).expect("the first place");
        rustix::mount::mount_bind(&other, &dir).expect("another mount");
        let acts = [Keeper::unmount, Keeper::detach, Keeper::abort, Keeper::set_flags];
        let refused = acts.map(|act| act(&keeper).map_err(|error| error.kind()));
        let ended = [&dir, &other].map(|dir| rustix::mount::unmount(dir, UnmountFlags::DETACH));
        assert_eq!(refused, [Err(ErrorKind::InvalidInput); 4]);
        assert_eq!(ended, [Ok(()), Ok(())]);
    }

    #[test]
    fn nonsense_is_refused() {
        let (acts, quick) = (pair(), pair());
        let served = std::thread::spawn(move || Keeper::own(keep()).serve(acts.1, quick.1));
        let namespace = [Act::Namespace as u8, 0, 0, 0, 0];
        for nonsense in [&[99, 0, 0, 0, 0][..], &[1], &[1, 0, 0, 0, 0, 0], &namespace] {
            send(&acts.0, nonsense, None).expect("sent");
            let mut buf = [0; MESSAGE];
            let (len, _) = receive(&acts.0, &mut buf).expect("a reply");
            let refused = decode_reply(&buf[..len]).expect_err("refused");
            assert_eq!(refused.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        }
        assert!(decode_reply(&[]).is_err() && decode_reply(&[0; HEAD - 1]).is_err());
        drop((acts.0, quick.0));
        served.join().expect("the keeper").expect("its end");
    }
}
