//! `dumpe2fs`: the superblock's values and the groups of an image, parsed.

use crate::tool::{arg, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Output of `dumpe2fs`.
#[derive(Debug, Clone, Default)]
pub struct Dump {
    /// The superblock's lines by name, for instance `"Block count"`.
    pub values: BTreeMap<String, String>,
    /// The block groups in order.
    pub groups: Vec<Group>,
}

/// One block group; block numbers are inclusive ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// First and last block.
    pub blocks: (u64, u64),
    /// `ITABLE_ZEROED`, `INODE_UNINIT`, `BLOCK_UNINIT`.
    pub flags: BTreeSet<String>,
    /// Block of the superblock copy.
    pub superblock: Option<u64>,
    /// Blocks of the group descriptors.
    pub descriptors: Option<(u64, u64)>,
    /// Blocks reserved for descriptors.
    pub reserved: Option<(u64, u64)>,
    /// Block bitmap.
    pub block_bitmap: u64,
    /// Inode bitmap.
    pub inode_bitmap: u64,
    /// Inode table.
    pub inode_table: (u64, u64),
    /// Free blocks (clusters with bigalloc).
    pub free_blocks: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Unused inodes at the end of the table.
    pub unused_inodes: u64,
    /// Runs of free blocks.
    pub free: Vec<(u64, u64)>,
}

impl Dump {
    /// Returns the value of a line such as `"Block count"`.
    #[track_caller]
    pub fn value(&self, name: &str) -> &str {
        self.values
            .get(name)
            .unwrap_or_else(|| panic!("dumpe2fs prints no `{name}`: {:?}", self.values))
    }

    /// A line's first word as a number.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let value = self.value(name);
        leading_number(value).unwrap_or_else(|| panic!("`{name}` is not a number: {value}"))
    }

    /// Returns the features by name.
    #[track_caller]
    pub fn features(&self) -> BTreeSet<String> {
        self.value("Filesystem features").split_whitespace().map(str::to_owned).collect()
    }
}

/// Runs `dumpe2fs` on an image.
#[track_caller]
pub fn dump(image: &Path) -> Dump {
    parse(&run("dumpe2fs", &[arg(image)]).must_succeed().text())
}

/// Runs `dumpe2fs -h`: without the groups, which may be many.
#[track_caller]
pub fn header(image: &Path) -> Dump {
    parse(&run("dumpe2fs", &["-h".into(), arg(image)]).must_succeed().text())
}

pub(crate) fn parse(text: &str) -> Dump {
    let mut dump = Dump::default();
    for line in text.lines() {
        if line.starts_with("Group ") && line.contains("(Blocks ") {
            dump.groups.push(heading(line));
        } else if let Some(group) = dump.groups.last_mut() {
            detail(group, line.trim());
        } else if let Some((name, value)) = line.split_once(':') {
            dump.values.insert(name.trim().to_owned(), value.trim().to_owned());
        }
    }
    dump
}

/// `Group 1: (Blocks 8193-16384) csum 0x0c84 [INODE_UNINIT, ITABLE_ZEROED]`
fn heading(line: &str) -> Group {
    let flags = line.split_once('[').map_or("", |(_, rest)| rest.trim_end_matches(']'));
    Group {
        blocks: after(line, "(Blocks ").and_then(range).unwrap_or_default(),
        flags: flags.split(", ").filter(|f| !f.is_empty()).map(str::to_owned).collect(),
        ..Group::default()
    }
}

fn detail(group: &mut Group, line: &str) {
    if let Some(at) = after(line, "superblock at ") {
        group.superblock = leading_number(at);
    }
    if let Some(at) =
        after(line, "Group descriptors at ").or_else(|| after(line, "Group descriptor at "))
    {
        group.descriptors = range(at);
    }
    if let Some(at) = after(line, "Reserved GDT blocks at ") {
        group.reserved = range(at);
    }
    if let Some(at) = after(line, "Block bitmap at ") {
        group.block_bitmap = leading_number(at).unwrap_or(0);
    }
    if let Some(at) = after(line, "Inode bitmap at ") {
        group.inode_bitmap = leading_number(at).unwrap_or(0);
    }
    if let Some(at) = after(line, "Inode table at ") {
        group.inode_table = range(at).unwrap_or_default();
    }
    if let Some(runs) = line.strip_prefix("Free blocks: ") {
        group.free = runs.split(", ").filter_map(range).collect();
    }
    if line.contains(" free blocks, ") || line.contains(" free clusters, ") {
        counts(group, line);
    }
}

fn counts(group: &mut Group, line: &str) {
    for part in line.split(", ") {
        let number = leading_number(part).unwrap_or(0);
        match part.split_once(' ').map_or("", |(_, what)| what) {
            "free blocks" | "free clusters" => group.free_blocks = number,
            "free inodes" => group.free_inodes = number,
            "directories" => group.directories = number,
            "unused inodes" => group.unused_inodes = number,
            _ => {}
        }
    }
}

fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(key).map(|(_, rest)| rest)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `8195-8450`, or one number for a range of one block.
fn range(text: &str) -> Option<(u64, u64)> {
    let first = leading_number(text)?;
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let last = rest.strip_prefix('-').and_then(leading_number).unwrap_or(first);
    Some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parsed() {
        let dump = parse(
            "Block count:              65536\nFilesystem features:      has_journal extent\n\n\n\
             Group 1: (Blocks 8193-16384) csum 0x0c84 \
             [INODE_UNINIT, BLOCK_UNINIT, ITABLE_ZEROED]\n  \
             Backup superblock at 8193, Group descriptors at 8194-8195\n  \
             Reserved GDT blocks at 8196-8450\n  Block bitmap at 260 (bg #0 + 259), csum \
             0x00000000\n  \
             Inode bitmap at 268 (bg #0 + 267), csum 0x00000000\n  Inode table at 787-1298 (bg #0 \
             + 786)\n  \
             7934 free blocks, 2048 free inodes, 1 directories, 2047 unused inodes\n  Free blocks: \
             8451-16383, 16384\n",
        );
        assert_eq!(dump.number("Block count"), 65536);
        assert!(dump.features().contains("extent"));
        let group = &dump.groups[0];
        assert_eq!(group.blocks, (8193, 16384));
        assert_eq!(group.flags.len(), 3);
        assert_eq!(
            (group.superblock, group.descriptors, group.reserved),
            (Some(8193), Some((8194, 8195)), Some((8196, 8450)))
        );
        assert_eq!(
            (group.block_bitmap, group.inode_bitmap, group.inode_table),
            (260, 268, (787, 1298))
        );
        assert_eq!(
            (group.free_blocks, group.free_inodes, group.directories, group.unused_inodes),
            (7934, 2048, 1, 2047)
        );
        assert_eq!(group.free, [(8451, 16383), (16384, 16384)]);
    }
}
