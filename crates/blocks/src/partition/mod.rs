//! Where a partition lies, by the table in the device's first sectors.
//!
//! The tables may hold anything: a partition is given only if it lies within the device, chains are
//! followed a bounded number of steps, and no more is read than a valid table may have.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod gpt;
mod mbr;

use crate::BlockDevice;
use std::io;
use std::ops::Range;

/// The sector size of images, and the size of the classic table whatever the sector.
const SECTOR: u64 = 512;

/// Partitions that are tried for the first one.
const MAX_TRIED: u32 = 16;

/// Finds partition `number`, from 1, and gives its range in bytes.
///
/// `sector` is the size of the device's sectors in bytes, if known; in an image 512 and 4096 are
/// tried for a GUID table.
///
/// # Errors
/// `InvalidData` if there is no table, or it has no such partition within the device; the device's
/// errors.
pub fn find(device: &dyn BlockDevice, number: u32, sector: Option<u64>) -> io::Result<Range<u64>> {
    let sector = sector.filter(|sector| sector.is_power_of_two() && (512..=65536).contains(sector));
    let Some(table) = mbr::read(device, 0)? else {
        return Err(invalid(device, "there is no partition table"));
    };
    let sectors = if table.is_protective() {
        gpt::find(device, number, sector)?
    } else {
        mbr::find(device, &table, number, sector.unwrap_or(SECTOR))?
    };
    sectors.ok_or_else(|| {
        invalid(device, &format!("the partition table has no valid partition {number}"))
    })
}

/// Whether the first sector holds a classic table with a partition, or one that announces a GUID
/// table.
pub(crate) fn has_table(device: &dyn BlockDevice) -> bool {
    mbr::read(device, 0).is_ok_and(|table| table.is_some_and(|table| table.is_in_use()))
}

/// The number of the first partition that [`find`] gives; None if there is none.
pub fn first(device: &dyn BlockDevice) -> Option<u32> {
    (1..=MAX_TRIED).find(|number| find(device, *number, None).is_ok())
}

/// The byte range of sectors `first..first + count` if it is not empty and within the device.
fn byte_range(device: &dyn BlockDevice, sector: u64, first: u64, count: u64) -> Option<Range<u64>> {
    let start = first.checked_mul(sector)?;
    let end = first.checked_add(count)?.checked_mul(sector)?;
    (start < end && end <= device.len()).then_some(start..end)
}

fn invalid(device: &dyn BlockDevice, message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {message}", device.name()))
}
