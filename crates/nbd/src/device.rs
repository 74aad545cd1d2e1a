//! The client as a [`BlockDevice`].

use crate::address::Address;
use crate::client::{Client, Failure, pieces};
use crate::connect::Connect;
use crate::lock::WriteLock;
use crate::log::Change;
use crate::registry;
use crate::wire::{READ_ONLY, SEND_TRIM, SEND_WRITE_ZEROES, STATE_ZERO, command};
use extant_blocks::{BlockDevice, Claim, DeviceError, Op, forward_device};
use extant_sync::Arc;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::time::Duration;

/// Bytes of a zeroing, a discard and a status of blocks at most.
const MAX_ZEROES: u32 = 32 << 20;
const MAX_DISCARD: u32 = 1 << 30;
const MAX_STATUS: u32 = 1 << 30;

/// Questions for the status of blocks in a search for data. A search that needs more ends with all
/// of the rest, which may hold data.
const MAX_QUESTIONS: usize = 4096;

/// How long another process that writes is waited for: a mount ends a moment after its unmount.
const PATIENCE: Duration = Duration::from_secs(5);

/// An export of a server as a device.
///
/// # Writes and flushes
/// A write returns when it is sent, at most 256 writes and 16 MiB before their answers. Reads and
/// writes of the same range wait for them. A flush waits for the answers, then for that to its own
/// request, and returns the first error of a write since the last flush. Dropping the device
/// flushes it.
///
/// # Lost connections
/// The next request connects again, for as long as the address says (`timeout=`), and first repeats
/// all writes that no flush covers, of which at most 64 MiB are kept: with more, the device flushes
/// by itself. So nothing that a flush made durable, and no write after it, is lost when the server
/// ends and comes back. If that fails, each request fails from then on. A request without an answer
/// ends after six times the timeout, or twelve times if a flush comes first.
///
/// With writes under way, the server must end the lost connections within the timeout, when it
/// executes no request of them any more. The protocol cannot stop a server that executes requests
/// after that: it must have ended before another one offers the same disk. Another disk at the same
/// address is noticed by its size and by a few blocks that were seen before.
///
/// # Sharing
/// Devices of the same address in one process share their connections, and a claim of one excludes
/// the others. A device for writing excludes those of other processes of this user and host, by a
/// [`WriteLock`].
#[derive(Debug)]
pub struct NbdDevice {
    client: Arc<Client>,
    read_only: bool,
    /// Given back after the flush of the end.
    _lock: Option<WriteLock>,
}

impl NbdDevice {
    /// Connects to an export. With `read_only` nothing is written, and an export that is for
    /// reading only is never written.
    ///
    /// # Errors
    /// `NotConnected` if no server answers in time, `ConnectionRefused` if it does not offer the
    /// export, `InvalidData` if it breaks the protocol, `ResourceBusy` if another process of this
    /// user writes to it.
    pub fn open(address: &Address, read_only: bool) -> io::Result<NbdDevice> {
        NbdDevice::open_by(address, Arc::new(address.clone()), read_only)
    }

    /// As [`NbdDevice::open`], by connections that `connect` makes.
    ///
    /// # Errors
    /// As [`NbdDevice::open`].
    pub fn open_by(
        address: &Address,
        connect: Arc<dyn Connect>,
        read_only: bool,
    ) -> io::Result<NbdDevice> {
        let lock = (!read_only).then(|| WriteLock::take(address, PATIENCE)).transpose()?;
        let client = registry::client(address, connect)?;
        let _lock = lock.filter(|_| !client.read_only());
        Ok(NbdDevice { client, read_only, _lock })
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        if self.client.has_changes()
            && let Err(Failure { cause, .. }) = self.client.sync(true)
        {
            tracing::error!("{}: the last writes may be lost: {cause}", self.client.address);
        }
    }
}

impl BlockDevice for NbdDevice {
    forward_device!(self => self.client;
        len, name, alignment, read_exact_at, read_vectored_at, flush, next_data);

    fn read_only(&self) -> bool {
        self.read_only || self.client.read_only()
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable(Op::Write, offset, data.len() as u64)?;
        self.client.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.check_writable(Op::Write, offset, total(bufs))?;
        self.client.write_vectored_at(bufs, offset)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable(Op::Discard, offset, len)?;
        self.client.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable(Op::Zero, offset, len)?;
        self.client.write_zeroes(offset, len)
    }

    fn claim(&self, exclusive: bool) -> io::Result<Claim> {
        self.client.claim(exclusive)
    }
}

impl NbdDevice {
    fn check_writable(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only() {
            let kind = io::ErrorKind::ReadOnlyFilesystem;
            let cause = io::Error::new(kind, "the export is open for reading only");
            return Err(self.client.error(op, offset, len, cause));
        }
        Ok(())
    }
}

fn total(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

impl Client {
    fn error(&self, op: Op, offset: u64, len: u64, cause: io::Error) -> io::Error {
        DeviceError { op, device: self.name(), offset, len, cause }.into()
    }

    fn check_range(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.export.size) {
            return Ok(());
        }
        let kind =
            if op == Op::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidInput };
        let cause = io::Error::new(kind, format!("beyond the end at {}", self.export.size));
        Err(self.error(op, offset, len, cause))
    }

    /// Returns the error of a change, or of an earlier one that it reports.
    fn failed(&self, op: Op, offset: u64, len: u64, failure: Failure) -> io::Error {
        let Some(earlier) = failure.request else {
            return self.error(op, offset, len, failure.cause);
        };
        let op = match earlier.command {
            command::WRITE_ZEROES => Op::Zero,
            command::TRIM => Op::Discard,
            _ => Op::Write,
        };
        self.error(op, earlier.offset, earlier.len.into(), failure.cause)
    }

    /// Sends changes of the pieces of a range.
    fn change(
        &self,
        op: Op,
        (offset, len): (u64, u64),
        piece: u32,
        mut make: impl FnMut(u32) -> Change,
    ) -> io::Result<()> {
        self.check_range(op, offset, len)?;
        for part in pieces(len, piece) {
            let (at, bytes) = (offset + part.start, (part.end - part.start) as u32);
            self.write(make(bytes), at, bytes)
                .map_err(|failure| self.failed(op, at, bytes.into(), failure))?;
        }
        Ok(())
    }

    /// Rounds a number of bytes down to whole blocks, of which there is one at least.
    fn whole_blocks(&self, bytes: u32) -> u32 {
        let block = self.export.min_block;
        (bytes - bytes % block).max(block)
    }
}

impl BlockDevice for Client {
    fn len(&self) -> u64 {
        self.export.size
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn read_only(&self) -> bool {
        self.export.has(READ_ONLY)
    }

    fn alignment(&self) -> usize {
        self.export.min_block as usize
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buf.len();
        self.check_range(Op::Read, offset, len as u64)?;
        let put = |at: usize, data: &[u8]| {
            // The length of an answer was checked; a wrong one would be left out.
            if let Some(place) = buf.get_mut(at..at + data.len()) {
                place.copy_from_slice(data);
            }
        };
        let read = self.read_ahead(offset, len, put);
        read.map_err(|cause| self.error(Op::Read, offset, len as u64, cause))
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.check_range(Op::Read, offset, len as u64)?;
        let read = self.read_ahead(offset, len, |at, data| scatter(bufs, at, data));
        read.map_err(|cause| self.error(Op::Read, offset, len as u64, cause))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut rest = data;
        let take = |len: u32| {
            let (taken, after) = rest.split_at(len as usize);
            rest = after;
            Change::Data(taken.to_vec())
        };
        self.change(Op::Write, (offset, data.len() as u64), self.piece(), take)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = bufs.iter().flat_map(|buf| buf.chunks(self.piece() as usize));
        let mut rest: &[u8] = &[];
        let gather = |len: u32| {
            let mut data = Vec::with_capacity(len as usize);
            while data.len() < len as usize {
                if rest.is_empty() {
                    let Some(next) = bytes.next() else { break };
                    rest = next;
                }
                let (taken, after) = rest.split_at(rest.len().min(len as usize - data.len()));
                data.extend_from_slice(taken);
                rest = after;
            }
            Change::Data(data)
        };
        self.change(Op::Write, (offset, total(bufs)), self.piece(), gather)
    }

    fn flush(&self) -> io::Result<()> {
        self.sync(true).map_err(|failure| self.failed(Op::Flush, 0, 0, failure))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.export.has(SEND_TRIM) {
            let cause = io::Error::new(io::ErrorKind::Unsupported, "the server discards nothing");
            return Err(self.error(Op::Discard, offset, len, cause));
        }
        let piece = self.whole_blocks(MAX_DISCARD);
        self.change(Op::Discard, (offset, len), piece, Change::Discard)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.export.has(SEND_WRITE_ZEROES) {
            let piece = self.whole_blocks(MAX_ZEROES);
            return self.change(Op::Zero, (offset, len), piece, Change::Zeroes);
        }
        let zeroes = |len: u32| Change::Data(vec![0; len as usize]);
        self.change(Op::Zero, (offset, len), self.piece(), zeroes)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let size = self.export.size;
        if offset >= size {
            return Ok(None);
        }
        let mut at = offset - offset % u64::from(self.export.min_block);
        let mut found: Option<Range<u64>> = None;
        for _ in 0..MAX_QUESTIONS {
            if self.export.allocation.is_none() {
                break;
            }
            let len = (size - at).min(self.whole_blocks(MAX_STATUS).into()) as u32;
            let extents = self.extents(at, len);
            let extents = extents.map_err(|cause| self.error(Op::Read, at, len.into(), cause))?;
            if extents.is_empty() {
                break;
            }
            for (len, flags) in extents {
                let end = at.saturating_add(len.into()).min(size);
                let is_data = flags & STATE_ZERO == 0;
                match &mut found {
                    Some(data) if is_data => data.end = end,
                    Some(_) => return Ok(found),
                    None if is_data && end > offset => found = Some(at.max(offset)..end),
                    None => {}
                }
                at = end;
            }
            if found.is_some() || at >= size {
                return Ok(found);
            }
        }
        Ok(Some(at.max(offset)..size))
    }
}

/// Copies data to a place in the concatenation of buffers.
fn scatter(bufs: &mut [IoSliceMut<'_>], mut at: usize, mut data: &[u8]) {
    for buf in bufs {
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let len = data.len().min(buf.len() - at);
        let (taken, rest) = data.split_at(len);
        buf[at..at + len].copy_from_slice(taken);
        (at, data) = (0, rest);
        if data.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_scattered_over_buffers() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 0], [0; 3]);
        let mut bufs = [&mut a[..], &mut b[..], &mut c[..]].map(IoSliceMut::new);
        scatter(&mut bufs, 1, &[1, 2, 3]);
        scatter(&mut bufs, 0, &[9]);
        scatter(&mut bufs, 4, &[7, 8]);
        assert_eq!((a, c), ([9, 1], [2, 3, 7]));
    }
}
