//! The header of an image, checked.

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use extant_blocks::BlockDevice;
use std::fmt::Display;
use std::io;

const MAGIC: u32 = 0x5146_49fb;

/// Bytes of the header of version 2, and of version 3 without and with the kind of compression.
const LEN_V2: usize = 72;
const LEN_V3: usize = 104;
const LEN_V3_COMPRESSION: usize = 112;

/// Sizes of clusters, as powers of two.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// The longest L1 table and the longest refcount table in bytes, as QEMU has them.
const MAX_L1: u64 = 32 << 20;
pub(crate) const MAX_REFTABLE: u64 = 8 << 20;

/// The longest name of a backing file in bytes.
const MAX_NAME: u32 = 1023;

/// Extensions of the header.
const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// Incompatible features.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;

/// The backing file that a header names. The name is information alone: it is never opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackingName {
    /// The name as it is stored.
    pub name: Vec<u8>,
    /// The format, if it is stored.
    pub format: Option<String>,
}

/// The fields of a header that is supported.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// Name of the file, for errors.
    pub file: String,
    pub version: u32,
    pub cluster_bits: u32,
    /// Length of the disk in bytes.
    pub size: u64,
    pub l1_offset: u64,
    pub l1_len: usize,
    pub reftable_offset: u64,
    pub reftable_clusters: u64,
    pub refcount_order: u32,
    pub snapshots: u32,
    pub incompatible: u64,
    pub autoclear: u64,
    /// Clusters are compressed by zstd, not by zlib.
    pub zstd: bool,
    pub backing: Option<BackingName>,
}

/// Returns an error with object, cause and remedy.
pub(crate) fn refusal(file: &str, cause: impl Display, remedy: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{file}: qcow2: {cause}; {remedy}"))
}

pub(crate) const REPAIR: &str = "`qemu-img check -r all` may repair a copy of it";
const CONVERT: &str = "convert it first: `qemu-img convert -O qcow2`";
/// The remedy of features that QEMU may not know either.
const NEWER: &str = "a version of `qemu-img convert` that knows it makes an image without it";
/// The remedy of a header with which QEMU opens no image either.
const LOST: &str = "the header is damaged, and only another copy of the image has it";

impl Header {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// `InvalidData` if it is damaged, or has features that are not supported; those of the file.
    pub fn read(file: &dyn BlockDevice) -> io::Result<Header> {
        let name = file.name();
        let mut start = vec![0; LEN_V3_COMPRESSION.min(clamp(file.len()))];
        file.read_exact_at(&mut start, 0)?;
        if start.len() < LEN_V2 || u32_at(&start, 0) != MAGIC {
            let remedy = "leave the format out if it is a raw image";
            return Err(refusal(&name, "the file has no header of this format", remedy));
        }
        let version = u32_at(&start, 4);
        let cluster_bits = u32_at(&start, 20);
        if !(2..=3).contains(&version) || (version == 3 && start.len() < LEN_V3) {
            return Err(refusal(&name, format_args!("version {version} is not known"), NEWER));
        }
        if !CLUSTER_BITS.contains(&cluster_bits) {
            let cause = format_args!("clusters of 2^{cluster_bits} bytes are not possible");
            return Err(refusal(&name, cause, LOST));
        }
        let mut first = vec![0; (1 << cluster_bits).min(clamp(file.len()))];
        file.read_exact_at(&mut first, 0)?;
        let mut header = Header::fields(name, &first);
        header.check_features(u32_at(&first, 32))?;
        header.check_places()?;
        let len = if version == 2 { LEN_V2 } else { u32_at(&first, 100) as usize };
        if version == 3 && (len < LEN_V3 || len % 8 != 0 || len > first.len()) {
            let cause = format_args!("a header of {len} bytes is not possible");
            return Err(refusal(&header.file, cause, LOST));
        }
        if header.incompatible & COMPRESSION != 0 && len > LEN_V3 {
            header.zstd = match first.get(LEN_V3) {
                Some(0) => false,
                Some(1) => true,
                _ => return Err(header.refuse("its kind of compression is not known", NEWER)),
            };
        }
        header.backing = header.backing_name(&first, len)?;
        Ok(header)
    }

    /// Takes the fields from the first cluster.
    fn fields(file: String, first: &[u8]) -> Header {
        let version = u32_at(first, 4);
        let v3 = |number: u64| if version == 3 { number } else { 0 };
        Header {
            file,
            version,
            cluster_bits: u32_at(first, 20),
            size: u64_at(first, 24),
            l1_offset: u64_at(first, 40),
            l1_len: u32_at(first, 36) as usize,
            reftable_offset: u64_at(first, 48),
            reftable_clusters: u32_at(first, 56).into(),
            refcount_order: if version == 3 { u32_at(first, 96) } else { 4 },
            snapshots: u32_at(first, 60),
            incompatible: v3(u64_at(first, 72)),
            autoclear: v3(u64_at(first, 88)),
            zstd: false,
            backing: None,
        }
    }

    /// Returns an error about this image.
    pub fn refuse(&self, cause: impl Display, remedy: &str) -> io::Error {
        refusal(&self.file, cause, remedy)
    }

    fn check_features(&self, encryption: u32) -> io::Result<()> {
        if encryption != 0 {
            let remedy = "decrypt it first: `qemu-img convert` with its secret";
            return Err(self.refuse("it is encrypted", remedy));
        }
        if self.incompatible & DATA_FILE != 0 {
            let cause = "its data lies in another file (external data file)";
            return Err(self.refuse(cause, CONVERT));
        }
        if self.incompatible & SUBCLUSTERS != 0 {
            return Err(self.refuse("it has subclusters (extended_l2)", CONVERT));
        }
        let unknown = self.incompatible & !(DIRTY | CORRUPT | COMPRESSION);
        if unknown != 0 {
            let cause = format_args!("it has unknown incompatible features ({unknown:#x})");
            return Err(self.refuse(cause, NEWER));
        }
        Ok(())
    }

    /// Checks sizes, and places of the tables but for the end of the file.
    fn check_places(&self) -> io::Result<()> {
        let size = self.size;
        if size == 0 {
            let remedy = "`qemu-img resize` makes it longer";
            return Err(self.refuse("a disk of 0 bytes is not possible", remedy));
        }
        if size > i64::MAX as u64 {
            return Err(self.refuse(format_args!("a disk of {size} bytes is not possible"), LOST));
        }
        if self.refcount_order > 6 {
            let order = self.refcount_order;
            return Err(self.refuse(format_args!("refcounts of 2^{order} bits"), LOST));
        }
        let l1 = self.l1_len as u64 * 8;
        let needed = size.div_ceil(self.covered_by_table());
        if l1 > MAX_L1 || needed > self.l1_len as u64 {
            let cause = format_args!(
                "a disk of {size} bytes needs an L1 table of {needed} entries, and it has {}, of \
                 at most {}",
                self.l1_len,
                MAX_L1 / 8
            );
            return Err(self.refuse(cause, LOST));
        }
        if self.reftable_clusters << self.cluster_bits > MAX_REFTABLE.max(self.cluster()) {
            let cause = format_args!("a refcount table of {} clusters", self.reftable_clusters);
            return Err(self.refuse(cause, LOST));
        }
        for (table, offset) in [("L1", self.l1_offset), ("refcount", self.reftable_offset)] {
            if !offset.is_multiple_of(self.cluster()) || offset == 0 {
                let cause = format_args!("its {table} table begins at {offset}");
                return Err(self.refuse(cause, LOST));
            }
        }
        Ok(())
    }

    /// Returns the name and the format of the backing file.
    fn backing_name(&self, first: &[u8], len: usize) -> io::Result<Option<BackingName>> {
        let (offset, count) = (u64_at(first, 8), u32_at(first, 16));
        if offset == 0 || count == 0 {
            return Ok(None);
        }
        let range =
            usize::try_from(offset).ok().map(|start| start..start.saturating_add(count as usize));
        let Some(name) = range.and_then(|range| first.get(range)).filter(|_| count <= MAX_NAME)
        else {
            let cause = format_args!("the name of its backing file lies at {offset}");
            return Err(self.refuse(cause, LOST));
        };
        let mut at = len;
        let mut format = None;
        while at + 8 <= first.len() && at < offset as usize {
            let (kind, extension) = (u32_at(first, at), u32_at(first, at + 4) as usize);
            let Some(content) = first.get(at + 8..).and_then(|rest| rest.get(..extension)) else {
                break;
            };
            match kind {
                END => break,
                BACKING_FORMAT => format = Some(String::from_utf8_lossy(content).into_owned()),
                _ => {}
            }
            at += 8 + extension.next_multiple_of(8);
        }
        Ok(Some(BackingName { name: name.to_vec(), format }))
    }

    /// Refuses an image that cannot be written.
    pub fn check_writable(&self) -> io::Result<()> {
        let flatten = "write to an overlay of it, or make a copy: `extant overlay flatten`";
        if self.version != 3 {
            let remedy = "`qemu-img amend -o compat=1.1` makes it version 3";
            return Err(self.refuse("version 2 is only read", remedy));
        }
        if self.incompatible & (DIRTY | CORRUPT) != 0 {
            let cause = "it is marked as dirty or corrupt, and can only be read";
            return Err(self.refuse(cause, "`qemu-img check -r all` repairs it"));
        }
        if self.snapshots != 0 {
            let cause = format_args!("it has {} snapshots, and can only be read", self.snapshots);
            return Err(self.refuse(cause, flatten));
        }
        if self.autoclear != 0 {
            let cause = "it has bitmaps, or other content that a write would invalidate";
            return Err(self.refuse(cause, flatten));
        }
        Ok(())
    }

    /// Returns the bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the entries of an L2 table.
    pub fn table_len(&self) -> usize {
        1 << (self.cluster_bits - 3)
    }

    /// Returns the bytes of the disk that an L2 table covers.
    pub fn covered_by_table(&self) -> u64 {
        self.cluster() << (self.cluster_bits - 3)
    }

    /// Returns the clusters that a block of refcounts covers.
    pub fn counts_len(&self) -> u64 {
        (self.cluster() * 8) >> self.refcount_order
    }

    /// Returns the first cluster of a new image: the header with the extensions, and the name of
    /// the backing file behind them.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut extensions = Vec::new();
        if let Some(format) = self.backing.as_ref().and_then(|backing| backing.format.as_ref()) {
            put_u32(&mut extensions, BACKING_FORMAT);
            put_u32(&mut extensions, format.len() as u32);
            extensions.extend_from_slice(format.as_bytes());
            extensions.resize(extensions.len().next_multiple_of(8), 0);
        }
        put_u64(&mut extensions, 0);
        let name = self.backing.as_ref().map_or(&[][..], |backing| &backing.name);
        let place = LEN_V3_COMPRESSION + extensions.len();
        if name.len() > MAX_NAME as usize || place + name.len() > 1 << self.cluster_bits {
            let cause = format_args!(
                "the path of the backing file has {} bytes, and {MAX_NAME} are possible",
                name.len()
            );
            return Err(self.refuse(cause, "name it by a shorter one, through a symlink or a move"));
        }
        let mut bytes = Vec::new();
        put_u32(&mut bytes, MAGIC);
        put_u32(&mut bytes, 3);
        put_u64(&mut bytes, if name.is_empty() { 0 } else { place as u64 });
        put_u32(&mut bytes, name.len() as u32);
        put_u32(&mut bytes, self.cluster_bits);
        put_u64(&mut bytes, self.size);
        // Encryption: none.
        put_u32(&mut bytes, 0);
        put_u32(&mut bytes, self.l1_len as u32);
        put_u64(&mut bytes, self.l1_offset);
        put_u64(&mut bytes, self.reftable_offset);
        put_u32(&mut bytes, self.reftable_clusters as u32);
        // Snapshots, their place, and features: none.
        put_u32(&mut bytes, 0);
        for _ in 0..4 {
            put_u64(&mut bytes, 0);
        }
        put_u32(&mut bytes, self.refcount_order);
        put_u32(&mut bytes, LEN_V3_COMPRESSION as u32);
        // Compression by zlib, and padding.
        put_u64(&mut bytes, 0);
        bytes.extend_from_slice(&extensions);
        bytes.extend_from_slice(name);
        bytes.resize(1 << self.cluster_bits, 0);
        Ok(bytes)
    }
}

fn clamp(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
