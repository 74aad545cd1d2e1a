//! A part of another device, such as a partition of the disk in an image.

use crate::error::check_range;
use crate::{BlockDevice, Op, OriginRun, Place, partition};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// A range of another device. The inner device must keep its length.
#[derive(Debug)]
pub struct PartDevice {
    inner: Arc<dyn BlockDevice>,
    name: String,
    range: Range<u64>,
}

impl PartDevice {
    /// Returns the part of a device at a position. One that begins at an offset ends with the
    /// partition there, or at the next one, if the device has a partition table.
    ///
    /// # Errors
    /// `InvalidData` if there is no such partition, or the offset is beyond the end; those of the
    /// device.
    pub fn at(inner: Arc<dyn BlockDevice>, place: Place) -> io::Result<Arc<dyn BlockDevice>> {
        let len = inner.len();
        let (range, name) = match place {
            Place::Whole => return Ok(inner),
            Place::Partition(number) => {
                (partition::find(&*inner, number, None)?, format!("p{number}"))
            }
            Place::Offset(start) if start >= len => {
                let text = format!("{}: it ends at {len}, before {start}", inner.name());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            Place::Offset(start) => {
                // Without a readable table nothing is known about others behind the offset.
                let end = partition::end_of_space(&*inner, start, None).ok().flatten();
                let end = end.filter(|end| (start..=len).contains(end)).unwrap_or(len);
                (start..end, start.to_string())
            }
        };
        let name = format!("{}@{name}", inner.name());
        Ok(Arc::new(PartDevice { inner, name, range }))
    }

    /// Returns the offset in the inner device, for a range within the part.
    fn inside(&self, op: Op, offset: u64, len: u64) -> io::Result<u64> {
        check_range(op, &|| self.name.clone(), self.len(), offset, len)?;
        Ok(self.range.start + offset)
    }
}

impl BlockDevice for PartDevice {
    crate::forward_device!(self => self.inner; read_only, alignment, flush);

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let at = self.inside(Op::Read, offset, buf.len() as u64)?;
        self.inner.read_exact_at(buf, at)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let at = self.inside(Op::Write, offset, data.len() as u64)?;
        self.inner.write_all_at(data, at)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let at = self.inside(Op::Read, offset, len)?;
        self.inner.read_vectored_at(bufs, at)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let at = self.inside(Op::Write, offset, crate::device::total_len(bufs))?;
        self.inner.write_vectored_at(bufs, at)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let at = self.inside(Op::Discard, offset, len)?;
        self.inner.discard(at, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let at = self.inside(Op::Zero, offset, len)?;
        self.inner.write_zeroes(at, len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        if offset >= self.len() {
            return Ok(None);
        }
        let Range { start, end } = self.range;
        let found = self.inner.next_data(start + offset)?.filter(|data| data.start < end);
        Ok(found.map(|data| data.start - start..data.end.min(end) - start))
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.inner.origin(self.inside(Op::Read, offset, len)?, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn a_part_shows_its_range_alone() {
        let disk = Arc::new(MemDevice::new(1 << 20));
        let part = PartDevice::at(disk.clone(), Place::Offset(1 << 19)).unwrap();
        assert_eq!((part.len(), part.name()), (1 << 19, "memory@524288".into()));
        part.write_all_at(&[7; 512], 4096).unwrap();
        let mut found = [0; 512];
        disk.read_exact_at(&mut found, (1 << 19) + 4096).unwrap();
        assert_eq!(found, [7; 512]);
        part.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!((found, part.next_data(0).unwrap()), ([7; 512], Some(0..1 << 16)));
        assert_eq!(part.next_data(1 << 19).unwrap(), None);
        part.write_zeroes(4096, 512).unwrap();
        assert!(part.write_all_at(&[0; 2], (1 << 19) - 1).is_err());
        assert!(part.read_exact_at(&mut found, u64::MAX).is_err());
        assert!(part.discard(1, 1 << 19).is_err());
    }

    #[test]
    fn a_place_that_is_not_there_is_refused() {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20));
        assert!(PartDevice::at(disk.clone(), Place::Offset(1 << 20)).is_err());
        assert!(PartDevice::at(disk.clone(), Place::Partition(1)).is_err());
        assert!(Arc::ptr_eq(&PartDevice::at(disk.clone(), Place::Whole).unwrap(), &disk));
    }
}
