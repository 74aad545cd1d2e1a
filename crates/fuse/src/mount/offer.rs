//! The offer of a server to hand its mount over, and how another process takes it.
//!
//! A server in a sandbox can connect to nothing, and send no descriptors. So the other process
//! takes them, by pidfd_getfd(2): it asks the server by an ioctl of the mount, and the answer is
//! the number of a socket in the server's table of descriptors. Through that socket the server
//! tells the numbers of the other two: the connection, and the file of the image with its lock. For
//! example, the answer is 9, and the first message at the other end of socket 9 names 10 and 11.
//!
//! To take descriptors of a process needs the right to trace it. So no other user can, and
//! credentials need no check.
//!
//! # Invariants
//! - The server closes its copy of the other process's socket once that has sent a message.
//!   From then on the end of the other process is the end of the socket.
//! - A server that was taken over may name descriptors of another process. The other process looks
//!   at a message before it takes it off a socket, and the caller compares the file of the image
//!   with the one that the mount is of.

use super::acts::QUIETLY;
use super::line::is_connection;
use crate::messages::receive_message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{
    PTracer, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, set_ptracer,
};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first message, before the two numbers. Its number is that of the form of all messages.
const HELLO: &[u8] = b"extant upgrade 2";

/// The message of a process that has all descriptors.
const TAKEN: &[u8] = b"T";

/// First byte of a message with the reason of a failure.
pub const FAILED: u8 = b'F';

/// Longest message before the other process is ready, in bytes.
const MESSAGE: usize = 4096;

/// Descriptors of a server that another process takes.
#[derive(Debug)]
pub struct SharedMount {
    /// The file of the image. All descriptors share its lock.
    pub image: File,
    /// The connection with the kernel.
    pub connection: OwnedFd,
}

/// An offer of a server. There is one at a time.
#[derive(Debug)]
pub struct Offer {
    socket: OwnedFd,
    /// The other end, until the other process has it.
    theirs: Option<OwnedFd>,
    _is_offered: IsOffered,
}

impl Offer {
    /// Makes an offer to a process.
    pub(super) fn to(process: u32, is_offered: &Arc<AtomicBool>) -> io::Result<Offer> {
        if is_offered.swap(true, Ordering::AcqRel) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let is_offered = IsOffered(is_offered.clone());
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
            // Where only descendants may be traced. An error says that there is no such rule.
            let _ = set_ptracer(PTracer::ProcessID(process));
        }
        Ok(Offer { socket, theirs: Some(theirs), _is_offered: is_offered })
    }

    /// Returns the number of the descriptor that the other process takes first.
    pub fn number(&self) -> u64 {
        self.theirs.as_ref().map_or(0, |theirs| theirs.as_raw_fd() as u64)
    }

    /// Returns the socket to the other process.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Names the other descriptors, and waits until the other process has them. From then on its
    /// end is that of the socket.
    ///
    /// # Errors
    /// `TimedOut`; the reason of the other process; those of the socket.
    pub fn give(&mut self, shared: &SharedMount, patience: Duration) -> io::Result<()> {
        self.name(shared)?;
        await_message(&self.socket, patience)?;
        // It has the socket: it has sent a message.
        self.theirs = None;
        let mut message = [0; MESSAGE];
        let (len, _) = receive_message(&self.socket, &mut message)?;
        match message.get(..len).unwrap_or_default() {
            TAKEN => Ok(()),
            [FAILED, why @ ..] => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn name(&self, shared: &SharedMount) -> io::Result<()> {
        let numbers = [shared.connection.as_raw_fd(), shared.image.as_raw_fd()];
        let numbers = numbers.iter().flat_map(|number| number.to_ne_bytes());
        send(&self.socket, &HELLO.iter().copied().chain(numbers).collect::<Vec<u8>>())
    }

    /// Tells the other process why this one fails, and waits until it has heard that.
    pub fn fail(&self, why: io::Error, patience: Duration) -> io::Error {
        let why = tell_failure(&self.socket, why);
        if self.theirs.is_some() {
            // Its end of the socket is still here.
            let _ = await_message(&self.socket, patience);
        }
        why
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = set_ptracer(PTracer::None);
    }
}

/// The mark of an offer, until this is dropped.
#[derive(Debug)]
struct IsOffered(Arc<AtomicBool>);

impl Drop for IsOffered {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The descriptors of an offer, taken by another process.
#[derive(Debug)]
pub struct TakenOffer {
    /// The socket to the server.
    pub socket: OwnedFd,
    /// Its other descriptors.
    pub shared: SharedMount,
}

impl TakenOffer {
    /// Takes the descriptors of the offer of a process. `number` is that of the socket. Waits up to
    /// `patience` for the server. `check` compares the file of the image with the expected one.
    ///
    /// # Errors
    /// Those of the server; `PermissionDenied` without the right to trace the process; `TimedOut`;
    /// `InvalidData` if the process offers something else; those of `check`. The server has got
    /// them.
    pub fn take(
        process: u32,
        number: u64,
        patience: Duration,
        check: impl FnOnce(&Metadata) -> io::Result<()>,
    ) -> io::Result<TakenOffer> {
        let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(other_offer)?;
        let process = pidfd_open(id, PidfdFlags::empty())?;
        let get = |number: RawFd| pidfd_getfd(&process, number, PidfdGetfdFlags::empty());
        let socket = get(RawFd::try_from(number).map_err(|_| other_offer())?)?;
        let [connection, image] = numbers(&socket, patience)?;
        let taken = get(image).map_err(io::Error::from).and_then(|image| {
            let image = File::from(image);
            check(&image.metadata()?)?;
            Ok(SharedMount { image, connection: get(connection)? })
        });
        match taken {
            Ok(shared) if is_connection(&shared.connection) => {
                send(&socket, TAKEN)?;
                Ok(TakenOffer { socket, shared })
            }
            Ok(_) => Err(tell_failure(&socket, other_offer())),
            Err(error) => Err(tell_failure(&socket, error)),
        }
    }
}

fn other_offer() -> io::Error {
    let text = "the program that serves has another form of messages: unmount, and mount again";
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Sends a message, without sendmsg(2), which a sandbox lacks.
fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, bytes, QUIETLY)?;
    Ok(())
}

/// Tells the other end why this process fails.
fn tell_failure(socket: &OwnedFd, error: io::Error) -> io::Error {
    let text: Vec<u8> = [FAILED].into_iter().chain(error.to_string().bytes().take(1024)).collect();
    // It may have ended.
    let _ = send(socket, &text);
    error
}

/// Waits for the first message, and returns the numbers in it.
fn numbers(socket: &OwnedFd, patience: Duration) -> io::Result<[RawFd; 2]> {
    if socket_domain(socket)? != AddressFamily::UNIX
        || socket_type(socket)? != SocketType::SEQPACKET
    {
        return Err(other_offer());
    }
    await_message(socket, patience)?;
    // Another message stays for the program that expects it.
    let mut message = [0; MESSAGE];
    let (_, len) = recv(socket, &mut message[..], RecvFlags::PEEK)?;
    let message = message.get(..len).unwrap_or_default();
    let told = match message.split_first() {
        None => Err(io::Error::new(ErrorKind::UnexpectedEof, "the other server has ended")),
        Some((&FAILED, why)) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
        _ => message.strip_prefix(HELLO).and_then(pair).ok_or_else(other_offer),
    };
    if told.is_ok() {
        receive_message(socket, &mut [0; MESSAGE])?;
    }
    told.map_err(|error| tell_failure(socket, error))
}

fn pair(bytes: &[u8]) -> Option<[RawFd; 2]> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    let numbers: [[u8; 4]; 2] = numbers.try_into().ok()?;
    rest.is_empty().then(|| numbers.map(RawFd::from_ne_bytes))
}

/// Waits for a message, or the end of the socket.
///
/// # Errors
/// `TimedOut` if none comes in time.
pub fn await_message(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::Error::new(ErrorKind::TimedOut, "the other server is silent")),
            polled => return Ok(polled.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn offer() -> (Offer, Arc<AtomicBool>) {
        let is_offered = Arc::default();
        (Offer::to(std::process::id(), &is_offered).expect("an offer"), is_offered)
    }

    fn shared(connection: &str) -> SharedMount {
        let image = File::open("/dev/null").expect("a file");
        SharedMount { image, connection: File::open(connection).expect("a device").into() }
    }

    fn take(
        number: u64,
        patience: Duration,
        check: impl FnOnce(&Metadata) -> io::Result<()>,
    ) -> io::Result<TakenOffer> {
        TakenOffer::take(std::process::id(), number, patience, check)
    }

    #[test]
    fn an_offer_ends_with_its_taker() {
        let (mut offer, is_offered) = offer();
        let busy = Offer::to(1, &is_offered).expect_err("there is one");
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
        let number = offer.number();
        let taker = thread::spawn(move || take(number, PATIENCE, |_| Ok(())));
        offer.give(&shared("/dev/fuse"), PATIENCE).expect("it is taken");
        drop(taker.join().expect("a thread").expect("an offer"));
        assert_eq!(receive_message(offer.socket(), &mut [0; 8]).expect("its end").0, 0);
        drop(offer);
        assert!(!is_offered.load(Ordering::Acquire));
    }

    #[test]
    fn each_side_is_told_why_the_other_one_fails() {
        for (connection, found) in [("/dev/null", "another form"), ("/dev/fuse", "another file")] {
            let (mut offer, _) = offer();
            let number = offer.number();
            let check = move |_: &Metadata| match connection {
                "/dev/null" => Ok(()),
                _ => Err(io::Error::other("another file")),
            };
            let taker = thread::spawn(move || take(number, PATIENCE, check));
            let told = offer.give(&shared(connection), PATIENCE).expect_err("it is refused");
            assert!(told.to_string().contains(found), "{told}");
            assert!(taker.join().expect("a thread").is_err());
        }
        let (offer, _) = offer();
        let number = offer.number();
        let taker = thread::spawn(move || take(number, PATIENCE, |_| Ok(())));
        let _ = offer.fail(io::Error::other("planted"), PATIENCE);
        assert_eq!(taker.join().expect("a thread").expect_err("it failed").to_string(), "planted");
    }

    #[test]
    fn a_message_for_another_program_stays() {
        let (offer, _) = offer();
        let silent = take(offer.number(), Duration::from_millis(1), |_| Ok(()));
        assert_eq!(silent.expect_err("no message").kind(), ErrorKind::TimedOut);
        send(offer.socket(), b"something else").expect("a message");
        assert!(take(offer.number(), PATIENCE, |_| Ok(())).is_err());
        let theirs = offer.theirs.as_ref().expect("it is open");
        assert_eq!(receive_message(theirs, &mut [0; 64]).expect("it stays").0, 14);
        let file = File::open("/dev/null").expect("a file");
        assert!(take(file.as_raw_fd() as u64, PATIENCE, |_| Ok(())).is_err(), "no socket");
    }
}
