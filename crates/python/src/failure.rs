//! Errors of the libraries on their way to Python.

use extant::{Corrupt, mkfs};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::any::Any;
use std::io;

/// Result of work without the lock of the interpreter.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Numbers that Linux gives the errors of this crate's own.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;

/// An error with the facts that `extant.Error` has.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: i32,
    /// The kind, as `not_found`.
    kind: String,
    message: String,
    path: Option<Vec<u8>>,
    inode: Option<u32>,
    corrupt: Option<Corrupt>,
}

impl Failure {
    fn new(errno: i32, kind: &str, message: impl Into<String>) -> Failure {
        let (kind, message) = (kind.into(), message.into());
        Failure { errno, kind, message, path: None, inode: None, corrupt: None }
    }

    /// Makes the failure of a call with wrong arguments.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(EINVAL, "invalid_input", message)
    }

    /// Makes the failure of an object that is closed, or belongs to another process.
    pub(crate) fn stale(message: impl Into<String>) -> Failure {
        Failure::new(ESTALE, "unmounted", message)
    }

    /// Makes the failure of a call that panicked.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Failure {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "without a message".into());
        Failure::new(EIO, "panic", format!("a defect of extant: a call panicked: {text}"))
    }

    /// Names the file, unless one is named.
    pub(crate) fn at(mut self, path: &[u8]) -> Failure {
        self.path.get_or_insert_with(|| path.to_vec());
        self
    }

    /// Names the file of an image.
    pub(crate) fn of_file(mut self, path: &[u8]) -> Failure {
        self.path = Some(path.to_vec());
        self
    }

    /// Makes the exception.
    #[cold]
    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        self.exception(py).unwrap_or_else(|error| error)
    }

    fn exception(self, py: Python<'_>) -> PyResult<PyErr> {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let make = MAKE.get_or_try_init(py, || {
            py.import("extant._errors")?.getattr("make_error").map(Bound::unbind)
        })?;
        let path = self.path.as_deref().map(|path| PyBytes::new(py, path));
        let damage = self.corrupt.map(|corrupt| {
            (
                corrupt.what(),
                corrupt.block().map(|block| block.get()),
                corrupt.group().map(|group| group.get()),
                corrupt.field_name(),
                corrupt.found_value(),
                corrupt.expected_value(),
            )
        });
        let facts = (self.errno, self.message, path, self.kind, self.inode, damage);
        Ok(PyErr::from_value(make.bind(py).call1(facts)?))
    }
}

impl From<extant::Error> for Failure {
    #[cold]
    fn from(error: extant::Error) -> Failure {
        Failure {
            errno: error.errno(),
            kind: snake_case(&format!("{:?}", error.kind())),
            message: error.to_string(),
            path: error.path().map(<[u8]>::to_vec),
            inode: error.inode(),
            corrupt: error.corrupt().cloned(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        extant_engine::Error::Io(error).into()
    }
}

impl From<extant_engine::Error> for Failure {
    fn from(error: extant_engine::Error) -> Failure {
        Failure::new(error.errno(), "device", error.to_string())
    }
}

impl From<mkfs::Error> for Failure {
    fn from(error: mkfs::Error) -> Failure {
        match error {
            mkfs::Error::Io(error) => error.into(),
            mkfs::Error::Unsupported(_) => {
                Failure::new(EOPNOTSUPP, "unsupported", error.to_string())
            }
            other => Failure::invalid(other.to_string()),
        }
    }
}

impl From<extant_image::Error> for Failure {
    fn from(error: extant_image::Error) -> Failure {
        use extant_image::Error as Image;
        let message = error.to_string();
        match error {
            Image::Layout(error) => error.into(),
            Image::Content { error, .. } => Failure { message, ..error.into() },
            Image::TooSmall { .. } => Failure::new(ENOSPC, "no_space", message),
            _ => Failure::invalid(message),
        }
    }
}

impl From<extant_archive::Error> for Failure {
    fn from(error: extant_archive::Error) -> Failure {
        let message = error.to_string();
        match error.io().map(|error| error.raw_os_error().unwrap_or(EIO)) {
            Some(errno) => Failure::new(errno, "device", message),
            None => Failure::invalid(message),
        }
    }
}

/// Returns `NotFound` as `not_found`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
