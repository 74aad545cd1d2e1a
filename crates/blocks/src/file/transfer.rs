//! Complete transfers by system calls that may do a part, and memory aligned for direct I/O.

use super::ALIGN;
use rustix::io::{Errno, preadv, pwritev};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

/// The most buffers of one system call.
const MAX_BUFS: usize = 1024;

/// Writes all buffers from the file offset `at` on.
pub(super) fn write_vectored(file: &File, bufs: &[IoSlice<'_>], at: u64) -> io::Result<()> {
    let mut bufs: Vec<IoSlice<'_>> = bufs.iter().filter(|buf| !buf.is_empty()).copied().collect();
    let mut rest = bufs.as_mut_slice();
    let mut place = at;
    while !rest.is_empty() {
        match pwritev(file, &rest[..rest.len().min(MAX_BUFS)], place) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                IoSlice::advance_slices(&mut rest, count);
                place += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills all buffers from the file offset `at` on.
pub(super) fn read_vectored(file: &File, bufs: &mut [IoSliceMut<'_>], at: u64) -> io::Result<()> {
    let mut bufs: Vec<IoSliceMut<'_>> =
        bufs.iter_mut().filter(|buf| !buf.is_empty()).map(|buf| IoSliceMut::new(buf)).collect();
    let mut rest = bufs.as_mut_slice();
    let mut place = at;
    while !rest.is_empty() {
        let count = rest.len().min(MAX_BUFS);
        match preadv(file, &mut rest[..count], place) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                IoSliceMut::advance_slices(&mut rest, count);
                place += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns whether memory is aligned for direct I/O.
pub(super) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN)
}

/// Memory aligned for direct I/O.
pub(super) struct AlignedBuf {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl AlignedBuf {
    /// Makes a buffer of `len` zeroes.
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGN];
        let skip = memory.as_ptr().addr().wrapping_neg() % ALIGN;
        AlignedBuf { memory, skip, len }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned() {
        for len in [0, 1, ALIGN, 3 * ALIGN] {
            let mut buf = AlignedBuf::new(len);
            assert!(is_aligned(buf.bytes_mut()));
            assert_eq!(buf.bytes_mut().len(), len);
        }
    }

    #[test]
    fn more_buffers_than_one_call_takes() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
        let bufs: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
        write_vectored(&file, &bufs, 10).unwrap();
        let mut back = vec![0; 3000];
        let mut bufs: Vec<_> = back.chunks_mut(1).map(IoSliceMut::new).collect();
        read_vectored(&file, &mut bufs, 10).unwrap();
        assert_eq!(back, bytes);
        let mut byte = [0];
        let past_end = read_vectored(&file, &mut [IoSliceMut::new(&mut byte)], 3010);
        assert_eq!(past_end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
