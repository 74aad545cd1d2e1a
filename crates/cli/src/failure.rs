//! Failures of commands, and their exit codes.

use crate::json;
use crate::text::{shown, without_secrets};
use extant_engine::Error;
use extant_engine::device::DeviceError;
use serde_json::{Map, Value, json};
use std::any::Any;
use std::fmt::Display;
use std::io;

/// Exit code of a command that failed.
const FAILED: u8 = 1;

/// Exit code of wrong usage.
const USAGE: u8 = 2;

/// A failed command: its message on standard error, its exit code, and the coordinates for JSON.
#[derive(Debug)]
pub struct Failure {
    exit: u8,
    /// `None` if the message was printed already.
    message: Option<String>,
    cause: Box<Cause>,
    /// Object of the failure: a path in the image or on the host, or the image.
    path: Option<Vec<u8>>,
    /// Changes before the failure, for the JSON document.
    before: Map<String, Value>,
}

/// The class of a failure and its coordinates, as far as they are known.
#[derive(Clone, Debug)]
struct Cause {
    code: &'static str,
    errno: Option<i32>,
    place: Option<Value>,
}

/// Result of a command or a step of it.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Every code that a failure may have.
const CODES: [&str; 11] = [
    "failed",
    "usage",
    "in_use",
    "interrupted",
    "io",
    "corrupt",
    "unsupported",
    "foreign",
    "invalid",
    "aborted",
    "refused",
];

impl Cause {
    /// A failure of no known class.
    const UNKNOWN: Cause = Cause { code: "failed", errno: None, place: None };

    fn of(error: &dyn Any) -> Cause {
        match (error.downcast_ref::<Error>(), error.downcast_ref::<io::Error>()) {
            (Some(error), _) => {
                Cause { code: code(error), errno: Some(error.errno()), place: place(error) }
            }
            (_, Some(error)) => {
                Cause { code: "io", errno: error.raw_os_error(), place: device_place(error) }
            }
            _ => Cause::UNKNOWN,
        }
    }
}

fn code(error: &Error) -> &'static str {
    match error {
        Error::Io(e) if e.kind() == io::ErrorKind::ResourceBusy => "in_use",
        Error::Posix(extant_engine::Errno::Intr) => "interrupted",
        Error::Io(_) => "io",
        Error::Corrupt(_) => "corrupt",
        Error::Unsupported(_) => "unsupported",
        Error::Foreign(_) => "foreign",
        Error::Invalid(_) => "invalid",
        Error::Aborted(_) => "aborted",
        _ => "refused",
    }
}

/// Returns the coordinates of an error on the device or in the file system.
fn place(error: &Error) -> Option<Value> {
    match error {
        Error::Io(error) => device_place(error),
        Error::Corrupt(corrupt) => Some(json!({
            "structure": corrupt.what(),
            "field": corrupt.field_name(),
            "found": corrupt.found_value(),
            "expected": corrupt.expected_value(),
            "inode": corrupt.inode().map(|ino| ino.0),
            "group": corrupt.group().map(|group| group.0),
            "block": corrupt.block().map(|block| block.0),
        })),
        _ => None,
    }
}

fn device_place(error: &io::Error) -> Option<Value> {
    let error = error.get_ref()?.downcast_ref::<DeviceError>()?;
    Some(json!({
        "device": error.device,
        "operation": error.op.to_string(),
        "offset": error.offset,
        "len": error.len,
    }))
}

impl Failure {
    fn with_exit(exit: u8, cause: Cause, message: Option<String>) -> Failure {
        Failure { exit, message, cause: Box::new(cause), path: None, before: Map::new() }
    }

    /// Makes a failure; `message` must name object and cause.
    pub fn new(message: impl Display) -> Failure {
        Failure::with_exit(FAILED, Cause::UNKNOWN, Some(message.to_string()))
    }

    /// Makes a failure from an error of the engine about `path`.
    pub fn of(error: &Error, path: impl AsRef<[u8]>, message: impl Display) -> Failure {
        Failure {
            cause: Box::new(Cause::of(error)),
            path: Some(path.as_ref().to_vec()),
            ..Failure::new(message)
        }
    }

    /// Makes a failure of wrong usage.
    pub fn usage(message: impl Display) -> Failure {
        let cause = Cause { code: "usage", ..Cause::UNKNOWN };
        Failure::with_exit(USAGE, cause, Some(message.to_string()))
    }

    /// Returns whether a signal ended the command.
    pub fn is_interruption(&self) -> bool {
        self.cause.code == "interrupted"
    }

    /// Makes a failure whose reasons were all printed before.
    pub fn told() -> Failure {
        Failure::with_exit(FAILED, Cause::UNKNOWN, None)
    }

    /// Sets the message.
    pub fn with_message(self, message: String) -> Failure {
        Failure { message: Some(message), ..self }
    }

    /// Sets the exit code of the program.
    pub fn with_exit_code(self, exit: u8) -> Failure {
        Failure { exit, ..self }
    }

    /// Adds the changes before the failure, for the JSON document.
    pub fn after(mut self, before: Map<String, Value>) -> Failure {
        self.before = before;
        self
    }

    /// Returns the failure as one line, for the process that started this one.
    pub fn to_wire(&self) -> String {
        self.object().to_string()
    }

    /// Parses the output of [`Failure::to_wire`]. Any other text becomes the message.
    pub fn from_wire(line: &str) -> Failure {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else {
            return Failure::new(line);
        };
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let code = text("code").unwrap_or_default();
        let cause = Cause {
            code: CODES.iter().find(|known| **known == code).unwrap_or(&Cause::UNKNOWN.code),
            errno: object
                .get("errno")
                .and_then(Value::as_i64)
                .and_then(|errno| i32::try_from(errno).ok()),
            place: object.get("place").filter(|place| !place.is_null()).cloned(),
        };
        Failure {
            cause: Box::new(cause),
            path: json::bytes(&object, "path"),
            ..Failure::new(text("message").unwrap_or_default())
        }
    }

    /// Returns the message that was not printed yet.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns the failure as a JSON object.
    pub fn object(&self) -> Value {
        let message = self.message.as_deref().unwrap_or("standard error has each reason");
        let mut object = Map::new();
        object.insert("code".into(), self.cause.code.into());
        object.insert("exit_code".into(), self.exit.into());
        object.insert("message".into(), shown(message.as_bytes()).into());
        match &self.path {
            Some(path) => json::put_bytes(&mut object, "path", path),
            None => drop(object.insert("path".into(), Value::Null)),
        }
        object.insert("place".into(), self.cause.place.clone().unwrap_or_default());
        object.insert("errno".into(), self.cause.errno.into());
        object.into()
    }

    /// Returns the JSON document: the work done before, and the failure.
    pub fn document(&self) -> Value {
        let mut document = self.before.clone();
        document.insert("error".into(), self.object());
        document.into()
    }

    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        self.exit
    }
}

/// Output that could not be written. A reader that has gone away is not worth a message.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::told(),
            _ => Failure {
                cause: Box::new(Cause::of(&error)),
                ..Failure::new(format_args!("standard output: {error}"))
            },
        }
    }
}

/// Says where an error happened.
pub trait At<T> {
    /// Puts `place` before the message of an error.
    fn at(self, place: impl Display) -> Result<T>;

    /// Puts a path before the message of an error.
    fn at_path(self, path: impl AsRef<[u8]>) -> Result<T>;
}

impl<T, E: Display + 'static> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|error| Failure {
            cause: Box::new(Cause::of(&error)),
            path: Some(place.to_string().into_bytes()),
            ..Failure::new(format_args!("{place}: {error}"))
        })
    }

    fn at_path(self, path: impl AsRef<[u8]>) -> Result<T> {
        let path = &*without_secrets(path.as_ref());
        let failed = self.at(shown(path));
        failed.map_err(|failure| Failure { path: Some(path.to_vec()), ..failure })
    }
}
