//! Reads of an image file, which may end within a cluster and have holes.

use extant_blocks::BlockDevice;
use std::io;
use std::ops::Range;

/// Fills `buf` from a device; bytes beyond its end are zeroes.
pub(crate) fn read_padded(device: &dyn BlockDevice, buf: &mut [u8], at: u64) -> io::Result<()> {
    let there = device.len().saturating_sub(at).min(buf.len() as u64) as usize;
    let (content, beyond) = buf.split_at_mut(there);
    beyond.fill(0);
    if content.is_empty() { Ok(()) } else { device.read_exact_at(content, at) }
}

/// Returns whether a range of a file is a hole.
pub(crate) fn is_hole(file: &dyn BlockDevice, offset: u64, len: u64) -> io::Result<bool> {
    let data = file.next_data(offset)?;
    Ok(data.is_none_or(|data| data.start >= offset.saturating_add(len)))
}

/// Has a file store the holes in a range, as zeroes.
pub(crate) fn store_holes(file: &dyn BlockDevice, range: Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let data = file.next_data(at)?.unwrap_or(range.end..range.end);
        let hole = at..data.start.min(range.end);
        if hole.start < hole.end {
            file.write_all_at(&vec![0; (hole.end - hole.start) as usize], hole.start)?;
        }
        at = data.end.max(hole.end);
    }
    Ok(())
}
