//! Builds ext4 images from trees of files, without mounting and without privileges.
//!
//! A [`Tree`] collects entries from any number of sources, in memory and without content.
#![forbid(unsafe_code)]

mod crew;
mod error;
mod holes;
mod layout;
mod options;
mod plan;
mod planner;
mod stream;
mod tree;
mod verity;
mod write;

pub use error::{Error, Result};
pub use extant_blocks::HostBytes;
pub use extant_mkfs as mkfs;
pub use options::{BuildOptions, FreeSpace, ImageSize};
pub use plan::{ImageFacts, ImagePlan, plan};
pub use stream::{ContentSink, ContentStream};
pub use tree::{
    Attributes, ContentSource, DataRange, EntryKind, FileContent, OpenContent, SourceId, Tree,
    TreeEntry,
};
pub use verity::{VerityOptions, VerityTree};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
