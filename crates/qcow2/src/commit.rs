//! The order in which tables reach the file, so that a power cut leaves a consistent image.
//!
//! For example, a write of a new cluster 9 by way of a new L2 table in cluster 8:
//!
//! 1. The data was written to cluster 9 when the write came. No table refers to it.
//! 2. The refcounts of clusters 8 and 9 are written, and the L2 table to cluster 8.
//! 3. *Barrier.* Blocks of refcounts that are new get their entries in the refcount table only
//!    now, since their own content must be there first; then comes another barrier.
//! 4. The entry of the L1 table is written. L2 tables that the file had are changed here, too.
//! 5. *Barrier.* The changes are durable.
//! 6. Clusters that only old entries referred to are free: their refcounts become 0.
//!
//! A cut before 4 leaves the old tables, with refcounts of clusters without a use: a leak. A cut
//! within 4 leaves some entries old and some new, each one whole, since it lies within a sector.
//! All of them refer to content that 3 has made durable. A cut within 6 leaves leaks.
//!
//! A cluster that is freed and taken again between two commits changes its refcount from 1 to 0
//! (step 6) and to 1 (step 2). No table in the file refers to it meanwhile, so either is right.

use crate::bytes::{self, Counts};
use crate::device::{Qcow2Device, State};
use crate::header::MAX_REFTABLE;
use crate::tables::OFFSET;
use crate::writer::Writer;
use std::io;
use std::ops::Range;

/// Bytes that a write of a part of a table is aligned to.
const SECTOR: usize = 512;

/// Offset of the place of the refcount table in the header: its offset and its clusters.
const REFTABLE_FIELD: u64 = 48;

impl Qcow2Device {
    /// Makes all completed writes durable.
    pub(crate) fn commit(&self) -> io::Result<()> {
        self.commit_state(&mut self.state.write())
    }

    pub(crate) fn commit_state(&self, state: &mut State) -> io::Result<()> {
        let State { l1, writer: Some(writer) } = state else { return Ok(()) };
        if writer.failed {
            let text = "the changes of its tables are lost; open the image again";
            return Err(io::Error::other(format!("{}: qcow2: {text}", self.header.file)));
        }
        if !writer.has_changes() {
            return self.file.flush();
        }
        let done = self.write_changes(l1, writer);
        writer.failed = done.is_err();
        done
    }

    fn write_changes(&self, l1: &[u64], writer: &mut Writer) -> io::Result<()> {
        let needed = writer.reftable.len().div_ceil(self.header.table_len()) as u64;
        let moved = if needed > writer.reftable_clusters {
            Some(self.place_reftable(writer)?)
        } else {
            None
        };
        let is_new = !writer.counts.is_empty();
        self.write_counts(writer)?;
        for (index, changed) in &writer.tables {
            if changed.changed.is_none() {
                let offset = l1.get(*index).copied().unwrap_or_default() & OFFSET;
                self.file.write_all_at(&bytes::of_words(&changed.table), offset)?;
            }
        }
        if is_new {
            self.file.flush()?;
        }
        match moved {
            Some(place) => self.move_reftable(writer, place)?,
            None if writer.new_blocks.is_empty() => {}
            None => {
                let (Some(first), Some(last)) =
                    (writer.new_blocks.first().copied(), writer.new_blocks.last().copied())
                else {
                    return Ok(());
                };
                self.write_part(&writer.reftable, first..last + 1, writer.reftable_offset)?;
                self.file.flush()?;
            }
        }
        writer.new_blocks.clear();
        self.write_references(l1, writer)?;
        for cluster in std::mem::take(&mut writer.freed) {
            writer.release(cluster);
        }
        // Durable with the next barrier; a cut before it leaves leaks.
        self.write_counts(writer)
    }

    /// Writes the references to new clusters, and makes them durable.
    fn write_references(&self, l1: &[u64], writer: &mut Writer) -> io::Result<()> {
        for (index, changed) in &writer.tables {
            if let Some(range) = &changed.changed {
                let offset = l1.get(*index).copied().unwrap_or_default() & OFFSET;
                self.write_part(&changed.table, range.clone(), offset)?;
            }
        }
        for index in &writer.l1 {
            self.write_part(l1, *index..index + 1, self.header.l1_offset)?;
        }
        self.file.flush()?;
        writer.l1.clear();
        for (index, changed) in std::mem::take(&mut writer.tables) {
            self.tables.insert(index, changed.table);
        }
        Ok(())
    }

    /// Writes entries of a table, with those in the same sectors.
    fn write_part(&self, table: &[u64], range: Range<usize>, offset: u64) -> io::Result<()> {
        const WORDS: usize = SECTOR / 8;
        let start = range.start - range.start % WORDS;
        let end = range.end.next_multiple_of(WORDS).min(table.len());
        let part = table.get(start..end).unwrap_or_default();
        self.file.write_all_at(&bytes::of_words(part), offset + start as u64 * 8)
    }

    /// Writes changed refcounts into their blocks.
    fn write_counts(&self, writer: &mut Writer) -> io::Result<()> {
        let len = self.header.counts_len();
        let order = self.header.refcount_order;
        let counts = std::mem::take(&mut writer.counts);
        let mut counts = counts.into_iter().peekable();
        while let Some((cluster, _)) = counts.peek() {
            let index = cluster / len;
            let offset = writer.reftable.get(index as usize).copied().unwrap_or_default() & OFFSET;
            let mut block = vec![0; self.header.cluster() as usize];
            let is_new = writer.new_blocks.contains(&(index as usize));
            if offset != 0 && !is_new {
                self.file.read_exact_at(&mut block, offset)?;
            }
            let (mut first, mut last) = (usize::MAX, 0);
            while let Some((cluster, used)) = counts.next_if(|(cluster, _)| cluster / len == index)
            {
                let number = (cluster % len) as usize;
                Counts { bytes: &mut block, order }.set(number, used);
                (first, last) = (first.min(number), number);
            }
            // A block that was given up with its clusters counts nothing.
            if offset == 0 {
                continue;
            }
            let range = if is_new {
                0..block.len()
            } else {
                let start = (first << order) / 8;
                let end = (((last + 1) << order).div_ceil(8)).next_multiple_of(SECTOR);
                start - start % SECTOR..end.min(block.len())
            };
            self.file.write_all_at(&block[range.clone()], offset + range.start as u64)?;
        }
        Ok(())
    }

    /// Takes clusters for a longer refcount table. Returns the first one and their number.
    fn place_reftable(&self, writer: &mut Writer) -> io::Result<(u64, u64)> {
        let per_cluster = self.header.table_len() as u64;
        // Blocks for the clusters of the table itself, and some more: it rarely moves again.
        let blocks = writer.reftable.len() as u64;
        let count = (blocks + blocks / 2).div_ceil(per_cluster) + 1;
        let count = count.min(MAX_REFTABLE >> self.header.cluster_bits);
        let first = writer.take(&self.header, &*self.file, count)?;
        if writer.reftable.len() as u64 > count * per_cluster {
            return Err(io::ErrorKind::StorageFull.into());
        }
        writer.reftable.resize((count * per_cluster) as usize, 0);
        Ok((first, count))
    }

    /// Writes the refcount table to its new place, and the place to the header.
    fn move_reftable(&self, writer: &mut Writer, (first, count): (u64, u64)) -> io::Result<()> {
        let offset = first << self.header.cluster_bits;
        self.file.write_all_at(&bytes::of_words(&writer.reftable), offset)?;
        self.file.flush()?;
        // Twelve bytes of one sector.
        let mut field = Vec::new();
        bytes::put_u64(&mut field, offset);
        bytes::put_u32(&mut field, count as u32);
        self.file.write_all_at(&field, REFTABLE_FIELD)?;
        self.file.flush()?;
        let old = writer.reftable_offset >> self.header.cluster_bits;
        writer.freed.extend(old..old + writer.reftable_clusters);
        (writer.reftable_offset, writer.reftable_clusters) = (offset, count);
        Ok(())
    }
}
