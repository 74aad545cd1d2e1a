//! The content that an image has itself, without its backing file.

use crate::device::Qcow2Device;
use crate::tables::Mapping;
use extant_blocks::{AlignedDevice, BlockDevice};
use std::io;
use std::ops::Range;

/// A range of the disk that an overlay has itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerRange {
    /// Bytes of the disk.
    pub range: Range<u64>,
    /// It reads as zeroes.
    pub is_zero: bool,
}

impl Qcow2Device {
    /// Returns the first range at or after `offset` that the image has itself, which may go on in
    /// another one behind it.
    ///
    /// # Errors
    /// `InvalidData` if a table is damaged; those of the file.
    pub fn next_in_layer(&self, offset: u64) -> io::Result<Option<LayerRange>> {
        let size = self.len();
        let mut at = offset;
        while at < size {
            let run = self.run(&self.state.read(), at, size - at)?;
            let range = at..at + run.len;
            match run.mapping {
                Mapping::Absent => at = range.end,
                mapping => {
                    return Ok(Some(LayerRange { range, is_zero: mapping == Mapping::Zero }));
                }
            }
        }
        Ok(None)
    }

    /// Writes the content that the image has itself to `base`, the device that it lies over, and
    /// makes it durable. `progress` gets the bytes of each written piece. A damaged overlay leaves
    /// `base` unchanged. A failure of a device or a power cut leaves a part of the content in
    /// `base`: through the overlay the disk is the same, and another call completes it.
    ///
    /// # Errors
    /// `InvalidInput` if `base` is shorter than the disk; `InvalidData` if the image is damaged;
    /// those of the devices.
    pub fn commit_to(
        &self,
        base: &dyn BlockDevice,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        // Clusters may be shorter than the blocks of the base.
        let base = AlignedDevice::new(base);
        if base.len() < self.len() {
            let text = format!(
                "{}: it has {} bytes, and the overlay has {}; make it longer first",
                base.name(),
                base.len(),
                self.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.verify_layer()?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some(LayerRange { range, is_zero }) = self.next_in_layer(at)? {
            at = range.end;
            if is_zero {
                base.write_zeroes(range.start, range.end - range.start)?;
                progress(range.end - range.start);
                continue;
            }
            let mut from = range.start;
            while from < range.end {
                let len = (range.end - from).min(PIECE as u64) as usize;
                self.read_exact_at(&mut piece[..len], from)?;
                base.write_all_at(&piece[..len], from)?;
                progress(len as u64);
                from += len as u64;
            }
        }
        base.flush()
    }

    /// Verifies that all content that the image has itself can be read: its tables, and each
    /// compressed cluster. Other clusters hold any bytes.
    fn verify_layer(&self) -> io::Result<()> {
        let size = self.len();
        let mut at = 0;
        while at < size {
            let run = self.run(&self.state.read(), at, size - at)?;
            if let Mapping::Compressed(entry) = run.mapping {
                self.expand(entry)?;
            }
            at += run.len;
        }
        Ok(())
    }
}
