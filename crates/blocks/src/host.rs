//! Copies between files of the host without buffers in this process.

use std::fs::File;

/// Bytes of a file of the host, from one of them on: those of a device, or content for one.
#[derive(Clone, Copy, Debug)]
pub struct HostBytes<'f> {
    file: &'f File,
    start: u64,
}

impl<'f> HostBytes<'f> {
    /// Takes the bytes of a file from byte `start` on.
    pub fn new(file: &'f File, start: u64) -> HostBytes<'f> {
        HostBytes { file, start }
    }

    /// Returns the bytes from `skip` on; `None` if no file has so many.
    #[must_use]
    pub fn skip(self, skip: u64) -> Option<HostBytes<'f>> {
        let start = self.start.checked_add(skip)?;
        Some(HostBytes { start, ..self })
    }

    /// Copies the first `len` bytes to byte `at` of a file. File systems that can do so let both
    /// files share the storage, as XFS and btrfs do.
    ///
    /// Returns how many bytes were copied. A caller copies the others by reading and writing, which
    /// also finds the reason: the host may be unable to copy between these files, the file may have
    /// fewer bytes, or no space is left.
    pub fn copy_to(self, file: &File, at: u64, len: u64) -> u64 {
        copied_by_host((self.file, self.start), (file, at), len)
    }
}

#[cfg(all(feature = "file-device", target_os = "linux"))]
fn copied_by_host(source: (&File, u64), target: (&File, u64), len: u64) -> u64 {
    let (mut from, mut to) = (source.1, target.1);
    let mut rest = len;
    while rest > 0 {
        let most = usize::try_from(rest).unwrap_or(usize::MAX);
        let (input, output) = (Some(&mut from), Some(&mut to));
        match rustix::fs::copy_file_range(source.0, input, target.0, output, most) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => break,
            Ok(count) => rest = rest.saturating_sub(count as u64),
        }
    }
    len.saturating_sub(rest)
}

/// Copies nothing: this build knows no such copies.
#[cfg(not(all(feature = "file-device", target_os = "linux")))]
fn copied_by_host(_source: (&File, u64), _target: (&File, u64), _len: u64) -> u64 {
    0
}
