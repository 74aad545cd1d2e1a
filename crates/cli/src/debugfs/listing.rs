//! Directories, names and owners, and deleted inodes.

use super::requests::{Answer, Refusal, Request};
use crate::tell::complain;
use crate::text::{asctime, shown};
use extant_check::debug::{BlockOwner, DeletedFile, DirectoryPart, DirectoryRecord};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Columns of a line.
const COLUMNS: usize = 80;

/// Prints the place of an entry of a directory.
pub fn dirsearch(request: &mut Request<'_>) -> Answer {
    let [dir, name] = request.words else {
        // This message is the only one of its kind without the name at the beginning.
        return Err(Refusal::Message("Usage: dirsearch dir filename".into()));
    };
    let slot = request.slot(dir)?;
    if !slot.inode.is_dir() {
        let message = format!("{}: Ext2 inode is not a directory ", dir.display());
        return Err(Refusal::Message(message));
    }
    let (mut block, mut place) = (None, None);
    request.inspector.directory(&slot, &mut |part| {
        match part {
            // Entries in the inode have no place.
            DirectoryPart::Block(found) => {
                block = found.physical.map(|physical| (found.logical, physical));
            }
            DirectoryPart::Record(entry) if !entry.is_removed && entry.name == name.as_bytes() => {
                place = block.map(|block| (block, entry.offset));
                return ControlFlow::Break(());
            }
            DirectoryPart::Problem(message) => complain(message),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let Some(((logical, physical), offset)) = place else { return Ok(()) };
    let found = format!("logical block {logical}, phys {physical}, offset {offset}");
    writeln!(request.out, "Entry found at {found}\noffset {offset}")?;
    Ok(())
}

/// Prints the entries of a directory.
pub fn ls(request: &mut Request<'_>) -> Answer {
    let (letters, words) = request.options("cdlpr")?;
    let root: OsString = "/".into();
    let dir = match words {
        [] => &root,
        [dir] => dir,
        _ => return Err(request.usage("[-c] [-d] [-l] [-p] [-r] file")),
    };
    let slot = request.slot(dir)?;
    if !slot.inode.is_dir() {
        let message = format!("{}: Ext2 inode is not a directory ", dir.display());
        return Err(Refusal::Message(message));
    }
    let mut records = Vec::new();
    request.inspector.directory(&slot, &mut |part| {
        match part {
            DirectoryPart::Record(entry) if !entry.is_removed || letters.contains('d') => {
                records.push(entry);
            }
            DirectoryPart::Problem(message) => complain(message),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let mut column = 0;
    for entry in &records {
        if letters.contains('l') {
            long(request, entry)?;
        } else if letters.contains('p') {
            for_programs(request, entry)?;
        } else {
            let (open, close) = if entry.is_removed { ("<", ">") } else { (" ", " ") };
            let item =
                format!("{open}{}{close} ({}) {}", entry.ino, entry.rec_len, shown(&entry.name));
            if column > 0 && column + item.len() > COLUMNS {
                writeln!(request.out)?;
                column = 0;
            }
            write!(request.out, "{item}   ")?;
            column += item.len() + 3;
        }
    }
    writeln!(request.out)?;
    Ok(())
}

/// Prints an entry with the attributes of its inode.
fn long(request: &mut Request<'_>, entry: &DirectoryRecord) -> io::Result<()> {
    let (open, close) = if entry.is_removed { ('<', '>') } else { (' ', ' ') };
    let Ok(slot) = request.inspector.inode(entry.ino) else {
        return writeln!(request.out, "{open}{:6}{close} {}", entry.ino, shown(&entry.name));
    };
    let inode = &slot.inode;
    let date = asctime(inode.mtime.sec);
    let mut words = date.split_whitespace().skip(1);
    let mut word = || words.next().unwrap_or("");
    let (month, of_month, time, year) = (word(), word(), word(), word());
    let minute = time.get(..5).unwrap_or(time);
    writeln!(
        request.out,
        "{open}{:6}{close} {:6o} ({})  {:5}  {:5}   {:5} {of_month:>2}-{month}-{year} {minute} {}",
        entry.ino,
        inode.mode,
        // Content of an inode has no entries for itself and its parent.
        if entry.rec_len == 0 { 0 } else { entry.file_type.to_dir_byte() },
        inode.uid,
        inode.gid,
        inode.size,
        shown(&entry.name)
    )
}

/// Prints an entry with slashes between its parts.
fn for_programs(request: &mut Request<'_>, entry: &DirectoryRecord) -> io::Result<()> {
    let Ok(slot) = request.inspector.inode(entry.ino) else { return Ok(()) };
    let (inode, name) = (&slot.inode, shown(&entry.name));
    let size = if inode.is_dir() { String::new() } else { inode.size.to_string() };
    let (uid, gid) = (inode.uid, inode.gid);
    writeln!(request.out, "/{}/{:06o}/{uid}/{gid}/{name}/{size}/", entry.ino, inode.mode)
}

/// Prints the inodes that use blocks.
pub fn icheck(request: &mut Request<'_>) -> Answer {
    if request.words.is_empty() {
        return Err(request.usage("<block number> ..."));
    }
    let numbers = request.words.iter().map(|word| request.number("block number", word));
    let numbers = numbers.collect::<Result<Vec<u64>, Refusal>>()?;
    let found = request.inspector.owners(&numbers.iter().copied().collect());
    found.problems.iter().for_each(complain);
    writeln!(request.out, "Block\tInode number")?;
    for block in numbers {
        let owner = found.owners.iter().find(|(owned, _, owner)| {
            let counts =
                matches!(owner, BlockOwner::Content { .. } | BlockOwner::Map | BlockOwner::Xattrs);
            *owned == block && counts
        });
        match owner {
            Some((_, ino, _)) => writeln!(request.out, "{block}\t{ino}")?,
            None => writeln!(request.out, "{block}\t<block not found>")?,
        }
    }
    Ok(())
}

/// Prints the names of inodes.
pub fn ncheck(request: &mut Request<'_>) -> Answer {
    let (_, words) = request.options("c")?;
    if words.is_empty() {
        return Err(request.usage("[-c] <inode number> ..."));
    }
    let numbers = words.iter().map(|word| request.number("inode number", word));
    let numbers = numbers.collect::<Result<Vec<u64>, Refusal>>()?;
    let wanted: BTreeSet<u32> = numbers.iter().map(|ino| *ino as u32).collect();
    let found = request.inspector.names(&wanted, false, None);
    found.problems.iter().for_each(complain);
    writeln!(request.out, "Inode\tPathname")?;
    for name in &found.names {
        writeln!(request.out, "{}\t{}", name.ino, shown(&found.path(name)))?;
    }
    Ok(())
}

/// Prints the deleted inodes that still have blocks.
pub fn lsdel(request: &mut Request<'_>) -> Answer {
    let (inodes, problems) = request.inspector.deleted_inodes();
    problems.iter().for_each(complain);
    let mut lines = Vec::new();
    request.inspector.deleted_files(&inodes, None, &mut |file: &DeletedFile| {
        let inode = &file.slot.inode;
        let blocks = file.blocks + file.map_blocks.0;
        if blocks > 0 {
            let free = file.free + file.map_blocks.1;
            let line = format!(
                "{:6} {:6} {:6o} {:6} {free:6}/{blocks:6} {}",
                file.slot.ino,
                inode.uid,
                inode.mode,
                inode.size,
                asctime(inode.dtime.into())
            );
            lines.push((inode.dtime, file.slot.ino, line));
        }
        ControlFlow::Continue(())
    });
    lines.sort();
    writeln!(request.out, " Inode  Owner  Mode    Size      Blocks   Time deleted")?;
    for (_, _, line) in &lines {
        writeln!(request.out, "{line}")?;
    }
    writeln!(request.out, "{} deleted inodes found.", lines.len())?;
    Ok(())
}
