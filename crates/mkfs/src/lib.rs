//! Makes file systems, laid out as `mke2fs` 1.47 lays them out.
//!
//! The default features are those of `mke2fs -t ext4`, plus `orphan_file` and `metadata_csum_seed`,
//! which `mke2fs` supports but does not enable by default: [`Options::apply_features`] with
//! `^orphan_file,^metadata_csum_seed` disables them.
//!
//! The layout is complete in memory, as runs of blocks, before the first write, and only nonzero
//! blocks are written. So a file system of 60 TiB takes little more time than its descriptors and
//! the bitmaps that have to exist.
//!
//! # Invariants
//! The primary superblock is overwritten with zeroes first and written last, after a flush: after
//! an interrupted run the device has no file system.
#![forbid(unsafe_code)]

mod directory;
mod error;
mod features;
mod files;
mod groups;
mod journal_device;
mod layout;
mod map;
mod options;
mod output;
mod population;
mod report;
mod root;
mod sizing;
mod space;
mod superblock;
mod tables;

pub use error::{Error, Result};
pub use files::lost_found_blocks;
pub use layout::FsLayout;
pub use map::{FileMap, MappedRun, build_map};
pub use options::{Length, Options, Preset, Zeroing, parse_size, parse_uuid};
pub use population::{Demand, Population};
pub use report::Report;
pub use sizing::default_block_size;

use extant_blocks::BlockDevice;

/// Makes a file system on the device; its previous content is lost. With the feature `journal_dev`
/// the device gets a journal alone, which a file system on another device can use.
///
/// # Errors
/// [`Error`] for invalid options, a device that is too small, or an error of the device; `EBUSY` if
/// this process has a file system open on it.
pub fn make(device: &dyn BlockDevice, options: &Options) -> Result<Report> {
    if journal_device::is_asked(options) {
        return journal_device::make(device, options);
    }
    let layout = FsLayout::new(options, device.len(), Demand::empty(options))?;
    let root = layout.empty_root()?;
    layout.write(device, &root)
}

/// Returns the description of the file system that [`make`] would make on a device of `device_len`
/// bytes.
///
/// # Errors
/// [`Error`] for invalid options, or a device that is too small.
pub fn preview(device_len: u64, options: &Options) -> Result<Report> {
    if journal_device::is_asked(options) {
        return journal_device::preview(device_len, options);
    }
    Ok(FsLayout::new(options, device_len, Demand::empty(options))?.report())
}

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
