//! Images as arguments.

use crate::failure::{Failure, Result};
use extant::BlockDevice;
use extant::device::{BackingSpec, ImageFormat, ImageSpec, Place};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// An image: a file or disk, and the place of the file system in it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ImageArgs {
    pub path: PathBuf,
    format: String,
    /// Backing files with their formats.
    backing: Vec<(PathBuf, String)>,
    partition: Option<u32>,
    offset: Option<u64>,
    /// Whether to wait for other programs.
    pub wait: bool,
}

impl ImageArgs {
    /// Returns the image.
    ///
    /// # Errors
    /// An unknown format, or two places.
    pub(crate) fn spec(&self) -> Result<ImageSpec> {
        let place = match (self.partition, self.offset) {
            (None, None) => Place::Whole,
            (Some(number), None) => Place::Partition(number),
            (None, Some(bytes)) => Place::Offset(bytes),
            _ => return Err(Failure::invalid("a place is a partition or an offset, not both")),
        };
        let backing = self.backing.iter().map(|(path, format)| {
            Ok(BackingSpec { path: path.clone(), format: image_format(format)? })
        });
        let backing = backing.collect::<Result<_>>()?;
        let format = image_format(&self.format)?;
        Ok(ImageSpec { path: self.path.clone(), place, format, backing })
    }

    /// Returns the bytes of the path, for errors.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.as_os_str().as_encoded_bytes()
    }

    /// Opens the device for reading.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn device(&self) -> Result<Arc<dyn BlockDevice>> {
        let options = extant_engine::OpenOptions::new().read_only(true).wait(self.wait);
        Ok(options.device_of(&self.spec()?)?)
    }
}

/// Returns the format of a name.
///
/// # Errors
/// An unknown one.
pub(crate) fn image_format(name: &str) -> Result<ImageFormat> {
    let unknown = || Failure::invalid(format!("{name:?} is no format: raw or qcow2"));
    ImageFormat::named(name).ok_or_else(unknown)
}
