//! ext4 in user space: open, create, read, write, recover.
//!
//! [`Fs`] is an open file system. It dereferences to [`Operations`], which has every operation: by
//! [`Node`] (an inode) and name, as system calls below the path walk have them, and by path through
//! [`Operations::resolve`]. All take `&self`, and any number of threads may call them.
//!
//! ```
//! use extant_engine::{Caller, Follow, Fs, NodeKind, OpenFlags, OpenOptions, mkfs};
//! use extant_blocks::MemDevice;
//! use std::sync::Arc;
//!
//! # fn main() -> extant_engine::Result<()> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! let fs = Fs::create(device.clone(), &mkfs::Options::default(), &OpenOptions::new())?;
//! let root = fs.root()?;
//! let node = fs.create(&root, b"greeting", 0o644, NodeKind::File)?;
//! let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
//! file.write_at(0, b"hello")?;
//! file.sync()?;
//! drop(file);
//! fs.unmount()?;
//!
//! // Reading changes nothing on the device, even where a journal must be replayed.
//! let fs = Fs::open_device(device, &OpenOptions::new().read_only(true))?;
//! let node = fs.resolve("/greeting", Follow::Yes)?;
//! let file = fs.open_file(&node, OpenFlags::default())?;
//! let mut buf = [0; 5];
//! assert_eq!(file.read_at(0, &mut buf)?, 5);
//! assert_eq!(&buf, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//! From top to bottom; calls go downward only: `fs`, `ops`, `vfs`, `file`, `store`, `dir`, `xattr`,
//! `extent`, `quota`, `orphan`, `inode`, `alloc`, `groups`, `volume`.
//!
//! # Errors
//! An [`Error`] is a failure of the device, a corruption with its position, an unsupported feature,
//! or an error number of POSIX; [`Error::errno`] translates each into such a number.
#![forbid(unsafe_code)]

pub mod error;

mod alloc;
mod bounds;
mod dir;
mod extent;
mod file;
mod fs;
mod groups;
mod inode;
mod mmp;
mod ops;
mod orphan;
mod os;
mod quota;
mod store;
mod vfs;
mod volume;
mod xattr;

/// Devices that images lie on.
pub mod device {
    pub use crate::fs::image_spec;
    pub use extant_blocks::partition::first as first_partition;
    pub use extant_blocks::{
        BackingSpec, BlockDevice, Claim, DataPieces, DeviceError, HostBytes, ImageFormat,
        ImageSpec, OverlayDevice, Place, Signature, SignatureKind, identify, is_in_store,
        is_remote,
    };
    #[cfg(all(feature = "file-device", target_os = "linux"))]
    pub use extant_blocks::{FileDevice, OpenOptions as FileOptions, is_write_protected};
}

/// The on-disk format, re-exported.
pub mod format {
    pub use extant_format::jbd2::JournalSuperblock;
    pub use extant_format::superblock::{ErrorPolicy, ErrorRecord, MAGIC_FIELD, State, Superblock};
}

/// The results of recovering the journal, re-exported.
pub mod journal {
    pub use extant_journal::Stats;
    pub use extant_journal::recovery::{Dropped, Outcome};
}

/// Other designs of some parts, which exist to be measured.
#[cfg(feature = "designs")]
#[doc(hidden)]
pub mod design {
    pub use crate::file::designs::{PLUG, Plugged};
    pub use crate::inode::designs::{FIND, FindWrites, InodeList, LIST, LOOKED_AT};
    pub use crate::orphan::designs::{ORPHANS, OrphanRecords};
    pub use crate::vfs::designs::{InodeLookup, LOOKUP};
    pub use extant_space::prealloc::designs::{RUNS, RunsDesign};
    pub use extant_sync::lockref::{REFS, RefsDesign};
}

pub use alloc::{Fragmentation, PreallocStats, SpaceStats, Usage};
pub use bounds::{Interrupt, set_interrupt};
pub use error::{Errno, Error, Result};
pub use extant_format::Printable;
pub use extant_format::quota::{QuotaKind, QuotaLimits, QuotaRecord};
pub use extant_format::types::{FileType, Timestamp};
/// Makes file systems.
#[cfg(feature = "mkfs")]
pub use extant_mkfs as mkfs;
pub use extent::{ExtentState, Run};
pub use file::{Extent, ExtentFlags, Falloc};
pub use fs::{
    Frozen, Fs, FsStats, Health, HeldInodes, OpenOptions, Recovery, Runtime, RuntimeBuilder,
    RuntimeStats,
};
pub use mmp::HostClaim;
pub use ops::{
    AccessTimes, Attr, DirEntry, File, FsSize, GrowTo, Node, NodeKind, OpenFlags, Operations,
    OrphanReport, RenameFlags, SetAttr, TimeSet,
};
pub use orphan::OrphanStats;
pub use store::PoolStats;
pub use vfs::{Caller, Follow};
pub use volume::{Clock, SpaceRights, SystemClock};
pub use xattr::Mode as XattrMode;
