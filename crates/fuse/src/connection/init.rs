//! INIT, the first request: the kernel offers features and limits, the server takes a subset.

use crate::handler::{Handler, Wants};
use crate::protocol::abi::{InHeader, InitIn, InitOut, OutHeader, op};
use crate::types::InitFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use zerocopy::{FromBytes, IntoBytes};

/// Version of the protocol.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;

/// The largest request, in bytes.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Largest number of background requests under way: those for which no thread waits.
pub const MAX_BACKGROUND: u16 = 64;

/// Smallest buffer for a read, in bytes.
const LEAST_BUFFER: usize = 8192;

/// Reads the first request and answers it. Returns whether requests come through rings: they do if
/// `rings` is set and the kernel offers it.
pub fn agree(mut fuse: &File, handler: &impl Handler, rings: bool) -> io::Result<bool> {
    let mut buf = vec![0; LEAST_BUFFER];
    let len = fuse.read(&mut buf)?;
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's first FUSE request is not understood: mounts need Linux 5.17 or later",
        )
    };
    let (head, rest) = InHeader::read_from_prefix(&buf[..len]).map_err(|_| wrong())?;
    let (init, _) = InitIn::read_from_prefix(rest).map_err(|_| wrong())?;
    if head.opcode != op::INIT || init.major != MAJOR {
        return Err(wrong());
    }
    let reply = answer(&init, handler.wants(), rings, rustix::param::page_size());
    let len = size_of::<OutHeader>() + size_of::<InitOut>();
    let head = OutHeader { len: len as u32, error: 0, unique: head.unique };
    fuse.write_all(&[head.as_bytes(), reply.as_bytes()].concat())?;
    Ok(u64::from(reply.flags2) << 32 & InitFlags::OVER_IO_URING.bits() != 0)
}

/// Returns the features that save requests or that the semantics need.
fn wanted(wants: Wants) -> Vec<InitFlags> {
    let mut wanted = vec![
        InitFlags::PARALLEL_DIROPS,
        InitFlags::ASYNC_DIO,
        InitFlags::DO_READDIRPLUS,
        InitFlags::READDIRPLUS_AUTO,
        InitFlags::NO_OPENDIR_SUPPORT,
        InitFlags::HANDLE_KILLPRIV_V2,
        InitFlags::CACHE_SYMLINKS,
        InitFlags::EXPORT_SUPPORT,
        InitFlags::EXPLICIT_INVAL_DATA,
        InitFlags::HAS_IOCTL_DIR,
        InitFlags::DONT_MASK,
    ];
    if wants.writeback {
        wanted.push(InitFlags::WRITEBACK_CACHE);
    }
    if wants.acl {
        wanted.push(InitFlags::POSIX_ACL);
    }
    if wants.id_maps {
        wanted.push(InitFlags::ALLOW_IDMAP);
    }
    wanted
}

/// Returns the reply to the first request. The kernel counts the size of a request in pages of
/// `page_size` bytes.
fn answer(init: &InitIn, wants: Wants, rings: bool, page_size: usize) -> InitOut {
    let offered = InitFlags::from_bits_retain(u64::from(init.flags) | u64::from(init.flags2) << 32);
    let over_rings = if rings { InitFlags::OVER_IO_URING } else { InitFlags::empty() };
    let own = over_rings
        | InitFlags::INIT_EXT
        | InitFlags::MAX_PAGES
        | InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES;
    let taken = wanted(wants).into_iter().fold(own, InitFlags::union) & offered;
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead.min(MAX_REQUEST),
        flags: taken.bits() as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_REQUEST,
        time_gran: 1,
        max_pages: (MAX_REQUEST as usize / page_size.max(1)).clamp(1, u16::MAX.into()) as u16,
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
            assert_eq!(usize::from(reply.max_pages) * page_size, MAX_REQUEST as usize);
            assert_eq!(reply.max_write, MAX_REQUEST);
        }
        assert_eq!(
            answer(&init, wants, false, 4 << 20).max_pages,
            1,
            "a request has a page at least"
        );
    }
}
