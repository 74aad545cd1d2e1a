//! A request under way, and its reply as it is put together from chunks.
//!
//! For example, a read of 8192 bytes at 4096 may be answered by a chunk of data for 4096 to 8191
//! and a hole for 8192 to 12287. Each byte must come once before the last chunk.

use crate::trouble::Trouble;
use crate::wire::{self, Fields, chunk, command, errno};
use std::io::{self, Read};

/// Smallest bytes of a chunk of data on average: a server that sends less wastes memory here.
const MIN_CHUNK: usize = 512;

/// Longest chunk that is no data, in bytes: a list of extents, or the text of an error.
const MAX_CHUNK: u32 = 1 << 20;

/// A request as it goes to the server.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub command: u16,
    pub flags: u16,
    pub offset: u64,
    pub len: u32,
}

impl Request {
    /// Returns the bytes of the request, without its payload.
    pub fn header(&self, cookie: u64) -> Vec<u8> {
        let message = wire::Message::new().u32(wire::REQUEST_MAGIC).u16(self.flags);
        message.u16(self.command).u64(cookie).u64(self.offset).u32(self.len).into_bytes()
    }
}

/// An extent of the answer to a request for the status of blocks: its length and its flags.
pub type Extent = (u32, u32);

/// The complete reply of a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// The data of a read, of its length.
    pub data: Vec<u8>,
    /// The extents of a request for the status of blocks, which is not empty.
    pub extents: Vec<Extent>,
}

/// An error of the server: its number and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    pub number: u32,
    pub text: String,
}

impl From<ServerError> for io::Error {
    fn from(error: ServerError) -> io::Error {
        // Numbers are those of Linux; others than the known ones may mean anything here.
        use errno::{INVAL, IO, NOMEM, NOSPC, NOTSUP, OVERFLOW, PERM};
        let known = [PERM, IO, NOMEM, INVAL, NOSPC, OVERFLOW, NOTSUP].contains(&error.number);
        let number = if known { error.number } else { IO };
        let plain = io::Error::from_raw_os_error(number as i32);
        if error.text.is_empty() {
            return plain;
        }
        io::Error::new(plain.kind(), format!("{plain}: the server says {:?}", error.text))
    }
}

/// A reply in the making.
#[derive(Debug)]
pub struct Assembly {
    request: Request,
    /// The context of allocation, if the server has one.
    context: Option<u32>,
    data: Vec<u8>,
    /// Ranges that have come, within the request, sorted and apart from each other.
    covered: Vec<(usize, usize)>,
    extents: Vec<Extent>,
    error: Option<ServerError>,
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    pub flags: u16,
    pub kind: u16,
    pub len: u32,
}

fn broken<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Broken(format!("the server broke the protocol: {}", why.into())))
}

/// Reads a number of bytes that this side has bounded.
fn read_bytes(stream: &mut impl Read, len: usize) -> Result<Vec<u8>, Trouble> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Assembly {
    pub fn new(request: Request, context: Option<u32>) -> Assembly {
        let (data, covered, extents) = (Vec::new(), Vec::new(), Vec::new());
        Assembly { request, context, data, covered, extents, error: None }
    }

    /// Takes a simple reply, which is complete. `structured` tells that replies with data must have
    /// chunks.
    pub fn simple(
        mut self,
        stream: &mut impl Read,
        error: u32,
        structured: bool,
    ) -> Result<Result<Reply, ServerError>, Trouble> {
        if error != 0 {
            return Ok(Err(ServerError { number: error, text: String::new() }));
        }
        match self.request.command {
            command::READ if structured => broken("a read has a simple reply"),
            command::BLOCK_STATUS => broken("a status of blocks has a simple reply"),
            command::READ => {
                self.data = read_bytes(stream, self.request.len as usize)?;
                Ok(Ok(Reply { data: self.data, extents: self.extents }))
            }
            _ => Ok(Ok(Reply::default())),
        }
    }

    /// Takes a chunk, whose header was read. After the last one the reply is complete.
    pub fn chunk(&mut self, stream: &mut impl Read, head: Chunk) -> Result<(), Trouble> {
        match head.kind {
            chunk::OFFSET_DATA | chunk::OFFSET_HOLE if self.request.command != command::READ => {
                broken("data answers a request other than a read")
            }
            chunk::OFFSET_DATA => self.data_chunk(stream, head.len),
            _ if head.len > MAX_CHUNK => broken(format!("a chunk has {} bytes", head.len)),
            chunk::OFFSET_HOLE => self.hole(&read_bytes(stream, head.len as usize)?),
            chunk::BLOCK_STATUS => self.status(&read_bytes(stream, head.len as usize)?),
            chunk::NONE if head.len == 0 && head.flags & chunk::DONE != 0 => Ok(()),
            kind if kind & chunk::ERROR != 0 => {
                self.failure(&read_bytes(stream, head.len as usize)?)
            }
            kind => broken(format!("a chunk has the type {kind} and {} bytes", head.len)),
        }
    }

    /// Returns the reply after its last chunk.
    pub fn finish(self) -> Result<Result<Reply, ServerError>, Trouble> {
        if let Some(error) = self.error {
            return Ok(Err(error));
        }
        let whole = [(0, self.request.len as usize)];
        match self.request.command {
            command::READ if self.covered != whole => broken("a part of a read is missing"),
            command::BLOCK_STATUS if self.extents.is_empty() => {
                broken("a status of blocks is missing")
            }
            _ => Ok(Ok(Reply { data: self.data, extents: self.extents })),
        }
    }

    /// Notes that a range has come. Returns it within the request.
    fn cover(&mut self, offset: u64, len: usize) -> Result<(usize, usize), Trouble> {
        let total = self.request.len as usize;
        let begin = offset.checked_sub(self.request.offset).map(usize::try_from);
        let Some(Ok(begin)) = begin else { return broken("data lies before its request") };
        let end = begin.checked_add(len).filter(|end| *end <= total);
        let Some(end) = end else { return broken("data lies beyond its request") };
        if len == 0 {
            return broken("a chunk of data is empty");
        }
        let at = self.covered.partition_point(|(_, before)| *before < begin);
        let overlaps = |(from, to): &(usize, usize)| *from < end && begin < *to;
        if self.covered[at..].iter().take(2).any(overlaps) {
            return broken("data comes twice");
        }
        // Ranges that touch become one.
        let mut joined = (begin, end);
        let touch = |range: &&(usize, usize)| range.1 == begin || range.0 == end;
        let touching = self.covered[at..].iter().take_while(touch).count();
        for (from, to) in self.covered.drain(at..at + touching) {
            joined = (joined.0.min(from), joined.1.max(to));
        }
        self.covered.insert(at, joined);
        if self.covered.len() > 1 + total / MIN_CHUNK {
            return broken("data comes in very small chunks");
        }
        if self.data.is_empty() {
            self.data = vec![0; total];
        }
        Ok((begin, end))
    }

    fn data_chunk(&mut self, stream: &mut impl Read, len: u32) -> Result<(), Trouble> {
        let Some(len) = len.checked_sub(8) else { return broken("a chunk of data is short") };
        let mut place = [0; 8];
        stream.read_exact(&mut place)?;
        let offset = Fields(&place).u64().unwrap_or_default();
        let (begin, end) = self.cover(offset, len as usize)?;
        Ok(stream.read_exact(&mut self.data[begin..end])?)
    }

    fn hole(&mut self, payload: &[u8]) -> Result<(), Trouble> {
        let mut fields = Fields(payload);
        match (fields.u64(), fields.u32(), fields.0) {
            (Some(offset), Some(len), []) => self.cover(offset, len as usize).map(|_| ()),
            _ => broken("a hole has another length"),
        }
    }

    fn status(&mut self, payload: &[u8]) -> Result<(), Trouble> {
        let mut fields = Fields(payload);
        if self.request.command != command::BLOCK_STATUS {
            return broken("a status of blocks answers another request");
        }
        if fields.u32() != self.context || self.context.is_none() || !self.extents.is_empty() {
            return broken("a status of blocks has an unknown context");
        }
        let mut total = 0;
        while let (Some(len), Some(flags)) = (fields.u32(), fields.u32()) {
            // The last extent may go beyond the request.
            if len == 0 || total >= u64::from(self.request.len) {
                return broken("an extent is empty, or beyond its request");
            }
            total += u64::from(len);
            self.extents.push((len, flags));
        }
        if self.extents.is_empty() { broken("a status of blocks is empty") } else { Ok(()) }
    }

    fn failure(&mut self, payload: &[u8]) -> Result<(), Trouble> {
        let mut fields = Fields(payload);
        let (Some(number), Some(len)) = (fields.u32(), fields.u16()) else {
            return broken("an error is short");
        };
        let Some(text) = fields.bytes(len.into()).filter(|text| text.len() <= wire::MAX_STRING)
        else {
            return broken("the text of an error has another length");
        };
        if number == 0 {
            return broken("an error is none");
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.error.get_or_insert(ServerError { number, text });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Request = Request { command: command::READ, flags: 0, offset: 4096, len: 8192 };

    fn data(offset: u64, len: usize) -> (Chunk, Vec<u8>) {
        let payload = wire::Message::new().u64(offset).bytes(&vec![7; len]).into_bytes();
        (Chunk { flags: 0, kind: chunk::OFFSET_DATA, len: payload.len() as u32 }, payload)
    }

    fn hole(offset: u64, len: u32) -> (Chunk, Vec<u8>) {
        let payload = wire::Message::new().u64(offset).u32(len).into_bytes();
        (Chunk { flags: 0, kind: chunk::OFFSET_HOLE, len: 12 }, payload)
    }

    fn assembled(chunks: &[(Chunk, Vec<u8>)]) -> Result<Vec<u8>, String> {
        let mut assembly = Assembly::new(READ, None);
        for (head, payload) in chunks {
            assembly.chunk(&mut payload.as_slice(), *head).map_err(|error| error.to_string())?;
        }
        let reply = assembly.finish().map_err(|error| error.to_string())?;
        reply.map(|reply| reply.data).map_err(|error| error.text)
    }

    #[test]
    fn chunks_come_in_any_order() {
        let found = assembled(&[data(8192, 4096), hole(6144, 2048), data(4096, 2048)]).unwrap();
        assert_eq!(found.len(), 8192);
        assert!(found[..2048].iter().chain(&found[4096..]).all(|byte| *byte == 7));
        assert!(found[2048..4096].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn wrong_chunks_are_refused() {
        for (chunks, cause) in [
            (vec![data(4096, 4096)], "missing"),
            (vec![], "missing"),
            (vec![data(4096, 8193)], "beyond"),
            (vec![data(4095, 1)], "before"),
            (vec![data(u64::MAX, 1)], "beyond"),
            (vec![hole(4096, u32::MAX)], "beyond"),
            (vec![data(4096, 4096), data(8191, 1)], "twice"),
            (vec![data(4096, 1024), data(6144, 1024), hole(5119, 1026)], "twice"),
            (vec![data(4096, 8192), data(4096, 8192)], "twice"),
            (vec![data(4096, 0)], "empty"),
            ((0..4096).map(|i| data(4096 + 2 * i, 1)).collect(), "small"),
        ] {
            let error = assembled(&chunks).unwrap_err();
            assert!(error.contains(cause), "{error}: {cause}");
        }
        let short = Chunk { flags: 0, kind: chunk::OFFSET_DATA, len: 7 };
        assert!(assembled(&[(short, vec![0; 7])]).unwrap_err().contains("short"));
        let huge = Chunk { flags: 0, kind: chunk::PLAIN_ERROR, len: u32::MAX };
        assert!(assembled(&[(huge, vec![0; 7])]).unwrap_err().contains("bytes"));
    }

    #[test]
    fn errors_have_their_text() {
        let payload = wire::Message::new().u32(28).u16(4).bytes(b"full").into_bytes();
        let head = Chunk { flags: 1, kind: chunk::PLAIN_ERROR, len: payload.len() as u32 };
        assert_eq!(assembled(&[(head, payload)]).unwrap_err(), "full");
        let error = io::Error::from(ServerError { number: 28, text: "full".into() });
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn extents_are_those_of_the_context() {
        let request = Request { command: command::BLOCK_STATUS, ..READ };
        let status = |context: u32, extents: &[Extent]| {
            let mut message = wire::Message::new().u32(context);
            for (len, flags) in extents {
                message = message.u32(*len).u32(*flags);
            }
            let payload = message.into_bytes();
            let head = Chunk { flags: 1, kind: chunk::BLOCK_STATUS, len: payload.len() as u32 };
            let mut assembly = Assembly::new(request, Some(7));
            assembly.chunk(&mut payload.as_slice(), head)?;
            Ok::<_, Trouble>(assembly.finish()?.unwrap().extents)
        };
        assert_eq!(status(7, &[(4096, 0), (1 << 20, 3)]).unwrap().len(), 2);
        assert!(status(8, &[(4096, 0)]).is_err());
        assert!(status(7, &[]).is_err());
        assert!(status(7, &[(0, 0)]).is_err());
        assert!(status(7, &[(8192, 0), (1, 0)]).is_err());
    }
}
