//! The request `stat`, whose output scripts read.

use super::files::ranges;
use super::requests::{Answer, Request};
use crate::text::{asctime, shown};
use extant_check::debug::InodeSlot;
use extant_format::inode::RawInode;
use extant_format::xattr::full_name;
use extant_format::{FileType, InodeFlags};
use std::io::{self, Write};

/// Bytes of an inode without extra fields.
const SHORT: usize = 128;

/// Extra bytes of an inode with the upper half of its checksum, and with extra words of times.
const CHECKSUM_EXTRA: u16 = 4;
const TIMES_EXTRA: u16 = 24;

/// Prints an inode.
pub fn stat(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let slot = request.slot(file)?;
    head(request, &slot)?;
    times(request.out, &slot)?;
    tail(request, &slot)?;
    Ok(())
}

/// Returns the name of a type.
fn kind(ftype: FileType) -> &'static str {
    match ftype {
        FileType::Regular => "regular",
        FileType::Directory => "directory",
        FileType::CharDevice => "character special",
        FileType::BlockDevice => "block special",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::Symlink => "symlink",
        FileType::Unknown => "bad type",
    }
}

fn head(request: &mut Request<'_>, slot: &InodeSlot) -> io::Result<()> {
    let (inode, out) = (&slot.inode, &mut *request.out);
    let raw = RawInode::read(&slot.bytes);
    let is_long = inode.extra_isize >= TIMES_EXTRA;
    writeln!(
        out,
        "Inode: {}   Type: {}    Mode:  {:04o}   Flags: 0x{:x}",
        slot.ino,
        kind(inode.file_type()),
        inode.permissions(),
        raw.flags.get()
    )?;
    let version = if is_long {
        format!("0x{:08x}:{:08x}", raw.version_hi.get(), raw.version_lo.get())
    } else {
        format!("0x{:08x}", raw.version_lo.get())
    };
    writeln!(out, "Generation: {}    Version: {version}", inode.generation)?;
    let project = if is_long { format!("   Project: {:5}", inode.projid) } else { String::new() };
    writeln!(
        out,
        "User: {:5}   Group: {:5}{project}   Size: {}",
        inode.uid, inode.gid, inode.size
    )?;
    writeln!(out, "File ACL: {}", inode.file_acl)?;
    let blocks = u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get());
    writeln!(out, "Links: {}   Blockcount: {blocks}", inode.links)?;
    writeln!(out, "Fragment:  Address: {}    Number: 0    Size: 0", raw.obsolete_faddr.get())
}

fn times(out: &mut dyn Write, slot: &InodeSlot) -> io::Result<()> {
    let (inode, raw) = (&slot.inode, RawInode::read(&slot.bytes));
    let has_extra = inode.extra_isize >= TIMES_EXTRA;
    let mut line = |name: &str, word: u32, extra: u32, seconds: i64| {
        if has_extra {
            writeln!(out, "{name:>6}: 0x{word:08x}:{extra:08x} -- {}", asctime(seconds))
        } else {
            writeln!(out, "{name}: 0x{word:08x} -- {}", asctime(seconds))
        }
    };
    line("ctime", raw.ctime.get(), raw.ctime_extra.get(), inode.ctime.sec)?;
    line("atime", raw.atime.get(), raw.atime_extra.get(), inode.atime.sec)?;
    line("mtime", raw.mtime.get(), raw.mtime_extra.get(), inode.mtime.sec)?;
    if let Some(time) = inode.crtime.filter(|_| has_extra) {
        line("crtime", raw.crtime.get(), raw.crtime_extra.get(), time.sec)?;
    }
    let dtime = inode.dtime;
    match (dtime, has_extra) {
        (0, _) => Ok(()),
        (_, true) => writeln!(out, " dtime: 0x{dtime:08x}:(00000000) -- {}", asctime(dtime.into())),
        (_, false) => writeln!(out, "dtime: 0x{dtime:08x} -- {}", asctime(dtime.into())),
    }
}

fn tail(request: &mut Request<'_>, slot: &InodeSlot) -> io::Result<()> {
    let (inspector, inode) = (request.inspector, &slot.inode);
    let raw = RawInode::read(&slot.bytes);
    if slot.bytes.len() > SHORT {
        writeln!(request.out, "Size of extra inode fields: {}", raw.extra_isize.get())?;
    }
    xattrs(request, slot)?;
    if inspector.geometry().metadata_csum {
        let (low, high) = (raw.checksum_lo.get(), raw.checksum_hi.get());
        let high = if inode.extra_isize >= CHECKSUM_EXTRA { u32::from(high) << 16 } else { 0 };
        writeln!(request.out, "Inode checksum: 0x{:08x}", high | u32::from(low))?;
    }
    if let Some(target) = inode.fast_symlink(inspector.geometry()) {
        return writeln!(request.out, "Fast link dest: \"{}\"", shown(target));
    }
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        if inode.is_symlink() {
            let target = inspector.target(slot).unwrap_or_default();
            return writeln!(request.out, "Fast link dest: \"{}\"", shown(&target));
        }
        let mut len = 0u64;
        inspector.content(slot, &mut |piece| {
            if let extant_check::debug::ContentPiece::Data(bytes) = piece {
                len += bytes.len() as u64;
            }
            Ok(())
        })?;
        // Content in the inode takes the place of the map at least.
        return writeln!(request.out, "Size of inline data: {}", len.max(60));
    }
    if let Some((major, minor)) = inode.rdev() {
        let hex = format!("hex {major:02x}:{minor:02x}");
        return writeln!(request.out, "Device major/minor number: {major:02}:{minor:02} ({hex})");
    }
    let is_tree = inode.flags.contains(InodeFlags::EXTENTS);
    let (ranges, total) = if slot.has_map(inspector.geometry()) {
        ranges(inspector, slot)
    } else {
        (String::new(), 0)
    };
    writeln!(request.out, "{}", if is_tree { "EXTENTS:" } else { "BLOCKS:" })?;
    writeln!(request.out, "{ranges}")?;
    if !is_tree && total > 0 {
        writeln!(request.out, "TOTAL: {total}\n")?;
    }
    Ok(())
}

fn xattrs(request: &mut Request<'_>, slot: &InodeSlot) -> io::Result<()> {
    let found = request.inspector.xattrs(slot);
    if !found.entries.is_empty() {
        writeln!(request.out, "Extended attributes:")?;
    }
    for (_, entry, value) in &found.entries {
        let name = full_name(entry.index, &entry.name).unwrap_or_else(|| entry.name.clone());
        let len = entry.value.len();
        let is_text = value.iter().all(|byte| matches!(byte, 0x20..=0x7e));
        let value = match is_text {
            // The rest of inline content is no value for people.
            _ if value.is_empty() || name == b"system.data" => String::new(),
            true => format!(" = \"{}\"", shown(value)),
            false => {
                let digits: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
                format!(" = {} ", digits.join(" "))
            }
        };
        writeln!(request.out, "  {} ({len}){value}", shown(&name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_asctime() {
        assert_eq!(asctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(asctime(1_795_698_464), "Thu Nov 26 13:07:44 2026");
        assert_eq!(asctime(-1), "Wed Dec 31 23:59:59 1969");
    }
}
