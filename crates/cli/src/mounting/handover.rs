//! The handover of an image from a client to a mount service: one message with descriptors.
//!
//! The socket keeps the bounds of messages (`SOCK_SEQPACKET`). A message has words with zero bytes
//! between them: [`MAGIC`], the names of image and directory for messages, and the options. With it
//! come the descriptors of the image and of the two sockets to a keeper ([`extant_fuse::Keeper`]),
//! by which the service gets the connection and by which the mount ends. The service answers with
//! lines as a server to its parent ([`super::announce`]).

use crate::failure::{At, Failure, Result};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType,
    recvmsg,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// The first word. The number is that of the form of the message.
const MAGIC: &[u8] = b"extant mount 1";

/// Longest message in bytes.
const MESSAGE: usize = 64 << 10;

/// Descriptors of a message.
const DESCRIPTORS: usize = 3;

/// How long a client that has connected may wait with its message, and with taking an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The words of a client. Nothing is opened by these names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// The image as the client named it, with the place of a part.
    pub image: PathBuf,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Options of the mount, with commas between them.
    pub options: String,
}

impl Words {
    fn to_bytes(&self) -> Vec<u8> {
        let (image, dir) = (self.image.as_os_str().as_bytes(), self.dir.as_os_str().as_bytes());
        [MAGIC, image, dir, self.options.as_bytes()].join(&0)
    }

    fn parse(bytes: &[u8]) -> Option<Words> {
        let words: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
        let [MAGIC, image, dir, options] = words[..] else { return None };
        let [image, dir] = [image, dir].map(|name| PathBuf::from(OsStr::from_bytes(name)));
        Some(Words { image, dir, options: std::str::from_utf8(options).ok()?.into() })
    }
}

/// An image with the sockets by which it is mounted.
#[derive(Debug)]
pub struct Handover {
    /// Its words.
    pub words: Words,
    /// The file of the image.
    pub image: File,
    /// Sockets to its keeper.
    pub acts: OwnedFd,
    /// For requests that wait for no process.
    pub quick: OwnedFd,
}

impl Handover {
    /// Sends it, for a client.
    ///
    /// # Errors
    /// The names and options are too long; those of the socket.
    pub fn send(&self, socket: &OwnedFd) -> Result {
        let bytes = self.words.to_bytes();
        if bytes.len() > MESSAGE {
            return Err(Failure::new("the options are too long for a mount service"));
        }
        let descriptors = [self.image.as_fd(), self.acts.as_fd(), self.quick.as_fd()];
        extant_fuse::send_message(socket, &bytes, &descriptors).at("the mount service")
    }

    /// Receives it, for a service. Any process may have sent the message.
    ///
    /// # Errors
    /// It is none of this protocol, or does not come in time.
    pub fn receive(socket: &OwnedFd) -> Result<Handover> {
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(socket, timeout, Some(PATIENCE)).at("the client's socket")?;
        }
        let mut bytes = vec![0; MESSAGE];
        // Further descriptors do not fit and are closed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut extra = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(socket, slices, &mut extra, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                got => break got.at("the client's message")?,
            }
        };
        let rights = extra.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let rights: Vec<OwnedFd> = rights.flatten().collect();
        let refused = || Failure::new("the client's message is none that this service knows");
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(refused());
        }
        let words = bytes.get(..got.bytes).and_then(Words::parse).ok_or_else(refused)?;
        let [image, acts, quick]: [OwnedFd; DESCRIPTORS] =
            rights.try_into().map_err(|_| refused())?;
        if ![&acts, &quick].into_iter().all(is_socket) {
            return Err(refused());
        }
        Ok(Handover { words, image: image.into(), acts, quick })
    }
}

/// Returns whether a descriptor is a socket of the kind that keepers have.
pub fn is_socket(descriptor: &OwnedFd) -> bool {
    socket_domain(descriptor) == Ok(AddressFamily::UNIX)
        && socket_type(descriptor) == Ok(SocketType::SEQPACKET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, sendmsg, socketpair,
    };
    use std::io::IoSlice;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn words() -> Words {
        Words { image: "/a b.img@p1".into(), dir: "/mnt".into(), options: "ro,noatime".into() }
    }

    /// Sends any bytes with any descriptors, and receives them as a service.
    fn received(bytes: &[u8], descriptors: &[OwnedFd]) -> Result<Handover> {
        let (client, service) = pair();
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        assert!(
            descriptors.is_empty() || extra.push(SendAncillaryMessage::ScmRights(&descriptors))
        );
        sendmsg(&client, &[IoSlice::new(bytes)], &mut extra, SendFlags::NOSIGNAL).unwrap();
        Handover::receive(&service)
    }

    fn descriptors() -> Vec<OwnedFd> {
        let (acts, quick) = (pair().0, pair().0);
        vec![File::open("/dev/null").unwrap().into(), acts, quick]
    }

    #[test]
    fn a_handover_arrives_as_it_was_sent() {
        let (client, service) = pair();
        let [image, acts, quick] = descriptors().try_into().unwrap();
        Handover { words: words(), image: image.into(), acts, quick }.send(&client).unwrap();
        let received = Handover::receive(&service).unwrap();
        assert_eq!(received.words, words());
        assert!(is_socket(&received.acts) && !is_socket(&received.image.into()));
    }

    #[test]
    fn hostile_messages_are_refused() {
        let good = words().to_bytes();
        assert!(received(&good, &descriptors()).is_ok());
        let long = [&good[..], &[b'x'; MESSAGE]].concat();
        let wrong = [&b"extant mount 2"[..], &good[MAGIC.len()..]].concat();
        let more = [&good[..], b"\0more"].concat();
        let no_text = [&good[..], b"\xff"].concat();
        for bytes in [&b"x"[..], b"\0\0\0\0", MAGIC, &wrong, &more, &no_text, &long] {
            assert!(received(bytes, &descriptors()).is_err(), "{bytes:?}");
        }
        let others: Vec<OwnedFd> = descriptors().into_iter().rev().collect();
        let many: Vec<OwnedFd> = descriptors().into_iter().chain(descriptors()).collect();
        for descriptors in [&[][..], &descriptors()[..2], &others, &many] {
            assert!(received(&good, descriptors).is_err(), "{descriptors:?}");
        }
        let (client, service) = pair();
        drop(client);
        assert!(Handover::receive(&service).is_err(), "no message");
    }
}
