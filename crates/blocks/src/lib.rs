//! Block devices and the block cache.
//!
//! A [`BlockDevice`] is a flat range of bytes with positional reads and writes, in a file, a disk,
//! memory, or wrapped around another device. The [`Cache`] keeps metadata blocks of one device.
#![deny(unsafe_code)]

mod aligned;
mod cache;
mod claim;
mod device;
mod error;
mod fault;
#[cfg(all(feature = "file-device", target_os = "linux"))]
mod file;
mod guard;
mod host;
mod latency;
mod mem;
mod mounted;
mod origin;
mod overlay;
mod part;
pub mod partition;
mod pieces;
mod plug;
mod recording;
mod sharing;
mod signature;
mod sparse;
mod spec;
mod strict;

pub use aligned::AlignedDevice;
pub use cache::{Buffer, BufferRead, BufferWrite, Cache, CacheStats};
pub use claim::Claim;
pub use device::BlockDevice;
pub use error::{DeviceError, Op, is_revoked, raw_os_error};
pub use fault::{Failure, Fault, FaultDevice};
#[cfg(all(feature = "file-device", target_os = "linux"))]
pub use file::{FileDevice, OpenOptions, is_write_protected};
pub use guard::GuardedDevice;
pub use host::HostBytes;
pub use latency::{Latency, LatencyDevice};
pub use mem::MemDevice;
pub use mounted::MountedDevice;
pub use origin::{Origin, OriginRun};
pub use overlay::{OverlayDevice, ReplaySource};
pub use part::PartDevice;
pub use pieces::DataPieces;
pub use plug::{Piece, Plug, PlugStats};
pub use recording::{Event, RecordingDevice, replay};
pub use sharing::compare_origins;
pub use signature::{Signature, SignatureKind, identify};
pub use sparse::{MAX_SPARSE_LEN, SparseDevice};
pub use spec::{
    BackingSpec, ImageFormat, ImageSpec, Place, is_in_store, is_remote, parse_image_spec,
};
pub use strict::StrictDevice;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
