//! Fuzz target for sources of new images: archives, layers, images of containers, manifests.
//!
//! The first byte of an input is a choice, the rest the source. An image is made of everything that
//! was read, also before an error, and must be without damage.

use extant_archive::{Container, Error, Input, Loader, Selection};
use extant_blocks::MemDevice;
use extant_check::Check;
use extant_format::Timestamp;
use extant_image::{Attributes, BuildOptions, EntryKind, FileContent, Tree, plan};
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Bits of the first byte: the kind of the source, and further choices.
const KINDS: u8 = 0b111;
/// Checksums of headers are set before.
pub const SEALED: u8 = 1 << 3;
/// The source is a file, not a stream.
const IN_FILE: u8 = 1 << 4;
/// Blocks of 1024 bytes.
const SMALL_BLOCKS: u8 = 1 << 5;
/// Feature `inline_data`.
const INLINE: u8 = 1 << 6;

/// Kinds of sources.
pub const TAR: u8 = 0;
/// A layer over other entries.
pub const LAYER: u8 = 1;
/// An archive with an OCI layout.
pub const OCI: u8 = 2;
/// An archive as of `docker save`.
pub const DOCKER: u8 = 3;
/// A manifest.
pub const MANIFEST: u8 = 4;

/// Bytes of a header of a tar archive.
const BLOCK: usize = 512;

/// Maximum length of an image that is made, in bytes.
const MAX_IMAGE: u64 = 64 << 20;

/// Reads a source, and makes an image of its entries.
pub fn run(input: &[u8]) {
    let Some((choices, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choices & SEALED != 0 {
        seal(&mut bytes);
    }
    let mut tree = Tree::new();
    // Errors are the expected answer to most inputs.
    let _ = read(&mut tree, *choices, bytes);
    make(&tree, *choices);
}

/// Sets the checksums of all blocks that look like headers.
fn seal(bytes: &mut [u8]) {
    /// Places of the checksum and of the magic number.
    const SUM: std::ops::Range<usize> = 148..156;
    const MAGIC: std::ops::Range<usize> = 257..262;
    for block in bytes.chunks_exact_mut(BLOCK).filter(|block| &block[MAGIC] == b"ustar") {
        block[SUM].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn read(tree: &mut Tree, choices: u8, bytes: Vec<u8>) -> Result<(), Error> {
    let temporary = PathBuf::from("/dev/shm");
    let input = if choices & IN_FILE == 0 {
        Input::Stream(Box::new(Cursor::new(bytes)))
    } else {
        let mut file = tempfile::tempfile_in(&temporary).expect("a temporary file");
        file.write_all(&bytes).expect("space for a temporary file");
        Input::File(file)
    };
    let select = Selection::default();
    if choices & KINDS == LAYER {
        add_lower(tree);
    }
    let mut loader = Loader::new(tree, temporary);
    match choices & KINDS {
        LAYER => loader.add_layer("layer", input),
        OCI => loader.add_oci("oci", Container::Archive(input), &select),
        DOCKER => loader.add_docker("docker", Container::Archive(input), &select),
        MANIFEST => loader.add_mtree("manifest", input),
        TAR => loader.add_tar("tar", input),
        _ => loader.add_recognized_tar("tar", input),
    }
}

/// Adds entries that a layer may change.
fn add_lower(tree: &mut Tree) {
    let attributes = Attributes { mode: 0o755, ..Attributes::default() };
    let file = || EntryKind::File(FileContent::Bytes(b"lower".to_vec()));
    for (path, kind) in [
        (&b"a"[..], EntryKind::Directory),
        (b"a/f", file()),
        (b"a/d/g", file()),
        (b"l", EntryKind::Symlink(b"a".to_vec())),
        (b"loop", EntryKind::Symlink(b"loop".to_vec())),
        (b"up", EntryKind::Symlink(b"../../a/d".to_vec())),
        (b"f", file()),
    ] {
        tree.add(path, &attributes, kind).expect("a valid entry");
    }
    tree.hard_link(b"a/h", b"f").expect("a valid name");
}

/// Makes an image unless that is too large, and checks it.
fn make(tree: &Tree, choices: u8) {
    let mut options = BuildOptions::default();
    options.mkfs.seed = Some(7);
    options.mkfs.time = Some(Timestamp::new(1_700_000_000, 0));
    options.mkfs.block_size = Some(if choices & SMALL_BLOCKS == 0 { 4096 } else { 1024 });
    // A journal would be most of a small image.
    let features = if choices & INLINE == 0 { "^has_journal" } else { "^has_journal,inline_data" };
    options.mkfs.apply_features(features).expect("known features");
    options.threads = 1;
    let Ok(plan) = plan(tree, &options) else { return };
    let facts = plan.facts();
    if facts.bytes > MAX_IMAGE {
        return;
    }
    let device = Arc::new(MemDevice::new(facts.bytes));
    // Content of an archive that is shorter than its members cannot be read.
    if plan.write_to(&*device).is_err() {
        return;
    }
    let mut found = Vec::new();
    let summary = Check::new(device).run(&mut |finding| found.push(finding.to_string()));
    assert!(summary.is_clean(), "a new image is damaged: {found:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_with_sealed_headers_are_read() {
        let mut bytes = vec![0; 3 * BLOCK];
        bytes[..5].copy_from_slice(b"a/new");
        bytes[124..135].copy_from_slice(b"00000000000");
        bytes[257..263].copy_from_slice(b"ustar\0");
        bytes[156] = b'5';
        seal(&mut bytes);
        let mut tree = Tree::new();
        read(&mut tree, LAYER, bytes.clone()).unwrap();
        assert!(tree.entry(b"a/new").is_some() && tree.entry(b"a/f").is_some());
        run(&[&[IN_FILE | SMALL_BLOCKS | INLINE][..], &bytes].concat());
    }
}
