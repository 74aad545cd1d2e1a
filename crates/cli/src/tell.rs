//! Single lines: to people on standard error, and through a pipe on standard output to the process
//! that started this one.

use crate::text::shown;
use std::fmt::Display;
use std::io::{self, Write};

/// The first word of a line to the process that started this one: a remark.
pub const NOTE: &str = "note";

/// Says something on standard error: one line, in which names of an image cannot forge others.
pub fn complain(message: impl Display) {
    let message = shown(message.to_string().as_bytes());
    // Nothing is left to do if that cannot be written either.
    let _ = writeln!(io::stderr().lock(), "extant: {message}");
}

/// Tells the process that started this one a line of that first word.
pub fn send(word: &str, text: impl Display) {
    let text = text.to_string().replace('\n', "; ");
    let mut out = io::stdout().lock();
    // If the parent is gone, the message has no reader.
    let _ = writeln!(out, "{word} {text}").and_then(|()| out.flush());
}
