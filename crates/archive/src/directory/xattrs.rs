//! Extended attributes of files of the host.

use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Maximum length of a list of names and of a value in Linux, in bytes.
const MAX: usize = 65_536;

/// Beginnings of names that ext4 stores. Others belong to the host's file system.
const STORED: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];

/// Buffers for names and values.
#[derive(Default)]
pub(super) struct XattrReader {
    list: Vec<u8>,
    value: Vec<u8>,
}

impl XattrReader {
    /// Returns names and values of a file's attributes; none where the file system has none. A
    /// symlink is not followed.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.list.resize(MAX, 0);
        self.value.resize(MAX, 0);
        let len = match llistxattr(path, &mut self.list[..]) {
            Err(Errno::NOTSUP) => 0,
            len => len?,
        };
        let mut found = Vec::new();
        let names = self.list.get(..len).unwrap_or_default().split(|byte| *byte == 0);
        for name in names.filter(|name| STORED.iter().any(|prefix| name.starts_with(prefix))) {
            let len = match lgetxattr(path, name, &mut self.value[..]) {
                // Removed meanwhile.
                Err(Errno::NODATA) => continue,
                len => len?,
            };
            found.push((name.to_vec(), self.value.get(..len).unwrap_or_default().to_vec()));
        }
        Ok(found)
    }
}
