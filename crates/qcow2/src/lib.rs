//! Disk images in the format qcow2 as block devices.
//!
//! [`Qcow2Device`] is a [`BlockDevice`](extant_blocks::BlockDevice) over the device of an image
//! file. An image may be an overlay of another device, its *backing file*: reads of clusters that
//! the image lacks go there. The caller opens the backing file. The name in the header is never
//! opened, since the header may be that of a stranger.
//!
//! [`create`] makes an empty image, and [`write_image`] one with the content of a device.
//!
//! # Hostile images
//! Readers check the place of each table and cluster when they use it. Writers check all tables
//! when they open: each cluster of the file has one use, and refcounts agree with these uses.
//! Every table that stays in memory has a bound.
#![forbid(unsafe_code)]

mod bytes;
mod changes;
mod commit;
mod compressed;
mod creation;
mod device;
mod file;
mod header;
mod layer;
mod scan;
mod tables;
mod writer;

pub use creation::{create, write_image};
pub use device::Qcow2Device;
pub use header::BackingName;
pub use layer::LayerRange;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
