//! Members of an archive.

use super::sparse::Range;
use extant_format::Timestamp;

/// A member of an archive: a header with its extensions.
#[derive(Clone, Debug)]
pub struct Member {
    /// Byte of the archive with the first header.
    pub offset: u64,
    /// Path as it stands in the archive, possibly with a leading `/`, or with `..`.
    pub path: Vec<u8>,
    /// Kind, with the data of this kind.
    pub kind: MemberKind,
    /// Permission bits, with set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Name of the owner; empty if it is not stored.
    pub user: Vec<u8>,
    /// Name of the group; empty if it is not stored.
    pub group: Vec<u8>,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Extended attributes: full names and values. Of equal names the last counts.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control list as text.
    pub acl_access: Option<Vec<u8>>,
    /// Default access control list of a directory as text.
    pub acl_default: Option<Vec<u8>>,
}

/// Kind of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemberKind {
    /// Directory.
    Directory,
    /// Regular file.
    File(FileData),
    /// Symlink with its target.
    Symlink(Vec<u8>),
    /// Further name of an earlier member, whose path it has.
    HardLink(Vec<u8>),
    /// Character device: major and minor number.
    CharDevice(u32, u32),
    /// Block device: major and minor number.
    BlockDevice(u32, u32),
    /// Named pipe.
    Fifo,
}

/// Data of a regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileData {
    /// Bytes of the file.
    pub size: u64,
    /// Byte of the archive with the first byte of data.
    pub offset: u64,
    /// Bytes of data in the archive.
    pub stored: u64,
    /// Ranges of the file that the data fills one after the other; `None` for the whole file.
    pub ranges: Option<Vec<Range>>,
}
