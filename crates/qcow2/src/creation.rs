//! New images.

use crate::bytes::{self, Counts};
use crate::header::{BackingName, Header};
use crate::tables::COPIED;
use extant_blocks::BlockDevice;
use std::io;

/// Clusters of new images, as powers of two in bytes. Those of 64 KiB are the default of QEMU;
/// larger ones keep the tables of huge disks within their bounds.
const CLUSTER_BITS: u32 = 16;
const MAX_CLUSTER_BITS: u32 = 21;

/// Refcounts of 16 bits.
const REFCOUNT_ORDER: u32 = 4;

/// The longest L1 table of a new image in entries.
const MAX_L1: u64 = 4 << 20;

/// Makes an empty image of a disk of `size` bytes in `file`, which must be empty and able to grow,
/// and makes it durable. `backing` is the name and the format of the backing file for the header:
/// programs other than this one may open it by them.
///
/// # Errors
/// `InvalidInput` if no image can have this size, or the file is not empty; those of the file.
pub fn create(file: &dyn BlockDevice, size: u64, backing: Option<(&[u8], &str)>) -> io::Result<()> {
    let mut image = NewImage::begin(file, size)?;
    image.header.backing = backing
        .map(|(name, format)| BackingName { name: name.to_vec(), format: Some(format.into()) });
    image.finish()
}

/// Writes an image with the content of a device to `file`, which must be empty and able to grow,
/// and makes it durable. Clusters of zeroes take no space. The same content gives the same bytes.
/// `progress` gets the position in `source`.
///
/// # Errors
/// `InvalidInput` if no image can have this size, or the file is not empty; those of the devices.
pub fn write_image(
    source: &dyn BlockDevice,
    file: &dyn BlockDevice,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut image = NewImage::begin(file, source.len())?;
    let cluster = image.header.cluster();
    let mut content = vec![0; cluster as usize];
    let mut at = 0;
    while let Some(data) = source.next_data(at)? {
        let mut position = data.start - data.start % cluster;
        position = position.max(at);
        while position < data.end {
            let len = (source.len() - position).min(cluster) as usize;
            content[len..].fill(0);
            source.read_exact_at(&mut content[..len], position)?;
            if content.iter().any(|byte| *byte != 0) {
                image.add(position, &content)?;
            }
            position += cluster;
            progress(position.min(source.len()));
        }
        at = position;
        if at >= source.len() {
            break;
        }
    }
    image.finish()
}

/// An image under way: the header, the L1 table, L2 tables each with the clusters that they refer
/// to behind them, and last the refcounts.
struct NewImage<'a> {
    file: &'a dyn BlockDevice,
    header: Header,
    l1: Vec<u64>,
    /// The number of the L2 table under way, its cluster and its entries.
    table: Option<(usize, u64, Vec<u64>)>,
    /// Clusters so far.
    clusters: u64,
}

impl<'a> NewImage<'a> {
    fn begin(file: &'a dyn BlockDevice, size: u64) -> io::Result<NewImage<'a>> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        if size == 0 || size > i64::MAX as u64 {
            return Err(invalid(format!(
                "{}: a disk of {size} bytes is not possible",
                file.name()
            )));
        }
        if file.len() > 0 {
            return Err(invalid(format!("{}: the file is not empty", file.name())));
        }
        let covered = |bits: u32| 1u64 << (2 * bits - 3);
        let bits = (CLUSTER_BITS..=MAX_CLUSTER_BITS)
            .find(|bits| size.div_ceil(covered(*bits)) <= MAX_L1)
            .ok_or_else(|| {
                invalid(format!("{}: a disk of {size} bytes is too long", file.name()))
            })?;
        let l1_len = size.div_ceil(covered(bits)) as usize;
        let header = Header {
            file: file.name(),
            version: 3,
            cluster_bits: bits,
            size,
            l1_offset: 1 << bits,
            l1_len,
            reftable_offset: 0,
            reftable_clusters: 0,
            refcount_order: REFCOUNT_ORDER,
            snapshots: 0,
            incompatible: 0,
            autoclear: 0,
            zstd: false,
            backing: None,
        };
        let clusters = 1 + (l1_len as u64 * 8).div_ceil(header.cluster());
        Ok(NewImage { file, header, l1: vec![0; l1_len], table: None, clusters })
    }

    /// Takes a cluster at the end, and writes it.
    fn append(&mut self, content: &[u8]) -> io::Result<u64> {
        let offset = self.clusters << self.header.cluster_bits;
        self.clusters += 1;
        self.put(offset, content)?;
        Ok(offset)
    }

    /// Writes a cluster, or several.
    fn put(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        let end = offset + content.len() as u64;
        if self.file.len() < end {
            self.file.set_len(end.next_multiple_of(self.header.cluster()))?;
        }
        self.file.write_all_at(content, offset)
    }

    /// Adds the content of a cluster at `position` in the disk. Positions must ascend.
    fn add(&mut self, position: u64, content: &[u8]) -> io::Result<()> {
        let covered = self.header.covered_by_table();
        let index = (position / covered) as usize;
        if self.table.as_ref().is_none_or(|(other, ..)| *other != index) {
            self.end_table()?;
            let entries = vec![0; self.header.table_len()];
            let offset = self.clusters << self.header.cluster_bits;
            self.clusters += 1;
            self.table = Some((index, offset, entries));
        }
        let host = self.append(content)?;
        let number = ((position % covered) >> self.header.cluster_bits) as usize;
        if let Some(entry) = self.table.as_mut().and_then(|(.., table)| table.get_mut(number)) {
            *entry = host | COPIED;
        }
        Ok(())
    }

    /// Writes the L2 table under way.
    fn end_table(&mut self) -> io::Result<()> {
        let Some((index, offset, entries)) = self.table.take() else { return Ok(()) };
        self.put(offset, &bytes::of_words(&entries))?;
        if let Some(entry) = self.l1.get_mut(index) {
            *entry = offset | COPIED;
        }
        Ok(())
    }

    /// Writes the tables, and the header last.
    fn finish(mut self) -> io::Result<()> {
        self.end_table()?;
        let cluster = self.header.cluster();
        let (counts_len, table_len) = (self.header.counts_len(), self.header.table_len() as u64);
        let (mut blocks, mut table) = (0u64, 1u64);
        // Refcounts count their own clusters.
        loop {
            let all = self.clusters + blocks + table;
            let needed = all.div_ceil(counts_len);
            let needed_table = needed.div_ceil(table_len);
            if (needed, needed_table) == (blocks, table) {
                break;
            }
            (blocks, table) = (needed, needed_table);
        }
        let all = self.clusters + blocks + table;
        let mut reftable = Vec::new();
        for index in 0..blocks {
            let mut block = vec![0; cluster as usize];
            let used = (all - index * counts_len).min(counts_len);
            let mut counts = Counts { bytes: &mut block, order: REFCOUNT_ORDER };
            (0..used as usize).for_each(|number| counts.set(number, true));
            reftable.push(self.append(&block)?);
        }
        self.header.reftable_offset = self.clusters << self.header.cluster_bits;
        self.header.reftable_clusters = table;
        reftable.resize((table * table_len) as usize, 0);
        self.put(self.header.reftable_offset, &bytes::of_words(&reftable))?;
        let mut l1 = bytes::of_words(&self.l1);
        l1.resize(l1.len().next_multiple_of(cluster as usize), 0);
        self.put(self.header.l1_offset, &l1)?;
        // A file without a header is no image yet.
        self.file.flush()?;
        self.put(0, &self.header.to_bytes()?)?;
        self.file.flush()
    }
}
