//! Content of streams that cannot be read twice, in a file without a name.

use crate::files::ArchiveFile;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

/// Unit in which zeroes become holes, in bytes.
const UNIT: usize = 4096;

/// A file without a name, which vanishes with its last descriptor.
pub(crate) struct Spool {
    file: Arc<File>,
    buffer: Vec<u8>,
    /// Offset in the file of the buffer.
    written: u64,
}

impl Spool {
    /// Makes a file in a directory.
    ///
    /// # Errors
    /// Those of the directory.
    pub(crate) fn new(directory: &Path) -> io::Result<Spool> {
        tempfile::tempfile_in(directory).map(Spool::over)
    }

    /// Takes an empty file.
    pub(crate) fn over(file: File) -> Spool {
        Spool { file: Arc::new(file), buffer: Vec::new(), written: 0 }
    }

    /// Returns the offset of the byte that is written next.
    pub(crate) fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Returns the file, with all bytes written.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn file(&mut self) -> io::Result<&Arc<File>> {
        self.flush()?;
        Ok(&self.file)
    }

    /// Returns the content for a tree.
    pub(crate) fn content(&self) -> ArchiveFile {
        ArchiveFile::private(self.file.clone())
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let is_zero = |unit: &[u8]| unit.iter().fold(0, |all, byte| all | byte) == 0;
        let mut at = self.written;
        // Zeroes at a place where nothing was written need no bytes on the disk.
        for run in
            self.buffer.chunks(UNIT).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b))
        {
            let len = run.iter().map(|unit| unit.len()).sum::<usize>();
            let start = (at - self.written) as usize;
            if !run.first().is_some_and(|unit| is_zero(unit)) {
                let bytes = self.buffer.get(start..start + len).unwrap_or_default();
                self.file.write_all_at(bytes, at)?;
            }
            at += len as u64;
        }
        self.written = at;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(BUFFER - self.buffer.len());
        self.buffer.extend_from_slice(bytes.get(..len).unwrap_or_default());
        if self.buffer.len() == BUFFER {
            self.write_buffer().map_err(|error| {
                let text = format!(
                    "a temporary file cannot be written: {error}; set TMPDIR to a directory with \
                     more space"
                );
                io::Error::new(error.kind(), text)
            })?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_buffer()?;
        // Zeroes at the end are a hole, too.
        self.file.set_len(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_full_directory_is_named() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = Spool::over(full).write_all(&vec![1; BUFFER]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("TMPDIR"), "{error}");
    }

    #[test]
    fn zeroes_take_no_space() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let mut bytes = vec![0; 5 << 20];
        bytes[3 << 20] = 7;
        spool.write_all(&bytes).unwrap();
        assert_eq!(spool.position(), 5 << 20);
        let file = spool.file().unwrap().clone();
        let mut found = vec![1; 5 << 20];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
        assert!(file.metadata().unwrap().blocks() * 512 <= 64 << 10);
        spool.write_all(b"more").unwrap();
        spool.file().unwrap().read_exact_at(&mut found[..4], 5 << 20).unwrap();
        assert_eq!(&found[..4], b"more");
    }
}
