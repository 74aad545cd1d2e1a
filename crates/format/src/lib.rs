//! On-disk structures of ext4 and jbd2: types, checksums, hashes, total parsing.
//!
//! All code with byte offsets, byte orders or bits of on-disk fields is in this crate. Raw types
//! mirror the disk; parsers make validated types from them. Parsing is total: any bytes give a
//! value or a [`Corrupt`], never a panic, an endless loop, or an allocation whose size depends on a
//! field alone.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod acl;
pub mod bitmap;
mod bytes;
pub mod checksum;
pub mod dir;
pub mod error;
pub mod extent;
pub mod features;
pub mod geometry;
pub mod group_desc;
pub mod growth;
pub mod htree;
pub mod indirect;
pub mod inline;
pub mod inode;
pub mod jbd2;
pub mod mmp;
pub mod orphan;
mod printable;
pub mod quota;
pub mod seal;
pub mod superblock;
pub mod types;
pub mod verity;
pub mod xattr;

pub use error::{Corrupt, Result};
pub use features::{Compat, Feature, Features, Incompat, RoCompat};
pub use geometry::Geometry;
pub use group_desc::{GroupDesc, GroupFlags};
pub use inode::{Inode, InodeFlags};
pub use printable::Printable;
pub use superblock::Superblock;
pub use types::{BlockNr, FileType, GroupNr, InodeNr, LogicalBlock, Timestamp};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
