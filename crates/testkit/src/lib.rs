//! Fixtures and oracles for tests.
//!
//! - [`image`] makes file systems with `mke2fs`, one for each named feature set;
//! - [`e2fsck`], [`debugfs`] and [`dumpe2fs`] run the tools of e2fsprogs and parse their output,
//!   [`counts`] compares their counts;
//! - [`judge`] runs all of them, and compares the kernel's tree with the one that Extant reads;
//! - [`cuts`] gives the states in which a power cut may leave an image;
//! - [`kernel`] mounts an image with the kernel's ext4 through a loop device;
//! - [`host`] mounts a host of a few megabytes, and takes all of its space;
//! - [`Authority`] signs certificates for TLS;
//! - [`figures`] keeps the counts of long runs;
//! - [`memory`] is a device in memory whose image is judged, too;
//! - [`tree`] makes seeded random trees, walks a tree into a manifest and compares two manifests;
//! - [`verity`] makes files with hash trees;
//! - [`vhost`] is a virtual machine as far as its disk sees it.
//!
//! No check is skipped: a missing tool or privilege fails the test, and the message names the
//! package to install. Functions panic with a message instead of returning errors, since their
//! callers are tests.
#![forbid(unsafe_code)]

mod authority;
pub mod counts;
pub mod cuts;
pub mod debugfs;
pub mod dumpe2fs;
pub mod e2fsck;
mod ending;
pub mod figures;
mod fsck;
pub mod host;
pub mod image;
pub mod judge;
pub mod kernel;
pub mod memory;
pub mod rng;
pub mod scratch;
pub mod tool;
pub mod tree;
pub mod verity;
pub mod vhost;

pub use authority::{Authority, Validity};
pub use ending::Ending;
pub use image::{FEATURE_SETS, FeatureSet, Image};
pub use memory::Memory;
pub use scratch::Scratch;
pub use tool::need;

/// The examples of the repository's README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
