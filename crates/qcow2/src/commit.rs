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
//!
//! # Failures
//! A commit that fails keeps its changes in memory, and the next one writes them again:
//!
//! - Refcounts stay pending until the barrier of 3, so 3 is never left out behind them.
//! - A new table may be referred to by the file once 4 has begun. From the barrier of 3 on it
//!   counts as one that the file had: later changes of it wait for step 4 of the next commit.
//! - The refcount table has only entries of blocks that a barrier has made durable, at its old
//!   place and at the one that it moves to.
//!
//! For example, the host lacks space at step 4: the flush fails with `ENOSPC`, and one that comes
//! after space was made succeeds. Tables rarely need space then: see [`writer`](crate::writer).
//!
//! A barrier that fails leaves unknown which writes before it reached the file, those of the disk's
//! content as well, which no longer are in memory. The image then takes no more changes; it is
//! consistent, and opens again.

use crate::bytes::{self, Counts};
use crate::device::{Qcow2Device, State};
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
        self.check_barriers(writer)?;
        if !writer.has_changes() {
            // Mapped clusters may have new content.
            return self.barrier(writer);
        }
        self.write_new_tables(l1, writer)?;
        self.list_new_blocks(writer)?;
        self.write_references(l1, writer)?;
        for cluster in std::mem::take(&mut writer.freed) {
            writer.release(cluster);
        }
        // Durable with the next barrier; a cut before it leaves leaks, and so does a failure, after
        // which the next commit writes them. The changes themselves are durable.
        match self.write_counts(writer) {
            Ok(()) => writer.counts.clear(),
            Err(error) => {
                tracing::warn!("{}: clusters are not yet free: {error}", self.header.file);
            }
        }
        Ok(())
    }

    /// Refuses changes after a barrier that failed.
    pub(crate) fn check_barriers(&self, writer: &Writer) -> io::Result<()> {
        if !writer.failed {
            return Ok(());
        }
        let text = "a flush of its file failed, and which changes reached it is unknown; open the \
                    image again";
        Err(io::Error::other(format!("{}: qcow2: {text}", self.header.file)))
    }

    fn barrier(&self, writer: &mut Writer) -> io::Result<()> {
        let done = self.file.flush();
        writer.failed |= done.is_err();
        done
    }

    /// Writes refcounts, and tables that the file does not refer to, and makes them durable.
    fn write_new_tables(&self, l1: &[u64], writer: &mut Writer) -> io::Result<()> {
        if writer.counts.is_empty() {
            return Ok(());
        }
        self.write_counts(writer)?;
        for (index, changed) in &writer.tables {
            if changed.changed.is_none() {
                let offset = l1.get(*index).copied().unwrap_or_default() & OFFSET;
                self.file.write_all_at(&bytes::of_words(&changed.table), offset)?;
            }
        }
        self.barrier(writer)?;
        writer.counts.clear();
        for changed in writer.tables.values_mut() {
            changed.changed.get_or_insert(0..0);
        }
        Ok(())
    }

    /// Writes the entries of new blocks of refcounts, and makes them durable.
    fn list_new_blocks(&self, writer: &mut Writer) -> io::Result<()> {
        let (Some(first), Some(last)) =
            (writer.new_blocks.first().copied(), writer.new_blocks.last().copied())
        else {
            return Ok(());
        };
        match writer.moved_to.clone() {
            Some(place) => self.move_reftable(writer, place)?,
            None => {
                let offset = writer.reftable_at.start << self.header.cluster_bits;
                self.write_part(&writer.reftable, first..last + 1, offset)?;
                self.barrier(writer)?;
            }
        }
        writer.new_blocks.clear();
        Ok(())
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
        self.barrier(writer)?;
        writer.l1.clear();
        for (index, changed) in std::mem::take(&mut writer.tables) {
            self.tables.insert(index, changed.table);
        }
        Ok(())
    }

    /// Writes entries of a table, with those in the same sectors.
    fn write_part(&self, table: &[u64], range: Range<usize>, offset: u64) -> io::Result<()> {
        const WORDS: usize = SECTOR / 8;
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start - range.start % WORDS;
        let end = range.end.next_multiple_of(WORDS).min(table.len());
        let part = table.get(start..end).unwrap_or_default();
        self.file.write_all_at(&bytes::of_words(part), offset + start as u64 * 8)
    }

    /// Writes changed refcounts into their blocks.
    fn write_counts(&self, writer: &Writer) -> io::Result<()> {
        let len = self.header.counts_len();
        let order = self.header.refcount_order;
        let mut counts = writer.counts.iter().peekable();
        while let Some((cluster, _)) = counts.peek() {
            let index = *cluster / len;
            let offset = writer.reftable.get(index as usize).copied().unwrap_or_default() & OFFSET;
            let mut block = vec![0; self.header.cluster() as usize];
            if offset != 0 {
                self.file.read_exact_at(&mut block, offset)?;
            }
            let (mut first, mut last) = (usize::MAX, 0);
            while let Some((cluster, used)) = counts.next_if(|(cluster, _)| *cluster / len == index)
            {
                let number = (cluster % len) as usize;
                Counts { bytes: &mut block, order }.set(number, *used);
                (first, last) = (first.min(number), number);
            }
            // A block that was given up with its clusters counts nothing.
            if offset == 0 {
                continue;
            }
            let start = (first << order) / 8;
            let start = start - start % SECTOR;
            let end = (((last + 1) << order).div_ceil(8)).next_multiple_of(SECTOR);
            let range = start..end.min(block.len());
            self.file.write_all_at(&block[range.clone()], offset + range.start as u64)?;
        }
        Ok(())
    }

    /// Writes the refcount table to its new place, and the place to the header.
    fn move_reftable(&self, writer: &mut Writer, place: Range<u64>) -> io::Result<()> {
        let offset = place.start << self.header.cluster_bits;
        self.file.write_all_at(&bytes::of_words(&writer.reftable), offset)?;
        self.barrier(writer)?;
        // Twelve bytes of one sector.
        let mut field = Vec::new();
        bytes::put_u64(&mut field, offset);
        bytes::put_u32(&mut field, (place.end - place.start) as u32);
        self.file.write_all_at(&field, REFTABLE_FIELD)?;
        self.barrier(writer)?;
        let old = std::mem::replace(&mut writer.reftable_at, place);
        writer.moved_to = None;
        writer.freed.extend(old);
        Ok(())
    }
}
