//! Seed of an image from its content, so that equal sources give equal images.

use super::{EntryKind, FileContent, Tree};
use sha2::{Digest, Sha256};

impl Tree {
    /// Returns a seed for [`Options::seed`](extant_mkfs::Options::seed) that depends on all names,
    /// attributes and sizes, so that equal trees give equal images. It does not depend on the
    /// content of files, which would have to be read twice.
    pub fn seed(&self) -> u64 {
        let mut sum = Sha256::new();
        for entry in self.entry(b"").into_iter().chain(self.walk()) {
            let attributes = &entry.attributes;
            put(&mut sum, &entry.path);
            put_numbers(
                &mut sum,
                &[
                    attributes.mode.into(),
                    attributes.uid.into(),
                    attributes.gid.into(),
                    attributes.mtime.sec.cast_unsigned(),
                    attributes.mtime.nsec.into(),
                    entry.links.into(),
                ],
            );
            for (name, value) in &attributes.xattrs {
                put(&mut sum, name);
                put(&mut sum, value);
            }
            put_kind(&mut sum, &entry.kind);
        }
        let first = sum.finalize().into_iter().take(8);
        first.fold(0, |number, byte| number << 8 | u64::from(byte))
    }
}

fn put_kind(sum: &mut Sha256, kind: &EntryKind) {
    match kind {
        EntryKind::Directory => put(sum, b"directory"),
        EntryKind::File(content) => {
            put(sum, b"file");
            put_numbers(sum, &[size_of(content)]);
        }
        EntryKind::Symlink(target) => {
            put(sum, b"symlink");
            put(sum, target);
        }
        EntryKind::CharDevice(major, minor) => {
            put(sum, b"character device");
            put_numbers(sum, &[(*major).into(), (*minor).into()]);
        }
        EntryKind::BlockDevice(major, minor) => {
            put(sum, b"block device");
            put_numbers(sum, &[(*major).into(), (*minor).into()]);
        }
        EntryKind::Fifo => put(sum, b"fifo"),
        _ => put(sum, b"socket"),
    }
}

fn size_of(content: &FileContent) -> u64 {
    match content {
        FileContent::Bytes(bytes) => bytes.len() as u64,
        FileContent::Whole { size, .. }
        | FileContent::Zeroes { size }
        | FileContent::Sparse { size, .. } => *size,
    }
}

fn put(sum: &mut Sha256, bytes: &[u8]) {
    put_numbers(sum, &[bytes.len() as u64]);
    sum.update(bytes);
}

fn put_numbers(sum: &mut Sha256, numbers: &[u64]) {
    numbers.iter().for_each(|number| sum.update(number.to_string() + ","));
}
