//! Between the engine's types and the protocol's.

use extant::{Attr, Errno, Error, FileType as Type, Timestamp};
use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The root directory's number in the protocol.
const PROTOCOL_ROOT: u64 = 1;

/// The root directory's number on ext4.
const DISK_ROOT: u64 = 2;

/// The engine's number of a protocol number. The two differ in the root only, since inode 1 of ext4
/// has no name.
pub fn disk_ino(ino: INodeNo) -> u64 {
    match ino.0 {
        PROTOCOL_ROOT => DISK_ROOT,
        other => other,
    }
}

/// The protocol's number of an engine number.
pub fn protocol_ino(ino: u64) -> INodeNo {
    INodeNo(match ino {
        DISK_ROOT => PROTOCOL_ROOT,
        other => other,
    })
}

/// Type as the protocol has it.
pub fn kind(t: Type) -> FileType {
    match t {
        Type::Directory => FileType::Directory,
        Type::CharDevice => FileType::CharDevice,
        Type::BlockDevice => FileType::BlockDevice,
        Type::Fifo => FileType::NamedPipe,
        Type::Socket => FileType::Socket,
        Type::Symlink => FileType::Symlink,
        Type::Regular | Type::Unknown => FileType::RegularFile,
    }
}

/// A time of ext4 as a `SystemTime`.
pub fn system_time(t: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(t.nsec));
    let whole = Duration::from_secs(t.sec.unsigned_abs());
    let at = if t.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    at.and_then(|at| at.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Attributes as the protocol has them.
pub fn file_attr(a: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: protocol_ino(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: system_time(a.crtime.unwrap_or(a.ctime)),
        kind: kind(a.ftype),
        perm: a.mode & 0o7777,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: encode_rdev(a.rdev),
        blksize: block_size,
        flags: 0,
    }
}

/// An attribute block that stands for "no such name".
pub fn negative() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Device number in the kernel's 32-bit form.
fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Major and minor of the kernel's 32-bit form.
pub fn decode_rdev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// The type of a mode's upper bits.
pub fn type_of_mode(mode: u32) -> Result<Type, Error> {
    Ok(match mode & 0o170_000 {
        0 | 0o100_000 => Type::Regular,
        0o020_000 => Type::CharDevice,
        0o060_000 => Type::BlockDevice,
        0o010_000 => Type::Fifo,
        0o140_000 => Type::Socket,
        _ => return Err(Errno::Inval.into()),
    })
}

/// The error as the protocol has it; what is not the caller's doing is logged.
pub fn errno(e: &Error) -> fuser::Errno {
    if !matches!(e, Error::Posix(_)) {
        tracing::error!("{e}");
    }
    fuser::Errno::from_i32(match e {
        Error::Corrupt(_) => Errno::Uclean as i32,
        other => other.errno(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for pair in [(0, 0), (8, 1), (259, 1_000_000), (4095, 0xf_ffff)] {
            assert_eq!(decode_rdev(encode_rdev(pair)), pair);
        }
    }

    #[test]
    fn times_before_the_epoch_count_nanoseconds_forward() {
        let t = Timestamp { sec: -2, nsec: 800_000_000 };
        assert_eq!(system_time(t), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }

    #[test]
    fn only_the_root_changes_its_number() {
        assert_eq!(disk_ino(INodeNo(1)), 2);
        assert_eq!(protocol_ino(2), INodeNo(1));
        assert_eq!(disk_ino(protocol_ino(11)), 11);
    }
}
