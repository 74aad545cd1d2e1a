//! The groups of a file system in the form of dumpe2fs(8): a paragraph for each, or a line.

use extant_check::debug::{ChecksumState, InspectedBitmap, InspectedGroup, Inspector};
use extant_format::{BlockNr, Geometry, GroupDesc, GroupFlags, GroupNr, Incompat, bitmap};
use std::io::{self, Write};
use std::ops::Range;

/// The form of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupListForm {
    /// Numbers of blocks and inodes are hexadecimal.
    pub is_hex: bool,
    /// One line for each group, with the places of its metadata.
    pub is_short: bool,
}

/// A list of groups.
pub struct GroupList<'l> {
    pub inspector: &'l Inspector,
    pub form: GroupListForm,
    /// Descriptions of bitmaps that cannot be read, or have wrong checksums.
    pub problems: Vec<String>,
}

impl GroupList<'_> {
    /// Writes all groups.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        if self.form.is_short {
            writeln!(out, "group:block:super:gdt:bbitmap:ibitmap:itable")?;
        }
        for nr in 0..self.inspector.group_count() {
            match self.inspector.group(nr) {
                Ok(group) if self.form.is_short => self.line(&group, out)?,
                Ok(group) => self.paragraph(&group, out)?,
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn geometry(&self) -> &Geometry {
        self.inspector.geometry()
    }

    fn number(&self, number: u64) -> String {
        match (self.form.is_hex, self.geometry().incompat(Incompat::BIT64)) {
            (true, true) => format!("0x{number:08x}"),
            (true, false) => format!("0x{number:04x}"),
            (false, _) => number.to_string(),
        }
    }

    fn range(&self, range: &Range<u64>) -> String {
        let last = range.end.saturating_sub(1);
        format!("{}-{}", self.number(range.start), self.number(last))
    }

    /// Returns whether descriptors of a group are those of a meta group, in a block of its own.
    fn is_of_meta_group(&self, group: GroupNr) -> bool {
        let first = u64::from(self.inspector.superblock().first_meta_bg());
        let first = first.saturating_mul(self.geometry().descs_per_block().into());
        self.geometry().incompat(Incompat::META_BG) && u64::from(group.0) >= first
    }

    fn line(&self, group: &InspectedGroup, out: &mut dyn Write) -> io::Result<()> {
        let (nr, desc) = (GroupNr(group.group), &group.desc);
        let base = self.geometry().base_meta(nr);
        let superblock = base.superblock.map_or("-1".into(), |block| block.0.to_string());
        let descriptors = match (base.descriptors.is_empty(), self.is_of_meta_group(nr)) {
            (true, _) => "-1".into(),
            (false, true) => base.descriptors.start.to_string(),
            (false, false) => self.range(&base.descriptors),
        };
        writeln!(
            out,
            "{}:{}:{superblock}:{descriptors}:{}:{}:{}",
            group.group, group.first_block, desc.block_bitmap, desc.inode_bitmap, desc.inode_table
        )
    }

    fn paragraph(&mut self, group: &InspectedGroup, out: &mut dyn Write) -> io::Result<()> {
        let end = group.first_block.saturating_add(group.blocks.into());
        let blocks = self.range(&(group.first_block..end));
        let mark = self.mark(group);
        writeln!(out, "Group {}: (Blocks {blocks}){mark}", group.group)?;
        self.base(GroupNr(group.group), out)?;
        self.places(group, out)?;
        self.counts(&group.desc, out)?;
        self.free(group, out)
    }

    /// Returns checksum and flags of a descriptor.
    fn mark(&self, group: &InspectedGroup) -> String {
        let geometry = self.geometry();
        if !geometry.has_group_checksums() {
            return String::new();
        }
        let (_, offset) = geometry.desc_location(GroupNr(group.group));
        let block = self.inspector.block(group.desc_block).unwrap_or_default();
        let checksum = GroupDesc::stored_checksum(block.get(offset..).unwrap_or(&[]));
        let names = [
            (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
            (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
            (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
        ];
        let names = names.into_iter().filter(|(flag, _)| group.desc.flags.contains(*flag));
        let names: Vec<&str> = names.map(|(_, name)| name).collect();
        let flags =
            if names.is_empty() { String::new() } else { format!(" [{}]", names.join(", ")) };
        format!(" csum 0x{checksum:04x}{flags}")
    }

    /// Writes the places of the superblock, of descriptors and of their reserved blocks.
    fn base(&self, nr: GroupNr, out: &mut dyn Write) -> io::Result<()> {
        let base = self.geometry().base_meta(nr);
        let mut parts = Vec::new();
        if let Some(block) = base.superblock {
            let kind = if nr.0 == 0 { "Primary" } else { "Backup" };
            parts.push(format!("{kind} superblock at {}", self.number(block.0)));
        }
        if !base.descriptors.is_empty() {
            parts.push(if self.is_of_meta_group(nr) {
                format!("Group descriptor at {}", self.number(base.descriptors.start))
            } else {
                format!("Group descriptors at {}", self.range(&base.descriptors))
            });
        }
        if !parts.is_empty() {
            writeln!(out, "  {}", parts.join(", "))?;
        }
        if !base.reserved.is_empty() {
            writeln!(out, "  Reserved GDT blocks at {}", self.range(&base.reserved))?;
        }
        Ok(())
    }

    /// Writes the places of bitmaps and table.
    fn places(&self, group: &InspectedGroup, out: &mut dyn Write) -> io::Result<()> {
        let (desc, geometry) = (&group.desc, self.geometry());
        let sum = |sum: u32| {
            if geometry.metadata_csum { format!(", csum 0x{sum:08x}") } else { String::new() }
        };
        for (name, block, csum) in [
            ("Block", desc.block_bitmap, desc.block_bitmap_csum),
            ("Inode", desc.inode_bitmap, desc.inode_bitmap_csum),
        ] {
            let (place, sum) = (self.place(group, block), sum(csum));
            writeln!(out, "  {name} bitmap at {}{place}{sum}", self.number(block))?;
        }
        let start = desc.inode_table;
        let is_first = start == group.first_block;
        let place = if is_first { String::new() } else { self.place(group, start) };
        let table = start..start.saturating_add(geometry.inode_table_blocks().into());
        writeln!(out, "  Inode table at {}{place}", self.range(&table))
    }

    /// Returns the distance of a block from the start of its group.
    fn place(&self, group: &InspectedGroup, block: u64) -> String {
        let geometry = self.geometry();
        let Some(home) = geometry.group_of_block(BlockNr(block)) else { return String::new() };
        let offset = block.saturating_sub(geometry.first_block_of_group(home).0);
        if home.0 == group.group {
            format!(" (+{offset})")
        } else if geometry.incompat(Incompat::FLEX_BG) {
            format!(" (bg #{} + {offset})", home.0)
        } else {
            String::new()
        }
    }

    fn counts(&self, desc: &GroupDesc, out: &mut dyn Write) -> io::Result<()> {
        let unit = if self.geometry().has_bigalloc() { "clusters" } else { "blocks" };
        let (blocks, inodes, dirs) = (desc.free_clusters, desc.free_inodes, desc.used_dirs);
        write!(out, "  {blocks} free {unit}, {inodes} free inodes, {dirs} directories")?;
        match desc.itable_unused {
            0 => writeln!(out),
            unused => writeln!(out, ", {unused} unused inodes"),
        }
    }

    fn free(&mut self, group: &InspectedGroup, out: &mut dyn Write) -> io::Result<()> {
        let (nr, geometry) = (GroupNr(group.group), *self.geometry());
        let block = |bit: u32| geometry.block_of_bit(nr, bit).0;
        let inode = |bit: u32| u64::from(geometry.inode_at(nr, bit).0);
        let numbers: [&dyn Fn(u32) -> u64; 2] = [&block, &inode];
        let bitmaps = [("blocks", &group.block_bitmap), ("inodes", &group.inode_bitmap)];
        for ((name, found), number) in bitmaps.into_iter().zip(numbers) {
            match found {
                Ok(bitmap) => {
                    if bitmap.checksum == ChecksumState::Wrong {
                        let text = format!("bitmap of {name} of group {nr}: wrong checksum");
                        self.problems.push(text);
                    }
                    writeln!(out, "  Free {name}: {}", self.zeroes(bitmap, number))?;
                }
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        Ok(())
    }

    /// Returns the runs of zeroes of a bitmap.
    fn zeroes(&self, bits: &InspectedBitmap, number: &dyn Fn(u32) -> u64) -> String {
        let (mut runs, mut from, end) = (Vec::new(), 0, bits.len as usize);
        while let Some(run) = bitmap::next_zero_run(&bits.bits, from, end) {
            let (first, last) = (number(run.start as u32), number(run.end as u32 - 1));
            runs.push(if first == last {
                self.number(first)
            } else {
                format!("{}-{}", self.number(first), self.number(last))
            });
            from = run.end;
        }
        runs.join(", ")
    }
}
