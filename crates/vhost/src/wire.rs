//! Bytes of vhost-user and of virtio block devices: messages with descriptors over a socket, and
//! numbers at their places.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Requests of a front-end.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Bytes of the head of a message: request, flags and length of the body.
const HEAD_LEN: usize = 12;

/// Version and flags of a message.
const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Longest body of a message, in bytes.
const MAX_BODY: u32 = 4096;

/// Most descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 8;

/// How long a message may take from its first byte to its last one, and a reply to be taken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A message of the front-end.
#[derive(Debug)]
pub struct Message {
    pub request: u32,
    /// The front-end waits for an acknowledgment, if it has said that it takes them.
    pub need_reply: bool,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Returns the error of a message that breaks the protocol.
pub fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Receives a message, or `None` at the end of the connection. The first byte is awaited for any
/// time, or for `first`.
///
/// # Errors
/// `InvalidData` if it is none; those of the socket.
pub fn receive(socket: &UnixStream, first: Option<Duration>) -> io::Result<Option<Message>> {
    let mut descriptors = Vec::new();
    let mut head = [0; HEAD_LEN];
    socket.set_read_timeout(first)?;
    let begun = receive_some(socket, &mut head, &mut descriptors)?;
    if begun == 0 {
        return Ok(None);
    }
    let deadline = Instant::now() + PATIENCE;
    receive_all(socket, &mut head[begun..], &mut descriptors, deadline)?;
    let mut fields = Fields(&head);
    let (Some(request), Some(flags), Some(len)) =
        (fields.native(), fields.native(), fields.native())
    else {
        return Err(invalid("a short head"));
    };
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || len > MAX_BODY {
        return Err(invalid(format!("message {request} with flags {flags:#x} and {len} bytes")));
    }
    let mut body = vec![0; len as usize];
    receive_all(socket, &mut body, &mut descriptors, deadline)?;
    Ok(Some(Message { request, need_reply: flags & NEED_REPLY != 0, body, descriptors }))
}

fn receive_all(
    socket: &UnixStream,
    mut buf: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    deadline: Instant,
) -> io::Result<()> {
    while !buf.is_empty() {
        // The time that is left: a timeout of the socket would begin again with each byte.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match receive_some(socket, buf, descriptors)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => buf = &mut buf[read..],
        }
    }
    Ok(())
}

/// Receives bytes, and the descriptors that come with them.
fn receive_some(
    socket: &UnixStream,
    buf: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(buf)];
        match recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    // The system has closed those that found no place.
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        return Err(invalid("a message with too many descriptors"));
    }
    Ok(received.bytes)
}

/// Replies to a message.
///
/// # Errors
/// Those of the socket, also if the front-end does not take the reply in time.
pub fn reply(mut socket: &UnixStream, request: u32, body: &[u8]) -> io::Result<()> {
    socket.set_write_timeout(Some(PATIENCE))?;
    let head = [request, VERSION | REPLY, body.len() as u32].map(u32::to_ne_bytes);
    socket.write_all(&[head.as_flattened(), body].concat())
}

/// Fields in the order of the machine, or of virtio, from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'f>(pub &'f [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    /// Takes 32 bits of a message.
    pub fn native(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Takes 64 bits of a message.
    pub fn native_long(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Takes 32 bits of a request.
    pub fn le32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes 64 bits of a request.
    pub fn le64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Returns numbers of 64 bits as the body of a message.
pub fn long(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// Returns numbers of 32 bits as the body of a message.
pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Puts a number at its place in the configuration of a device.
pub fn put_le16(space: &mut [u8], at: usize, value: u16) {
    space[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// As [`put_le16`], with 32 bits.
pub fn put_le32(space: &mut [u8], at: usize, value: u32) {
    space[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// As [`put_le16`], with 64 bits.
pub fn put_le64(space: &mut [u8], at: usize, value: u64) {
    space[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Returns whether the flags of a list of available chains ask for no calls.
pub fn asks_for_no_calls(flags: u16) -> bool {
    u16::from_le(flags) & 1 != 0
}
