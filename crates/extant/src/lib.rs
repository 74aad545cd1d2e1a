//! ext4 in user space: open, create, read, write, recover.
//!
//! [`Fs`] is an open file system, in an image file, on a disk, or on a [`BlockDevice`] of the
//! caller's. It shares the disk format with Linux and e2fsprogs. Calls by path are methods of
//! [`Fs`]; [`Dir`], [`Inode`] and [`File`] are handles, which belong to their file system: another
//! one refuses them, and after the unmount every call on them fails.
//!
//! ```
//! use extant::{Fs, device::MemDevice, mkfs};
//! use std::io::Write;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
//! fs.create_dir_all("/var/log")?;
//! let mut log = fs.create_file("/var/log/today")?;
//! writeln!(log, "hello")?;
//! log.sync()?; // the file and the names that lead to it are durable
//! for entry in fs.walk("/var")? {
//!     println!("{}", String::from_utf8_lossy(&entry?.path));
//! }
//! drop(log);
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! - `casefold` (default): opens file systems with the feature `casefold`, which are refused with
//!   [`ErrorKind::Unsupported`] otherwise. Takes four crates with tables of Unicode.
//! - `file-device` (default): devices in files and on disks of Linux.
//! - `mkfs`: the module `mkfs`, which makes file systems.
//! - `qcow2`: opens images of the format qcow2 and overlays, and has the module `device::qcow2`.
//!
//! # Stability
//! This crate alone follows semantic versioning; the crates below it (`extant-engine` and others)
//! change at any time.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod core;
mod error;
mod fs;
mod handle;
mod path;
mod types;

/// Devices that file systems lie on.
///
/// A new image is an empty file that gets a length. [`Fs::unmount`] releases the device.
///
/// ```no_run
/// use extant::device::FileDeviceOptions;
/// use extant::{BlockDevice, Fs, mkfs};
/// use std::sync::Arc;
///
/// let device = FileDeviceOptions::new("new.img").create(true).open()?;
/// device.set_len(1 << 30)?;
/// let fs = Fs::options().create_on(Arc::new(device), &mkfs::Options::default())?;
/// # fs.unmount()?; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod device {
    pub use extant_blocks::{
        BackingSpec, BlockDevice, Claim, DeviceError, HostBytes, ImageFormat, ImageSpec, MemDevice,
        Op, Origin, OriginRun, OverlayDevice, Place, ReplaySource,
    };
    #[cfg(all(feature = "file-device", target_os = "linux"))]
    pub use extant_blocks::{FileDevice, OpenOptions as FileDeviceOptions};
    pub use extant_engine::device::image_spec;

    /// Disk images in the format qcow2, and overlays.
    ///
    /// [`OpenOptions::open_image`](crate::OpenOptions::open_image) opens a file system by an
    /// [`ImageSpec`] with this format and the backing files. A
    /// [`Qcow2Device`](qcow2::Qcow2Device) lies over any devices:
    ///
    /// ```
    /// use extant::device::qcow2::{Qcow2Device, create};
    /// use extant::device::{BlockDevice, MemDevice};
    /// use extant::{Fs, mkfs};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let base = Arc::new(MemDevice::new(16 << 20));
    /// Fs::options().create_on(base.clone(), &mkfs::Options::default())?.unmount()?;
    /// let file = Arc::new(MemDevice::new(0));
    /// create(&*file, base.len(), Some((b"base.img", "raw")))?;
    ///
    /// // The name in the header is never opened: the caller does that.
    /// let overlay = Arc::new(Qcow2Device::open(file, Some(base.clone()), false)?);
    /// let fs = Fs::options().open_on(overlay.clone())?;
    /// fs.write("/new", b"in the overlay alone")?;
    /// fs.unmount()?;
    ///
    /// let fs = Fs::options().read_only().open_on(base.clone())?;
    /// assert!(fs.metadata("/new").is_err());
    /// fs.unmount()?;
    /// overlay.commit_to(&*base, &mut |_| ())?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "qcow2")]
    pub mod qcow2 {
        pub use extant_qcow2::{BackingName, LayerRange, Qcow2Device, create, write_image};
    }
}

/// Makes file systems.
///
/// Options are fields, and lists in the form of mke2fs(8). With a seed, a time and
/// [`OpenOptions::seed`] the same calls make the same bytes.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// let mut options = mkfs::Options { seed: Some(7), ..Default::default() };
/// options.label = b"root".to_vec();
/// options.time = Some(Timestamp::new(1_700_000_000, 0));
/// options.apply_features("^has_journal,casefold")?;
/// let fs = Fs::options().seed(7).create_on(device, &options)?;
/// # fs.unmount()?; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "mkfs")]
pub mod mkfs {
    pub use extant_engine::mkfs::{
        Error, Length, Options, Preset, Report, Result, Zeroing, make, parse_size, parse_uuid,
    };
    pub use extant_format::features::{Compat, Feature, Features, Incompat, RoCompat};
    pub use extant_format::quota::QuotaKind;
    pub use extant_format::superblock::ErrorPolicy;
}

pub use device::BlockDevice;
pub use error::{Error, ErrorKind, Result};
pub use extant_engine::{
    Clock, Falloc, FileType, Interrupt, NodeKind, Runtime, RuntimeBuilder, RuntimeStats,
    SystemClock, Timestamp, Usage, XattrMode, set_interrupt,
};
pub use extant_format::error::Corrupt;
pub use extant_format::types::{BlockNr, GroupNr, InodeNr};
pub use fs::{Frozen, Fs, OpenOptions};
pub use handle::{Dir, Entries, Extents, File, Inode, Walk, WalkEntry};
pub use path::AsBytes;
pub use types::{DirEntry, Extent, FileOptions, Metadata, Recovery, SetMetadata};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The example of the package's page is a test, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;

/// The examples of the guide are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;
