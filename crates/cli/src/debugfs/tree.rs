//! Extent trees and hash trees.

use super::requests::{Answer, Refusal, Request};
use crate::tell::complain;
use crate::text::shown;
use extant_check::debug::{DirectoryPart, MapEntryKind, MapPart};
use extant_format::InodeFlags;
use extant_format::dir::DirFormat;
use extant_format::htree::{HashVersion, Kind, dirhash};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

/// Columns of a number at least.
const WIDTH: usize = 5;

/// Prints the nodes and extents of a file.
pub fn extents(request: &mut Request<'_>) -> Answer {
    let (letters, words) = request.options("nl")?;
    let [file] = words else { return Err(request.usage("[-nl] file")) };
    let slot = request.slot(file)?;
    if !slot.inode.flags.contains(InodeFlags::EXTENTS) {
        let file = file.display();
        return Err(Refusal::Message(format!("{file}: does not uses extent block maps")));
    }
    let geometry = request.inspector.geometry();
    let digits = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let size = slot.inode.size.div_ceil(geometry.block_size.into());
    let logical = digits(size).max(WIDTH);
    let physical = digits(geometry.blocks_count).max(WIDTH);
    let mut lines = vec![format!(
        "Level Entries {:>log$} {:>phys$} Length Flags",
        "Logical",
        "Physical",
        log = logical * 2 + 3,
        phys = physical * 2 + 3
    )];
    let (mut height, mut counts) = (0, BTreeMap::new());
    request.inspector.map(&slot, &mut |part| {
        let entry = match part {
            MapPart::Node(node) => {
                height = if node.level == 0 { node.depth } else { height };
                counts.insert(node.level, node.entries);
                return ControlFlow::Continue(());
            }
            MapPart::Problem(message) => {
                complain(message);
                return ControlFlow::Continue(());
            }
            MapPart::Entry(entry) => entry,
        };
        let is_index = entry.kind == MapEntryKind::Index;
        if is_index && letters.contains('l') || !is_index && letters.contains('n') {
            return ControlFlow::Continue(());
        }
        let end = entry.logical.saturating_add(entry.len);
        // The last entry of a node leads up to the end of the file.
        let is_open = is_index && end > u64::from(u32::MAX);
        let end = if is_open { size.max(entry.logical + 1) } else { end };
        let (first, last) = (entry.logical, end.saturating_sub(1));
        let len = end.saturating_sub(first);
        let count = counts.get(&entry.level).copied().unwrap_or(0);
        let place = if is_index {
            format!("{:>physical$}{:pad$}", entry.physical, "", pad = physical + 3)
        } else {
            let last = entry.physical.saturating_add(len).saturating_sub(1);
            format!("{:>physical$} - {last:>physical$}", entry.physical)
        };
        let flags = match entry.kind {
            MapEntryKind::Index => "",
            MapEntryKind::Written => " ",
            MapEntryKind::Unwritten => " Uninit",
        };
        let node = format!("{:2}/{height:2} {:3}/{count:3}", entry.level, entry.number);
        let range = format!("{first:>logical$} - {last:>logical$}");
        lines.push(format!("{node} {range} {place} {len:6}{flags}"));
        ControlFlow::Continue(())
    });
    for line in lines {
        writeln!(request.out, "{line}")?;
    }
    Ok(())
}

/// The parts of a block of a directory.
#[derive(Default)]
struct Block {
    physical: u64,
    hashes: Vec<(u32, u32, u32)>,
    records: Vec<(u32, usize, Vec<u8>)>,
}

/// Prints the hash tree of a directory, and the names with their hashes.
pub fn htree(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let slot = request.slot(file)?;
    if !slot.inode.is_dir() || !slot.inode.flags.contains(InodeFlags::INDEX) {
        return Err(Refusal::Message("htree_dump: Not a hash-indexed directory".into()));
    }
    let (mut blocks, mut at, mut root) = (BTreeMap::<u64, Block>::new(), 0, None);
    request.inspector.directory(&slot, &mut |part| {
        match part {
            DirectoryPart::Block(found) => {
                at = found.logical;
                blocks.entry(at).or_default().physical = found.physical.unwrap_or(0);
            }
            DirectoryPart::Root { hash_version, levels } => root = Some((hash_version, levels)),
            DirectoryPart::Hash { number, hash, block } => {
                blocks.entry(at).or_default().hashes.push((number, hash, block));
            }
            DirectoryPart::Record(entry) if !entry.is_removed => {
                let record = (entry.ino, entry.rec_len, entry.name);
                blocks.entry(at).or_default().records.push(record);
            }
            DirectoryPart::Record(_) => {}
            DirectoryPart::Problem(message) => complain(message),
        }
        ControlFlow::Continue(())
    });
    let (version, levels) =
        root.ok_or_else(|| Refusal::Message("htree_dump: the root is damaged".into()))?;
    let out = &mut request.out;
    writeln!(out, "Root node dump:\n\t Reserved zero: 0\n\t Hash Version: {version}")?;
    writeln!(out, "\t Info length: 8\n\t Indirect levels: {levels}\n\t Flags: 0")?;
    let version = HashVersion::from_raw(version).unwrap_or_default();
    node(request, &mut blocks, (0, Kind::Root, levels), version)
}

/// Prints a node and those below it. Each block is printed once.
fn node(
    request: &mut Request<'_>,
    blocks: &mut BTreeMap<u64, Block>,
    (at, kind, levels): (u64, Kind, u8),
    version: HashVersion,
) -> Answer {
    let geometry = *request.inspector.geometry();
    let Some(own) = blocks.remove(&at) else { return Ok(()) };
    writeln!(request.out, "Number of entries (count): {}", own.hashes.len())?;
    let limit = kind.limit(&DirFormat::new(&geometry));
    writeln!(request.out, "Number of entries (limit): {limit}")?;
    for (number, hash, block) in &own.hashes {
        writeln!(request.out, "Entry #{number}: Hash 0x{hash:08x}, block {block}")?;
    }
    writeln!(request.out)?;
    for (number, hash, block) in &own.hashes {
        writeln!(request.out, "Entry #{number}: Hash 0x{hash:08x}, block {block}")?;
        let below = u64::from(*block);
        if let Some(levels) = levels.checked_sub(1) {
            node(request, blocks, (below, Kind::Interior, levels), version)?;
            continue;
        }
        let Some(leaf) = blocks.remove(&below) else { continue };
        writeln!(request.out, "Reading directory block {block}, phys {}", leaf.physical)?;
        for (ino, rec_len, name) in &leaf.records {
            let (hash, minor) = dirhash(version, geometry.hash_unsigned, &geometry.hash_seed, name);
            let name = shown(name);
            writeln!(request.out, "{ino} 0x{hash:08x}-{minor:08x} ({rec_len}) {name}   ")?;
        }
    }
    Ok(())
}
