//! Serves an Extant file system through FUSE.
#![forbid(unsafe_code)]
