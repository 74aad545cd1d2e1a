//! Hash trees of dm-verity for images: parameters, writing and report.

use crate::failure::{Failure, Result};
use crate::json::hex;
use crate::text::uuid;
use extant_engine::device::BlockDevice;
use extant_image::{VerityOptions, VerityTree};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{self, BufWriter, Write};
use std::sync::atomic::AtomicBool;

/// Maximum size of a data block: the kernel's pages have as many bytes at least.
const MAX_DATA_BLOCK: u32 = 4096;

/// Size of a hash block, the default of veritysetup(8).
const HASH_BLOCK: u32 = 4096;

/// A hash tree that is planned for a file system.
pub struct HashTree {
    tree: VerityTree,
    options: VerityOptions,
    /// Where it begins, in bytes.
    offset: u64,
}

/// Where a hash tree lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePlace {
    /// Behind the file system, in the same file.
    Behind,
    /// At the beginning of a file of its own.
    Own,
}

impl HashTree {
    /// Plans the tree over a file system of `bytes` bytes in blocks of `block_size`. Salt and UUID
    /// follow from the UUID of the file system.
    ///
    /// # Errors
    /// The file system has no whole blocks.
    pub fn plan(
        (bytes, block_size): (u64, u32),
        fs_uuid: [u8; 16],
        place: TreePlace,
        threads: usize,
    ) -> Result<HashTree> {
        let mut options = VerityOptions::default();
        options.data_block_size = block_size.min(MAX_DATA_BLOCK);
        options.hash_block_size = HASH_BLOCK;
        options.salt = derived(b"salt of dm-verity", fs_uuid).to_vec();
        options.uuid = own_uuid(derived(b"UUID of dm-verity", fs_uuid));
        options.threads = threads;
        let tree = VerityTree::new(bytes, &options).map_err(Failure::new)?;
        let offset = match place {
            TreePlace::Behind => tree.offset_behind_data(),
            TreePlace::Own => 0,
        };
        Ok(HashTree { tree, options, offset })
    }

    /// Returns the end of the tree, in bytes.
    pub fn end(&self) -> u64 {
        self.offset + self.tree.bytes()
    }

    /// Returns the beginning of the tree, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Hashes the data and writes the tree. Returns the root hash, in hexadecimal digits.
    ///
    /// # Errors
    /// Those of the devices; `Interrupted` if `stop` became true.
    pub fn write(
        &self,
        data: &dyn BlockDevice,
        device: &dyn BlockDevice,
        stop: &AtomicBool,
    ) -> extant_image::Result<String> {
        Ok(hex(&self.tree.write(data, device, self.offset, stop)?))
    }

    /// Prints the parameters that veritysetup(8) and the kernel need.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn print(&self, root: &str) -> Result {
        let mut out = BufWriter::new(io::stdout().lock());
        writeln!(out, "root-hash: {root}")?;
        writeln!(out, "salt: {}", hex(&self.options.salt))?;
        writeln!(out, "uuid: {}", uuid(self.options.uuid))?;
        writeln!(out, "hash-offset: {}", self.offset)?;
        Ok(out.flush()?)
    }

    /// Returns the same as a part of a JSON document.
    pub fn document(&self, root: &str) -> Value {
        json!({
            "root_hash": root,
            "salt": hex(&self.options.salt),
            "uuid": uuid(self.options.uuid),
            "hash_offset": self.offset,
            "hash_bytes": self.tree.bytes(),
            "data_blocks": self.tree.data_blocks(),
            "data_block_size": self.options.data_block_size,
            "hash_block_size": self.options.hash_block_size,
        })
    }
}

fn derived(label: &[u8], fs_uuid: [u8; 16]) -> [u8; 32] {
    Sha256::new_with_prefix(label).chain_update(fs_uuid).finalize().into()
}

/// Returns a UUID of version 8: made of a digest.
fn own_uuid(digest: [u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
