//! The error of every call.

use extant_blocks::DeviceError;
use extant_engine as engine;
use extant_engine::Errno;
use extant_format::Printable;
use extant_format::error::Corrupt;
use std::{fmt, io};

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which a call failed, with the call, the path and the inode that it was about.
///
/// It takes 16 bytes. An error that POSIX has a number for allocates no memory, unless a path
/// belongs to it: calls that take a path keep a copy of it, calls on handles do not.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// let error = fs.read("/etc/passwd").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.path(), Some(&b"/etc/passwd"[..]));
/// assert_eq!(error.to_string(), "read of /etc/passwd: no such file or directory");
/// # fs.unmount()?; Ok::<(), Error>(())
/// ```
pub struct Error(Repr);

const _: () = assert!(size_of::<Error>() <= 16);

enum Repr {
    Plain(Plain),
    Full(Box<Full>),
}

#[derive(Clone, Copy)]
struct Plain {
    kind: ErrorKind,
    op: Op,
    /// 0 for none.
    inode: u32,
    errno: Errno,
}

struct Full {
    plain: Plain,
    path: Option<Box<[u8]>>,
    cause: Option<engine::Error>,
}

/// Kinds of errors, for programs; [`Error`]'s text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No entry of that name (ENOENT).
    NotFound,
    /// The name exists already (EEXIST).
    AlreadyExists,
    /// The inode is no directory (ENOTDIR).
    NotADirectory,
    /// The inode is a directory (EISDIR).
    IsADirectory,
    /// The directory has entries (ENOTEMPTY).
    DirectoryNotEmpty,
    /// An argument has a value that the call does not accept (EINVAL).
    InvalidInput,
    /// The name is longer than 255 bytes, or the path than 4095 (ENAMETOOLONG).
    NameTooLong,
    /// Too many symlinks on the way (ELOOP).
    TooManySymlinks,
    /// No free block or inode (ENOSPC).
    NoSpace,
    /// A quota of the owner is exhausted (EDQUOT).
    QuotaExceeded,
    /// The file would be longer than its map can hold (EFBIG).
    FileTooLarge,
    /// The inode or directory has as many links as the format allows (EMLINK).
    TooManyLinks,
    /// The file system was opened for reading only (EROFS).
    ReadOnly,
    /// Flags of the inode forbid the change, or the handle was not opened for it (EPERM, EACCES,
    /// EBADF).
    PermissionDenied,
    /// Another program or another handle uses the object (EBUSY).
    Busy,
    /// The inode has no such attribute, or the file no such data (ENODATA, ENXIO).
    NoData,
    /// The content is encrypted (ENOKEY).
    Encrypted,
    /// The image or the call needs a feature that this version lacks (EOPNOTSUPP).
    Unsupported,
    /// The device holds no ext4 file system; the text names the format that was found.
    Foreign,
    /// A structure in the image is damaged; [`Error::corrupt`] has its coordinates (EUCLEAN).
    Corrupt,
    /// An earlier error stopped all changes; the errno is EROFS.
    Aborted,
    /// The device failed; [`Error::device`] has the place.
    Device,
    /// The file system was unmounted ([`Fs::unmount`](crate::Fs::unmount)); the errno is ESTALE.
    Unmounted,
    /// The inode was freed (ESTALE).
    Stale,
    /// The handle belongs to another file system; the errno is EXDEV.
    ForeignHandle,
    /// The rename or link would leave a project (EXDEV).
    CrossesProjects,
    /// The wait was interrupted (EINTR).
    Interrupted,
    /// Another reason; [`Error::errno`] has its number.
    Other,
}

macro_rules! ops {
    ($($name:ident $text:literal,)*) => {
        /// The calls that may fail.
        #[derive(Clone, Copy)]
        pub(crate) enum Op { $($name),* }
        impl Op {
            fn name(self) -> &'static str { match self { $(Op::$name => $text),* } }
        }
    };
}

ops! {
    Open "open", Create "create", Unmount "unmount", Freeze "freeze", Thaw "thaw", Grow "grow",
    Sync "sync",
    Lookup "lookup", Metadata "metadata", SetMetadata "set_metadata", Read "read", Write "write",
    OpenFile "open_file", CreateFile "create_file", CreateDir "create_dir",
    CreateDirAll "create_dir_all", RemoveFile "remove_file", RemoveDir "remove_dir",
    Rename "rename", ReadDir "read_dir", Walk "walk", Symlink "symlink", HardLink "hard_link",
    ReadLink "read_link", Xattr "xattr", SetXattr "set_xattr", Xattrs "xattrs",
    RemoveXattr "remove_xattr", SetLen "set_len", Allocate "allocate", Extents "extents",
    Seek "seek",
}

impl Error {
    /// An error of the facade itself.
    pub(crate) fn new(kind: ErrorKind, errno: Errno, op: Op) -> Error {
        Error(Repr::Plain(Plain { kind, op, inode: 0, errno }))
    }

    /// The engine's error of a call on an inode, 0 for none.
    #[cold]
    pub(crate) fn of(error: engine::Error, op: Op, inode: u32) -> Error {
        let kind = match &error {
            engine::Error::Posix(errno) => kind_of(*errno),
            engine::Error::Unmounted => ErrorKind::Unmounted,
            engine::Error::Io(cause) if matches!(op, Op::Open) => match cause.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::ResourceBusy => ErrorKind::Busy,
                _ => ErrorKind::Device,
            },
            engine::Error::Io(_) => ErrorKind::Device,
            engine::Error::Corrupt(_) => ErrorKind::Corrupt,
            engine::Error::Unsupported(_) => ErrorKind::Unsupported,
            engine::Error::Foreign(_) => ErrorKind::Foreign,
            engine::Error::Invalid(_) => ErrorKind::InvalidInput,
            engine::Error::Aborted(_) => ErrorKind::Aborted,
            _ => ErrorKind::Other,
        };
        let plain = |errno| Error(Repr::Plain(Plain { kind, op, inode, errno }));
        match error {
            engine::Error::Posix(errno) => plain(errno),
            engine::Error::Unmounted => plain(Errno::Stale),
            cause => {
                // The number comes from the cause.
                let plain = Plain { kind, op, inode, errno: Errno::Io };
                Error(Repr::Full(Box::new(Full { plain, path: None, cause: Some(cause) })))
            }
        }
    }

    /// The same error with the path that the call was given, and the call itself.
    #[cold]
    pub(crate) fn at(self, op: Op, path: &[u8]) -> Error {
        let mut full = match self.0 {
            Repr::Plain(plain) => Box::new(Full { plain, path: None, cause: None }),
            Repr::Full(full) => full,
        };
        full.plain.op = op;
        full.path = Some(path.into());
        Error(Repr::Full(full))
    }

    fn plain(&self) -> &Plain {
        match &self.0 {
            Repr::Plain(plain) => plain,
            Repr::Full(full) => &full.plain,
        }
    }

    fn cause(&self) -> Option<&engine::Error> {
        match &self.0 {
            Repr::Plain(_) => None,
            Repr::Full(full) => full.cause.as_ref(),
        }
    }

    /// The kind of the error. See [`Error`] for an example.
    pub fn kind(&self) -> ErrorKind {
        self.plain().kind
    }

    /// The number that a system call on Linux gives for this error, such as 2 for ENOENT.
    pub fn errno(&self) -> i32 {
        self.cause().map_or(self.plain().errno as i32, engine::Error::errno)
    }

    /// The name of the call that failed, such as `create_dir_all`.
    pub fn op(&self) -> &'static str {
        self.plain().op.name()
    }

    /// The path that the call was given: bytes, not always UTF-8. `None` for calls on handles,
    /// which take names at most.
    pub fn path(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::Plain(_) => None,
            Repr::Full(full) => full.path.as_deref(),
        }
    }

    /// The number of the inode that the call was about, or that is damaged.
    pub fn inode(&self) -> Option<u32> {
        let damaged = self.corrupt().and_then(Corrupt::inode).map(|ino| ino.0);
        damaged.or(Some(self.plain().inode)).filter(|&ino| ino != 0)
    }

    /// The damaged structure of an error of the kind [`ErrorKind::Corrupt`].
    pub fn corrupt(&self) -> Option<&Corrupt> {
        match self.cause()? {
            engine::Error::Corrupt(corrupt) => Some(corrupt),
            _ => None,
        }
    }

    /// The request that a device failed, with offset and length in bytes, if the device told them.
    pub fn device(&self) -> Option<&DeviceError> {
        match self.cause()? {
            engine::Error::Io(error) => error.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NoEnt => ErrorKind::NotFound,
        Errno::Exist => ErrorKind::AlreadyExists,
        Errno::NotDir => ErrorKind::NotADirectory,
        Errno::IsDir => ErrorKind::IsADirectory,
        Errno::NotEmpty => ErrorKind::DirectoryNotEmpty,
        Errno::Inval | Errno::Range | Errno::Overflow | Errno::TooBig => ErrorKind::InvalidInput,
        Errno::NameTooLong => ErrorKind::NameTooLong,
        Errno::Loop => ErrorKind::TooManySymlinks,
        Errno::NoSpc => ErrorKind::NoSpace,
        Errno::DQuot => ErrorKind::QuotaExceeded,
        Errno::FBig => ErrorKind::FileTooLarge,
        Errno::Mlink => ErrorKind::TooManyLinks,
        Errno::RoFs => ErrorKind::ReadOnly,
        Errno::Perm | Errno::Acces | Errno::BadF => ErrorKind::PermissionDenied,
        Errno::Busy | Errno::TxtBsy => ErrorKind::Busy,
        Errno::NoData | Errno::Nxio => ErrorKind::NoData,
        Errno::NoKey => ErrorKind::Encrypted,
        Errno::OpNotSupp => ErrorKind::Unsupported,
        Errno::Uclean => ErrorKind::Corrupt,
        Errno::Stale => ErrorKind::Stale,
        Errno::Xdev => ErrorKind::CrossesProjects,
        Errno::Intr => ErrorKind::Interrupted,
        Errno::Io => ErrorKind::Device,
        _ => ErrorKind::Other,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.plain();
        f.write_str(self.op())?;
        match self.path() {
            Some(path) => write!(f, " of {}", Printable(path))?,
            None if plain.inode != 0 => write!(f, " of inode {}", plain.inode)?,
            None => {}
        }
        match (plain.kind, self.cause()) {
            (_, Some(cause)) => write!(f, ": {cause}"),
            (ErrorKind::Unmounted, None) => f.write_str(": the file system was unmounted"),
            (ErrorKind::ForeignHandle, None) => {
                f.write_str(": the handle belongs to another file system")
            }
            (_, None) => write!(f, ": {}", plain.errno.message()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, errno {}: {self})", self.kind(), self.errno())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.cause()? {
            engine::Error::Io(error) => Some(error),
            engine::Error::Corrupt(corrupt) => Some(corrupt),
            _ => None,
        }
    }
}

/// The [`io::Error`] has the kind that std gives the errno, and the [`Error`] inside.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}
