//! Changes of an image that its tables in the file do not have yet, and the free clusters.
//!
//! Clusters of the file have one use at most, so a bit tells free ones from used ones: images with
//! snapshots or compressed clusters, which share clusters, are only read.
//!
//! # Invariants
//! A cluster that becomes free stays used in memory until the tables in the file no longer refer to
//! it: it would otherwise be taken again, and a power cut would leave two uses. [`commit`] has the
//! order of the writes.
//!
//! [`commit`]: crate::commit

use crate::header::{Header, MAX_REFTABLE};
use extant_blocks::BlockDevice;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Clusters of a file that is written, at most: a bit in memory for each.
pub(crate) const MAX_CLUSTERS: u64 = 1 << 28;

/// Changes in memory.
#[derive(Debug)]
pub(crate) struct Writer {
    /// A bit for each cluster of the file.
    used: Vec<u64>,
    /// No cluster before is free.
    first_free: u64,
    /// Offsets of the blocks of refcounts.
    pub reftable: Vec<u64>,
    /// Place of the table of these blocks in the file.
    pub reftable_offset: u64,
    pub reftable_clusters: u64,
    /// Clusters whose refcounts in the file are older than memory, with the new ones.
    pub counts: BTreeMap<u64, bool>,
    /// Indices of blocks of refcounts that the table in the file does not have.
    pub new_blocks: BTreeSet<usize>,
    /// Changed L2 tables by their index in the L1 table.
    pub tables: BTreeMap<usize, ChangedTable>,
    /// Indices of changed entries of the L1 table.
    pub l1: BTreeSet<usize>,
    /// Clusters that only tables in the file refer to.
    pub freed: Vec<u64>,
    /// Tables could not be written: memory and file disagree.
    pub failed: bool,
}

/// A changed L2 table.
#[derive(Debug)]
pub(crate) struct ChangedTable {
    pub table: Arc<Vec<u64>>,
    /// The table in the file that no entry refers to yet, or the changed entries.
    pub changed: Option<Range<usize>>,
}

impl Writer {
    /// Makes the state of an image without changes.
    pub fn new(used: Vec<u64>, reftable: Vec<u64>, header: &Header) -> Writer {
        Writer {
            used,
            first_free: 0,
            reftable,
            reftable_offset: header.reftable_offset,
            reftable_clusters: header.reftable_clusters,
            counts: BTreeMap::new(),
            new_blocks: BTreeSet::new(),
            tables: BTreeMap::new(),
            l1: BTreeSet::new(),
            freed: Vec::new(),
            failed: false,
        }
    }

    /// Returns a changed L2 table.
    pub fn changed_table(&self, index: usize) -> Option<Arc<Vec<u64>>> {
        self.tables.get(&index).map(|changed| changed.table.clone())
    }

    /// Returns whether the file lacks changes.
    pub fn has_changes(&self) -> bool {
        let has_tables = !(self.tables.is_empty() && self.l1.is_empty());
        let has_clusters = !(self.counts.is_empty() && self.freed.is_empty());
        !self.failed && (has_tables || has_clusters)
    }

    fn is_used(&self, cluster: u64) -> bool {
        let word = self.used.get((cluster / 64) as usize).copied().unwrap_or_default();
        word >> (cluster % 64) & 1 != 0
    }

    fn set_used(&mut self, cluster: u64) {
        let word = (cluster / 64) as usize;
        if word >= self.used.len() {
            self.used.resize(word + 1, 0);
        }
        self.used[word] |= 1 << (cluster % 64);
        self.counts.insert(cluster, true);
    }

    /// Frees a cluster that no table in the file refers to.
    pub fn release(&mut self, cluster: u64) {
        if let Some(word) = self.used.get_mut((cluster / 64) as usize) {
            *word &= !(1 << (cluster % 64));
            self.counts.insert(cluster, false);
            self.first_free = self.first_free.min(cluster);
        }
    }

    /// Returns the first free cluster at or behind `from`; one behind the end if all are used.
    fn next_free(&self, from: u64) -> u64 {
        let mut cluster = from;
        while self.is_used(cluster) {
            // Whole words at once.
            let all = self.used.get((cluster / 64) as usize).is_some_and(|word| *word == u64::MAX);
            cluster = if all { (cluster / 64 + 1) * 64 } else { cluster + 1 };
        }
        cluster
    }

    /// Takes `count` adjacent clusters, and the blocks of refcounts that they need. The file
    /// becomes longer if it must. Returns the first one.
    ///
    /// # Errors
    /// `StorageFull` if the file can have no more clusters; those of the file. Nothing was taken
    /// then.
    pub fn take(&mut self, header: &Header, file: &dyn BlockDevice, count: u64) -> io::Result<u64> {
        let first = self.take_uncounted(header, file, count)?;
        let mut covered = first / header.counts_len();
        while covered <= (first + count - 1) / header.counts_len() {
            if let Err(error) = self.cover(header, file, covered as usize) {
                (first..first + count).for_each(|cluster| self.release(cluster));
                return Err(error);
            }
            covered += 1;
        }
        Ok(first)
    }

    fn take_uncounted(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        count: u64,
    ) -> io::Result<u64> {
        let mut first = self.next_free(self.first_free);
        self.first_free = first;
        let (mut at, mut end) = (first, first);
        while end - first < count {
            at = self.next_free(at);
            if at != end {
                first = at;
            }
            at += 1;
            end = at;
        }
        let blocks = end.div_ceil(header.counts_len());
        if end > MAX_CLUSTERS || blocks > MAX_REFTABLE / 8 {
            let text = format!(
                "{}: qcow2: the file can have no more clusters of {} bytes; \
                 convert it to larger ones: `qemu-img convert -O qcow2 -o cluster_size=2M`",
                header.file,
                header.cluster()
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let needed = end << header.cluster_bits;
        if file.len() < needed {
            file.set_len(needed).map_err(|error| match error.kind() {
                io::ErrorKind::Unsupported => io::ErrorKind::StorageFull.into(),
                _ => error,
            })?;
        }
        (first..end).for_each(|cluster| self.set_used(cluster));
        Ok(first)
    }

    /// Makes sure that there is a block of refcounts with an index.
    fn cover(&mut self, header: &Header, file: &dyn BlockDevice, index: usize) -> io::Result<()> {
        if self.reftable.get(index).is_some_and(|offset| *offset != 0) {
            return Ok(());
        }
        let block = self.take_uncounted(header, file, 1)?;
        if index >= self.reftable.len() {
            self.reftable.resize(index + 1, 0);
        }
        self.reftable[index] = block << header.cluster_bits;
        self.new_blocks.insert(index);
        // The block may count itself, or lie in the range of another one, which ends the recursion
        // soon: each block has a cluster of its own.
        let own = (block / header.counts_len()) as usize;
        let covered = self.cover(header, file, own);
        if covered.is_err() {
            self.reftable[index] = 0;
            self.new_blocks.remove(&index);
            self.release(block);
        }
        covered
    }
}
