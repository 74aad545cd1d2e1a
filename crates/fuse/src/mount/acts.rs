//! Messages between server and keeper: requests with their sockets, and replies.

use rustix::net::SendFlags;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

/// Longest message in bytes.
pub const MESSAGE: usize = 1024;

/// Bytes before the text of a reply: the number of the error, its kind, and the answer.
pub const HEAD: usize = 6;

/// How messages are sent: without a signal if there is no receiver.
pub const QUIETLY: SendFlags = SendFlags::NOSIGNAL;

/// Requests to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
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
    /// The server ends in order: its end is no loss. There is no reply.
    Dismiss,
    /// The server serves the mount that another keeper made.
    Adopt,
    /// Send so many requests to the server, and wait for none.
    Wake,
}

impl Act {
    const ALL: [Act; 12] = [
        Act::Claim,
        Act::Release,
        Act::Mount,
        Act::SetFlags,
        Act::RaiseLimits,
        Act::Unmount,
        Act::Detach,
        Act::Abort,
        Act::Namespace,
        Act::Dismiss,
        Act::Adopt,
        Act::Wake,
    ];

    fn of(number: u8) -> Option<Act> {
        Act::ALL.into_iter().find(|act| *act as u8 == number)
    }

    /// Returns the socket of the request.
    pub fn channel(self) -> Channel {
        match self {
            Act::Abort | Act::Namespace | Act::Dismiss | Act::Wake => Channel::Quick,
            _ => Channel::Acts,
        }
    }
}

/// A socket between server and keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// For requests that may wait for the server.
    Acts,
    /// For requests that wait for no process.
    Quick,
}

/// Returns the message of a request.
pub fn request(act: Act, argument: u32) -> Vec<u8> {
    [act as u8].into_iter().chain(argument.to_ne_bytes()).collect()
}

/// Takes a request apart.
pub fn decode(request: &[u8]) -> Option<(Act, u32)> {
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

/// Returns the message of a reply, and the descriptor that goes with it.
pub fn encode(done: io::Result<(bool, Option<OwnedFd>)>) -> (Vec<u8>, Option<OwnedFd>) {
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

/// Takes a reply apart.
pub fn decode_reply(reply: &[u8]) -> io::Result<bool> {
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
