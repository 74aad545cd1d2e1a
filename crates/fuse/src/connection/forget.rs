//! FORGET and INTERRUPT. They have no replies and come through `/dev/fuse` even where requests come
//! through rings.

use super::bell::Bell;
use super::{BUFFER, try_next};
use crate::handler::Handler;
use crate::protocol::abi::{BatchForgetIn, ForgetOne, InHeader, OutHeader, op};
use crate::types::{ErrorCode, NodeId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Reads `/dev/fuse` beside rings.
#[derive(Debug)]
pub struct ForgetReader {
    fuse: Arc<File>,
    /// Ends the reading.
    bell: Bell,
}

impl ForgetReader {
    /// Creates the only reader of a connection.
    pub fn new(fuse: &Arc<File>) -> io::Result<ForgetReader> {
        let flags = rustix::fs::fcntl_getfl(fuse)?;
        rustix::fs::fcntl_setfl(fuse, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(ForgetReader { fuse: fuse.clone(), bell: Bell::new()? })
    }

    /// Ends [`ForgetReader::read`].
    pub fn end(&self) {
        let _ = self.bell.ring();
    }

    /// Reads until the mount or this reader ends. Long requests end then, too.
    pub fn read(&self, handler: &impl Handler) -> io::Result<()> {
        let ended = self.read_all(handler);
        end_requests(handler);
        ended
    }

    fn read_all(&self, handler: &impl Handler) -> io::Result<()> {
        let mut buf = vec![0; BUFFER];
        while self.wait()? {
            match try_next(&self.fuse, &mut buf) {
                Ok(Some(len)) => handle(&self.fuse, handler, &buf[..len])?,
                Ok(None) => return Ok(()),
                // The kernel has withdrawn the request meanwhile.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits for a request; false after [`ForgetReader::end`].
    fn wait(&self) -> io::Result<bool> {
        let mut either = [self.fuse.as_fd(), self.bell.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut either, None) {
            Ok(_) | Err(Errno::INTR) => Ok(either[1].revents().is_empty()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Interrupts long requests after the end of the mount.
pub fn end_requests(handler: &impl Handler) {
    if let Some(interrupts) = handler.interrupts() {
        interrupts.end();
    }
}

/// Handles FORGET and INTERRUPT; answers other requests with `ENOSYS`.
pub fn handle(mut fuse: &File, handler: &impl Handler, request: &[u8]) -> io::Result<()> {
    let Ok((head, rest)) = InHeader::read_from_prefix(request) else { return Ok(()) };
    match head.opcode {
        op::FORGET => {
            if let Ok((lookups, _)) = u64::read_from_prefix(rest) {
                handler.forget(NodeId(head.node), lookups);
            }
        }
        op::BATCH_FORGET => {
            let Ok((batch, rest)) = BatchForgetIn::read_from_prefix(rest) else { return Ok(()) };
            for bytes in rest.chunks_exact(size_of::<ForgetOne>()).take(batch.count as usize) {
                if let Ok(one) = ForgetOne::read_from_bytes(bytes) {
                    handler.forget(NodeId(one.node), one.lookups);
                }
            }
        }
        op::INTERRUPT if handler.interrupts().is_some() => {
            // INTERRUPT has no reply; the interrupted request has.
            if let (Some(all), Ok((unique, _))) =
                (handler.interrupts(), u64::read_from_prefix(rest))
            {
                all.interrupt(unique);
            }
        }
        // The kernel sends no more requests of this kind then.
        _ => {
            let reply = OutHeader {
                len: size_of::<OutHeader>() as u32,
                error: -ErrorCode::ENOSYS.code(),
                unique: head.unique,
            };
            if let Err(e) = fuse.write_all(reply.as_bytes()) {
                tracing::debug!("the kernel did not take a reply: {e}");
            }
        }
    }
    Ok(())
}
