//! ext4 in user space: open, create, read, write, recover.
//!
//! The rooms, from top to bottom; calls go downward only: [`fs`](mod@fs), `ops`, `vfs`, `file`, `dir`, `xattr`, `extent`,
//! `alloc`, `orphan`, `inode`, `groups`, `volume`.
#![forbid(unsafe_code)]

pub mod error;
pub mod mkfs;

mod alloc;
mod dir;
mod extent;
mod file;
mod fs;
mod groups;
mod inode;
mod ops;
mod orphan;
mod store;
mod vfs;
mod mmp;
mod volume;
mod xattr;

/// Devices that images lie on.
pub mod device {
    pub use extant_blocks::{BlockDevice, FileDevice, ImageSpec, OpenOptions as FileOptions, OverlayDevice, Place, parse_image_spec};
}

/// What an image says of itself.
pub mod format {
    pub use extant_format::jbd2::JournalSuperblock;
    pub use extant_format::superblock::{ErrorPolicy, State, Superblock};
}

/// What recovery of the journal found.
pub mod journal {
    pub use extant_journal::Stats;
    pub use extant_journal::recovery::{Dropped, Outcome};
}

pub use error::{Errno, Error, Result};
pub use alloc::Usage;
pub use extant_format::types::{FileType, Timestamp};
pub use extent::{Run, State};
pub use file::{Extent, ExtentFlags, Falloc};
pub use fs::{Fs, FsStats, OpenOptions, Recovery};
pub use ops::{Attr, Caller, DirEntry, File, New, Node, OpenFlags, Operations, OrphanReport, RenameFlags, SetAttr, TimeSet};
pub use vfs::Follow;
pub use volume::{Clock, SystemClock};
pub use xattr::Mode as XattrMode;
