//! Devices with a journal for another file system.

use crate::commands::check::open_for_reading;
use crate::commands::repair::open_writable;
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::text::shown;
use extant_engine::device::{BlockDevice, image_spec};
use extant_engine::format::Superblock;
use extant_format::Incompat;
use extant_format::jbd2::{JOURNAL_SUPERBLOCK_SIZE, JournalSuperblock, external_journal_block};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Returns the number of a device as a superblock has it; 0 for a file, and for one that cannot be
/// looked at.
pub fn device_number(path: &Path) -> u32 {
    let number = std::fs::metadata(path).map_or(0, |found| found.rdev());
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    minor & 0xFF | major << 8 | (minor & !0xFF) << 12
}

/// A device with a journal that no file system uses.
#[derive(Debug)]
pub struct JournalDevice {
    device: Arc<dyn BlockDevice>,
    number: u32,
    block_size: u32,
}

impl JournalDevice {
    /// Opens a device for the new file system `image`.
    ///
    /// # Errors
    /// Those of the device; a device without a journal, or with one that is in use.
    pub fn open(path: &Path, image: &ImageArgs, only_reads: bool) -> Result<JournalDevice> {
        let spec = image_spec(path);
        let device =
            if only_reads { open_for_reading(image, &spec)? } else { open_writable(image, &spec)? };
        let name = path.as_os_str().as_bytes();
        let refused = |why: &str| {
            let name = shown(name);
            Failure::new(format_args!(
                "{name}: {why}; `extant mkfs -O journal_dev {name}` makes one"
            ))
        };
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let no_journal = || refused("is no device with a journal");
        device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|_| no_journal())?;
        let found = Superblock::parse(&bytes).ok();
        let found = found.filter(|sb| sb.incompat().contains(Incompat::JOURNAL_DEV));
        let block_size = found.ok_or_else(no_journal)?.block_size();
        let place = external_journal_block(block_size).saturating_mul(block_size.into());
        let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
        device.read_exact_at(&mut bytes, place).at_path(name)?;
        let journal = JournalSuperblock::parse(&bytes).map_err(|_| no_journal())?;
        if !journal.users().is_empty() {
            return Err(refused("has a journal that a file system uses"));
        }
        Ok(JournalDevice { device, number: device_number(path), block_size })
    }

    /// Returns the bytes of a block, which are those of the file system.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// Returns the number of the device as a superblock has it.
    pub fn number(&self) -> u32 {
        self.number
    }
}
