//! A connection to the other end: a socket, encrypted after an agreement on TLS.
//!
//! Any thread may write and one may read, at the same time. Writers must exclude each other.

use crate::connect::Socket;
#[cfg(not(feature = "tls"))]
pub use crate::without_tls::{TlsClient, TlsServer, TlsSession};
use extant_sync::OnceLock;
#[cfg(feature = "tls")]
pub use extant_tls::{TlsClient, TlsServer, TlsSession};
use std::io::{self, IoSlice, Read};
use std::time::Instant;

#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    tls: OnceLock<TlsSession>,
}

impl Channel {
    pub fn new(socket: Socket) -> Channel {
        Channel { socket, tls: OnceLock::new() }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Encrypts the connection from here on. `begin` makes the handshake: all bytes of the other
    /// end that were not read yet belong to it, so that none which came in the clear counts as
    /// encrypted.
    ///
    /// # Errors
    /// Those of the handshake. `AlreadyExists` if the connection is encrypted.
    pub fn secure(&self, begin: impl FnOnce(&Socket) -> io::Result<TlsSession>) -> io::Result<()> {
        if self.is_secure() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let session = begin(&self.socket)?;
        self.tls.set(session).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// Writes all buffers, in as few calls as possible, until `deadline` at about the latest.
    pub fn write_all_parts(&self, parts: &[&[u8]], deadline: Instant) -> io::Result<()> {
        let Some(tls) = self.tls.get() else {
            return self.socket.write_all_parts(parts, deadline);
        };
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        // Without parts, and without empty ones at the front.
        IoSlice::advance_slices(&mut rest, 0);
        let mut sealed = Vec::new();
        while !rest.is_empty() {
            sealed.clear();
            let taken = tls.seal(rest, &mut sealed)?;
            IoSlice::advance_slices(&mut rest, taken);
            self.socket.write_all_parts(&[&sealed], deadline)?;
        }
        Ok(())
    }

    /// Tells the other end that no more data come, as TLS demands it. The caller must be the only
    /// writer.
    pub fn say_end(&self, deadline: Instant) -> io::Result<()> {
        let Some(tls) = self.tls.get() else { return Ok(()) };
        let mut sealed = Vec::new();
        tls.seal_end(&mut sealed)?;
        self.socket.write_all_parts(&[&sealed], deadline)
    }

    /// Reads from the socket through `socket`, which may bound the time.
    pub fn read_through(&self, mut socket: impl Read, buf: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            Some(tls) => tls.read(socket, buf),
            None => socket.read(buf),
        }
    }

    /// Reads until the other end ends its direction, or the connection is lost. The
    /// data are dropped.
    pub fn await_end(&self) {
        let _ = io::copy(&mut &self.socket, &mut io::sink());
    }
}

impl Read for &Channel {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_through(&self.socket, buf)
    }
}
