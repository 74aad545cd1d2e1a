//! The error of every operation, and its one translation to an errno.

use extant_blocks::Signature;
use extant_format::error::Corrupt;
use std::{fmt, io};

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The device failed; the message names the operation and the place.
    Io(io::Error),
    /// A structure in the image is wrong. The value has the structure, its position, and the found
    /// and expected values.
    Corrupt(Corrupt),
    /// The image uses something that this version does not support; the text names it.
    Unsupported(String),
    /// The device holds something else than ext4; the value names it.
    Foreign(Signature),
    /// Options that make no sense together; the text says why.
    Invalid(String),
    /// The journal was aborted after an earlier error; nothing can be changed any more.
    Aborted(String),
    /// The file system was unmounted, and the handle with it.
    Unmounted,
    /// The operation is not possible, for the reason that POSIX gives this number.
    Posix(Errno),
}

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $nr:literal, $text:literal;)*) => {
        /// POSIX errors that operations give (numbers as on Linux).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "names of POSIX; `message` has the text")]
        pub enum Errno { $($name = $nr),* }
        impl Errno {
            /// Returns the text of strerror(3).
            pub fn message(self) -> &'static str { match self { $(Errno::$name => $text),* } }
        }
    };
}

errnos! {
    Perm = 1, "operation not permitted";
    NoEnt = 2, "no such file or directory";
    Intr = 4, "interrupted";
    Io = 5, "input/output error";
    Nxio = 6, "no such device or address";
    TooBig = 7, "argument list too long";
    BadF = 9, "bad file descriptor";
    Again = 11, "resource temporarily unavailable";
    NoMem = 12, "cannot allocate memory";
    Acces = 13, "permission denied";
    Busy = 16, "device or resource busy";
    Exist = 17, "file exists";
    Xdev = 18, "invalid cross-device link";
    NotDir = 20, "not a directory";
    IsDir = 21, "is a directory";
    Inval = 22, "invalid argument";
    NotTy = 25, "inappropriate ioctl for device";
    TxtBsy = 26, "text file busy";
    FBig = 27, "file too large";
    NoSpc = 28, "no space left on device";
    RoFs = 30, "read-only file system";
    Mlink = 31, "too many links";
    Range = 34, "numerical result out of range";
    NameTooLong = 36, "file name too long";
    NotEmpty = 39, "directory not empty";
    Loop = 40, "too many levels of symbolic links";
    NoData = 61, "no data available";
    Overflow = 75, "value too large for defined data type";
    OpNotSupp = 95, "operation not supported";
    Stale = 116, "stale file handle";
    Uclean = 117, "structure needs cleaning";
    DQuot = 122, "disk quota exceeded";
    NoKey = 126, "required key not available";
}

impl Error {
    /// The number that a system call would give.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io(e) => {
                extant_blocks::raw_os_error(e).unwrap_or_else(|| errno_of_kind(e.kind()))
            }
            Error::Corrupt(_) => Errno::Uclean as i32,
            Error::Unsupported(_) => Errno::OpNotSupp as i32,
            Error::Foreign(_) => Errno::Inval as i32,
            Error::Aborted(_) => Errno::RoFs as i32,
            Error::Invalid(_) => Errno::Inval as i32,
            Error::Unmounted => Errno::Stale as i32,
            Error::Posix(e) => *e as i32,
        }
    }

    /// Returns the same error, with kind, number and text, for another caller that shared the
    /// failed work.
    pub(crate) fn to_another(&self) -> Error {
        match self {
            Error::Io(e) => Error::Io(
                extant_blocks::raw_os_error(e)
                    .map_or_else(|| copy_io(e), io::Error::from_raw_os_error),
            ),
            Error::Corrupt(c) => Error::Corrupt(c.clone()),
            Error::Unsupported(what) => Error::Unsupported(what.clone()),
            Error::Foreign(found) => Error::Foreign(*found),
            Error::Invalid(why) => Error::Invalid(why.clone()),
            Error::Aborted(why) => Error::Aborted(why.clone()),
            Error::Unmounted => Error::Unmounted,
            Error::Posix(e) => Error::Posix(*e),
        }
    }

    /// Whether this is the POSIX error `e`.
    pub fn is(&self, e: Errno) -> bool {
        matches!(self, Error::Posix(own) if *own == e)
    }
}

/// The number for errors that no system call gave.
fn errno_of_kind(kind: io::ErrorKind) -> i32 {
    let errno = match kind {
        io::ErrorKind::NotFound => Errno::NoEnt,
        io::ErrorKind::PermissionDenied => Errno::Acces,
        io::ErrorKind::ResourceBusy => Errno::Busy,
        io::ErrorKind::ReadOnlyFilesystem => Errno::RoFs,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Errno::NoSpc,
        io::ErrorKind::Unsupported => Errno::OpNotSupp,
        io::ErrorKind::StaleNetworkFileHandle => Errno::Stale,
        _ => Errno::Io,
    };
    errno as i32
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Corrupt(c) => write!(f, "corrupt: {c}"),
            Error::Unsupported(what) => write!(f, "not supported: {what}"),
            Error::Foreign(found) => write!(f, "holds {}, not an ext4 file system", found.name),
            Error::Invalid(why) => f.write_str(why),
            Error::Aborted(why) => write!(f, "journal aborted: {why}"),
            Error::Unmounted => f.write_str("the file system was unmounted"),
            Error::Posix(e) => f.write_str(e.message()),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        if extant_blocks::is_revoked(&e) { Error::Unmounted } else { Error::Io(e) }
    }
}

/// The number of a system call stays; other errors keep their text.
impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Io(error) => error,
            Error::Posix(_) => io::Error::from_raw_os_error(e.errno()),
            other => io::Error::other(other.to_string()),
        }
    }
}

impl From<Corrupt> for Error {
    fn from(e: Corrupt) -> Self {
        Error::Corrupt(e)
    }
}

impl From<Errno> for Error {
    fn from(e: Errno) -> Self {
        Error::Posix(e)
    }
}

#[cfg(feature = "mkfs")]
impl From<extant_mkfs::Error> for Error {
    fn from(e: extant_mkfs::Error) -> Self {
        use extant_mkfs::Error as Made;
        match e {
            Made::Io(e) => Error::Io(e),
            Made::Unsupported(what) => Error::Unsupported(what),
            // The text names the need for space, which a number cannot.
            other => Error::Invalid(other.to_string()),
        }
    }
}

impl From<extant_journal::Error> for Error {
    fn from(e: extant_journal::Error) -> Self {
        use extant_journal::Error as J;
        match e {
            J::Io(e) if extant_blocks::is_revoked(&e) => Error::Unmounted,
            J::Io(e) | J::NoSpace(e) => Error::Io(copy_io(&e)),
            J::Corrupt(c) => Error::Corrupt(c),
            J::Unsupported(what) => Error::Unsupported(what.into()),
            J::NoCredits { .. } => Errno::NoSpc.into(),
            other => Error::Aborted(other.to_string()),
        }
    }
}

/// Returns the error of waiting for a commit that never happens: accepted changes are lost, so this
/// is EIO, and not EROFS as for later changes.
pub(crate) fn lost(e: extant_journal::Error) -> Error {
    match e {
        extant_journal::Error::Aborted(_) => {
            Error::Io(io::Error::other(format!("changes that were not yet durable are lost: {e}")))
        }
        other => other.into(),
    }
}

/// An I/O error that is told to several waiters.
fn copy_io(e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::{BlockDevice, MountedDevice};
    use extant_testkit::Memory;

    #[test]
    fn a_transfer_after_the_unmount_is_no_error_of_the_device() {
        let device = MountedDevice::unclaimed(std::sync::Arc::new(Memory::new(4096)));
        device.revoke();
        let error = Error::from(device.flush().unwrap_err());
        assert!(matches!(error, Error::Unmounted), "{error}");
        assert_eq!(error.errno(), Errno::Stale as i32);
        let own = io::Error::from(io::ErrorKind::StaleNetworkFileHandle);
        assert!(matches!(Error::from(own), Error::Io(_)));
    }
}
