//! The cached pages of one file: plain data; `file` keeps them.

/// Cached pages and their states.
#[derive(Debug, Default)]
pub struct Pages {}
