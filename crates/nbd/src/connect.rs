//! Sockets of a client, and how they are connected.

use crate::address::{Address, Place};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt::Debug;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connected socket.
#[derive(Debug)]
#[non_exhaustive]
pub enum Socket {
    /// Of TCP.
    Tcp(TcpStream),
    /// In the file system.
    Unix(UnixStream),
}

/// Makes connections to one server. A process in a sandbox has one that asks a process outside.
pub trait Connect: Send + Sync + Debug {
    /// Connects, within a time that is bounded. Sends must fail when the server takes no data for
    /// a bounded time.
    ///
    /// # Errors
    /// Those of the system.
    fn connect(&self) -> io::Result<Socket>;
}

impl Connect for Address {
    fn connect(&self) -> io::Result<Socket> {
        let socket = match &self.place {
            Place::Tcp(host, port) => Socket::Tcp(connect_tcp(host, *port, self.timeout)?),
            Place::Unix(path) => {
                let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
                let socket = socket_with(kind.0, kind.1, kind.2, None)?;
                // A server that accepts nothing makes a connection wait, too.
                set_socket_timeout(&socket, Timeout::Send, Some(self.timeout))?;
                connect(&socket, &SocketAddrUnix::new(path.as_path())?)?;
                Socket::Unix(socket.into())
            }
        };
        socket.set_write_timeout(self.timeout)?;
        Ok(socket)
    }
}

/// Tries the addresses of a host in turn.
fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let begin = Instant::now();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        let left = timeout.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                // Requests do not wait for the acknowledgement of earlier ones.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Socket {
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Socket::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Ends the own direction of the connection: the other end sees that no more data come.
    pub(crate) fn end_sending(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// Ends the other direction: threads that read see its end. The other end learns nothing.
    pub(crate) fn end_receiving(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Read),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Read),
        };
    }

    /// Ends the connection in both directions, and transfers of other threads with it.
    pub(crate) fn hang_up(&self) {
        // Without effect where the other end has done so.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Writes all buffers, in as few calls as possible, until `deadline` at about the latest.
    pub(crate) fn write_all_parts(&self, parts: &[&[u8]], deadline: Instant) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        // Without parts, and without empty ones at the front.
        IoSlice::advance_slices(&mut rest, 0);
        let mut stream = self;
        while !rest.is_empty() {
            match stream.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A server may take a byte at a time.
            if !rest.is_empty() && Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(buf),
            Socket::Unix(stream) => (&mut &*stream).read(buf),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write(data),
            Socket::Unix(stream) => (&mut &*stream).write(data),
        }
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write_vectored(data),
            Socket::Unix(stream) => (&mut &*stream).write_vectored(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
