//! Sources of ext4 images: directories, tar archives, images of containers and manifests.
//!
//! A [`Loader`] adds them to an [`extant_image::Tree`], in the order of the calls. Archives are
//! plain or compressed by gzip, zstd, xz or bzip2, which the first bytes show.
#![forbid(unsafe_code)]

mod acl;
mod ahead;
mod blobs;
mod bzip;
mod codec;
mod digest;
mod directory;
mod error;
mod files;
mod layer;
mod loader;
mod members;
mod mtree;
mod oci;
mod patterns;
mod spool;
mod stream;
mod tar;
mod verification;

pub use directory::{ScanOptions, root_is_feigned, shown_ids};
pub use error::{Error, Result};
pub use loader::{Input, Loader};
pub use oci::{Container, Platform, Selection};
pub use patterns::{Patterns, glob_matches};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
