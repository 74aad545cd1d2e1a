//! Blocks that files of the host share, such as those of copies by reflink.

use crate::{Origin, OriginRun};
use rustix::fs::{FsWord, fstatfs};
use rustix::ioctl::{Direction, Getter, Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::io;

/// FS_IOC_FIEMAP: the extents of a file. Its number has the size of the request without extents.
const MAP: Opcode = opcode::from_components(Direction::ReadWrite, b'f', 11, 32);
/// FIEMAP_FLAG_SYNC: writes the file before, so that the answer holds for its content.
const SYNC: u32 = 1;
/// FIEMAP_EXTENT_SHARED.
const SHARED: u32 = 0x2000;
/// Flags of an extent whose bytes are those of the blocks as they are: FIEMAP_EXTENT_LAST and
/// FIEMAP_EXTENT_MERGED.
const PLAIN: u32 = 1 | 0x1000;

/// FS_IOC_FSGETXATTR: the attributes of a file, of which the first are flags.
const ATTRIBUTES: Opcode = opcode::read::<[u32; 7]>(b'X', 31);
/// FS_XFLAG_REALTIME: the blocks of the file are on another device.
const REALTIME: u32 = 1;

/// File systems with one numbering of all blocks that files share, by `f_type` of statfs(2).
const XFS: FsWord = 0x5846_5342;
const BTRFS: FsWord = 0x9123_683e_u32 as FsWord;

/// The request for one extent, and its answer.
#[repr(C)]
#[derive(Default)]
struct Request {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extent: Extent,
}

#[repr(C)]
#[derive(Default)]
struct Extent {
    logical: u64,
    physical: u64,
    len: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

/// Returns whether the file system tells which blocks of this file are shared.
pub fn tells_shared_blocks(file: &File) -> bool {
    match fstatfs(file).map(|found| found.f_type) {
        Ok(XFS) => attributes(file).is_ok_and(|flags| flags & REALTIME == 0),
        Ok(BTRFS) => true,
        _ => false,
    }
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn attributes(file: &File) -> io::Result<u32> {
    // SAFETY: the ioctl writes 28 bytes, the size of the result, in which each value is valid.
    let [flags, ..] = unsafe { ioctl(file, Getter::<ATTRIBUTES, [u32; 7]>::new()) }?;
    Ok(flags)
}

/// Returns the origin of the beginning of a range of a file, by the blocks of its file system
/// `device`: those that are shared, none, or `Own` for others.
///
/// # Errors
/// Those of the operating system, also of writes that were not done yet.
pub fn shared_origin(file: &File, device: u64, start: u64, len: u64) -> io::Result<OriginRun> {
    Ok(origin_within(device, first_extent(file, start, len)?, start, len))
}

/// Returns the first extent that reaches into a range.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn first_extent(file: &File, start: u64, len: u64) -> io::Result<Option<Extent>> {
    let mut request = Request { start, len, flags: SYNC, room: 1, ..Request::default() };
    // SAFETY: the ioctl reads and writes the request and as many extents behind it as it has room
    // for, one, which is a part of the type. Each value is valid for their fields.
    unsafe { ioctl(file, Updater::<MAP, Request>::new(&mut request)) }?;
    Ok((request.mapped > 0).then_some(request.extent))
}

/// Returns the origin of the beginning of a range by the first extent that reaches into it.
fn origin_within(device: u64, extent: Option<Extent>, start: u64, len: u64) -> OriginRun {
    let Some(extent) = extent else { return OriginRun::new(Origin::Zeroes, len) };
    let Some(within) = start.checked_sub(extent.logical) else {
        return OriginRun::new(Origin::Zeroes, len.min(extent.logical - start));
    };
    let is_plain = extent.flags & !PLAIN == SHARED;
    let place = extent.physical.checked_add(within).filter(|_| is_plain);
    let origin = place.map_or(Origin::Own, |offset| Origin::Shared { device, offset });
    OriginRun::new(origin, extent.len.saturating_sub(within).clamp(1, len.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_layout_of_the_kernel() {
        assert_eq!(size_of::<Request>(), 32 + 56);
        assert_eq!((MAP, ATTRIBUTES), (0xc020_660b, 0x801c_581f));
    }

    #[test]
    fn only_plain_shared_blocks_have_an_origin() {
        let extent = |flags| Extent {
            logical: 4096,
            physical: 1 << 20,
            len: 8192,
            flags,
            ..Extent::default()
        };
        let origin = |flags, start| origin_within(7, Some(extent(flags)), start, 1 << 16);
        let shared = |offset, len| OriginRun::new(Origin::Shared { device: 7, offset }, len);
        assert_eq!(origin(SHARED, 4096), shared(1 << 20, 8192));
        assert_eq!(origin(SHARED | PLAIN, 8192), shared((1 << 20) + 4096, 4096));
        assert_eq!(origin(SHARED, 1024), OriginRun::new(Origin::Zeroes, 3072));
        // Not shared; encoded; not written; not placed yet.
        for flags in [0, PLAIN, SHARED | 8, SHARED | 0x800, SHARED | 6] {
            assert_eq!(origin(flags, 4096), OriginRun::own(8192), "{flags:#x}");
        }
        assert_eq!(origin_within(7, None, 0, 5), OriginRun::new(Origin::Zeroes, 5));
    }
}
