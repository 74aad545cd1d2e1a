//! The first request: what the kernel and the server agree on.

use crate::flags;
use crate::service::{Service, Wants};
use crate::wire::structs::{InHeader, InitIn, InitOut, OutHeader, op};
use fuser::InitFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use zerocopy::{FromBytes, IntoBytes};

/// The protocol's version that is spoken.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;

/// The least that may be read at once.
const LEAST_BUFFER: usize = 8192;

/// Reads the first request and answers it. True if requests come through rings: where that is
/// wanted, and the kernel offers it.
pub fn agree(mut fuse: &File, service: &impl Service, rings: bool) -> io::Result<bool> {
    let mut buf = vec![0; LEAST_BUFFER];
    let len = fuse.read(&mut buf)?;
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's first FUSE request is not understood",
        )
    };
    let (head, rest) = InHeader::read_from_prefix(&buf[..len]).map_err(|_| wrong())?;
    let (init, _) = InitIn::read_from_prefix(rest).map_err(|_| wrong())?;
    if head.opcode != op::INIT || init.major != MAJOR {
        return Err(wrong());
    }
    let reply = answer(&init, service.wants(), rings, rustix::param::page_size());
    let len = size_of::<OutHeader>() + size_of::<InitOut>();
    let head = OutHeader { len: len as u32, error: 0, unique: head.unique };
    fuse.write_all(&[head.as_bytes(), reply.as_bytes()].concat())?;
    Ok(u64::from(reply.flags2) << 32 & InitFlags::FUSE_OVER_IO_URING.bits() != 0)
}

/// The reply to the first request on a machine with pages of so many bytes, in which the kernel
/// counts a request's size.
fn answer(init: &InitIn, wants: Wants, rings: bool, page_size: usize) -> InitOut {
    let offered = InitFlags::from_bits_retain(u64::from(init.flags) | u64::from(init.flags2) << 32);
    let over_rings = if rings { InitFlags::FUSE_OVER_IO_URING } else { InitFlags::empty() };
    let own = over_rings
        | InitFlags::FUSE_INIT_EXT
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES;
    let taken = flags::wanted(wants).into_iter().fold(own, InitFlags::union) & offered;
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead.min(flags::MAX_REQUEST),
        flags: taken.bits() as u32,
        max_background: flags::MAX_BACKGROUND,
        congestion_threshold: flags::MAX_BACKGROUND / 4 * 3,
        max_write: flags::MAX_REQUEST,
        time_gran: 1,
        max_pages: (flags::MAX_REQUEST as usize / page_size.max(1)).clamp(1, u16::MAX.into())
            as u16,
        map_alignment: 0,
        flags2: (taken.bits() >> 32) as u32,
        max_stack_depth: 0,
        request_timeout: 0,
        unused: [0; 11],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_size_whatever_a_page_is() {
        let init = InitIn {
            major: MAJOR,
            minor: MINOR,
            max_readahead: 1 << 30,
            flags: u32::MAX,
            flags2: 0,
            unused: [0; 11],
        };
        let wants = Wants { writeback: true, acl: true, id_maps: false };
        for page_size in [4096, 16 << 10, 64 << 10] {
            let reply = answer(&init, wants, false, page_size);
            assert_eq!(usize::from(reply.max_pages) * page_size, flags::MAX_REQUEST as usize);
            assert_eq!(reply.max_write, flags::MAX_REQUEST);
        }
        assert_eq!(
            answer(&init, wants, false, 4 << 20).max_pages,
            1,
            "a request has a page at least"
        );
    }
}
