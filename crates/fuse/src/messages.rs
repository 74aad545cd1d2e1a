//! Messages through sockets that keep the bounds of messages, each perhaps with descriptors.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends a message with up to three descriptors, and without a signal if there is no receiver.
///
/// # Errors
/// Those of sendmsg(2); `ENOBUFS` for more descriptors.
pub fn send_message(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !extra.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS.into());
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message of a `SOCK_SEQPACKET` socket. Returns its length, 0 after the end of the
/// socket, and its descriptor. Further descriptors are closed.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_message(socket: impl AsFd, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&socket, &mut [IoSliceMut::new(buf)], &mut extra, flags) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let descriptor = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    Ok((got.bytes, descriptor))
}
