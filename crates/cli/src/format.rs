//! Formats of image files, and backing files, as options name them.

use extant_engine::device::{BackingSpec, ImageFormat, ImageSpec, image_spec, is_remote};
use std::path::{Path, PathBuf};

/// Format of an image file. It is never recognized by the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The bytes of the disk.
    #[default]
    Raw,
    /// A disk image of QEMU.
    Qcow2,
}

impl From<Format> for ImageFormat {
    fn from(format: Format) -> ImageFormat {
        match format {
            Format::Raw => ImageFormat::Raw,
            Format::Qcow2 => ImageFormat::Qcow2,
        }
    }
}

impl From<ImageFormat> for Format {
    fn from(format: ImageFormat) -> Format {
        match format {
            ImageFormat::Qcow2 => Format::Qcow2,
            _ => Format::Raw,
        }
    }
}

/// The format of an image, and its backing file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FormatArgs {
    /// Format of the image, which is never guessed
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// Backing file of the image, an overlay in the format qcow2; again for the one of that
    #[arg(long, value_name = "FILE[:FORMAT]", value_parser = parse_backing)]
    pub backing: Vec<BackingSpec>,
}

impl FormatArgs {
    /// Returns an image of this format.
    pub fn spec(&self, image: &Path) -> ImageSpec {
        spec(image, self.format.into(), &self.backing)
    }
}

/// Returns the image that a word of the command line and options about its format name.
pub fn spec(image: &Path, format: ImageFormat, backing: &[BackingSpec]) -> ImageSpec {
    ImageSpec { format, backing: backing.to_vec(), ..image_spec(image) }
}

/// Parses a backing file.
///
/// # Errors
/// The path is empty.
pub fn parse_backing(text: &str) -> Result<BackingSpec, String> {
    let backing = BackingSpec::parse(text);
    if backing.path.as_os_str().is_empty() {
        return Err("it must be a file, with :qcow2 behind it if it is no raw image".into());
    }
    Ok(backing)
}

/// Returns the files of an image as raw images, to look whether they are in use without parsing
/// them: that of the image first, then its backing files, which are only read.
pub fn files(image: &ImageSpec) -> Vec<ImageSpec> {
    let own = match image.format {
        ImageFormat::Raw => image_of(image),
        _ => ImageSpec::whole(&image.path),
    };
    let backing = image.backing.iter().map(|backing| ImageSpec::whole(&backing.path));
    std::iter::once(own).chain(backing).collect()
}

fn image_of(image: &ImageSpec) -> ImageSpec {
    ImageSpec::whole(&image.path).at(image.place)
}

/// Returns the paths of the backing files of an image, but network block devices.
pub fn backing_files(image: &ImageSpec) -> Vec<PathBuf> {
    let files = image.backing.iter().map(|backing| backing.path.clone());
    files.filter(|path| !is_remote(path)).collect()
}
