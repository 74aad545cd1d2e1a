//! The interface of all block devices.

use crate::{Claim, HostBytes, OriginRun};
use extant_sync::Arc;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

/// Bytes of one write when a device zeroes ranges by writing.
const ZERO_CHUNK: usize = 1 << 20;

/// A flat range of bytes that many threads may read and write at any position at once.
///
/// A range that is not wholly within the device is an error and transfers nothing: kind
/// `UnexpectedEof` for reads, `InvalidInput` for writes. Reads and writes are complete or an error;
/// after an error, the contents of the range are unknown. Errors contain a
/// [`DeviceError`](crate::DeviceError) with the position.
///
/// Concurrent writes of overlapping ranges leave an unknown mixture: devices do not order them.
#[expect(clippy::len_without_is_empty, reason = "no device is empty")]
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns the device's name for messages.
    fn name(&self) -> String {
        "device".into()
    }

    /// Returns whether writes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// Returns the number of bytes of which the offset and the length of each request must be a
    /// multiple; a request may also end at the device's end. 1, the default, allows every request.
    ///
    /// File systems and [`AlignedDevice::over`](crate::AlignedDevice::over) turn requests within
    /// such a block into reads and writes of the whole block. The addresses of buffers are
    /// arbitrary.
    fn alignment(&self) -> usize {
        1
    }

    /// Fills `buf` from `offset`, in bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range is not within the device; those of the medium.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes `data` at `offset`, in bytes. The data is durable after a later
    /// [`BlockDevice::flush`].
    ///
    /// # Errors
    /// `InvalidInput` if the range is not within the device, `ReadOnlyFilesystem` from a device
    /// that refuses writes; those of the medium.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffers in order from `offset`, in bytes.
    ///
    /// # Errors
    /// As [`BlockDevice::read_exact_at`].
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.read_exact_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Writes the buffers in order at `offset`, in bytes, in as few requests as the device allows.
    ///
    /// # Errors
    /// As [`BlockDevice::write_all_at`].
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.write_all_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Returns once every write that had completed before the call is durable.
    ///
    /// # Errors
    /// Those of the medium. After an error, it is unknown and stays unknown which of these writes
    /// are durable: a later flush proves nothing about them.
    fn flush(&self) -> io::Result<()>;

    /// Tells the device that a range's bytes are no longer needed. Later reads of the range return
    /// unknown bytes. A device may ignore the call.
    ///
    /// # Errors
    /// `Unsupported` from a device that is known to ignore every call, as the default does.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let cause = io::Error::new(io::ErrorKind::Unsupported, "the device discards nothing");
        let op = crate::Op::Discard;
        Err(crate::DeviceError { op, device: self.name(), offset, len, cause }.into())
    }

    /// Makes a range, offset and length in bytes, read as zeroes.
    ///
    /// # Errors
    /// As [`BlockDevice::write_all_at`].
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zeroes_plainly(self, offset, len)
    }

    /// Changes the length. New bytes read as zeroes.
    ///
    /// # Errors
    /// `Unsupported` if the medium determines the length.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let cause = io::Error::new(io::ErrorKind::Unsupported, "the device's length is fixed");
        let op = crate::Op::SetLen;
        Err(crate::DeviceError { op, device: self.name(), offset: 0, len, cause }.into())
    }

    /// Looks at the medium again and returns the length, which is larger from then on if others
    /// made the medium longer: they extended the file, or the disk. The default is for devices
    /// whose length only [`BlockDevice::set_len`] changes.
    ///
    /// # Errors
    /// Those of the medium.
    fn refresh_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    /// Returns the first range at or after `offset` that may hold bytes other than zeroes, or
    /// `None` if none follows, in bytes. A device may return the whole rest.
    ///
    /// # Errors
    /// Those of the medium.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len();
        Ok((offset < len).then_some(offset..len))
    }

    /// Returns the storage behind the beginning of a range of `len` bytes, which must be within the
    /// device and not empty. Two ranges with the same origin, other than [`Origin::Own`], have the
    /// same content as long as no one writes. The default knows nothing.
    ///
    /// # Errors
    /// Those of the medium.
    ///
    /// [`Origin::Own`]: crate::Origin::Own
    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        let _ = offset;
        Ok(OriginRun::own(len))
    }

    /// Returns the bytes of the file that the device is in, from the device's first byte on, if the
    /// host may copy them without the device.
    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        None
    }

    /// Copies `len` bytes of a file of the host to `offset`, in bytes, as far as the host does so
    /// by itself. Returns how many bytes were copied; the caller reads and writes the others.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not within the device, `ReadOnlyFilesystem` from a device
    /// that refuses writes. An error of the medium ends the copy without a message: the caller's
    /// own write of the rest meets it again.
    fn copy_from_host(&self, source: HostBytes<'_>, offset: u64, len: u64) -> io::Result<u64> {
        let _ = (source, offset, len);
        Ok(0)
    }

    /// Claims the device for a file system: exclusively for writing, shared with other readers for
    /// reading. Devices are distinguished by their addresses. A device over another one must
    /// forward the call if two devices of its kind over the same device would disturb each other.
    /// The caller must keep the device as long as the claim.
    ///
    /// # Errors
    /// `ResourceBusy` if this process has a conflicting claim on the device.
    fn claim(&self, exclusive: bool) -> io::Result<Claim> {
        Claim::new(self, exclusive)
    }

    /// Returns another descriptor of the file that the device is in, with which another process
    /// can open the same device. The file stays locked from then on until the last descriptor is
    /// closed, in any process.
    ///
    /// # Errors
    /// `Unsupported` if the device is not the content of one open file; those of fcntl(2).
    fn share_file(&self) -> io::Result<std::fs::File> {
        let text = format!("{}: another process cannot go on with this device", self.name());
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

impl Claim {
    /// Claims the device at the address of `device`. Its name is used in errors.
    ///
    /// # Errors
    /// `ResourceBusy` if the device has a writer, or has any user and `exclusive` is set.
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
    // Nothing is written, too, so that a place behind the end is an error.
    loop {
        let chunk = (len - done).min(zeroes.len() as u64);
        device.write_all_at(&zeroes[..chunk as usize], offset.saturating_add(done))?;
        done += chunk;
        if done == len {
            return Ok(());
        }
    }
}

/// Implements methods of [`BlockDevice`] by those of another device: `forward_device!(self =>
/// self.inner; len, name)` within the implementation of a device around another one.
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
    (@alignment $this:ident $inner:expr) => {
        fn alignment(&$this) -> usize {
            $inner.alignment()
        }
    };
    (@read_exact_at $this:ident $inner:expr) => {
        fn read_exact_at(&$this, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            $inner.read_exact_at(buf, offset)
        }
    };
    (@write_all_at $this:ident $inner:expr) => {
        fn write_all_at(&$this, data: &[u8], offset: u64) -> std::io::Result<()> {
            $inner.write_all_at(data, offset)
        }
    };
    (@read_vectored_at $this:ident $inner:expr) => {
        fn read_vectored_at(
            &$this,
            bufs: &mut [std::io::IoSliceMut<'_>],
            offset: u64,
        ) -> std::io::Result<()> {
            $inner.read_vectored_at(bufs, offset)
        }
    };
    (@write_vectored_at $this:ident $inner:expr) => {
        fn write_vectored_at(
            &$this,
            bufs: &[std::io::IoSlice<'_>],
            offset: u64,
        ) -> std::io::Result<()> {
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
    (@refresh_len $this:ident $inner:expr) => {
        fn refresh_len(&$this) -> std::io::Result<u64> {
            $inner.refresh_len()
        }
    };
    (@next_data $this:ident $inner:expr) => {
        fn next_data(&$this, offset: u64) -> std::io::Result<Option<std::ops::Range<u64>>> {
            $inner.next_data(offset)
        }
    };
    (@origin $this:ident $inner:expr) => {
        fn origin(&$this, offset: u64, len: u64) -> std::io::Result<$crate::OriginRun> {
            $inner.origin(offset, len)
        }
    };
    (@claim $this:ident $inner:expr) => {
        fn claim(&$this, exclusive: bool) -> std::io::Result<$crate::Claim> {
            $inner.claim(exclusive)
        }
    };
    (@host_bytes $this:ident $inner:expr) => {
        fn host_bytes(&$this) -> Option<$crate::HostBytes<'_>> {
            $inner.host_bytes()
        }
    };
    (@copy_from_host $this:ident $inner:expr) => {
        fn copy_from_host(
            &$this,
            source: $crate::HostBytes<'_>,
            offset: u64,
            len: u64,
        ) -> std::io::Result<u64> {
            $inner.copy_from_host(source, offset, len)
        }
    };
    (@share_file $this:ident $inner:expr) => {
        fn share_file(&$this) -> std::io::Result<std::fs::File> {
            $inner.share_file()
        }
    };
}

macro_rules! forward_pointers {
    ($($type:ty),+) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $type {
            forward_device!(self => (**self);
                len, name, read_only, alignment, read_exact_at, write_all_at, read_vectored_at,
                write_vectored_at, flush, discard, write_zeroes, set_len, refresh_len, next_data,
                origin, host_bytes, copy_from_host, claim, share_file);
        }
    )+};
}

forward_pointers!(Arc<D>, Box<D>, &D);

/// Returns the sum of the buffers' lengths.
pub(crate) fn total_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}
