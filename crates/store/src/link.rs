//! A transport of another process, over sockets.
//!
//! A process in a sandbox has no network. It asks a second process for objects of one image, which
//! sends them as they are: only the first one parses them. A request and its answer are:
//!
//! | bytes | request | bytes | answer |
//! | --- | --- | --- | --- |
//! | 0 | call | 0 | state |
//! | 1 | kind of object | 1 to 8 | bytes that follow: content, or text of an error |
//! | 2 to 33 | digest of a chunk | | |
//! | 34 to 41 | maximum size, or bytes that follow | | |

use crate::address::StoreObject;
use crate::digest::{ChunkDigest, DIGEST_LEN};
use crate::manifest::{MAX_CHUNK_SIZE, MAX_MANIFEST};
use crate::transport::ObjectTransport;
use extant_sync::{Level, Mutex};
use std::fmt::{self, Debug};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

const GET: u8 = 0;
const GET_FRESH: u8 = 1;
const EXISTS: u8 = 2;
const PUT: u8 = 3;
const REPLACE: u8 = 4;

const MANIFEST: u8 = 0;
const CHUNK: u8 = 1;

const REQUEST: usize = 2 + DIGEST_LEN + 8;
const ANSWER: usize = 9;

/// States of answers: done, no, or the kind of an error.
const DONE: u8 = 0;
const NO: u8 = 1;
const OTHER: u8 = 2;
const KINDS: [(u8, ErrorKind); 8] = [
    (3, ErrorKind::NotFound),
    (4, ErrorKind::PermissionDenied),
    (5, ErrorKind::TimedOut),
    (6, ErrorKind::AlreadyExists),
    (7, ErrorKind::FileTooLarge),
    (8, ErrorKind::InvalidInput),
    (9, ErrorKind::Unsupported),
    (10, ErrorKind::NotConnected),
];

/// Longest text of an error in bytes.
const MAX_TEXT: u64 = 8 << 10;

/// Connections that are kept for later requests.
const KEPT: usize = 16;

/// Makes a connection to the other process.
pub type LinkMaker = Box<dyn Fn() -> io::Result<UnixStream> + Send + Sync>;

/// The transport of another process that runs [`serve_link`].
pub struct LinkTransport {
    connect: LinkMaker,
    idle: Mutex<Vec<UnixStream>>,
}

impl Debug for LinkTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkTransport").finish_non_exhaustive()
    }
}

impl LinkTransport {
    /// Makes a transport whose connections `connect` makes, one for each request at a time.
    pub fn new(connect: LinkMaker) -> LinkTransport {
        LinkTransport { connect, idle: Mutex::new(Level::Leaf, Vec::new()) }
    }

    fn call(
        &self,
        (call, object): (u8, StoreObject),
        (size, data): (u64, &[u8]),
        max: u64,
    ) -> io::Result<Option<Vec<u8>>> {
        let kept = self.idle.lock().pop();
        let mut stream = kept.map_or_else(&self.connect, Ok)?;
        let answer = exchange(&mut stream, (call, object), (size, data), max).map_err(|_| {
            io::Error::new(ErrorKind::NotConnected, "the process that fetches objects has ended")
        })?;
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(stream);
        }
        drop(idle);
        answer
    }
}

/// Sends a request and takes its answer. The outer error is that of the connection.
fn exchange(
    stream: &mut UnixStream,
    (call, object): (u8, StoreObject),
    (size, data): (u64, &[u8]),
    max: u64,
) -> io::Result<io::Result<Option<Vec<u8>>>> {
    let (kind, digest) = match object {
        StoreObject::Manifest => (MANIFEST, [0; DIGEST_LEN]),
        StoreObject::Chunk(digest) => (CHUNK, digest.0),
    };
    let mut request = Vec::with_capacity(REQUEST);
    request.extend_from_slice(&[call, kind]);
    request.extend_from_slice(&digest);
    request.extend_from_slice(&size.to_le_bytes());
    stream.write_all(&request)?;
    stream.write_all(data)?;
    let mut head = [0; ANSWER];
    stream.read_exact(&mut head)?;
    let state = head[0];
    let len = u64::from_le_bytes(head[1..].try_into().unwrap_or_default());
    let limit = if state == DONE { max } else { MAX_TEXT };
    if len > limit {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    stream.take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(match state {
        DONE => Ok(Some(bytes)),
        NO => Ok(None),
        other => {
            let kind = KINDS.iter().find(|(state, _)| *state == other);
            let kind = kind.map_or(ErrorKind::Other, |(_, kind)| *kind);
            Err(io::Error::new(kind, String::from_utf8_lossy(&bytes).into_owned()))
        }
    })
}

impl ObjectTransport for LinkTransport {
    fn get(&self, object: StoreObject, max: u64, fresh: bool) -> io::Result<Vec<u8>> {
        let call = if fresh { GET_FRESH } else { GET };
        let got = self.call((call, object), (max, &[]), max)?;
        got.ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn exists(&self, object: StoreObject) -> io::Result<bool> {
        Ok(self.call((EXISTS, object), (0, &[]), 0)?.is_some())
    }

    fn put(&self, object: StoreObject, data: Vec<u8>, replace: bool) -> io::Result<()> {
        let call = if replace { REPLACE } else { PUT };
        self.call((call, object), (data.len() as u64, &data), 0).map(drop)
    }
}

/// Answers the requests of a [`LinkTransport`] until it ends. Objects are stored only with
/// `writes`.
///
/// # Errors
/// Those of the connection; a request that is none.
pub fn serve_link(
    mut stream: UnixStream,
    transport: &dyn ObjectTransport,
    writes: bool,
) -> io::Result<()> {
    let mut head = [0; REQUEST];
    loop {
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let (digest, size) = head[2..].split_at(DIGEST_LEN);
        let object = match head[1] {
            MANIFEST => StoreObject::Manifest,
            _ => StoreObject::Chunk(ChunkDigest(digest.try_into().unwrap_or_default())),
        };
        let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
        if size > max_size(object) {
            return Err(ErrorKind::InvalidData.into());
        }
        let answer = match head[0] {
            GET => transport.get(object, size, false).map(Some),
            GET_FRESH => transport.get(object, size, true).map(Some),
            EXISTS => transport.exists(object).map(|exists| exists.then(Vec::new)),
            call @ (PUT | REPLACE) => {
                let mut data = Vec::new();
                (&mut stream).take(size).read_to_end(&mut data)?;
                if data.len() as u64 != size {
                    return Ok(());
                }
                let refused = || io::Error::new(ErrorKind::PermissionDenied, "nothing is stored");
                let allowed = if writes { Ok(()) } else { Err(refused()) };
                allowed
                    .and_then(|()| transport.put(object, data, call == REPLACE))
                    .map(|()| Some(Vec::new()))
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        send(&mut stream, answer)?;
    }
}

/// Returns the bound on the size of a stored object.
fn max_size(object: StoreObject) -> u64 {
    match object {
        StoreObject::Manifest => MAX_MANIFEST,
        StoreObject::Chunk(_) => crate::chunk::max_stored(MAX_CHUNK_SIZE.into()),
    }
}

fn send(stream: &mut UnixStream, answer: io::Result<Option<Vec<u8>>>) -> io::Result<()> {
    let (state, bytes) = match answer {
        Ok(Some(bytes)) => (DONE, bytes),
        Ok(None) => (NO, Vec::new()),
        Err(error) => {
            let state = KINDS.iter().find(|(_, kind)| *kind == error.kind());
            let mut text = error.to_string().into_bytes();
            text.truncate(MAX_TEXT as usize);
            (state.map_or(OTHER, |(state, _)| *state), text)
        }
    };
    let mut head = vec![state];
    head.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(&bytes)?;
    Ok(())
}
