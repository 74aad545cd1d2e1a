//! Errors of building: the path in the image, and the cause.

use extant_format::Printable;
use std::{fmt, io};

/// Errors of building.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An entry that no image can hold, or that contradicts earlier ones.
    Entry {
        /// Path in the image, from its root, without a leading `/`.
        path: Vec<u8>,
        /// Cause, as a part of a sentence.
        cause: String,
    },
    /// The content of a file cannot be read, or has changed since it was added.
    Content {
        /// Path in the image, from its root, without a leading `/`.
        path: Vec<u8>,
        /// Error of the source.
        error: io::Error,
    },
    /// The requested size is too small.
    TooSmall {
        /// Requested size, in bytes.
        asked: u64,
        /// A size that is enough, in bytes; `None` if none is known.
        needed: Option<u64>,
    },
    /// Invalid options, or a failure of the device.
    Layout(extant_mkfs::Error),
}

impl From<extant_mkfs::Error> for Error {
    fn from(error: extant_mkfs::Error) -> Self {
        match error {
            extant_mkfs::Error::Io(error) => match error.downcast::<Error>() {
                Ok(own) => own,
                Err(error) => Error::Layout(extant_mkfs::Error::Io(error)),
            },
            other => Error::Layout(other),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Layout(extant_mkfs::Error::Io(error))
    }
}

/// Result of building.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn entry(path: &[u8], cause: impl fmt::Display) -> Error {
        Error::Entry { path: path.to_vec(), cause: cause.to_string() }
    }
}

/// Returns a path of the image for a message.
fn shown(path: &[u8]) -> Printable<'_> {
    Printable(if path.is_empty() { b"/" } else { path })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Entry { path, cause } => write!(f, "{}: {cause}", shown(path)),
            Error::Content { path, error } => {
                write!(f, "{}: the content cannot be read: {error}", shown(path))
            }
            Error::TooSmall { asked, needed } => {
                write!(f, "{asked} bytes are too small for the content")?;
                needed.map_or(Ok(()), |needed| write!(f, "; {needed} are enough"))
            }
            Error::Layout(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Content { error, .. } => Some(error),
            Error::Layout(error) => Some(error),
            Error::Entry { .. } | Error::TooSmall { .. } => None,
        }
    }
}
