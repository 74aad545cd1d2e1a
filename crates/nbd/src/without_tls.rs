//! TLS in builds without it: no value exists.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::path::Path;

#[derive(Clone, Debug)]
pub enum TlsClient {}

#[derive(Clone, Debug)]
pub enum TlsServer {}

#[derive(Debug)]
pub enum TlsSession {}

impl TlsClient {
    pub fn load(_: Option<&Path>, _: &str, _: bool) -> io::Result<TlsClient> {
        Err(io::Error::new(ErrorKind::Unsupported, "this program is built without TLS"))
    }

    pub fn connect(&self, _: &mut (impl Read + Write)) -> io::Result<TlsSession> {
        match *self {}
    }
}

impl TlsServer {
    /// Makes no handshake.
    ///
    /// # Errors
    /// None, as there is no such server.
    pub fn accept(&self, _: &mut (impl Read + Write)) -> io::Result<TlsSession> {
        match *self {}
    }
}

impl TlsSession {
    pub fn read(&self, _: impl Read, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub fn seal(&self, _: &[IoSlice<'_>], _: &mut Vec<u8>) -> io::Result<usize> {
        match *self {}
    }

    pub fn seal_end(&self, _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }
}
