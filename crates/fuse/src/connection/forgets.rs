//! What comes through `/dev/fuse` also when requests come through rings: that inodes are forgotten.

use super::{BUFFER, try_next};
use crate::service::Service;
use crate::wire::structs::{BatchForgetIn, ForgetOne, InHeader, OutHeader, op};
use fuser::INodeNo;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Reads what comes through the device beside rings.
#[derive(Debug)]
pub struct ForgetReader {
    fuse: Arc<File>,
    /// Rung to end the reading.
    bell: EventFd,
}

impl ForgetReader {
    /// A reader of a connection, from which nobody else reads.
    pub fn new(fuse: &Arc<File>) -> io::Result<ForgetReader> {
        let flags = rustix::fs::fcntl_getfl(fuse)?;
        rustix::fs::fcntl_setfl(fuse, flags | rustix::fs::OFlags::NONBLOCK)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(ForgetReader { fuse: fuse.clone(), bell })
    }

    /// Ends [`ForgetReader::read`].
    pub fn end(&self) {
        let _ = self.bell.write(1);
    }

    /// Reads until the mount ends, or this is ended. Requests that take long end then, too.
    pub fn read(&self, service: &impl Service) -> io::Result<()> {
        let ended = self.read_all(service);
        end_requests(service);
        ended
    }

    fn read_all(&self, service: &impl Service) -> io::Result<()> {
        let mut buf = vec![0; BUFFER];
        while self.wait()? {
            match try_next(&self.fuse, &mut buf) {
                Ok(Some(len)) => handle(&self.fuse, service, &buf[..len])?,
                Ok(None) => return Ok(()),
                // Another request was taken back meanwhile.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits for a request. False once this is ended.
    fn wait(&self) -> io::Result<bool> {
        let mut either = [&*self.fuse as &dyn AsFd, &self.bell]
            .map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        match poll(&mut either, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {
                Ok(either[1].revents().is_none_or(|found| found.is_empty()))
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// The mount has ended: requests that take long do so, too.
pub fn end_requests(service: &impl Service) {
    if let Some(interrupts) = service.interrupts() {
        interrupts.end();
    }
}

/// Takes in what was forgotten; tells the kernel that nothing else is known here.
pub fn handle(mut fuse: &File, service: &impl Service, request: &[u8]) -> io::Result<()> {
    let Ok((head, rest)) = InHeader::read_from_prefix(request) else { return Ok(()) };
    match head.opcode {
        op::FORGET => {
            if let Ok((lookups, _)) = u64::read_from_prefix(rest) {
                service.forget(INodeNo(head.node), lookups);
            }
        }
        op::BATCH_FORGET => {
            let Ok((batch, rest)) = BatchForgetIn::read_from_prefix(rest) else { return Ok(()) };
            for bytes in rest.chunks_exact(size_of::<ForgetOne>()).take(batch.count as usize) {
                if let Ok(one) = ForgetOne::read_from_bytes(bytes) {
                    service.forget(INodeNo(one.node), one.lookups);
                }
            }
        }
        op::INTERRUPT if service.interrupts().is_some() => {
            // There is no reply to it, but that of the request itself.
            if let (Some(all), Ok((unique, _))) =
                (service.interrupts(), u64::read_from_prefix(rest))
            {
                all.interrupt(unique);
            }
        }
        // The kernel then sends no more of them.
        _ => {
            let reply = OutHeader {
                len: size_of::<OutHeader>() as u32,
                error: -libc::ENOSYS,
                unique: head.unique,
            };
            if let Err(e) = fuse.write_all(reply.as_bytes()) {
                tracing::debug!("the kernel did not take a reply: {e}");
            }
        }
    }
    Ok(())
}
