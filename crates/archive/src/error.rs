//! Errors of sources: archive, member, byte and cause.

use extant_format::Printable;
use std::{fmt, io};

/// An error of a source.
#[derive(Debug)]
pub struct Error {
    source: String,
    member: Option<Vec<u8>>,
    offset: Option<u64>,
    cause: Cause,
}

/// Cause of an error.
#[derive(Debug)]
enum Cause {
    Text(String),
    Io(io::Error),
    Image(extant_image::Error),
}

/// Result of reading a source.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error with a cause, which is a part of a sentence.
    pub(crate) fn new(cause: impl fmt::Display) -> Error {
        Cause::Text(cause.to_string()).into()
    }

    /// Names the source: an archive, a layout, or a blob in it. The innermost name stands last.
    pub(crate) fn in_source(mut self, name: impl fmt::Display) -> Error {
        self.source = if self.source.is_empty() {
            name.to_string()
        } else {
            format!("{name}: {}", self.source)
        };
        self
    }

    /// Names the member, unless one is named.
    pub(crate) fn in_member(mut self, path: &[u8]) -> Error {
        self.member.get_or_insert_with(|| path.to_vec());
        self
    }

    /// Names the byte in the archive, unless one is named.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.offset.get_or_insert(offset);
        self
    }

    /// Returns the path of the archive's member that the error is about.
    pub fn member(&self) -> Option<&[u8]> {
        self.member.as_deref()
    }

    /// Returns the byte of the uncompressed archive with the header of the member, or with the
    /// damage.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// Returns the error of the operating system, if one is the cause.
    pub fn io(&self) -> Option<&io::Error> {
        match &self.cause {
            Cause::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Error {
        Error { source: String::new(), member: None, offset: None, cause }
    }
}

impl From<String> for Error {
    fn from(cause: String) -> Error {
        Cause::Text(cause).into()
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Cause::Io(error).into()
    }
}

impl From<extant_image::Error> for Error {
    fn from(error: extant_image::Error) -> Error {
        Cause::Image(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.source.is_empty() {
            write!(f, "{}: ", self.source)?;
        }
        if let Some(member) = &self.member {
            write!(f, "{}: ", Printable(member))?;
        }
        if let Some(offset) = self.offset {
            write!(f, "at byte {offset}: ")?;
        }
        match &self.cause {
            Cause::Text(text) => f.write_str(text),
            Cause::Io(error) => error.fmt(f),
            Cause::Image(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Io(error) => Some(error),
            Cause::Image(error) => Some(error),
            Cause::Text(_) => None,
        }
    }
}
