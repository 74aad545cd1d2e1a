//! New file systems.

use crate::call::detached;
use crate::failure::{Failure, Result};
use crate::image::image_format;
use extant::BlockDevice;
use extant::Timestamp;
use extant::device::qcow2::{Qcow2Device, create};
use extant::device::{FileDeviceOptions, ImageFormat};
use extant::mkfs::{Options, Preset, Report, make};
use pyo3::prelude::*;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of a layout.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LayoutArgs {
    preset: String,
    features: Option<String>,
    extended: Option<String>,
    label: Option<Vec<u8>>,
    block_size: Option<u32>,
    inodes: Option<u64>,
    uuid: Option<[u8; 16]>,
    pub seed: Option<u64>,
    /// Seconds since 1970.
    pub time: Option<i64>,
}

impl LayoutArgs {
    /// Returns the options.
    ///
    /// # Errors
    /// Unknown features or options.
    pub(crate) fn options(&self) -> Result<Options> {
        let mut options = Options::preset(match &*self.preset {
            "ext2" => Preset::Ext2,
            "ext3" => Preset::Ext3,
            "ext4" => Preset::Ext4,
            other => {
                let text = format!("{other:?} is no preset: ext2, ext3 or ext4");
                return Err(Failure::invalid(text));
            }
        });
        if let Some(list) = &self.features {
            options.apply_features(list)?;
        }
        if let Some(list) = &self.extended {
            options.apply_extended(list)?;
        }
        options.label = self.label.clone().unwrap_or_default();
        options.block_size = self.block_size;
        options.inode_count = self.inodes;
        options.uuid = self.uuid;
        options.seed = self.seed;
        // A seed asks for the same bytes each time.
        let time = self.time.or(self.seed.map(|_| 0));
        options.time = time.map(|sec| Timestamp::new(sec, 0));
        Ok(options)
    }
}

/// Place and size of a file system.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct MakeArgs {
    path: PathBuf,
    size: Option<u64>,
    format: String,
    overwrite: bool,
}

/// Fields of `Made`: bytes, block size, blocks, free blocks, inodes, free inodes, UUID.
pub(crate) type Made = (u64, u32, u64, u64, u32, u32, [u8; 16]);

/// Makes a file system.
#[pyfunction]
pub(crate) fn mkfs(py: Python<'_>, args: MakeArgs, layout: LayoutArgs) -> PyResult<Made> {
    let report = detached(py, || {
        args.make(&layout).map_err(|failure| failure.of_file(path_bytes(&args.path)))
    })?;
    Ok((
        report.blocks.saturating_mul(report.block_size.into()),
        report.block_size,
        report.blocks,
        report.free_blocks,
        report.inodes,
        report.free_inodes,
        report.uuid,
    ))
}

impl MakeArgs {
    fn make(&self, layout: &LayoutArgs) -> Result<Report> {
        let mut options = layout.options()?;
        options.size = self.size;
        let format = image_format(&self.format)?;
        if !self.overwrite {
            let Some(size) = self.size else {
                return Err(Failure::invalid("a new file system needs a size"));
            };
            let file = File::options().read(true).write(true).create_new(true).open(&self.path)?;
            let made = match format {
                ImageFormat::Raw => Ok(file.set_len(size)?),
                _ => Ok(()),
            };
            let made = made.and_then(|()| self.make_in(format, &options));
            if made.is_err() {
                // The cause is the error to tell.
                let _ = std::fs::remove_file(&self.path);
            }
            return made;
        }
        self.make_in(format, &options)
    }

    /// Makes it in an existing file or disk.
    fn make_in(&self, format: ImageFormat, options: &Options) -> Result<Report> {
        let file = FileDeviceOptions::new(&self.path).create(self.overwrite).open()?;
        let len = file.len();
        match (format, options.size) {
            (ImageFormat::Raw, size) => {
                if let Some(size) = size.filter(|size| *size > len) {
                    file.set_len(size)?;
                }
                Ok(make(&file, options)?)
            }
            (_, None) => Err(Failure::invalid("a new disk image needs a size")),
            (_, Some(size)) => {
                file.set_len(0)?;
                create(&file, size, None)?;
                Ok(make(&Qcow2Device::open(Arc::new(file), None, false)?, options)?)
            }
        }
    }
}

/// Returns the bytes of a path.
pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

/// Returns the bytes of a size such as `64M`.
#[pyfunction]
pub(crate) fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    extant::mkfs::parse_size(text).map_err(|error| Failure::from(error).raise(py))
}
