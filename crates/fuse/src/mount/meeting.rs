//! The place where the keeper of a server meets the process that goes on with the mount: a socket
//! in the abstract namespace, whose name has the user and a number. A server in a sandbox can
//! connect to nothing, and send no descriptors.

use super::acts::send;
use crate::messages::receive_message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Uid, geteuid};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The message with the connection. The number is that of the form of all further messages.
const HELLO: &[u8] = b"extant upgrade 1";

/// Where a process waits for the connection of a mount.
#[derive(Debug)]
pub struct MeetingPoint {
    socket: OwnedFd,
    number: u32,
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn address(user: Uid, number: u32) -> io::Result<SocketAddrUnix> {
    let name = format!("extant/upgrade/{}/{number}", user.as_raw());
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Fails unless this user, or root, has the other end.
fn check_user(socket: &OwnedFd) -> io::Result<()> {
    let user = socket_peercred(socket)?.uid;
    if user == geteuid() || user.is_root() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, "another user waits for the mount"))
}

/// Hands a connection to the process that waits at the meeting point of a number.
pub fn meet(number: u32, connection: &OwnedFd) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let address = address(geteuid(), number)?;
    connect(&socket, &address).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("the new server cannot be reached: {error}"))
    })?;
    check_user(&socket)?;
    send(&socket, HELLO, Some(connection.as_fd()))?;
    Ok(socket)
}

impl MeetingPoint {
    /// Makes one with the number of this process.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn new() -> io::Result<MeetingPoint> {
        let (socket, number) = (new_socket()?, std::process::id());
        bind(&socket, &address(geteuid(), number)?)?;
        listen(&socket, 1)?;
        Ok(MeetingPoint { socket, number })
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits for the connection of a mount. Returns a socket to its server, and the connection.
    ///
    /// # Errors
    /// `TimedOut` if none comes in time; `InvalidData` if the other program has another form of
    /// messages.
    pub fn accept(&self, patience: Duration) -> io::Result<(OwnedFd, OwnedFd)> {
        let end = Instant::now() + patience;
        loop {
            await_input(&self.socket, end)?;
            let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
            // Any process may connect.
            if check_user(&socket).is_err() {
                continue;
            }
            await_input(&socket, end)?;
            let mut message = [0; 64];
            let (len, connection) = receive_message(&socket, &mut message)?;
            let connection = connection.filter(|_| message[..len] == *HELLO);
            return connection.map(|connection| (socket, connection)).ok_or_else(|| {
                let text = "the program that serves has other messages: unmount, and mount again";
                io::Error::new(ErrorKind::InvalidData, text)
            });
        }
    }
}

fn await_input(socket: &OwnedFd, end: Instant) -> io::Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            polled => return Ok(polled.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_connection_reaches_the_process_that_waits() {
        let patience = Duration::from_secs(10);
        let null = || OwnedFd::from(File::open("/dev/null").expect("a file"));
        let number = std::process::id();
        assert!(meet(number, &null()).is_err(), "no process waits");
        let point = MeetingPoint::new().expect("a meeting point");
        assert!(MeetingPoint::new().is_err(), "it has one");
        let there = meet(number, &null()).expect("it waits");
        let (here, _connection) = point.accept(patience).expect("a connection");
        send(&there, b"x", None).expect("sent");
        assert_eq!(receive_message(&here, &mut [0; 8]).expect("a message").0, 1);
        let none = point.accept(Duration::from_millis(1)).expect_err("no other server");
        assert_eq!(none.kind(), ErrorKind::TimedOut);
        let other = new_socket().expect("a socket");
        connect(&other, &address(geteuid(), number).expect("a name")).expect("it waits");
        send(&other, b"something else", None).expect("sent");
        let refused = point.accept(patience).expect_err("another message");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
    }
}
