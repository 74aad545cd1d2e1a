//! Figures, and standard output.

use std::io::{self, Write as _};

/// Returns a rate in three digits or so.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Writes to standard output.
///
/// # Errors
/// Those of writing; a reader that has gone away is one of them.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
