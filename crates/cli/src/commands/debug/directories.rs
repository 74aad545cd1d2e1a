//! Directories, names of inodes, and owners of blocks.

use super::out::{Out, Record};
use super::{NamesArgs, each};
use crate::text::type_name;
use extant_check::debug::{BlockOwner, DirectoryBlock, DirectoryPart, InodeSlot, Inspector};
use extant_format::InodeFlags;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;

/// Prints the blocks and entries of directories.
pub fn entries(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    parts(inspector, files, out, &mut |ino, part, out| match part {
        DirectoryPart::Block(found) => out.line(&block(ino, &found)),
        DirectoryPart::Record(entry) => out.line(
            &Record::new()
                .with("directory", ino)
                .with("kind", if entry.is_removed { "removed" } else { "entry" })
                .with("offset", entry.offset)
                .with("length", entry.rec_len)
                .with("inode", entry.ino)
                .with("type", type_name(entry.file_type))
                .bytes("name", &entry.name),
        ),
        DirectoryPart::Problem(message) => out.problem(&format!("directory {ino}: {message}")),
        DirectoryPart::Root { .. } | DirectoryPart::Hash { .. } => Ok(()),
    })
}

/// Prints the hash trees of directories.
pub fn trees(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    each(inspector, files, out, |slot, out| {
        let is_tree = slot.inode.flags.contains(InodeFlags::INDEX);
        let message = || format!("directory {} has no hash tree: see `dir`", slot.ino);
        if is_tree { tree(inspector, slot, out) } else { out.problem(&message()) }
    })
}

fn tree(inspector: &Inspector, slot: &InodeSlot, out: &mut Out) -> io::Result<()> {
    parts_of(inspector, slot, out, &mut |ino, part, out| match part {
        DirectoryPart::Block(found) if found.kind != "inline" => out.line(&block(ino, &found)),
        DirectoryPart::Root { hash_version, levels } => out.line(
            &Record::new()
                .with("directory", ino)
                .with("kind", "tree")
                .with("hash_version", hash_version)
                .with("levels", levels),
        ),
        DirectoryPart::Hash { number, hash, block } => out.line(
            &Record::new()
                .with("directory", ino)
                .with("kind", "hash")
                .with("number", number)
                .with("hash", hash)
                .with("logical", block),
        ),
        DirectoryPart::Problem(message) => out.problem(&format!("directory {ino}: {message}")),
        DirectoryPart::Block(_) | DirectoryPart::Record(_) => Ok(()),
    })
}

fn block(ino: u32, found: &DirectoryBlock) -> Record {
    Record::new()
        .with("directory", ino)
        .with("kind", found.kind)
        .with("logical", found.logical)
        .with("physical", found.physical)
        .with("checksum", found.checksum.name())
}

/// Receiver of the parts of a directory.
type Show<'s> = &'s mut dyn FnMut(u32, DirectoryPart, &mut Out) -> io::Result<()>;

/// Hands each part of directories to `show`.
fn parts(
    inspector: &Inspector,
    files: &[OsString],
    out: &mut Out,
    show: Show<'_>,
) -> io::Result<()> {
    each(inspector, files, out, |slot, out| {
        if !slot.inode.is_dir() {
            out.problem(&format!("inode {} is not marked as a directory", slot.ino))?;
        }
        parts_of(inspector, slot, out, show)
    })
}

/// Hands each part of a directory to `show`.
fn parts_of(
    inspector: &Inspector,
    slot: &InodeSlot,
    out: &mut Out,
    show: Show<'_>,
) -> io::Result<()> {
    let mut written = Ok(());
    inspector.directory(slot, &mut |part| {
        written = show(slot.ino, part, out);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written
}

/// Prints the owners of blocks.
pub fn owners(inspector: &Inspector, blocks: &[u64], out: &mut Out) -> io::Result<()> {
    let wanted: BTreeSet<u64> = blocks.iter().copied().collect();
    let found = inspector.owners(&wanted);
    let inodes: BTreeSet<u32> = found.owners.iter().map(|(_, ino, _)| *ino).collect();
    let names = inspector.names(&inodes, false, None);
    for block in blocks {
        let record = Record::new().with("block", *block);
        let metadata = match inspector.metadata_in(*block) {
            Ok(metadata) => metadata,
            Err(error) => {
                out.problem(&error.to_string())?;
                continue;
            }
        };
        let in_use = inspector.is_block_in_use(*block).ok();
        let record = record.with("in_use", in_use);
        let mut is_owned = !metadata.is_empty();
        for (place, group, first) in metadata {
            let mut record = record.clone().with("owner", place.name()).with("group", group);
            if let Some(first) = first {
                record = record.with("first_inode", first);
            }
            out.line(&record)?;
        }
        for (_, ino, owner) in found.owners.iter().filter(|(owned, ..)| owned == block) {
            is_owned = true;
            let record = record.clone();
            let record = match owner {
                BlockOwner::Content { logical, unwritten } => record
                    .with("owner", "content")
                    .with("inode", *ino)
                    .with("logical", *logical)
                    .with("unwritten", *unwritten),
                BlockOwner::Map => record.with("owner", "map").with("inode", *ino),
                BlockOwner::Xattrs => record.with("owner", "xattrs").with("inode", *ino),
            };
            let name = names.names.iter().find(|name| name.ino == *ino);
            let path = name.map(|name| names.path(name));
            out.line(&path.iter().fold(record, |record, path| record.bytes("path", path)))?;
        }
        if !is_owned {
            out.line(&record.with("owner", None::<&str>))?;
        }
    }
    out.problems(&found.problems)
}

/// Prints the names of inodes.
pub fn names(inspector: &Inspector, args: &NamesArgs, out: &mut Out) -> io::Result<()> {
    let wanted: BTreeSet<u32> = args.inodes.iter().copied().collect();
    let log = if args.removed { inspector.journal().ok() } else { None };
    let found = inspector.names(&wanted, args.removed, log.as_ref());
    for ino in &args.inodes {
        if let Err(error) = inspector.slot_place(*ino) {
            out.problem(&error.to_string())?;
            continue;
        }
        let mut is_named = false;
        for name in found.names.iter().filter(|name| name.ino == *ino) {
            is_named = true;
            out.line(
                &Record::new()
                    .with("inode", *ino)
                    .with("directory", name.parent)
                    .with("removed", name.is_removed)
                    .bytes("path", &found.path(name)),
            )?;
        }
        if !is_named {
            out.line(&Record::new().with("inode", *ino).with("path", None::<&str>))?;
        }
    }
    out.problems(&found.problems)
}
