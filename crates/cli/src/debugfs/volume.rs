//! The superblock, places of inodes, bitmaps and free space.

use super::requests::{Answer, Refusal, Request};
use crate::superblock_list;
use extant_check::debug::Inspector;
use std::io::{self, Write};

/// Blocks of a request at most.
const MAX_COUNT: u64 = 1 << 20;

/// Prints the place of an inode's slot.
pub fn imap(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let ino = request.ino(file)?;
    let place = request.inspector.slot_place(ino);
    let (group, block, offset) = place.map_err(|error| Refusal::Message(error.to_string()))?;
    writeln!(request.out, "Inode {ino} is part of block group {group}")?;
    writeln!(request.out, "\tlocated at block {block}, offset 0x{offset:04x}")?;
    Ok(())
}

/// Prints whether an inode is in use.
pub fn testi(request: &mut Request<'_>) -> Answer {
    let [file] = request.words else { return Err(request.usage("<file>")) };
    let ino = request.ino(file)?;
    let in_use = request.inspector.is_inode_in_use(ino);
    let in_use = in_use.map_err(|error| Refusal::Message(error.to_string()))?;
    let state = if in_use { "is marked in use" } else { "is not in use" };
    writeln!(request.out, "Inode {ino} {state}")?;
    Ok(())
}

/// Prints whether blocks are in use.
pub fn testb(request: &mut Request<'_>) -> Answer {
    let (block, count) = match request.words {
        [block] => (block, 1),
        [block, count] => (block, request.number("count", count)?),
        _ => return Err(request.usage("<block> [count]")),
    };
    let first = request.number("block number", block)?;
    for block in first..first.saturating_add(count.min(MAX_COUNT)) {
        let in_use = request.inspector.is_block_in_use(block);
        let in_use = in_use.map_err(|error| Refusal::Message(error.to_string()))?;
        let state = if in_use { "marked in use" } else { "not in use" };
        writeln!(request.out, "Block {block} {state}")?;
    }
    Ok(())
}

/// Returns a number of bytes in the largest unit that divides it.
fn unit(bytes: u64) -> (u64, char) {
    match bytes {
        bytes if bytes >= 1 << 40 => (bytes >> 40, 'T'),
        bytes if bytes >= 1 << 30 => (bytes >> 30, 'G'),
        bytes if bytes >= 1 << 20 => (bytes >> 20, 'M'),
        bytes => (bytes >> 10, 'K'),
    }
}

/// Prints a histogram of the free space.
pub fn freefrag(request: &mut Request<'_>) -> Answer {
    let geometry = request.inspector.geometry();
    let found = request.inspector.free_space();
    let (size, total) = (u64::from(geometry.block_size), geometry.blocks_count);
    let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let kib = |blocks: u64| blocks.saturating_mul(size) >> 10;
    let average = found.blocks.checked_div(found.runs).unwrap_or(0);
    let out = &mut request.out;
    writeln!(out, "Device: {}", request.image.display())?;
    writeln!(out, "Blocksize: {size} bytes\nTotal blocks: {total}")?;
    writeln!(out, "Free blocks: {} ({:.1}%)\n", found.blocks, percent(found.blocks, total))?;
    writeln!(out, "Min. free extent: {} KB ", kib(found.shortest))?;
    writeln!(out, "Max. free extent: {} KB", kib(found.longest))?;
    writeln!(out, "Avg. free extent: {} KB", kib(average))?;
    writeln!(out, "Num. free extent: {}\n", found.runs)?;
    writeln!(out, "HISTOGRAM OF FREE EXTENT SIZES:")?;
    writeln!(out, "Extent Size Range :  Free extents   Free Blocks  Percent")?;
    for (class, (runs, blocks)) in (0u32..).zip(&found.histogram) {
        if *runs == 0 {
            continue;
        }
        let from = size.checked_shl(class).unwrap_or(u64::MAX);
        let ((from, from_unit), (to, to_unit)) = (unit(from), unit(from.saturating_mul(2)));
        let share = percent(*blocks, found.blocks);
        writeln!(
            out,
            "{from:5}{from_unit}...{to:5}{to_unit}-  :  {runs:12}  {blocks:12}  {share:6.2}%"
        )?;
    }
    found.problems.iter().for_each(crate::tell::complain);
    Ok(())
}

/// Prints the superblock and the groups.
pub fn stats(request: &mut Request<'_>) -> Answer {
    let (letters, _) = request.options("h")?;
    superblock_list::write_all(request.inspector, request.owners, request.out)?;
    let count = request.inspector.group_count();
    let groups = (0..count).filter_map(|group| request.inspector.group(group).ok());
    let directories: u64 = groups.map(|group| u64::from(group.desc.used_dirs)).sum();
    writeln!(request.out, "{:<26}{directories}", "Directories:")?;
    if !letters.contains('h') {
        (0..count).try_for_each(|nr| group(request.inspector, nr, request.out))?;
    }
    Ok(())
}

/// Prints a group.
fn group(inspector: &Inspector, nr: u32, out: &mut dyn Write) -> io::Result<()> {
    let Ok(found) = inspector.group(nr) else { return Ok(()) };
    let desc = &found.desc;
    writeln!(
        out,
        " Group {nr:2}: block bitmap at {}, inode bitmap at {}, inode table at {}",
        desc.block_bitmap, desc.inode_bitmap, desc.inode_table
    )?;
    let unused = match desc.itable_unused {
        0 => String::new(),
        unused => format!(", {unused} unused inodes"),
    };
    writeln!(
        out,
        "           {} free blocks, {} free inodes, {} used directories{unused}",
        desc.free_clusters, desc.free_inodes, desc.used_dirs
    )
}
