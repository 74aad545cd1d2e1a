//! Why a command failed, and the exit code that says so.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Exit code of a command that failed.
const FAILED: u8 = 1;

/// Exit code of wrong usage.
const USAGE: u8 = 2;

/// A failed command: what standard error says, and the exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    /// Nothing if everything was said already.
    message: Option<String>,
}

/// Result of a command or a step of it.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// It failed; `message` says what and where.
    pub fn new(message: impl Display) -> Failure {
        Failure { code: FAILED, message: Some(message.to_string()) }
    }

    /// It was called wrongly.
    pub fn usage(message: impl Display) -> Failure {
        Failure { code: USAGE, message: Some(message.to_string()) }
    }

    /// It failed, and each reason was told when it came up.
    pub fn told() -> Failure {
        Failure { code: FAILED, message: None }
    }

    /// What there is left to say.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Says why on standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if let Some(message) = &self.message {
            crate::context::complain(message);
        }
        ExitCode::from(self.code)
    }
}

/// Output that could not be written. A reader that has gone away is not worth a message.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::told(),
            _ => Failure::new(format_args!("standard output: {error}")),
        }
    }
}

/// Says where an error happened.
pub trait At<T> {
    /// The error with the place before it.
    fn at(self, place: impl Display) -> Result<T>;
}

impl<T, E: Display> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|error| Failure::new(format_args!("{place}: {error}")))
    }
}
