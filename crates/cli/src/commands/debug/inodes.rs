//! Inodes, their maps, attributes and content.

use super::out::{Out, Record};
use super::{each, slot};
use crate::json::hex;
use crate::text::{flags, mode, type_name};
use extant_check::debug::{ContentPiece, InodeSlot, Inspector, MapEntryKind, MapPart, XattrPlace};
use extant_engine::Timestamp;
use extant_format::inode::RawInode;
use extant_format::xattr::{Value as XattrValue, full_name};
use extant_format::{FileType, Inode};
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// Zeroes that are written at once.
static ZEROES: [u8; 65536] = [0; 65536];

/// Prints inodes.
pub fn inodes(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    each(inspector, files, out, |slot, out| {
        out.record(&inode(inspector, slot))?;
        match &slot.problem {
            Some(error) => out.problem(&error.to_string()),
            None => Ok(()),
        }
    })
}

/// Returns the fields of an inode.
fn inode(inspector: &Inspector, slot: &InodeSlot) -> Record {
    let inode = &slot.inode;
    let mut record = Record::new()
        .with("inode", slot.ino)
        .with("group", slot.group)
        .with("block", slot.block)
        .with("offset", slot.offset)
        .with("in_use", inspector.is_inode_in_use(slot.ino).ok())
        .with("checksum", slot.checksum.name());
    record = decoded(record, inode);
    if let Some(target) = inode.fast_symlink(inspector.geometry()) {
        record = record.bytes("target", target);
    }
    if let Some((major, minor)) = inode.rdev() {
        record = record.with("device", vec![major, minor]);
    }
    record.record("raw", raw(&RawInode::read(&slot.bytes)))
}

/// Adds the decoded fields.
fn decoded(record: Record, inode: &Inode) -> Record {
    let ftype = inode.file_type();
    let record = record
        .with("type", type_name(ftype))
        .with("mode", inode.permissions())
        .with("mode_text", mode(ftype, inode.mode))
        .with("links", inode.links)
        .with("uid", inode.uid)
        .with("gid", inode.gid)
        .with("project", inode.projid)
        .with("size", inode.size)
        .with("blocks_512", inode.blocks)
        .with("flags", inode.flags.bits())
        .with("flags_text", flags(inode.flags.bits()))
        .with("generation", inode.generation)
        .with("version", inode.version)
        .with("xattr_block", inode.file_acl)
        .with("extra_size", inode.extra_isize)
        .time("atime", inode.atime)
        .time("mtime", inode.mtime)
        .time("ctime", inode.ctime);
    let record = match inode.crtime {
        Some(time) => record.time("crtime", time),
        None => record.with("crtime", None::<u32>),
    };
    match inode.dtime {
        0 => record.with("dtime", None::<u32>),
        time => record.time("dtime", Timestamp::new(time.into(), 0)),
    }
}

/// Returns the fields as they lie on the disk.
fn raw(raw: &RawInode) -> Record {
    macro_rules! fields {
        ($($field:ident)*) => {
            Record::new()$(.with(stringify!($field), raw.$field.get()))*
        };
    }
    let record = fields!(
        mode uid_lo size_lo atime ctime mtime dtime gid_lo links blocks_lo flags version_lo
        generation file_acl_lo size_high obsolete_faddr blocks_high file_acl_high uid_high gid_high
        checksum_lo reserved extra_isize checksum_hi ctime_extra mtime_extra atime_extra crtime
        crtime_extra version_hi projid
    );
    record.with("i_block_hex", hex(&raw.i_block))
}

/// Prints the maps of files.
pub fn extents(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    each(inspector, files, out, |slot, out| {
        if !slot.has_map(inspector.geometry()) {
            return out.problem(&format!("inode {} has no map: its content is in it", slot.ino));
        }
        let mut written = Ok(());
        inspector.map(slot, &mut |part| {
            written = map_part(slot.ino, &part, out);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        written
    })
}

fn map_part(ino: u32, part: &MapPart, out: &mut Out) -> io::Result<()> {
    match part {
        MapPart::Node(node) => out.line(
            &Record::new()
                .with("inode", ino)
                .with("kind", "node")
                .with("level", node.level)
                .with("depth", node.depth)
                .with("block", node.block)
                .with("entries", node.entries)
                .with("max", node.max)
                .with("checksum", node.checksum.name()),
        ),
        MapPart::Entry(entry) => {
            let kind = match entry.kind {
                MapEntryKind::Index => "index",
                MapEntryKind::Written => "written",
                MapEntryKind::Unwritten => "unwritten",
            };
            // The last index of a node has no end.
            let is_open = entry.logical.saturating_add(entry.len) > u64::from(u32::MAX);
            out.line(
                &Record::new()
                    .with("inode", ino)
                    .with("kind", kind)
                    .with("level", entry.level)
                    .with("logical", entry.logical)
                    .with("blocks", (!is_open).then_some(entry.len))
                    .with("physical", entry.physical),
            )
        }
        MapPart::Problem(message) => out.problem(&format!("inode {ino}: {message}")),
    }
}

/// Prints attributes.
pub fn xattrs(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    each(inspector, files, out, |slot, out| {
        let found = inspector.xattrs(slot);
        if let Some((block, refcount, hash, checksum)) = found.block {
            out.line(
                &Record::new()
                    .with("inode", slot.ino)
                    .with("kind", "block")
                    .with("block", block)
                    .with("references", refcount)
                    .with("hash", hash)
                    .with("checksum", checksum.name()),
            )?;
        }
        for (place, entry, value) in &found.entries {
            let value_inode = match entry.value {
                XattrValue::EaInode { ino, .. } => Some(ino),
                XattrValue::Inline(_) => None,
            };
            let place = match place {
                XattrPlace::Inode => "inode",
                XattrPlace::Block => "block",
            };
            let name = full_name(entry.index, &entry.name);
            out.line(
                &Record::new()
                    .with("inode", slot.ino)
                    .with("kind", "xattr")
                    .with("place", place)
                    .with("index", entry.index)
                    .with("hash", entry.hash)
                    .with("value_inode", value_inode)
                    .with("size", entry.value.len())
                    .bytes("name", &name.unwrap_or_else(|| entry.name.clone()))
                    .bytes("value", value),
            )?;
        }
        out.problems(&found.problems)
    })
}

/// Writes the content of files.
pub fn cat(inspector: &Inspector, files: &[OsString], out: &mut Out) -> io::Result<()> {
    for file in files {
        let slot = match slot(inspector, file) {
            Ok(slot) if slot.inode.file_type() == FileType::Directory => {
                out.problem(&format!("inode {} is a directory: see `dir`", slot.ino))?;
                continue;
            }
            Ok(slot) => slot,
            Err(message) => {
                out.problem(&message)?;
                continue;
            }
        };
        let problems = match out.text() {
            Some(text) => content(inspector, &slot, text)?,
            None => Vec::new(),
        };
        out.problems(&problems)?;
    }
    Ok(())
}

/// Writes the content of a file, holes as zeroes. Returns the problems.
pub fn content(
    inspector: &Inspector,
    slot: &InodeSlot,
    out: &mut dyn Write,
) -> io::Result<Vec<String>> {
    inspector.content(slot, &mut |piece| write_piece(out, piece))
}

/// Writes a piece of content, a hole as zeroes.
fn write_piece(out: &mut dyn Write, piece: ContentPiece<'_>) -> io::Result<()> {
    match piece {
        ContentPiece::Data(bytes) => out.write_all(bytes),
        ContentPiece::Hole(mut left) => {
            while left > 0 {
                let len = left.min(ZEROES.len() as u64);
                out.write_all(&ZEROES[..len as usize])?;
                left -= len;
            }
            Ok(())
        }
    }
}
