//! Disk images in object stores, as content-addressed chunks with a manifest.
//!
//! [`push`] stores a device as an image at a [`StoreAddress`], such as `s3://bucket/dir/name`, and
//! [`pull`] fetches it. [`StoreDevice`] is such an image as a
//! [`BlockDevice`](extant_blocks::BlockDevice) for reading, which fetches chunks when they are
//! read.
//!
//! An image is the object `DIR/NAME`, its manifest ([`StoreManifest`]), and the objects
//! `DIR/chunks/XX/DIGEST`, its chunks, of which each is one frame of zstd. A chunk is named by the
//! SHA-256 digest of its content, so that images in the same directory share equal chunks, and
//! every reader can verify it. The manifest is stored last: an image appears as a whole.
//!
//! # Hostile stores
//! A manifest is checked before it is used, and a chunk against its digest before its first byte
//! is. Any contradiction is an error. Memory is bounded by the sizes that this side demands.
#![forbid(unsafe_code)]

mod address;
#[cfg(feature = "network")]
mod cache;
mod chunk;
mod device;
mod digest;
mod image;
#[cfg(unix)]
mod link;
mod manifest;
#[cfg(feature = "network")]
mod network;
mod pull;
mod push;
mod transport;
mod ways;

pub use address::{StoreAddress, StoreObject};
pub use device::StoreDevice;
pub use digest::ChunkDigest;
pub use image::StoredImage;
#[cfg(unix)]
pub use link::{LinkMaker, LinkTransport, serve_link};
pub use manifest::{CHUNK_SIZE, MAX_MANIFEST, StoreManifest, is_chunk_size};
pub use pull::{PullSink, pull};
pub use push::{PushOptions, PushReport, push};
pub use transport::ObjectTransport;
pub use ways::{open_transport, reach_by, transport_of};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
