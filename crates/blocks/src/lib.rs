//! Block devices and the block cache.
//!
//! A [`BlockDevice`] is a flat range of bytes with positional reads and writes, in a file, a disk, memory, or wrapped
//! around another device. The [`Cache`] keeps metadata blocks of one device.
#![forbid(unsafe_code)]

mod cache;
mod device;
mod error;
mod fault;
mod mem;
mod overlay;
mod plug;
mod recording;
mod sparse;

pub use cache::{Buffer, BufferRead, BufferWrite, Cache, CacheStats};
pub use device::BlockDevice;
pub use error::{DeviceError, Op, raw_os_error};
pub use fault::{Failure, Fault, FaultDevice};
pub use mem::MemDevice;
pub use overlay::{OverlayDevice, ReplaySource};
pub use plug::{Piece, Plug, PlugStats};
pub use recording::{Event, RecordingDevice, replay};
pub use sparse::{MAX_SPARSE_LEN, SparseDevice};
