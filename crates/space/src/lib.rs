//! Free-space data structures without I/O.
#![forbid(unsafe_code)]
