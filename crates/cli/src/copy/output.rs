//! A file of the machine that appears when it is complete.

use crate::failure::{At, Result};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o666;

/// A file under way: under another name in the same directory, or a device or FIFO that exists.
pub enum Output {
    /// Gets its name in the end.
    New(NamedTempFile),
    /// Is written in place.
    Special(File),
}

impl Output {
    /// Begins the file `dest`.
    ///
    /// # Errors
    /// Those of creation, with the path.
    pub fn begin(dest: &Path) -> Result<Output> {
        let name = dest.as_os_str().as_bytes();
        // A file in place of a device would hide it from all programs.
        if std::fs::metadata(dest).is_ok_and(|meta| !meta.is_file()) {
            return OpenOptions::new().write(true).open(dest).map(Output::Special).at_path(name);
        }
        let mode = Permissions::from_mode(MODE);
        let prefix = [b".", dest.file_name().unwrap_or_default().as_bytes(), b"."].concat();
        let file = tempfile::Builder::new()
            .prefix(OsStr::from_bytes(&prefix[..prefix.len().min(200)]))
            .permissions(mode)
            .tempfile_in(parent(dest));
        file.map(Output::New).at_path(name)
    }

    /// Returns the file.
    pub fn file(&mut self) -> &mut File {
        match self {
            Output::New(file) => file.as_file_mut(),
            Output::Special(file) => file,
        }
    }

    /// Gives the file its name. An existing file of this name is replaced.
    ///
    /// # Errors
    /// Those of renaming, with the path. The file is then removed.
    pub fn finish(self, dest: &Path) -> Result {
        match self {
            Output::New(file) => {
                file.persist(dest).map_err(|e| e.error).at_path(dest.as_os_str().as_bytes())?;
            }
            Output::Special(_) => {}
        }
        Ok(())
    }
}

/// Returns the directory that has `path`.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
