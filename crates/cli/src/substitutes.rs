//! Images with a damaged superblock or damaged descriptors, which readers open by copies of these.

use extant_check::Substitutes;
use extant_check::repair::RepairError;
use extant_engine::device::{DeviceError, ImageSpec};
use extant_engine::{Error, Fs, OpenOptions};

/// Treatment of a damaged superblock and damaged descriptors by readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Damaged {
    /// Take copies in their place, and end with 3.
    #[default]
    Copies,
    /// Fail.
    Refuse,
}

/// Returns whether an opening failed for damage of the image, and not for its kind or its use.
pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt(_) => true,
        Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<DeviceError>()),
        _ => false,
    }
}

/// Looks for the copies that an image needs to be read. `None` if it needs none, or has none.
pub fn look(
    image: &ImageSpec,
    journal: Option<&ImageSpec>,
    options: &OpenOptions,
) -> Option<Substitutes> {
    let options = options.clone().read_only(true);
    let journal = journal.and_then(|journal| options.device_of(journal).ok());
    let device = options.device_of(image).ok()?;
    let found = Substitutes::of(&device, journal.as_ref()).ok()?;
    (!found.is_empty()).then_some(found)
}

/// Opens an image for reading by the copies that it needs. `None` if it needs none, or cannot be
/// opened by those that it has.
pub fn open(
    image: &ImageSpec,
    journal: Option<&ImageSpec>,
    options: &OpenOptions,
) -> Option<(Fs, Substitutes)> {
    let found = look(image, journal, options)?;
    let options = options.clone().read_only(true).allow_short(true);
    Some((Fs::open_device(found.device(), &options).ok()?, found))
}

/// Opens an image for reading by the copy of the superblock in a block of the file system.
///
/// # Errors
/// There is no copy, or another part of the file system is damaged.
pub fn open_at(
    block: u64,
    image: &ImageSpec,
    journal: Option<&ImageSpec>,
    options: &OpenOptions,
) -> Result<(Fs, Substitutes), Error> {
    let options = options.clone().read_only(true);
    let journal = journal.map(|journal| options.device_of(journal)).transpose()?;
    let device = options.device_of(image)?;
    let found = Substitutes::at(block, &device, journal.as_ref()).map_err(|error| {
        Error::Invalid(match error {
            RepairError::NoSuperblock => format!("block {block} has no copy of a superblock"),
            error => error.to_string(),
        })
    })?;
    Ok((Fs::open_device(found.device(), &options.allow_short(true))?, found))
}
