//! The MBR partition table: four entries in the first sector, one of which may lead to a chain of
//! further tables.

use super::{SECTOR, byte_range};
use crate::BlockDevice;
use std::io;
use std::ops::Range;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The status of a bootable entry.
const BOOTABLE: u8 = 0x80;
/// The type of the entry that covers a disk with a GUID table.
const TYPE_PROTECTIVE: u8 = 0xee;
/// The types of extended entries, which lead to a chain of tables.
const TYPES_EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Numbers up to this one are entries of the first table; those of the chain follow.
const PRIMARY: u32 = 4;
/// The most tables of a chain that are followed.
const MAX_CHAIN: u32 = 256;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    status: u8,
    first_chs: [u8; 3],
    kind: u8,
    last_chs: [u8; 3],
    /// First sector, relative to the table or the start of the chain.
    first: U32,
    /// Number of sectors.
    count: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Table {
    boot: [u8; 446],
    entries: [Entry; 4],
    signature: [u8; 2],
}

const _: () = assert!(size_of::<Table>() as u64 == SECTOR);

impl Entry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.count.get() != 0
    }

    fn is_extended(&self) -> bool {
        TYPES_EXTENDED.contains(&self.kind)
    }
}

impl Table {
    pub(super) fn is_protective(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == TYPE_PROTECTIVE)
    }

    /// Returns whether it has a partition, and only plausible entries: other boot sectors end with
    /// the same signature.
    pub(super) fn is_in_use(&self) -> bool {
        let plausible = self.entries.iter().all(|entry| matches!(entry.status, 0 | BOOTABLE));
        plausible && self.entries.iter().any(Entry::is_used)
    }
}

/// Reads the table at a byte offset, if there is one.
pub(super) fn read(device: &dyn BlockDevice, offset: u64) -> io::Result<Option<Table>> {
    if offset.checked_add(SECTOR).is_none_or(|end| end > device.len()) {
        return Ok(None);
    }
    let mut table = Table::new_zeroed();
    device.read_exact_at(table.as_mut_bytes(), offset)?;
    Ok(Some(table).filter(|table| table.signature == SIGNATURE))
}

pub(super) fn find(
    device: &dyn BlockDevice,
    table: &Table,
    number: u32,
    sector: u64,
) -> io::Result<Option<Range<u64>>> {
    match number {
        0 => Ok(None),
        1..=PRIMARY => {
            let entry = &table.entries[number as usize - 1];
            let usable = entry.is_used() && !entry.is_extended();
            let range =
                byte_range(device, sector, entry.first.get().into(), entry.count.get().into());
            Ok(range.filter(|_| usable))
        }
        _ => {
            let nth = (number - PRIMARY) as usize;
            let first = chain(device, table, sector).take(nth).collect::<io::Result<Vec<_>>>()?;
            Ok(first.into_iter().nth(nth - 1).flatten())
        }
    }
}

/// Finds all valid partitions. A chain that cannot be read to its end has those before that.
pub(super) fn all(
    device: &dyn BlockDevice,
    table: &Table,
    sector: u64,
) -> io::Result<Vec<Range<u64>>> {
    let primary = (1..=PRIMARY).map(|number| find(device, table, number, sector));
    let chained = chain(device, table, sector).filter(io::Result::is_ok);
    primary.chain(chained).filter_map(io::Result::transpose).collect()
}

/// Follows the chain of tables to its partitions; `None` stands for one that is not valid. Each
/// table has at most one partition, whose position is relative to that table, and a link to the
/// next table, whose position is relative to the start of the chain. Ends after an error.
fn chain(
    device: &dyn BlockDevice,
    table: &Table,
    sector: u64,
) -> impl Iterator<Item = io::Result<Option<Range<u64>>>> {
    let extended = |table: &Table| {
        let entry = table.entries.iter().find(|entry| entry.is_used() && entry.is_extended());
        entry.map(|entry| u64::from(entry.first.get()))
    };
    let start = extended(table);
    let mut next = start;
    // A hostile chain may lead back to one of its tables: `MAX_CHAIN` bounds the walk.
    let tables = (0..MAX_CHAIN).map_while(move |_| {
        let at = next.take()?;
        let table = read(device, at.saturating_mul(sector)).transpose()?;
        if let Ok(table) = &table {
            next = start.zip(extended(table)).map(|(start, link)| start.saturating_add(link));
        }
        Some(table.map(|table| (at, table)))
    });
    let range = move |(at, table): (u64, Table)| {
        let entry = table.entries.iter().find(|entry| entry.is_used() && !entry.is_extended())?;
        let first = at.saturating_add(entry.first.get().into());
        Some(byte_range(device, sector, first, entry.count.get().into()))
    };
    tables.filter_map(move |table| table.map(range).transpose())
}
