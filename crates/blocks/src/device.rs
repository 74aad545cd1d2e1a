//! What every block device can do.

use extant_sync::Arc;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

/// How much is zeroed by one write where a device has nothing better.
const ZERO_CHUNK: usize = 1 << 20;

/// A flat range of bytes that may be read and written at any place, by many threads at once.
///
/// A range that is not wholly within the device is an error and transfers nothing: kind `UnexpectedEof` for reads,
/// `InvalidInput` for writes. Reads and writes are whole or an error; after an error the range's bytes are unknown.
/// Errors carry a [`DeviceError`](crate::DeviceError) that tells the place.
///
/// Concurrent writes of overlapping ranges leave an unknown mixture; nothing here orders them.
#[allow(clippy::len_without_is_empty)]
pub trait BlockDevice: Send + Sync + Debug {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// What to call the device in messages.
    fn name(&self) -> String;

    /// Whether writes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes `data` at `offset`. It is durable after a later [`BlockDevice::flush`].
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffers one after the other from `offset`.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.read_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Writes the buffers one after the other at `offset`, in as few requests as the device can.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.write_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Returns once every write that had completed before the call is durable.
    ///
    /// After an error, which of them are durable is unknown and stays so: a later flush proves nothing about them.
    fn flush(&self) -> io::Result<()>;

    /// Tells that a range's bytes are no longer needed. What it reads as afterwards is unknown. Doing nothing is a
    /// valid answer.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zeroes_plainly(self, offset, len)
    }

    /// Changes the length; new bytes read as zeroes.
    ///
    /// # Errors
    /// `Unsupported` where the length is given by the medium.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let cause = io::Error::new(io::ErrorKind::Unsupported, "the device's length is fixed");
        let op = crate::Op::SetLen;
        Err(crate::DeviceError { op, device: self.name(), offset: 0, len, cause }.into())
    }

    /// The first range at or after `offset` that may hold something other than zeroes; `None` if none follows.
    /// Answering the whole rest is valid.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len();
        Ok((offset < len).then_some(offset..len))
    }
}

/// Zeroes a range by writing zeroes.
pub(crate) fn write_zeroes_plainly<D: BlockDevice + ?Sized>(device: &D, offset: u64, len: u64) -> io::Result<()> {
    let zeroes = vec![0u8; usize::try_from(len).unwrap_or(ZERO_CHUNK).min(ZERO_CHUNK)];
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(zeroes.len() as u64);
        device.write_at(&zeroes[..chunk as usize], offset.saturating_add(done))?;
        done += chunk;
    }
    Ok(())
}

macro_rules! forward {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> BlockDevice for $type {
            fn len(&self) -> u64 {
                (**self).len()
            }
            fn name(&self) -> String {
                (**self).name()
            }
            fn read_only(&self) -> bool {
                (**self).read_only()
            }
            fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
                (**self).read_at(buf, offset)
            }
            fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
                (**self).write_at(data, offset)
            }
            fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
                (**self).read_vectored_at(bufs, offset)
            }
            fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
                (**self).write_vectored_at(bufs, offset)
            }
            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }
            fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).discard(offset, len)
            }
            fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).write_zeroes(offset, len)
            }
            fn set_len(&self, len: u64) -> io::Result<()> {
                (**self).set_len(len)
            }
            fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
                (**self).next_data(offset)
            }
        }
    )*};
}

forward! {
    [D: BlockDevice + ?Sized] Arc<D>;
    [D: BlockDevice + ?Sized] Box<D>;
    [D: BlockDevice + ?Sized] &D;
}

/// The bytes of all buffers together.
pub(crate) fn total_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}
