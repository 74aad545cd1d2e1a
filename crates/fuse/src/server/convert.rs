//! Conversions between the types of the engine and those of the protocol.

use crate::types::{ErrorCode, FileAttr, NodeId, encode_rdev};
use extant_engine::{Attr, Errno, Error, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Node id of the root directory.
const PROTOCOL_ROOT: u64 = 1;

/// Inode number of the root directory on ext4.
const DISK_ROOT: u64 = 2;

/// Returns the inode number of a node id. The two differ for the root directory only; inode 1 of
/// ext4 has no name.
pub fn disk_ino(ino: NodeId) -> u64 {
    match ino.0 {
        PROTOCOL_ROOT => DISK_ROOT,
        other => other,
    }
}

/// Returns the node id of an inode number.
pub fn protocol_ino(ino: u64) -> NodeId {
    NodeId(match ino {
        DISK_ROOT => PROTOCOL_ROOT,
        other => other,
    })
}

/// Converts a time of ext4; times that `SystemTime` cannot hold become the epoch.
pub fn system_time(t: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(t.nsec));
    let whole = Duration::from_secs(t.sec.unsigned_abs());
    let at = if t.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    at.and_then(|at| at.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Converts attributes. `block_size` is the preferred size of requests in bytes.
pub fn file_attr(a: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: protocol_ino(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        kind: a.ftype,
        perm: a.mode & 0o7777,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: encode_rdev(a.rdev),
        blksize: block_size,
    }
}

/// Returns the error code of an error, and logs errors that the caller did not cause.
pub fn errno(e: &Error) -> ErrorCode {
    if !matches!(e, Error::Posix(_)) {
        tracing::error!("{e}");
    }
    ErrorCode::new(match e {
        Error::Corrupt(_) => Errno::Uclean as i32,
        other => other.errno(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_count_nanoseconds_forward() {
        let t = Timestamp { sec: -2, nsec: 800_000_000 };
        assert_eq!(system_time(t), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }

    #[test]
    fn only_the_root_changes_its_number() {
        assert_eq!(disk_ino(NodeId(1)), 2);
        assert_eq!(protocol_ino(2), NodeId(1));
        assert_eq!(disk_ino(protocol_ino(11)), 11);
    }
}
