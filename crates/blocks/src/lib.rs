//! Block devices and the block cache.
//!
//! A [`BlockDevice`] is a flat range of bytes with positional reads and writes, in a file, a disk, memory, or wrapped
//! around another device. The [`Cache`] keeps metadata blocks of one device.
#![forbid(unsafe_code)]

mod cache;
mod device;
mod error;
mod mem;
mod plug;

pub use cache::{Buffer, BufferRead, BufferWrite, Cache, CacheStats};
pub use device::BlockDevice;
pub use error::{DeviceError, Op, raw_os_error};
pub use mem::MemDevice;
pub use plug::{Piece, Plug, PlugStats};
