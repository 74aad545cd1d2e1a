//! Extended attributes of files of the host.

use rustix::io::Errno;
use std::ffi::c_char;
use std::io;
use std::path::Path;

/// Maximum length of a list of names and of a value in Linux, in bytes.
const MAX: usize = 65_536;

/// Beginnings of names that ext4 stores. Others belong to the host's file system.
const STORED: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];

/// Buffers for names and values.
pub(super) struct XattrReader {
    /// The C library is asked, not the kernel.
    through_library: bool,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl XattrReader {
    pub(super) fn new(through_library: bool) -> XattrReader {
        XattrReader { through_library, list: vec![0; MAX], value: vec![0; MAX] }
    }

    /// Returns names and values of a file's attributes; none where the file system has none. A
    /// symlink is not followed.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // An error has left it empty.
        self.list.resize(MAX, 0);
        let len = match self.list_of(path) {
            Err(Errno::NOTSUP) => 0,
            len => len?,
        };
        let list = std::mem::take(&mut self.list);
        let mut found = Vec::new();
        let names = list.get(..len).unwrap_or_default().split(|byte| *byte == 0);
        for name in names.filter(|name| STORED.iter().any(|prefix| name.starts_with(prefix))) {
            let len = match self.value_of(path, name) {
                // Removed meanwhile.
                Err(Errno::NODATA) => continue,
                len => len?,
            };
            found.push((name.to_vec(), self.value.get(..len).unwrap_or_default().to_vec()));
        }
        self.list = list;
        Ok(found)
    }

    fn list_of(&mut self, path: &Path) -> Result<usize, Errno> {
        if self.through_library {
            let mut list: Vec<c_char> = vec![0; MAX];
            let len = rustix_libc::fs::llistxattr(path, &mut list).map_err(errno)?;
            // Characters are signed on some processors.
            let bytes = list.iter().map(|letter| letter.to_ne_bytes()[0]);
            self.list.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            return Ok(len);
        }
        rustix::fs::llistxattr(path, &mut self.list[..])
    }

    fn value_of(&mut self, path: &Path, name: &[u8]) -> Result<usize, Errno> {
        if self.through_library {
            return rustix_libc::fs::lgetxattr(path, name, &mut self.value).map_err(errno);
        }
        rustix::fs::lgetxattr(path, name, &mut self.value[..])
    }
}

fn errno(error: rustix_libc::io::Errno) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error())
}
