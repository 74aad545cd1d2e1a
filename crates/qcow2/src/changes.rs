//! Changes of a disk: writes, zeroes and discards.
//!
//! A write to clusters with a place in the file goes there. Other clusters get a place, which is
//! written with the content of the backing file around the new one before the map refers to it.

use crate::device::{Qcow2Device, State};
use crate::tables::{COPIED, Mapping, OFFSET, ZERO};
use crate::writer::{ChangedTable, Writer};
use extant_blocks::BlockDevice;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a write without places in the file takes at once. A cluster may be longer.
const MAX_PIECE: u64 = 4 << 20;

/// Clusters that are taken or freed before the tables are written.
const MAX_CHANGED: usize = 1 << 18;

impl Qcow2Device {
    /// Writes at `offset`, within the disk.
    pub(crate) fn write(&self, mut data: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        while !data.is_empty() {
            let state = self.state.read();
            let run = self.run(&state, at, data.len() as u64)?;
            let done = match run.mapping {
                Mapping::Data(host) => {
                    self.check_usable(&state)?;
                    self.file.write_all_at(&data[..run.len as usize], host)?;
                    run.len
                }
                mapping => {
                    drop(state);
                    self.write_new(data, at, run.len, mapping)?
                }
            };
            data = &data[done as usize..];
            at += done;
        }
        Ok(())
    }

    fn check_usable(&self, state: &State) -> io::Result<()> {
        state.writer.as_ref().map_or(Ok(()), |writer| self.check_barriers(writer))
    }

    /// Writes the beginning of `data` where the file has no content for `len` bytes from `at`,
    /// which must be within one L2 table. Returns the number of bytes; 0 if another thread was
    /// first.
    fn write_new(&self, data: &[u8], at: u64, len: u64, mapping: Mapping) -> io::Result<u64> {
        let cluster = self.header.cluster();
        let front = at % cluster;
        let begin = at - front;
        // Whole clusters, but for the end of the data.
        let piece = MAX_PIECE.next_multiple_of(cluster) - front;
        let len = len.min(piece);
        let whole = (front + len).next_multiple_of(cluster);
        // The rest of the first and of the last cluster. The backing file never changes, so its
        // content is as good after the lock was taken.
        let mut before = vec![0; front as usize];
        let mut after = vec![0; (whole - front - len) as usize];
        if mapping == Mapping::Absent {
            self.read_disk_of_backing(&mut before, begin)?;
            self.read_disk_of_backing(&mut after, at + len)?;
        }
        let mut state = self.state.write();
        self.check_usable(&state)?;
        self.make_place(&mut state)?;
        let now = self.run(&state, at, len)?;
        if now.mapping != mapping || now.len < len {
            return Ok(0);
        }
        let parts =
            [IoSlice::new(&before), IoSlice::new(&data[..len as usize]), IoSlice::new(&after)];
        let Some(writer) = state.writer.as_mut() else { return Ok(0) };
        let count = whole >> self.header.cluster_bits;
        let first = writer.take(&self.header, &*self.file, count)?;
        let written = self.file.write_vectored_at(&parts, first << self.header.cluster_bits);
        let mapped = written.and_then(|()| {
            self.change_entries(&mut state, begin..begin + whole, |number, _| {
                ((first + number) << self.header.cluster_bits) | COPIED
            })
        });
        if let (Err(_), Some(writer)) = (&mapped, state.writer.as_mut()) {
            (first..first + count).for_each(|cluster| writer.release(cluster));
        }
        mapped.map(|()| len)
    }

    /// Fills `buf` from the backing file, with zeroes beyond the end of this disk, which may be
    /// shorter.
    fn read_disk_of_backing(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let inside = self.header.size.saturating_sub(at).min(buf.len() as u64) as usize;
        if inside > 0 { self.read_backing(&mut buf[..inside], at) } else { Ok(()) }
    }

    /// Writes changed tables to the file before they take too much memory.
    fn make_place(&self, state: &mut State) -> io::Result<()> {
        let is_full = |writer: &Writer| {
            writer.tables.len() >= self.tables.max()
                || writer.counts.len() + writer.freed.len() >= MAX_CHANGED
        };
        if state.writer.as_ref().is_some_and(is_full) { self.commit_state(state) } else { Ok(()) }
    }

    /// Changes the entries of a range of whole clusters within one L2 table. `change` gets the
    /// number of the cluster in the range, and the entry. Clusters of the file that the new entries
    /// do not refer to are freed.
    fn change_entries(
        &self,
        state: &mut State,
        range: Range<u64>,
        change: impl Fn(u64, u64) -> u64,
    ) -> io::Result<()> {
        let covered = self.header.covered_by_table();
        let index = (range.start / covered) as usize;
        let first = ((range.start % covered) >> self.header.cluster_bits) as usize;
        let count = ((range.end - range.start) >> self.header.cluster_bits) as usize;
        let old = self.table(state, index)?;
        let Some(writer) = state.writer.as_mut() else { return Ok(()) };
        let table = match old {
            Some(table) => {
                if !writer.tables.contains_key(&index) {
                    let offset = state.l1.get(index).copied().unwrap_or_default() & OFFSET;
                    writer.store(&self.header, &*self.file, offset >> self.header.cluster_bits)?;
                }
                table
            }
            None => {
                let place = self.header.l1_offset + index as u64 * 8;
                writer.store(&self.header, &*self.file, place >> self.header.cluster_bits)?;
                let table = writer.take_table(&self.header, &*self.file)?;
                let Some(entry) = state.l1.get_mut(index) else { return Ok(()) };
                *entry = (table << self.header.cluster_bits) | COPIED;
                writer.l1.insert(index);
                let table = Arc::new(vec![0; self.header.table_len()]);
                let new = ChangedTable { table: table.clone(), changed: None };
                writer.tables.insert(index, new);
                table
            }
        };
        let unchanged = || ChangedTable { table, changed: Some(first..first) };
        let changed = writer.tables.entry(index).or_insert_with(unchanged);
        self.tables.remove(index);
        if let Some(range) = &mut changed.changed {
            *range = range.start.min(first)..range.end.max(first + count);
        }
        let entries = Arc::make_mut(&mut changed.table).iter_mut().skip(first).take(count);
        for (number, entry) in entries.enumerate() {
            let new = change(number as u64, *entry);
            let host = *entry & OFFSET;
            if host != 0 && host != new & OFFSET {
                writer.freed.push(host >> self.header.cluster_bits);
            }
            *entry = new;
        }
        Ok(())
    }

    /// Makes a range read as zeroes.
    pub(crate) fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let cluster = self.header.cluster();
        let up = range.start.next_multiple_of(cluster).min(range.end);
        let is_end = range.end == self.header.size;
        let down = if is_end { range.end } else { range.end - range.end % cluster }.max(up);
        self.zero_part(range.start..up)?;
        if up < down {
            self.empty(up..down, false)?;
        }
        self.zero_part(down..range.end)
    }

    /// Writes zeroes over a part of a cluster that may have other content.
    fn zero_part(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let run = self.run(&self.state.read(), at, range.end - at)?;
            let is_zero = match run.mapping {
                Mapping::Zero => true,
                Mapping::Absent => self.is_beyond_backing(at),
                Mapping::Data(_) | Mapping::Compressed(_) => false,
            };
            if !is_zero {
                self.write(&vec![0; run.len as usize], at)?;
            }
            at += run.len;
        }
        Ok(())
    }

    fn is_beyond_backing(&self, at: u64) -> bool {
        self.backing.as_ref().is_none_or(|backing| backing.len() <= at)
    }

    /// Frees the clusters of a range, which begins and ends at borders of clusters or ends with the
    /// disk. It reads as zeroes then; with `discard`, parts of the backing file stay visible.
    pub(crate) fn empty(&self, range: Range<u64>, discard: bool) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mut state = self.state.write();
            self.check_usable(&state)?;
            self.make_place(&mut state)?;
            let run = self.run(&state, at, range.end - at)?;
            let end = at + run.len;
            let absent = self.is_beyond_backing(at);
            let stays = match run.mapping {
                // A cluster that is kept for later content is freed, too.
                Mapping::Zero => false,
                Mapping::Absent => discard || absent,
                Mapping::Data(_) | Mapping::Compressed(_) => false,
            };
            if !stays {
                let entry = if absent { 0 } else { ZERO };
                let whole = at..end.next_multiple_of(self.header.cluster());
                self.change_entries(&mut state, whole, |_, _| entry)?;
            }
            at = end;
        }
        Ok(())
    }
}
