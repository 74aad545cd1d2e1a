//! The data of a device in pieces, for copies.

use crate::device::BlockDevice;
use std::io;
use std::ops::Range;

/// The data within ranges of a device, as pieces for the threads of a copy. Holes are left out.
pub struct DataPieces<'p> {
    device: &'p dyn BlockDevice,
    ranges: Box<dyn Iterator<Item = Range<u64>> + Send + 'p>,
    unit: u64,
    /// The rest of the current range.
    rest: Range<u64>,
    /// The first data at or behind the place that was asked for last.
    data: Range<u64>,
}

impl std::fmt::Debug for DataPieces<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataPieces").field("unit", &self.unit).finish_non_exhaustive()
    }
}

impl<'p> DataPieces<'p> {
    /// Divides `ranges`, which ascend, at the multiples of `unit` bytes.
    pub fn new(
        device: &'p dyn BlockDevice,
        ranges: Box<dyn Iterator<Item = Range<u64>> + Send + 'p>,
        unit: u64,
    ) -> DataPieces<'p> {
        DataPieces { device, ranges, unit: unit.max(1), rest: 0..0, data: 0..0 }
    }
}

impl Iterator for DataPieces<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<io::Result<Range<u64>>> {
        loop {
            if self.rest.is_empty() {
                self.rest = self.ranges.next()?;
            }
            if self.data.end <= self.rest.start {
                self.data = match self.device.next_data(self.rest.start) {
                    Ok(data) => data?,
                    Err(error) => return Some(Err(error)),
                };
            }
            let start = self.data.start.max(self.rest.start);
            let bound = (start / self.unit + 1).saturating_mul(self.unit);
            let end = self.data.end.min(self.rest.end).min(bound);
            // Without data in the rest, the next range begins there.
            self.rest.start = end.max(start).min(self.rest.end);
            if start < end {
                return Some(Ok(start..end));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SparseDevice;

    #[test]
    fn pieces_are_data_within_ranges_and_units() {
        let device = SparseDevice::new(1 << 20);
        for at in [0, 4096, 40_960, 65_536] {
            device.write_all_at(&[1; 4096], at).unwrap();
        }
        let ranges = [100..4096, 4096..8192, 8192..50_000, 60_000..70_000, 80_000..90_000];
        let pieces = DataPieces::new(&device, Box::new(ranges.into_iter()), 6000);
        let found: Vec<_> = pieces.map(Result::unwrap).collect();
        let expected =
            [100..4096, 4096..6000, 6000..8192, 40_960..42_000, 42_000..45_056, 65_536..66_000];
        assert_eq!(found[..6], expected);
        assert_eq!((found.len(), &found[6]), (7, &(66_000..69_632)));
    }
}
