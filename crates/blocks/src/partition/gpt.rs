//! The GUID partition table: a header in the second sector with a copy in the last one, and an
//! array of entries.

use super::byte_range;
use crate::BlockDevice;
use std::io;
use std::ops::{Range, RangeInclusive};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const SIGNATURE: [u8; 8] = *b"EFI PART";
/// The most bytes of an array of entries. Usually it has 16 KiB.
const MAX_ARRAY: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    signature: [u8; 8],
    revision: U32,
    header_size: U32,
    header_crc: U32,
    reserved: U32,
    this_sector: U64,
    other_sector: U64,
    first_usable: U64,
    last_usable: U64,
    disk: [u8; 16],
    array_sector: U64,
    entry_count: U32,
    entry_size: U32,
    array_crc: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    kind: [u8; 16],
    partition: [u8; 16],
    first: U64,
    /// The last sector, inclusive.
    last: U64,
    flags: U64,
    name: [[u8; 2]; 36],
}

const HEADER_SIZE: usize = 92;
const ENTRY_SIZE: usize = 128;
const _: () = assert!(size_of::<Header>() == HEADER_SIZE && size_of::<Entry>() == ENTRY_SIZE);

/// Reads the table: the first valid one of both copies.
pub(super) fn read(device: &dyn BlockDevice, sector: Option<u64>) -> io::Result<Option<Array>> {
    let sizes: &[u64] = match &sector {
        Some(known) => std::slice::from_ref(known),
        None => &[512, 4096],
    };
    for sector in sizes {
        for at in [1, (device.len() / sector).saturating_sub(1)] {
            if let Some(array) = read_array(device, *sector, at)? {
                return Ok(Some(array));
            }
        }
    }
    Ok(None)
}

/// The entries of a valid table.
pub(super) struct Array {
    bytes: Vec<u8>,
    entry_size: usize,
    /// Bytes of a sector.
    sector: u64,
    /// The range of sectors that partitions may use.
    usable: RangeInclusive<u64>,
}

/// Reads the header in sector `at` and its entries, if both are valid.
fn read_array(device: &dyn BlockDevice, sector: u64, at: u64) -> io::Result<Option<Array>> {
    let Some(place) = byte_range(device, sector, at, 1) else { return Ok(None) };
    let mut bytes = vec![0; sector as usize];
    device.read_exact_at(&mut bytes, place.start)?;
    let Some(header) = valid_header(&bytes, at) else { return Ok(None) };
    let entry_size = u64::from(header.entry_size.get());
    let len = entry_size * u64::from(header.entry_count.get());
    let start = header.array_sector.get().checked_mul(sector);
    let Some(start) =
        start.filter(|start| start.checked_add(len).is_some_and(|end| end <= device.len()))
    else {
        return Ok(None);
    };
    if len > MAX_ARRAY {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    device.read_exact_at(&mut bytes, start)?;
    let valid = crc32(&bytes) == header.array_crc.get();
    let usable = header.first_usable.get()..=header.last_usable.get();
    Ok(valid.then_some(Array { bytes, entry_size: entry_size as usize, sector, usable }))
}

/// Returns the header at the start of a sector, if its checksum and sizes are valid.
fn valid_header(bytes: &[u8], at: u64) -> Option<Header> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    let size = header.header_size.get() as usize;
    let mut summed = bytes.get(..size).filter(|_| size >= HEADER_SIZE)?.to_vec();
    let mut without_sum = header;
    without_sum.header_crc = U32::new(0);
    summed[..HEADER_SIZE].copy_from_slice(without_sum.as_bytes());
    let entry_size = header.entry_size.get() as usize;
    let valid = header.signature == SIGNATURE
        && header.this_sector.get() == at
        && crc32(&summed) == header.header_crc.get()
        && entry_size.is_multiple_of(8)
        && entry_size >= ENTRY_SIZE;
    valid.then_some(header)
}

impl Array {
    /// Returns the number of entries, used or not.
    pub(super) fn len(&self) -> u32 {
        // `MAX_ARRAY` bounds it.
        (self.bytes.len() / self.entry_size) as u32
    }

    /// Returns the bytes of partition `number`, from 1.
    pub(super) fn range(&self, device: &dyn BlockDevice, number: u32) -> Option<Range<u64>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        let bytes = self.bytes.chunks_exact(self.entry_size).nth(index)?;
        let (entry, _) = Entry::read_from_prefix(bytes).ok()?;
        let used = entry.kind != <[u8; 16]>::new_zeroed();
        let usable =
            self.usable.contains(&entry.first.get()) && self.usable.contains(&entry.last.get());
        let count = entry.last.get().checked_sub(entry.first.get())?.checked_add(1)?;
        byte_range(device, self.sector, entry.first.get(), count).filter(|_| used && usable)
    }
}

/// Computes the table's checksum: CRC-32 with the polynomial of Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_well_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
