//! The file of an image, compared before a server is started again: its path may lead to another
//! file by then, which the user of the mount did not name.

use crate::failure::{Failure, Result};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

/// Device and inode of the file of an image, and the number of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFile([u64; 3]);

impl ImageFile {
    /// Returns the one that a file has.
    pub fn of(found: &Metadata) -> ImageFile {
        ImageFile([found.dev(), found.ino(), found.rdev()])
    }

    /// Fails unless it is this file.
    pub fn check(self, found: &Metadata, path: &Path) -> Result {
        if ImageFile::of(found) == self {
            return Ok(());
        }
        Err(Failure::new(format_args!(
            "{}: another file has taken the place of the image; unmount it, and mount it again",
            path.display()
        )))
    }
}

/// For the arguments of another process.
impl fmt::Display for ImageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [device, inode, disk] = self.0;
        write!(f, "{device}:{inode}:{disk}")
    }
}

impl FromStr for ImageFile {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<ImageFile, Self::Err> {
        let numbers = text.split(':').map(str::parse).collect::<std::result::Result<Vec<_>, _>>();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers.map(ImageFile).ok_or("DEVICE:INODE:DISK")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let found = paths.each_ref().map(|path| {
            std::fs::write(path, "").unwrap();
            std::fs::metadata(path).unwrap()
        });
        let image: ImageFile = ImageFile::of(&found[0]).to_string().parse().unwrap();
        assert!(image.check(&found[0], &paths[0]).is_ok());
        assert!(image.check(&found[1], &paths[1]).is_err());
        assert!("1:2".parse::<ImageFile>().is_err() && "1:2:x".parse::<ImageFile>().is_err());
    }
}
