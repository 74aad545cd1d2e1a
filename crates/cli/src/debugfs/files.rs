//! Content and blocks of files.

use super::path;
use super::requests::{Answer, Refusal, Request};
use crate::commands::debug::inodes::content;
use crate::tell::complain;
use extant_check::debug::{Inspector, MapEntry, MapEntryKind, MapPart};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Writes the content of a file to standard output.
pub fn cat(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let slot = request.slot(file)?;
    content(request.inspector, &slot, request.out)?.into_iter().for_each(complain);
    Ok(())
}

/// Writes the content of a file to a file of the machine.
pub fn dump(request: &mut Request<'_>) -> Answer {
    let (_, words) = request.options("p")?;
    let [file, dest] = words else { return Err(request.usage("[-p] <file> <output_file>")) };
    let slot = request.slot(file)?;
    let failed = |error: io::Error| Refusal::Message(format!("{}: {error}", dest.display()));
    let mut out = BufWriter::new(File::create(path(dest)).map_err(failed)?);
    let problems = content(request.inspector, &slot, &mut out).map_err(failed)?;
    out.flush().map_err(failed)?;
    problems.into_iter().for_each(complain);
    Ok(())
}

/// Copies files and directories into a directory of the machine, by `extant get` in a process of
/// its own, which enters a sandbox for this target.
pub fn rdump(image: &Path, words: &[OsString]) -> io::Result<()> {
    let Some((dest, files)) = words.split_last().filter(|(_, files)| !files.is_empty()) else {
        complain("rdump: Usage: rdump <directory>... <native directory>");
        return Ok(());
    };
    if !path(dest).is_dir() {
        complain(format_args!("rdump: {}: not a directory", dest.display()));
        return Ok(());
    }
    let program = std::env::current_exe()?;
    for file in files {
        let mut parts = file.as_bytes().rsplit(|byte| *byte == b'/');
        // A directory appears under its name; the content of the root has none.
        let target = match parts.find(|part| !part.is_empty()) {
            Some(name) => path(dest).join(OsStr::from_bytes(name)),
            None => path(dest).to_owned(),
        };
        let mut get = Command::new(&program);
        get.arg0("extant").args(["get", "--"]).arg(image).arg(file).arg(target);
        if !get.status()?.success() {
            complain(format_args!("rdump: {}: parts are missing", file.display()));
        }
    }
    Ok(())
}

/// Hands the entries of a file's map to `each`, nodes before their content.
fn each_entry(request: &Request<'_>, word: &OsStr, each: &mut dyn FnMut(MapEntry)) -> Answer {
    let slot = request.slot(word)?;
    if slot.has_map(request.inspector.geometry()) {
        request.inspector.map(&slot, &mut |part| {
            match part {
                MapPart::Entry(entry) => each(entry),
                MapPart::Problem(message) => complain(message),
                MapPart::Node(_) => {}
            }
            ControlFlow::Continue(())
        });
    }
    Ok(())
}

/// Prints the blocks of a file, those of its map included.
pub fn blocks(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let mut written = Ok(());
    let mut lines = Vec::new();
    each_entry(request, file, &mut |entry| {
        let len = if entry.kind == MapEntryKind::Index { 1 } else { entry.len };
        lines.push(entry.physical..entry.physical.saturating_add(len));
    })?;
    for block in lines.into_iter().flatten() {
        written = written.and_then(|()| write!(request.out, "{block} "));
    }
    written?;
    writeln!(request.out)?;
    Ok(())
}

/// Prints the block of the device that has a block of a file.
pub fn bmap(request: &mut Request<'_>) -> Answer {
    let (_, words) = request.options("a")?;
    let [file, block] = words else {
        return Err(Refusal::Message("Usage: bmap [-a] <file> logical_blk".into()));
    };
    let logical = request.number("logical block", block)?;
    let mut found = (0, false);
    each_entry(request, file, &mut |entry| {
        let within = logical.checked_sub(entry.logical).filter(|within| *within < entry.len);
        if let Some(within) = within.filter(|_| entry.kind != MapEntryKind::Index) {
            let unwritten = entry.kind == MapEntryKind::Unwritten;
            found = (entry.physical.saturating_add(within), unwritten);
        }
    })?;
    let note = if found.1 { " (uninit)" } else { "" };
    writeln!(request.out, "{}{note}", found.0)?;
    Ok(())
}

/// Returns the map of a file as ranges, as `stat` prints it, and the number of its blocks.
pub fn ranges(inspector: &Inspector, slot: &extant_check::debug::InodeSlot) -> (String, u64) {
    let (mut parts, mut total) = (Vec::new(), 0u64);
    let is_tree = slot.inode.flags.contains(extant_format::InodeFlags::EXTENTS);
    inspector.map(slot, &mut |part| {
        let MapPart::Entry(entry) = part else { return ControlFlow::Continue(()) };
        let MapEntry { logical, physical, len, .. } = entry;
        let last = logical.saturating_add(len).saturating_sub(1);
        let end = physical.saturating_add(len).saturating_sub(1);
        let mark = if entry.kind == MapEntryKind::Unwritten { "[u]" } else { "" };
        let part = match entry.kind {
            MapEntryKind::Index if is_tree => format!("(ETB{}):{physical}", entry.level),
            MapEntryKind::Index => {
                let names = ["IND", "DIND", "TIND"];
                let per_block = u64::from(inspector.geometry().block_size / 4);
                let depth = len.checked_ilog(per_block).unwrap_or(1).saturating_sub(1);
                let name = names.get(depth as usize).unwrap_or(&"TIND");
                format!("({name}):{physical}")
            }
            _ if len == 1 => format!("({logical}{mark}):{physical}"),
            _ => format!("({logical}-{last}{mark}):{physical}-{end}"),
        };
        parts.push(part);
        let blocks = if entry.kind == MapEntryKind::Index { 1 } else { len };
        total = total.saturating_add(blocks);
        ControlFlow::Continue(())
    });
    (parts.join(", "), total)
}
