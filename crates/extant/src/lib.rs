//! ext4 in user space: open, create, read, write, recover.
#![forbid(unsafe_code)]

pub use extant_engine::*;

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the guide are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;
