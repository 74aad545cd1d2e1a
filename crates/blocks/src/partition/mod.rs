//! Partitions, found by the table in the device's first sectors.
//!
//! The tables may be hostile. A partition is returned only if it is within the device, chains are
//! followed for a limited number of steps, and no more is read than a valid table can have.

mod gpt;
mod mbr;

use crate::{AlignedDevice, BlockDevice};
use std::io;
use std::ops::Range;

/// The sector size of images, and the size of the MBR for any sector size.
const SECTOR: u64 = 512;

/// Partitions that [`first`] tries.
const MAX_TRIED: u32 = 16;

/// Finds partition `number`, from 1. Returns its range in bytes.
///
/// `sector` is the size of the device's sectors in bytes, if known. In an image, 512 and 4096 are
/// tried for a GUID table.
///
/// # Errors
/// `InvalidData` if there is no table, or if it has no such partition within the device; the
/// device's errors.
pub fn find(device: &dyn BlockDevice, number: u32, sector: Option<u64>) -> io::Result<Range<u64>> {
    let device = &AlignedDevice::new(device);
    let sector = plausible(sector);
    let Some(table) = mbr::read(device, 0)? else {
        return Err(invalid(device, "there is no partition table"));
    };
    let range = if table.is_protective() {
        gpt::read(device, sector)?.and_then(|table| table.range(device, number))
    } else {
        mbr::find(device, &table, number, sector.unwrap_or(SECTOR))?
    };
    range.ok_or_else(|| {
        invalid(device, &format!("the partition table has no valid partition {number}"))
    })
}

/// Returns the end in bytes of the space that begins at `start`: that of the partition there, or
/// the beginning of the next one. Returns `None` if there is no table, or no partition behind it.
///
/// # Errors
/// The device's errors.
pub(crate) fn end_of_space(
    device: &dyn BlockDevice,
    start: u64,
    sector: Option<u64>,
) -> io::Result<Option<u64>> {
    let device = &AlignedDevice::new(device);
    let sector = plausible(sector);
    let Some(table) = mbr::read(device, 0)?.filter(mbr::Table::is_in_use) else { return Ok(None) };
    let ranges = if table.is_protective() {
        let array = gpt::read(device, sector)?;
        let numbers = array.iter().flat_map(|array| (1..=array.len()).map(move |n| (array, n)));
        numbers.filter_map(|(array, number)| array.range(device, number)).collect()
    } else {
        mbr::all(device, &table, sector.unwrap_or(SECTOR))?
    };
    let behind = ranges.iter().filter(|range| start < range.end);
    Ok(behind.map(|range| if range.start <= start { range.end } else { range.start }).min())
}

/// Returns the size of a sector, if it can be one.
fn plausible(sector: Option<u64>) -> Option<u64> {
    sector.filter(|sector| sector.is_power_of_two() && (512..=65536).contains(sector))
}

/// Returns whether the first sector holds an MBR with a partition, or a protective one.
pub(crate) fn has_table(device: &dyn BlockDevice) -> bool {
    mbr::read(device, 0).is_ok_and(|table| table.is_some_and(|table| table.is_in_use()))
}

/// Returns the number of the first partition that [`find`] finds.
pub fn first(device: &dyn BlockDevice) -> Option<u32> {
    (1..=MAX_TRIED).find(|number| find(device, *number, None).is_ok())
}

/// Returns the byte range of the sectors `first..first + count`, if it is not empty and within the
/// device.
fn byte_range(device: &dyn BlockDevice, sector: u64, first: u64, count: u64) -> Option<Range<u64>> {
    let start = first.checked_mul(sector)?;
    let end = first.checked_add(count)?.checked_mul(sector)?;
    (start < end && end <= device.len()).then_some(start..end)
}

fn invalid(device: &dyn BlockDevice, message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {message}", device.name()))
}
