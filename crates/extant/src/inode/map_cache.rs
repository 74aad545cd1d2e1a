//! The in-memory extent status of one inode: plain data; `extent` keeps it.

/// Cached runs of the map.
#[derive(Debug, Default)]
pub struct MapCache {}
