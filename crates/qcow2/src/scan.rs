//! The check of all tables before an image is written.
//!
//! A cluster of the file has one use at most, and the refcount 1 if it has one. With that known,
//! the free clusters are known, and no write to one can change a table or other content. Tables in
//! holes of the file are empty and are not read, so the work is bounded by the stored bytes.

use crate::bytes::{self, Counts};
use crate::file::{is_hole, read_padded};
use crate::header::{Header, REPAIR};
use crate::tables::{COPIED, Mapping, OFFSET};
use crate::writer::{MAX_CLUSTERS, Writer};
use extant_blocks::BlockDevice;
use std::io;

/// A check under way.
struct Scan<'a> {
    header: &'a Header,
    file: &'a dyn BlockDevice,
    /// Clusters of the file.
    clusters: u64,
    /// A bit for each cluster.
    used: Vec<u64>,
    /// Bits that are set.
    count: u64,
}

/// Checks all tables of an image with this L1 table.
///
/// # Errors
/// `InvalidData` if a cluster has two uses, a use beyond the end, or another refcount than its use
/// gives it; if the image has compressed clusters; those of the file. The file is unchanged then.
pub(crate) fn scan(header: &Header, file: &dyn BlockDevice, l1: &[u64]) -> io::Result<Writer> {
    let clusters = file.len().div_ceil(header.cluster());
    if clusters > MAX_CLUSTERS {
        let cause =
            format_args!("its file has {clusters} clusters, and {MAX_CLUSTERS} can be written");
        let remedy = "convert it: `qemu-img convert -O qcow2 -o cluster_size=2M`";
        return Err(header.refuse(cause, remedy));
    }
    let words = (clusters as usize).div_ceil(64);
    let mut scan = Scan { header, file, clusters, used: vec![0; words], count: 0 };
    scan.take(0, 1, "the header")?;
    let l1_clusters = (l1.len() as u64 * 8).div_ceil(header.cluster());
    scan.take(header.l1_offset, l1_clusters, "the L1 table")?;
    scan.take(header.reftable_offset, header.reftable_clusters, "the refcount table")?;
    let reftable = scan.reftable()?;
    for entry in l1 {
        scan.table(*entry)?;
    }
    scan.counts(&reftable)?;
    let used = scan.used;
    let whole = clusters << header.cluster_bits;
    if whole > file.len() {
        // The last cluster may be cut off in the file, and is written as a whole. A disk cannot
        // grow, and has no such cluster then.
        match file.set_len(whole) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            done => done?,
        }
    }
    Ok(Writer::new(used, reftable, header))
}

impl Scan<'_> {
    /// Takes clusters for a use.
    fn take(&mut self, offset: u64, count: u64, user: &str) -> io::Result<()> {
        let first = offset >> self.header.cluster_bits;
        for cluster in first..first.saturating_add(count) {
            if cluster >= self.clusters {
                let cause = format_args!("{user} at {offset} ends beyond the file");
                return Err(self.header.refuse(cause, REPAIR));
            }
            let (word, bit) = ((cluster / 64) as usize, 1 << (cluster % 64));
            let word = &mut self.used[word];
            if *word & bit != 0 {
                let cause = format_args!(
                    "{user} at {offset} lies in a cluster that has another use, too, and the image \
                     can only be read"
                );
                return Err(self.header.refuse(cause, REPAIR));
            }
            *word |= bit;
            self.count += 1;
        }
        Ok(())
    }

    /// Returns the content of a cluster; `None` if it is a hole.
    fn read(&self, offset: u64) -> io::Result<Option<Vec<u8>>> {
        let len = self.header.cluster();
        if is_hole(self.file, offset, len)? {
            return Ok(None);
        }
        let mut content = vec![0; len as usize];
        read_padded(self.file, &mut content, offset)?;
        Ok(Some(content))
    }

    /// Reads the table of blocks of refcounts.
    fn reftable(&mut self) -> io::Result<Vec<u64>> {
        let header = self.header;
        let mut content = vec![0; (header.reftable_clusters << header.cluster_bits) as usize];
        read_padded(self.file, &mut content, header.reftable_offset)?;
        let entries = bytes::words(&content);
        for entry in &entries {
            if *entry & COPIED != 0 {
                let cause = format_args!("the refcount table has the entry {entry:#x}");
                return Err(header.refuse(cause, REPAIR));
            }
            if let Some(offset) = header.table_at(*entry, self.file.len())? {
                self.take(offset, 1, "a block of refcounts")?;
            }
        }
        Ok(entries)
    }

    /// Checks an L2 table by its entry in the L1 table.
    fn table(&mut self, entry: u64) -> io::Result<()> {
        let Some(offset) = self.header.table_at(entry, self.file.len())? else { return Ok(()) };
        self.check_copied(entry)?;
        self.take(offset, 1, "an L2 table")?;
        let Some(content) = self.read(offset)? else { return Ok(()) };
        for entry in bytes::words(&content) {
            match self.header.mapping(entry, self.file.len())? {
                (_, Mapping::Compressed(_)) => {
                    let remedy =
                        "write to an overlay of it, or make a copy: `extant overlay flatten`";
                    let cause = "it has compressed clusters, and can only be read";
                    return Err(self.header.refuse(cause, remedy));
                }
                (Some(host), _) => {
                    self.check_copied(entry)?;
                    self.take(host, 1, "a cluster of the disk")?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn check_copied(&self, entry: u64) -> io::Result<()> {
        if entry & COPIED != 0 {
            return Ok(());
        }
        let cause = format_args!(
            "the cluster at {} is marked as shared with a snapshot, and there is none; the image \
             can only be read",
            entry & OFFSET
        );
        Err(self.header.refuse(cause, REPAIR))
    }

    /// Compares the refcounts with the uses. Clusters that have a count and no use count as used.
    fn counts(&mut self, reftable: &[u64]) -> io::Result<()> {
        let mut found = 0;
        for (index, entry) in reftable.iter().enumerate() {
            let offset = entry & OFFSET;
            let first = (index as u64).saturating_mul(self.header.counts_len());
            if offset == 0 || first >= self.clusters {
                continue;
            }
            let Some(mut content) = self.read(offset)? else { continue };
            found += self.block(&mut content, first)?;
        }
        if found == self.count {
            return Ok(());
        }
        let cause = format_args!(
            "{} of {} clusters in use have no refcount, and the image can only be read",
            self.count.saturating_sub(found),
            self.count
        );
        Err(self.header.refuse(cause, REPAIR))
    }

    /// Compares a block of refcounts for the clusters from `first` on. Returns the number of
    /// clusters in use among them that have their count.
    fn block(&mut self, content: &mut [u8], first: u64) -> io::Result<u64> {
        let order = self.header.refcount_order;
        let counts = Counts { bytes: content, order };
        let len = self.header.counts_len().min(self.clusters - first);
        let mut found = 0;
        for number in 0..len {
            let cluster = first + number;
            let (word, bit) = ((cluster / 64) as usize, 1 << (cluster % 64));
            let word = &mut self.used[word];
            match (counts.get(number as usize), *word & bit != 0) {
                (1, true) => found += 1,
                // A leak.
                (1.., false) => *word |= bit,
                (0, _) => {}
                (count, true) => {
                    let cause = format_args!(
                        "cluster {cluster} has the refcount {count} and one use, and the image \
                         can only be read"
                    );
                    return Err(self.header.refuse(cause, REPAIR));
                }
            }
        }
        Ok(found)
    }
}
