//! A file without a name for changes that exceed their bound on memory.

use extant_engine::device::BlockDevice;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Files that a process in a sandbox could not make any more.
static PREPARED: Mutex<Vec<io::Result<File>>> = Mutex::new(Vec::new());

/// Makes the files of so many devices that follow, before this process enters a sandbox. A failure
/// is that of the first write to such a device.
pub fn prepare(files: usize) {
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    prepared.extend((0..files).map(|_| tempfile::tempfile()));
}

fn made() -> io::Result<File> {
    let prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    prepared.unwrap_or_else(tempfile::tempfile)
}

/// A sparse file in the folder for temporary files (`TMPDIR`).
#[derive(Debug)]
pub struct SpillFile {
    len: u64,
    file: Mutex<Option<File>>,
}

impl SpillFile {
    /// Makes the spill device of an overlay of `device`.
    pub fn new(device: &dyn BlockDevice) -> SpillFile {
        SpillFile { len: device.len(), file: Mutex::default() }
    }

    fn with<T>(&self, transfer: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let transferred = match &mut *file {
            Some(file) => transfer(file),
            empty => made().and_then(|made| transfer(empty.insert(made))),
        };
        transferred.map_err(|error| {
            let dir = std::env::temp_dir();
            let text = format!("changes beyond memory in {} (TMPDIR): {error}", dir.display());
            io::Error::new(error.kind(), text)
        })
    }
}

impl BlockDevice for SpillFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|file| file.read_exact_at(buf, offset))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.with(|file| file.write_all_at(data, offset))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
