//! A connection after its handshake.
//!
//! # Locking
//! `connection` has the keys and counters of both directions, so a thread that encrypts and one
//! that decrypts take it in turn, for 128 KiB at most. It is never held during I/O: a writer that
//! waits for a full socket must not keep the reader from taking the data of the other end, since
//! the other end may take nothing before. `incoming` is held by the thread that reads, also while
//! it waits for the socket.
//!
//! # Order
//! Records must be sent in the order in which they were encrypted. The caller must hold a lock of
//! its own from [`TlsSession::seal`] until the result is written.
//!
//! Answers of TLS itself, such as to an update of keys, go with the next sealed data.

use crate::explain::{Peer, explained, failure};
use extant_sync::{Level, Mutex};
use rustls::Connection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

/// Bytes that are read from a socket at once.
const READ_BUFFER: usize = 128 << 10;

/// Bytes that are encrypted at once.
const SEALED_AT_ONCE: usize = 128 << 10;

/// Encrypted bytes that were read.
struct Incoming {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

/// The state of reading.
enum Opened {
    Bytes(usize),
    /// The other end has said that no more come.
    End,
    /// More encrypted bytes are needed.
    Empty,
}

/// A connection after its handshake: encrypts and decrypts for several threads.
pub struct TlsSession {
    peer: Peer,
    connection: Mutex<Connection>,
    incoming: Mutex<Incoming>,
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSession").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl TlsSession {
    /// Makes the handshake over a socket.
    pub(crate) fn begin(
        connection: impl Into<Connection>,
        peer: Peer,
        socket: &mut (impl Read + Write),
    ) -> io::Result<TlsSession> {
        let mut connection = connection.into();
        connection.set_buffer_limit(Some(SEALED_AT_ONCE));
        while connection.is_handshaking() {
            connection.complete_io(socket).map_err(|error| explained(error, peer))?;
        }
        while connection.wants_write() {
            connection.write_tls(socket)?;
        }
        let incoming = Incoming { buffer: vec![0; READ_BUFFER], begin: 0, end: 0 };
        Ok(TlsSession {
            peer,
            connection: Mutex::new(Level::Leaf, connection),
            incoming: Mutex::new(Level::Device, incoming),
        })
    }

    /// Reads decrypted bytes, for which it reads from the socket as needed. Returns 0 when the
    /// other end has ended the connection in order.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` if it ends without a word, `InvalidData` if its bytes
    /// are wrong, after which no further call succeeds.
    pub fn read(&self, mut socket: impl Read, buf: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            match self.open(&mut incoming, buf)? {
                Opened::Bytes(count) => return Ok(count),
                Opened::End => return Ok(0),
                Opened::Empty => {}
            }
            let Incoming { buffer, begin, end } = &mut *incoming;
            (*begin, *end) = (0, 0);
            *end = socket.read(buffer)?;
            if *end == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Decrypts until `buf` is full or no encrypted bytes are left.
    fn open(&self, incoming: &mut Incoming, buf: &mut [u8]) -> io::Result<Opened> {
        let mut connection = self.connection.lock();
        let mut filled = 0;
        while filled < buf.len() {
            match connection.reader().read(&mut buf[filled..]) {
                Ok(0) if filled == 0 => return Ok(Opened::End),
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if incoming.begin == incoming.end => break,
                Err(_) => {
                    let mut rest = &incoming.buffer[incoming.begin..incoming.end];
                    incoming.begin += connection.read_tls(&mut rest)?;
                    let opened = connection.process_new_packets();
                    opened.map_err(|error| failure(&error, self.peer))?;
                }
            }
        }
        let is_waiting = filled == 0 && !buf.is_empty();
        Ok(if is_waiting { Opened::Empty } else { Opened::Bytes(filled) })
    }

    /// Encrypts bytes from the beginning of `parts`, and appends them to `sealed`. Returns the
    /// number of bytes that were taken, at least 1 unless there are none.
    ///
    /// # Errors
    /// The keys are used up.
    pub fn seal(&self, parts: &[IoSlice<'_>], sealed: &mut Vec<u8>) -> io::Result<usize> {
        let mut connection = self.connection.lock();
        let taken = connection.writer().write_vectored(parts)?;
        while connection.wants_write() {
            connection.write_tls(sealed)?;
        }
        Ok(taken)
    }

    /// Appends the message that no more data come to `sealed`.
    ///
    /// # Errors
    /// None but those of memory.
    pub fn seal_end(&self, sealed: &mut Vec<u8>) -> io::Result<()> {
        let mut connection = self.connection.lock();
        connection.send_close_notify();
        while connection.wants_write() {
            connection.write_tls(sealed)?;
        }
        Ok(())
    }
}
