//! What comes through `/dev/fuse` also when requests come through rings: that inodes are forgotten.

use super::{BUFFER, next};
use crate::service::Service;
use crate::wire::structs::{BatchForgetIn, ForgetOne, InHeader, OutHeader, op};
use fuser::INodeNo;
use nix::libc;
use std::fs::File;
use std::io::{self, Write};
use zerocopy::{FromBytes, IntoBytes};

/// Reads until the mount ends.
pub fn read(fuse: &File, service: &impl Service) -> io::Result<()> {
    let mut buf = vec![0; BUFFER];
    while let Some(len) = next(fuse, &mut buf)? {
        handle(fuse, service, &buf[..len])?;
    }
    end_requests(service);
    Ok(())
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
            if let (Some(all), Ok((unique, _))) = (service.interrupts(), u64::read_from_prefix(rest)) {
                all.interrupt(unique);
            }
        }
        // The kernel then sends no more of them.
        _ => {
            let reply = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::ENOSYS, unique: head.unique };
            if let Err(e) = fuse.write_all(reply.as_bytes()) {
                tracing::debug!("the kernel did not take a reply: {e}");
            }
        }
    }
    Ok(())
}
