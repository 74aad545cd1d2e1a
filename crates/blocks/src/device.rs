//! What every block device can do.

use crate::Claim;
use extant_sync::Arc;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

/// How much is zeroed by one write where a device has nothing better.
const ZERO_CHUNK: usize = 1 << 20;

/// A flat range of bytes that may be read and written at any place, by many threads at once.
///
/// A range that is not wholly within the device is an error and transfers nothing: kind
/// `UnexpectedEof` for reads, `InvalidInput` for writes. Reads and writes are whole or an error;
/// after an error the range's bytes are unknown. Errors carry a [`DeviceError`](crate::DeviceError)
/// that tells the place.
///
/// Concurrent writes of overlapping ranges leave an unknown mixture; nothing here orders them.
#[expect(clippy::len_without_is_empty, reason = "no device is empty")]
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
    /// After an error, which of them are durable is unknown and stays so: a later flush proves
    /// nothing about them.
    fn flush(&self) -> io::Result<()>;

    /// Tells that a range's bytes are no longer needed. What it reads as afterwards is unknown.
    /// Doing nothing is a valid answer.
    ///
    /// # Errors
    /// `Unsupported` from a device that is known to do nothing each time.
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

    /// The first range at or after `offset` that may hold something other than zeroes; `None` if
    /// none follows. Answering the whole rest is valid.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len();
        Ok((offset < len).then_some(offset..len))
    }

    /// Claims the device for a file system: alone to write, beside other readers to read. Devices
    /// are told apart by their addresses; a device over another one must pass this on if two of its
    /// kind over one device would disturb each other. The caller must keep the device as long as
    /// the claim.
    ///
    /// # Errors
    /// `ResourceBusy` if this process has claimed the device otherwise.
    fn claim(&self, exclusive: bool) -> io::Result<Claim> {
        Claim::new(self, exclusive)
    }
}

impl Claim {
    /// Claims the device at the address of `device`, under its name.
    ///
    /// # Errors
    /// `ResourceBusy` if the device has a writer, or any user where `exclusive`.
    pub fn new<D: BlockDevice + ?Sized>(device: &D, exclusive: bool) -> io::Result<Claim> {
        let address = std::ptr::from_ref(device).cast::<()>().addr();
        Claim::of_address(address, exclusive, || device.name())
    }
}

/// Zeroes a range by writing zeroes.
pub(crate) fn write_zeroes_plainly<D: BlockDevice + ?Sized>(
    device: &D,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    let zeroes = vec![0u8; usize::try_from(len).unwrap_or(ZERO_CHUNK).min(ZERO_CHUNK)];
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(zeroes.len() as u64);
        device.write_at(&zeroes[..chunk as usize], offset.saturating_add(done))?;
        done += chunk;
    }
    Ok(())
}

/// Methods of [`BlockDevice`] that do what another device's do:
/// `forward_device!(self => self.inner; len, name)` within the implementation of a device around
/// another one.
#[macro_export]
macro_rules! forward_device {
    ($this:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_device!(@$method $this $inner);)+
    };
    (@len $this:ident $inner:expr) => {
        fn len(&$this) -> u64 {
            $inner.len()
        }
    };
    (@name $this:ident $inner:expr) => {
        fn name(&$this) -> String {
            $inner.name()
        }
    };
    (@read_only $this:ident $inner:expr) => {
        fn read_only(&$this) -> bool {
            $inner.read_only()
        }
    };
    (@read_at $this:ident $inner:expr) => {
        fn read_at(&$this, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            $inner.read_at(buf, offset)
        }
    };
    (@write_at $this:ident $inner:expr) => {
        fn write_at(&$this, data: &[u8], offset: u64) -> std::io::Result<()> {
            $inner.write_at(data, offset)
        }
    };
    (@read_vectored_at $this:ident $inner:expr) => {
        fn read_vectored_at(&$this, bufs: &mut [std::io::IoSliceMut<'_>], offset: u64) -> std::io::Result<()> {
            $inner.read_vectored_at(bufs, offset)
        }
    };
    (@write_vectored_at $this:ident $inner:expr) => {
        fn write_vectored_at(&$this, bufs: &[std::io::IoSlice<'_>], offset: u64) -> std::io::Result<()> {
            $inner.write_vectored_at(bufs, offset)
        }
    };
    (@flush $this:ident $inner:expr) => {
        fn flush(&$this) -> std::io::Result<()> {
            $inner.flush()
        }
    };
    (@discard $this:ident $inner:expr) => {
        fn discard(&$this, offset: u64, len: u64) -> std::io::Result<()> {
            $inner.discard(offset, len)
        }
    };
    (@write_zeroes $this:ident $inner:expr) => {
        fn write_zeroes(&$this, offset: u64, len: u64) -> std::io::Result<()> {
            $inner.write_zeroes(offset, len)
        }
    };
    (@set_len $this:ident $inner:expr) => {
        fn set_len(&$this, len: u64) -> std::io::Result<()> {
            $inner.set_len(len)
        }
    };
    (@next_data $this:ident $inner:expr) => {
        fn next_data(&$this, offset: u64) -> std::io::Result<Option<std::ops::Range<u64>>> {
            $inner.next_data(offset)
        }
    };
    (@claim $this:ident $inner:expr) => {
        fn claim(&$this, exclusive: bool) -> std::io::Result<$crate::Claim> {
            $inner.claim(exclusive)
        }
    };
}

macro_rules! forward_pointers {
    ($($type:ty),+) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $type {
            forward_device!(self => (**self); len, name, read_only, read_at, write_at, read_vectored_at, write_vectored_at,
                flush, discard, write_zeroes, set_len, next_data, claim);
        }
    )+};
}

forward_pointers!(Arc<D>, Box<D>, &D);

/// The bytes of all buffers together.
pub(crate) fn total_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}
