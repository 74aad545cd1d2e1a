//! The syntax of images on a command line.

use std::fmt;
use std::path::{Path, PathBuf};

/// The position of a device in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The whole file.
    Whole,
    /// From a byte to the end.
    Offset(u64),
    /// A partition by its number, from 1.
    Partition(u32),
}

/// The format in which a file holds a disk. It is always stated, never recognized: the content of
/// a raw image may be made to look like another format, which would name further files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageFormat {
    /// The bytes of the disk.
    #[default]
    Raw,
    /// qcow2, version 2 or 3.
    Qcow2,
}

impl ImageFormat {
    const ALL: [ImageFormat; 2] = [ImageFormat::Raw, ImageFormat::Qcow2];

    /// Returns the format of a name.
    pub fn named(name: &str) -> Option<ImageFormat> {
        ImageFormat::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// The backing file of an image, which has the content that the image lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingSpec {
    /// The file or disk.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
}

impl BackingSpec {
    /// Parses `FILE` or `FILE:FORMAT`. Text behind the last colon that is no format belongs to the
    /// file, so a file whose own name ends like that needs `:raw`.
    pub fn parse(text: &str) -> BackingSpec {
        let split = text.rsplit_once(':').and_then(|(path, format)| {
            Some(BackingSpec { path: path.into(), format: ImageFormat::named(format)? })
        });
        split
            .filter(|spec| !spec.path.as_os_str().is_empty())
            .unwrap_or_else(|| BackingSpec { path: text.into(), format: ImageFormat::Raw })
    }
}

impl fmt::Display for BackingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.format.name())
    }
}

/// Schemes of addresses of network block devices.
const SCHEMES: [&str; 4] = ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"];

/// Schemes of addresses of images in object stores.
const STORE_SCHEMES: [&str; 6] = ["s3://", "gs://", "az://", "http://", "https://", "file:///"];

/// Returns whether a path is the address of a network block device, such as `nbd://HOST/EXPORT`, or
/// of an image in an object store, and no path of a file. A file of such a name is named by another
/// path, such as `./nbd://x`.
pub fn is_remote(path: &Path) -> bool {
    begins_with(path, &SCHEMES) || is_in_store(path)
}

/// Returns whether a path is the address of an image in an object store, such as
/// `s3://BUCKET/DIR/NAME`, which is for reading only.
pub fn is_in_store(path: &Path) -> bool {
    begins_with(path, &STORE_SCHEMES)
}

fn begins_with(path: &Path, schemes: &[&str]) -> bool {
    let text = path.to_str().unwrap_or_default();
    schemes.iter().any(|scheme| text.starts_with(scheme))
}

/// A file or disk and a position in it, as `PATH`, `PATH@OFFSET` or `PATH@pN`, with the format of
/// the file.
///
/// An offset is in bytes, decimal or hexadecimal (`0x…`), or with a suffix `k`, `M`, `G` or `T` in
/// powers of 1024. A path whose own end looks like a position must be followed by `@0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// The file or disk.
    pub path: PathBuf,
    /// The position in it, or in the disk that it holds.
    pub place: Place,
    /// The format of the file.
    pub format: ImageFormat,
    /// The backing file of an image that is an overlay, then the one of that, and so on.
    pub backing: Vec<BackingSpec>,
}

impl ImageSpec {
    /// Names a raw image in a whole file or on a whole disk.
    pub fn whole(path: impl Into<PathBuf>) -> ImageSpec {
        let (format, backing) = (ImageFormat::Raw, Vec::new());
        ImageSpec { path: path.into(), place: Place::Whole, format, backing }
    }

    /// Returns the same image with its position.
    #[must_use]
    pub fn at(self, place: Place) -> ImageSpec {
        ImageSpec { place, ..self }
    }
}

/// Separates the path and the position. Text after the last `@` that is not a position belongs to
/// the path. The image is a raw one.
pub fn parse_image_spec(spec: &str) -> ImageSpec {
    let split = spec.rsplit_once('@').filter(|(path, _)| !path.is_empty());
    let placed =
        split.and_then(|(path, place)| Some(ImageSpec::whole(path).at(parse_place(place)?)));
    placed.unwrap_or_else(|| ImageSpec::whole(spec))
}

fn parse_place(place: &str) -> Option<Place> {
    if let Some(number) = place.strip_prefix('p') {
        return Some(Place::Partition(digits(number)?.parse().ok().filter(|number| *number > 0)?));
    }
    Some(match parse_bytes(place)? {
        0 => Place::Whole,
        offset => Place::Offset(offset),
    })
}

fn parse_bytes(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return None,
    };
    let number: u64 = digits(text.strip_suffix(unit)?)?.parse().ok()?;
    number.checked_mul(factor)
}

/// Returns text that consists of digits alone; the standard parser would accept a sign, too.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.place {
            Place::Whole => write!(f, "{path}"),
            Place::Offset(offset) => write!(f, "{path}@{offset}"),
            Place::Partition(number) => write!(f, "{path}@p{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(spec: &str) -> (String, Place) {
        let spec = parse_image_spec(spec);
        (spec.path.display().to_string(), spec.place)
    }

    #[test]
    fn places_are_taken_off() {
        assert_eq!(parsed("a.img"), ("a.img".into(), Place::Whole));
        assert_eq!(parsed("a.img@1048576"), ("a.img".into(), Place::Offset(1 << 20)));
        assert_eq!(parsed("a.img@0x200"), ("a.img".into(), Place::Offset(512)));
        assert_eq!(parsed("a.img@1M"), ("a.img".into(), Place::Offset(1 << 20)));
        assert_eq!(parsed("/dev/sda@p12"), ("/dev/sda".into(), Place::Partition(12)));
        assert_eq!(parsed("a@7@0"), ("a@7".into(), Place::Whole));
    }

    #[test]
    fn other_suffixes_belong_to_the_path() {
        for path in [
            "user@host",
            "a@",
            "a@p",
            "a@p0",
            "a@-1",
            "a@+1",
            "a@1x",
            "@5",
            "a@99999999999999999999",
            "a@9999999999T",
        ] {
            assert_eq!(parsed(path), (path.into(), Place::Whole));
        }
    }

    #[test]
    fn formats_of_backing_files_are_taken_off() {
        let parsed = |text| {
            let BackingSpec { path, format } = BackingSpec::parse(text);
            (path.display().to_string(), format)
        };
        assert_eq!(parsed("base.img"), ("base.img".into(), ImageFormat::Raw));
        assert_eq!(parsed("base:qcow2"), ("base".into(), ImageFormat::Qcow2));
        assert_eq!(parsed("a:qcow2:raw"), ("a:qcow2".into(), ImageFormat::Raw));
        assert_eq!(parsed("a:vmdk"), ("a:vmdk".into(), ImageFormat::Raw));
        assert_eq!(parsed(":qcow2"), (":qcow2".into(), ImageFormat::Raw));
        assert_eq!(BackingSpec::parse("a:qcow2").to_string(), "a:qcow2");
    }

    #[test]
    fn addresses_are_no_files() {
        let remote = |text| is_remote(&parse_image_spec(text).path);
        assert!(remote("nbd://host/a") && remote("nbd+unix:///?socket=/s@p1"));
        assert!(!remote("nbd:/a") && !remote("./nbd://a") && !remote("a") && !remote("nbd"));
        assert_eq!(parsed("nbd://h/a@p2"), ("nbd://h/a".into(), Place::Partition(2)));
    }

    #[test]
    fn a_spec_is_shown_as_it_is_written() {
        for text in ["a", "a@512", "a@p3"] {
            assert_eq!(parse_image_spec(text).to_string(), text);
        }
    }
}
