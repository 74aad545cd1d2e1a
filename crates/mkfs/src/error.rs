//! Errors of mkfs.

use std::{fmt, io};

/// Errors of mkfs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An invalid option or combination of options; the text names it and the reason.
    Invalid(String),
    /// The device is too small; the text names the part that does not fit.
    TooSmall(String),
    /// A feature that exists but that this crate does not support.
    Unsupported(String),
    /// The device failed, or a source of content.
    Io(io::Error),
}

/// Result of making a file system.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(super) fn invalid<T>(why: impl Into<String>) -> Result<T> {
        Err(Error::Invalid(why.into()))
    }

    pub(super) fn too_small<T>(what: impl fmt::Display) -> Result<T> {
        Err(Error::TooSmall(what.to_string()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(why) => f.write_str(why),
            Error::TooSmall(what) => write!(f, "the device is too small: {what}"),
            Error::Unsupported(what) => write!(f, "not supported: {what}"),
            Error::Io(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error::Io(e)
    }
}

impl From<extant_format::Corrupt> for Error {
    /// Converts a refusal by `extant-format`, whose checks decide about a layout. A layout that
    /// they refuse follows from invalid options.
    fn from(c: extant_format::Corrupt) -> Self {
        Error::Invalid(format!("the options give no valid file system: {c}"))
    }
}
