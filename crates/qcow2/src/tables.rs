//! Entries of tables, and the cache of L2 tables as they are in the file.
//!
//! # Locking
//! The lock of the cache (`Leaf`) is held for look-ups alone, never during I/O.

use crate::header::{Header, REPAIR};
use extant_sync::{Level, Mutex};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Set in entries that refer to a cluster with one reference.
pub(crate) const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// Set in L2 entries of clusters that read as zeroes.
pub(crate) const ZERO: u64 = 1;
/// The offset in an entry.
pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Memory of cached tables in bytes, and the most tables.
const MEMORY: usize = 16 << 20;
const MAX_TABLES: usize = 512;

/// The place of a range of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// In the file at this offset.
    Data(u64),
    /// Compressed in the file, as this entry says.
    Compressed(u64),
    /// Nowhere: zeroes.
    Zero,
    /// In the backing file; zeroes without one.
    Absent,
}

/// A range of the disk with one kind of place, adjacent in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub mapping: Mapping,
    /// Bytes.
    pub len: u64,
}

impl Header {
    /// Returns the cluster that an entry of the L1 table or the refcount table refers to; `None`
    /// for an empty entry. `end` is the length of the file.
    pub fn table_at(&self, entry: u64, end: u64) -> io::Result<Option<u64>> {
        let offset = entry & OFFSET;
        if entry & !(OFFSET | COPIED) != 0 {
            return Err(self.refuse(format_args!("a table has the entry {entry:#x}"), REPAIR));
        }
        self.check_cluster(offset, end).map(|()| (offset != 0).then_some(offset))
    }

    /// Returns the cluster of the file that an L2 entry refers to, and its place in the disk.
    pub fn mapping(&self, entry: u64, end: u64) -> io::Result<(Option<u64>, Mapping)> {
        if entry & COMPRESSED != 0 {
            return Ok((None, Mapping::Compressed(entry)));
        }
        let offset = entry & OFFSET;
        let is_zero = entry & ZERO != 0;
        if entry & !(OFFSET | COPIED | ZERO) != 0 || (is_zero && self.version == 2) {
            return Err(self.refuse(format_args!("an L2 table has the entry {entry:#x}"), REPAIR));
        }
        self.check_cluster(offset, end)?;
        let host = (offset != 0).then_some(offset);
        Ok((
            host,
            match host {
                _ if is_zero => Mapping::Zero,
                Some(offset) => Mapping::Data(offset),
                None => Mapping::Absent,
            },
        ))
    }

    /// Refuses a cluster that is not aligned, or begins beyond the end of the file.
    fn check_cluster(&self, offset: u64, end: u64) -> io::Result<()> {
        if offset.is_multiple_of(self.cluster()) && offset < end.max(1) {
            return Ok(());
        }
        let cause = format_args!("a table refers to offset {offset} of a file of {end} bytes");
        Err(self.refuse(cause, REPAIR))
    }

    /// Returns the offset and the length of a compressed cluster in the file.
    pub fn compressed_at(&self, entry: u64) -> (u64, u64) {
        let bits = 62 - (self.cluster_bits - 8);
        let offset = entry & ((1 << bits) - 1);
        let sectors = (entry & !(COPIED | COMPRESSED)) >> bits;
        (offset, (sectors + 1) * 512 - offset % 512)
    }
}

/// L2 tables, by their index in the L1 table.
#[derive(Debug)]
pub(crate) struct Tables {
    cached: Mutex<Cached>,
    max: usize,
}

#[derive(Debug, Default)]
struct Cached {
    /// Each with the time of its last use.
    tables: HashMap<usize, (Arc<Vec<u64>>, u64)>,
    time: u64,
}

impl Tables {
    /// Makes an empty cache.
    pub fn new(header: &Header) -> Tables {
        let max = (MEMORY >> header.cluster_bits).clamp(2, MAX_TABLES);
        Tables { cached: Mutex::new(Level::Leaf, Cached::default()), max }
    }

    /// Returns the most tables that the cache holds.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns a table.
    pub fn get(&self, index: usize) -> Option<Arc<Vec<u64>>> {
        let mut cached = self.cached.lock();
        cached.time += 1;
        let time = cached.time;
        let (table, used) = cached.tables.get_mut(&index)?;
        *used = time;
        Some(table.clone())
    }

    /// Adds a table as it is in the file. The one that was not used for longest makes place.
    pub fn insert(&self, index: usize, table: Arc<Vec<u64>>) {
        let mut cached = self.cached.lock();
        cached.time += 1;
        let time = cached.time;
        if cached.tables.len() >= self.max && !cached.tables.contains_key(&index) {
            let oldest = cached.tables.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(index, _)| *index) {
                cached.tables.remove(&oldest);
            }
        }
        cached.tables.insert(index, (table, time));
    }

    /// Removes a table, whose copy in memory is about to change.
    pub fn remove(&self, index: usize) {
        self.cached.lock().tables.remove(&index);
    }
}
