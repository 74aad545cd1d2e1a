//! The device: reading, and the implementation of [`BlockDevice`].
//!
//! # Locking
//! One lock (`DiskImage`) covers the maps of a device. Transfers of data that the file has hold it
//! for reading, so that no cluster is freed and taken again meanwhile. Changes of maps hold it for
//! writing, with all transfers that they need. The backing file is never called under it: it may be
//! another device of this kind.

use crate::compressed::Expanded;
use crate::file::{is_hole, read_padded};
use crate::header::{BackingName, Header};
use crate::tables::{Mapping, Run, Tables};
use crate::writer::Writer;
use crate::{bytes, scan};
use extant_blocks::{AlignedDevice, BlockDevice, DeviceError, Op, Origin, OriginRun};
use extant_sync::{Level, RwLock};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of several buffers that are read or written at once.
const MAX_GATHERED: usize = 1 << 20;

/// A disk image in the format qcow2.
///
/// Changes are durable after [`BlockDevice::flush`], as those of any device: a power cut before it
/// leaves the old or the new content of each sector, and tables that agree with it. Clusters may
/// then be lost to the file until a check of `qemu-img` frees them.
#[derive(Debug)]
pub struct Qcow2Device {
    pub(crate) header: Header,
    pub(crate) file: Arc<dyn BlockDevice>,
    pub(crate) backing: Option<Arc<dyn BlockDevice>>,
    pub(crate) tables: Tables,
    pub(crate) state: RwLock<State>,
    read_only: bool,
    expanded: Expanded,
}

/// The maps of an image.
#[derive(Debug)]
pub(crate) struct State {
    /// Entries of the L1 table.
    pub l1: Vec<u64>,
    /// Changes and free clusters; `None` for readers.
    pub writer: Option<Writer>,
}

impl Qcow2Device {
    /// Opens an image. `backing` is the device of its backing file: it must be there if and only if
    /// the header names one, and is only read. A file that refuses writes is opened for reading.
    ///
    /// # Errors
    /// `InvalidData` if the image is damaged, has features that are not supported, or cannot be
    /// written as it is; those of the file.
    pub fn open(
        file: Arc<dyn BlockDevice>,
        backing: Option<Arc<dyn BlockDevice>>,
        read_only: bool,
    ) -> io::Result<Qcow2Device> {
        let (file, backing) = (AlignedDevice::over(file), backing.map(AlignedDevice::over));
        let header = Header::read(&*file)?;
        match (&header.backing, &backing) {
            (Some(named), None) => {
                let cause = format_args!(
                    "it is an overlay of a backing file, which its header calls {:?} and which is \
                     not opened by this name alone",
                    String::from_utf8_lossy(&named.name)
                );
                let remedy = "name the backing file: --backing FILE[:FORMAT]";
                return Err(header.refuse(cause, remedy));
            }
            (None, Some(_)) => {
                let cause = "it is no overlay of a backing file";
                return Err(header.refuse(cause, "leave --backing out"));
            }
            _ => {}
        }
        Qcow2Device::with(header, file, backing, read_only)
    }

    /// Opens an image for reading without its backing file, for its own content alone.
    ///
    /// # Errors
    /// As [`Qcow2Device::open`].
    pub fn open_layer(file: Arc<dyn BlockDevice>) -> io::Result<Qcow2Device> {
        let file = AlignedDevice::over(file);
        Qcow2Device::with(Header::read(&*file)?, file, None, true)
    }

    /// Opens an image with devices that take requests of any alignment.
    fn with(
        header: Header,
        file: Arc<dyn BlockDevice>,
        backing: Option<Arc<dyn BlockDevice>>,
        read_only: bool,
    ) -> io::Result<Qcow2Device> {
        let read_only = read_only || file.read_only();
        let l1 = read_l1(&header, &*file)?;
        let writer = if read_only {
            None
        } else {
            header.check_writable()?;
            Some(scan::scan(&header, &*file, &l1)?)
        };
        Ok(Qcow2Device {
            tables: Tables::new(&header),
            expanded: Expanded::new(&header),
            state: RwLock::new(Level::DiskImage, State { l1, writer }),
            header,
            file,
            backing,
            read_only,
        })
    }

    /// Returns the backing file that the header names.
    pub fn backing_name(&self) -> Option<&BackingName> {
        self.header.backing.as_ref()
    }

    /// Returns an L2 table, the changed one if it was changed.
    pub(crate) fn table(&self, state: &State, index: usize) -> io::Result<Option<Arc<Vec<u64>>>> {
        if let Some(changed) = state.writer.as_ref().and_then(|writer| writer.changed_table(index))
        {
            return Ok(Some(changed));
        }
        if let Some(table) = self.tables.get(index) {
            return Ok(Some(table));
        }
        let entry = state.l1.get(index).copied().unwrap_or_default();
        let Some(offset) = self.header.table_at(entry, self.file.len())? else { return Ok(None) };
        let mut content = vec![0; self.header.cluster() as usize];
        if !is_hole(&*self.file, offset, self.header.cluster())? {
            read_padded(&*self.file, &mut content, offset)?;
        } else if state.writer.is_none() {
            // As good as none. A file may have many of these, which cost no space.
            return Ok(None);
        }
        let table = Arc::new(bytes::words(&content));
        self.tables.insert(index, table.clone());
        Ok(Some(table))
    }

    /// Returns the run at `at`, at most `len` bytes long (not 0), within one L2 table.
    pub(crate) fn run(&self, state: &State, at: u64, len: u64) -> io::Result<Run> {
        let (covered, cluster) = (self.header.covered_by_table(), self.header.cluster());
        let first = at / covered;
        let end = at.saturating_add(len).min((first + 1).saturating_mul(covered));
        let Some(table) = self.table(state, first as usize)? else {
            return Ok(Run { mapping: Mapping::Absent, len: end - at });
        };
        let file_end = self.file.len();
        let within = at % cluster;
        let mut entries = table.iter().skip(((at % covered) / cluster) as usize);
        let mut next = || entries.next().map(|entry| self.header.mapping(*entry, file_end));
        let (_, mapping) = next().unwrap_or(Ok((None, Mapping::Absent)))?;
        let begin = at - within;
        let mut stop = begin.saturating_add(cluster);
        while stop < end
            // An error is one of the run that begins there.
            && let Some(Ok((_, other))) = next()
            && continues(mapping, stop - begin, other)
        {
            stop = stop.saturating_add(cluster);
        }
        let mapping = match mapping {
            Mapping::Data(host) => Mapping::Data(host + within),
            other => other,
        };
        Ok(Run { mapping, len: stop.min(end) - at })
    }

    /// Fills `buf` from the backing file; bytes that it lacks are zeroes.
    pub(crate) fn read_backing(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        match &self.backing {
            Some(backing) => read_padded(&**backing, buf, at),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    /// Returns the content of a compressed cluster.
    pub(crate) fn expand(&self, entry: u64) -> io::Result<Arc<[u8]>> {
        self.expanded.cluster(&self.header, &*self.file, entry)
    }

    /// Reads the beginning of a range. Returns the number of bytes.
    fn read_run(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let state = self.state.read();
        let run = self.run(&state, at, buf.len() as u64)?;
        let buf = &mut buf[..run.len as usize];
        match run.mapping {
            Mapping::Data(host) => read_padded(&*self.file, buf, host)?,
            Mapping::Zero => buf.fill(0),
            Mapping::Absent => {
                drop(state);
                self.read_backing(buf, at)?;
            }
            Mapping::Compressed(entry) => {
                let cluster = self.expand(entry)?;
                buf.copy_from_slice(&cluster[(at % self.header.cluster()) as usize..][..buf.len()]);
            }
        }
        Ok(run.len as usize)
    }

    pub(crate) fn check(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        let device_len = self.header.size;
        let cause = if op != Op::Read && self.read_only {
            let text = "the image is open for reading only";
            io::Error::new(io::ErrorKind::ReadOnlyFilesystem, text)
        } else if offset.checked_add(len).is_some_and(|end| end <= device_len) {
            return Ok(());
        } else {
            let kind = match op {
                Op::Read => io::ErrorKind::UnexpectedEof,
                _ => io::ErrorKind::InvalidInput,
            };
            io::Error::new(kind, format!("beyond the end at {device_len}"))
        };
        Err(DeviceError { op, device: self.name(), offset, len, cause }.into())
    }
}

/// Returns the origin of the beginning of a range of a file, behind whose end are zeroes.
fn origin_within(file: &dyn BlockDevice, at: u64, len: u64) -> io::Result<OriginRun> {
    match file.len().saturating_sub(at) {
        0 => Ok(OriginRun::new(Origin::Zeroes, len)),
        rest => file.origin(at, len.min(rest)),
    }
}

/// Splits buffers into groups of [`MAX_GATHERED`] bytes at most, or of one buffer.
fn groups_mut<'b, 'd>(
    mut bufs: &'b mut [IoSliceMut<'d>],
) -> impl Iterator<Item = &'b mut [IoSliceMut<'d>]> {
    std::iter::from_fn(move || {
        let mut len = 0;
        let fits = |buf: &IoSliceMut<'_>| {
            len += buf.len();
            len <= MAX_GATHERED
        };
        let count = bufs.iter().map(fits).take_while(|fits| *fits).count().max(1);
        let (group, rest) = std::mem::take(&mut bufs).split_at_mut_checked(count)?;
        bufs = rest;
        Some(group)
    })
}

/// Returns whether a cluster `distance` bytes behind the beginning of a run belongs to it.
fn continues(run: Mapping, distance: u64, other: Mapping) -> bool {
    match (run, other) {
        (Mapping::Data(host), Mapping::Data(next)) => host.checked_add(distance) == Some(next),
        (Mapping::Zero, Mapping::Zero) | (Mapping::Absent, Mapping::Absent) => true,
        _ => false,
    }
}

fn read_l1(header: &Header, file: &dyn BlockDevice) -> io::Result<Vec<u64>> {
    let len = header.l1_len * 8;
    if header.l1_offset.checked_add(len as u64).is_none_or(|end| end > file.len()) {
        let cause = format_args!(
            "its L1 table of {len} bytes at {} ends beyond the file, which has {}",
            header.l1_offset,
            file.len()
        );
        return Err(header.refuse(cause, "the file is cut off, and only a copy has the rest"));
    }
    let mut content = vec![0; len];
    file.read_exact_at(&mut content, header.l1_offset)?;
    let l1 = bytes::words(&content);
    for entry in &l1 {
        header.table_at(*entry, file.len())?;
    }
    Ok(l1)
}

impl BlockDevice for Qcow2Device {
    fn len(&self) -> u64 {
        self.header.size
    }

    fn name(&self) -> String {
        self.header.file.clone()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_exact_at(&self, mut buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(Op::Read, offset, buf.len() as u64)?;
        let mut at = offset;
        while !buf.is_empty() {
            let done = self.read_run(buf, at)?;
            buf = &mut buf[done..];
            at += done as u64;
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        self.write(data, offset)
    }

    /// Reads pages of a file at once, which are adjacent in the disk.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for group in groups_mut(bufs) {
            if let [buf] = group {
                self.read_exact_at(buf, at)?;
                at += buf.len() as u64;
                continue;
            }
            let mut bytes = vec![0; group.iter().map(|buf| buf.len()).sum()];
            self.read_exact_at(&mut bytes, at)?;
            at += bytes.len() as u64;
            let mut rest = &bytes[..];
            for buf in group {
                let (part, behind) = rest.split_at(buf.len());
                buf.copy_from_slice(part);
                rest = behind;
            }
        }
        Ok(())
    }

    /// Writes pages of a file at once: a cluster that gets its place is written once then.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check(Op::Write, offset, len)?;
        if let [buf] = bufs {
            return self.write(buf, offset);
        }
        let mut at = offset;
        let mut bytes = Vec::new();
        for (number, buf) in bufs.iter().enumerate() {
            bytes.extend_from_slice(buf);
            if bytes.len() >= MAX_GATHERED || number + 1 == bufs.len() {
                self.write(&bytes, at)?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only { Ok(()) } else { self.commit() }
    }

    /// Frees the clusters that are wholly in the range.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Discard, offset, len)?;
        let cluster = self.header.cluster();
        let begin = offset.next_multiple_of(cluster);
        let end = offset + len;
        let end = if end == self.header.size { end } else { end - end % cluster };
        if begin < end { self.empty(begin..end, true) } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Zero, offset, len)?;
        self.zero(offset..offset + len)
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.check(Op::Read, offset, len)?;
        let state = self.state.read();
        let run = self.run(&state, offset, len)?;
        let zeroes = OriginRun::new(Origin::Zeroes, run.len);
        Ok(match run.mapping {
            Mapping::Data(host) => origin_within(&*self.file, host, run.len)?,
            Mapping::Zero => zeroes,
            Mapping::Compressed(_) => OriginRun::own(run.len),
            Mapping::Absent => {
                drop(state);
                match &self.backing {
                    Some(backing) => origin_within(&**backing, offset, run.len)?,
                    None => zeroes,
                }
            }
        })
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let size = self.header.size;
        let mut at = offset;
        while at < size {
            let state = self.state.read();
            let run = self.run(&state, at, size - at)?;
            drop(state);
            let end = at + run.len;
            let found = match run.mapping {
                Mapping::Data(_) | Mapping::Compressed(_) => Some(at..end),
                Mapping::Zero => None,
                Mapping::Absent => match &self.backing {
                    Some(backing) => backing.next_data(at)?.filter(|data| data.start < end),
                    None => None,
                },
            };
            if let Some(found) = found {
                return Ok(Some(found.start.max(at)..found.end.min(end)));
            }
            at = end;
        }
        Ok(None)
    }
}

impl Drop for Qcow2Device {
    /// Writes changed tables, as the content of a raw image would be in its file by now.
    fn drop(&mut self) {
        if self.state.get_mut().writer.as_ref().is_some_and(Writer::has_changes)
            && let Err(error) = self.commit()
        {
            tracing::error!("{}: the last changes could not be written: {error}", self.name());
        }
    }
}
