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
//! The file stores each table that is going to be changed before the change is accepted: holes of
//! it are written as zeroes. The write that needs a new cluster fails when the host lacks space,
//! and the writes of the tables, which follow with the next flush, need no more of it.
//!
//! [`commit`]: crate::commit

use crate::file::store_holes;
use crate::header::{Header, MAX_REFTABLE};
use extant_blocks::BlockDevice;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Clusters of a file that is written, at most: two bits in memory for each.
pub(crate) const MAX_CLUSTERS: u64 = 1 << 28;

/// A set of clusters of the file, with a bit for each.
#[derive(Debug, Default)]
pub(crate) struct ClusterSet(pub Vec<u64>);

impl ClusterSet {
    pub fn contains(&self, cluster: u64) -> bool {
        let word = self.0.get((cluster / 64) as usize).copied().unwrap_or_default();
        word >> (cluster % 64) & 1 != 0
    }

    fn insert(&mut self, cluster: u64) {
        let word = (cluster / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (cluster % 64);
    }

    fn remove(&mut self, cluster: u64) {
        if let Some(word) = self.0.get_mut((cluster / 64) as usize) {
            *word &= !(1 << (cluster % 64));
        }
    }

    /// Returns the first cluster at or behind `from` that is not in the set.
    fn next_absent(&self, from: u64) -> u64 {
        let mut cluster = from;
        while self.contains(cluster) {
            // Whole words at once.
            let all = self.0.get((cluster / 64) as usize).is_some_and(|word| *word == u64::MAX);
            cluster = if all { (cluster / 64 + 1) * 64 } else { cluster + 1 };
        }
        cluster
    }
}

/// Changes in memory.
#[derive(Debug)]
pub(crate) struct Writer {
    used: ClusterSet,
    /// Clusters of tables without holes.
    stored: ClusterSet,
    /// No cluster before is free.
    first_free: u64,
    /// Offsets of the blocks of refcounts.
    pub reftable: Vec<u64>,
    /// Clusters of the table of these blocks in the file.
    pub reftable_at: Range<u64>,
    /// Clusters of a longer one, which the header does not refer to yet.
    pub moved_to: Option<Range<u64>>,
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
    /// A barrier failed, and which changes have reached the file is unknown.
    pub failed: bool,
}

/// A changed L2 table.
#[derive(Debug)]
pub(crate) struct ChangedTable {
    pub table: Arc<Vec<u64>>,
    /// The changed entries. `None` for a table that no entry in the file refers to: it is written
    /// as a whole before the next barrier.
    pub changed: Option<Range<usize>>,
}

/// Changes of a call so far, to be undone if it fails.
struct Taken {
    clusters: Vec<Range<u64>>,
    blocks: Vec<usize>,
    /// The state before.
    reftable_len: usize,
    freed_len: usize,
    moved_to: Option<Range<u64>>,
}

impl Writer {
    /// Makes the state of an image without changes.
    pub fn new(used: Vec<u64>, reftable: Vec<u64>, header: &Header) -> Writer {
        let first = header.reftable_offset >> header.cluster_bits;
        Writer {
            used: ClusterSet(used),
            stored: ClusterSet::default(),
            first_free: 0,
            reftable,
            reftable_at: first..first.saturating_add(header.reftable_clusters),
            moved_to: None,
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

    /// Returns whether the file lacks changes that can reach it.
    pub fn has_changes(&self) -> bool {
        let has_tables = !(self.tables.is_empty() && self.l1.is_empty());
        let has_clusters = !(self.counts.is_empty() && self.freed.is_empty());
        let has_blocks = !self.new_blocks.is_empty() || self.moved_to.is_some();
        !self.failed && (has_tables || has_clusters || has_blocks)
    }

    /// Frees a cluster that no table in the file refers to.
    pub fn release(&mut self, cluster: u64) {
        self.used.remove(cluster);
        self.counts.insert(cluster, false);
        self.first_free = self.first_free.min(cluster);
    }

    /// Has the file store the cluster of a table as a whole, so that later writes into the table
    /// need no space of the host.
    ///
    /// # Errors
    /// `StorageFull` if the host lacks space; those of the file.
    pub fn store(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        cluster: u64,
    ) -> io::Result<()> {
        if !self.stored.contains(cluster) {
            let start = cluster << header.cluster_bits;
            store_holes(file, start..(start + header.cluster()).min(file.len()))?;
            self.stored.insert(cluster);
        }
        Ok(())
    }

    /// Takes `count` adjacent clusters, and the blocks of refcounts that they need. The file
    /// becomes longer if it must. Returns the first one.
    ///
    /// # Errors
    /// `StorageFull` if the file can have no more clusters, or if the host lacks space for the
    /// tables; those of the file. Nothing was taken then.
    pub fn take(&mut self, header: &Header, file: &dyn BlockDevice, count: u64) -> io::Result<u64> {
        let mut taken = Taken {
            clusters: Vec::new(),
            blocks: Vec::new(),
            reftable_len: self.reftable.len(),
            freed_len: self.freed.len(),
            moved_to: self.moved_to.clone(),
        };
        let first = self.take_counted(header, file, count, &mut taken);
        if first.is_err() {
            self.undo(taken);
        }
        first
    }

    /// Takes a cluster for a table, which is written as zeroes.
    ///
    /// # Errors
    /// As [`Writer::take`].
    pub fn take_table(&mut self, header: &Header, file: &dyn BlockDevice) -> io::Result<u64> {
        let cluster = self.take(header, file, 1)?;
        let written = self.write_zeroes(header, file, cluster..cluster + 1);
        if written.is_err() {
            self.release(cluster);
        }
        written.map(|()| cluster)
    }

    fn undo(&mut self, taken: Taken) {
        for index in taken.blocks {
            self.new_blocks.remove(&index);
            if let Some(offset) = self.reftable.get_mut(index) {
                *offset = 0;
            }
        }
        self.reftable.truncate(taken.reftable_len);
        self.freed.truncate(taken.freed_len);
        self.moved_to = taken.moved_to;
        for cluster in taken.clusters.into_iter().flatten() {
            self.release(cluster);
        }
    }

    fn take_counted(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        count: u64,
        taken: &mut Taken,
    ) -> io::Result<u64> {
        let range = self.take_uncounted(header, file, count, taken)?;
        self.cover(header, file, range.clone(), taken)?;
        Ok(range.start)
    }

    fn take_uncounted(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        count: u64,
        taken: &mut Taken,
    ) -> io::Result<Range<u64>> {
        let mut first = self.used.next_absent(self.first_free);
        self.first_free = first;
        let (mut at, mut end) = (first, first);
        while end - first < count {
            at = self.used.next_absent(at);
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
        for cluster in first..end {
            self.used.insert(cluster);
            self.stored.remove(cluster);
            self.counts.insert(cluster, true);
        }
        taken.clusters.push(first..end);
        Ok(first..end)
    }

    /// Makes sure that clusters have blocks of refcounts, which the file stores.
    fn cover(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        clusters: Range<u64>,
        taken: &mut Taken,
    ) -> io::Result<()> {
        let first = clusters.start / header.counts_len();
        let end = clusters.end.div_ceil(header.counts_len());
        for index in first as usize..end as usize {
            match self.reftable.get(index).copied().unwrap_or_default() {
                0 => self.add_block(header, file, index, taken)?,
                offset => self.store(header, file, offset >> header.cluster_bits)?,
            }
        }
        Ok(())
    }

    /// Makes the block of refcounts with an index. It may count itself, or lie in the range of
    /// another one, which ends the recursion soon: each block has a cluster of its own.
    fn add_block(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        index: usize,
        taken: &mut Taken,
    ) -> io::Result<()> {
        let block = self.take_uncounted(header, file, 1, taken)?;
        if index >= self.reftable.len() {
            self.reftable.resize(index + 1, 0);
        }
        self.reftable[index] = block.start << header.cluster_bits;
        self.new_blocks.insert(index);
        taken.blocks.push(index);
        self.write_zeroes(header, file, block.clone())?;
        self.list_block(header, file, index, taken)?;
        self.cover(header, file, block, taken)
    }

    /// Makes sure that the refcount table has an entry for a block, which the file stores.
    fn list_block(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        index: usize,
        taken: &mut Taken,
    ) -> io::Result<()> {
        let per_cluster = header.table_len() as u64;
        let table = self.moved_to.as_ref().unwrap_or(&self.reftable_at).clone();
        let place = table.start + index as u64 / per_cluster;
        if place < table.end {
            return self.store(header, file, place);
        }
        // Blocks for the clusters of the table itself, and some more: it rarely moves again.
        let blocks = index as u64 + 1;
        let count = (blocks + blocks / 2).div_ceil(per_cluster) + 1;
        let count = count.min(MAX_REFTABLE >> header.cluster_bits);
        let place = self.take_uncounted(header, file, count, taken)?;
        self.reftable.resize((count * per_cluster) as usize, 0);
        // The header may refer to a place that a commit has failed to move to.
        self.freed.extend(self.moved_to.replace(place.clone()).into_iter().flatten());
        self.write_zeroes(header, file, place.clone())?;
        self.cover(header, file, place, taken)
    }

    /// Writes new clusters of a table as zeroes.
    fn write_zeroes(
        &mut self,
        header: &Header,
        file: &dyn BlockDevice,
        clusters: Range<u64>,
    ) -> io::Result<()> {
        let len = (clusters.end - clusters.start) << header.cluster_bits;
        // Not as a hole, which takes no space.
        file.write_all_at(&vec![0; len as usize], clusters.start << header.cluster_bits)?;
        clusters.for_each(|cluster| self.stored.insert(cluster));
        Ok(())
    }
}
