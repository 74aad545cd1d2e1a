//! Superblocks, groups, free space, fragmentation, and raw blocks.

use super::out::{Out, Record};
use super::{BlockArgs, FragmentationArgs, number};
use crate::json::hex;
use extant_check::debug::{
    InspectError, InspectedBitmap, InspectedGroup, Inspector, SuperblockCopy,
};
use extant_format::{InodeNr, Superblock};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// Bytes of a line of hexadecimal digits.
const LINE: usize = 16;

/// Prints blocks.
pub fn blocks(inspector: &Inspector, args: &BlockArgs, out: &mut Out) -> io::Result<()> {
    for block in args.block..args.block.saturating_add(args.count) {
        let bytes = match inspector.block(block) {
            Ok(bytes) => bytes,
            // A count that is too large ends with one problem.
            Err(error) => return out.problem(&error.to_string()),
        };
        content(block, &bytes, args.raw, out)?;
    }
    Ok(())
}

/// Prints the content of a block.
pub fn content(block: u64, bytes: &[u8], raw: bool, out: &mut Out) -> io::Result<()> {
    let Some(text) = out.text() else {
        return out.line(&Record::new().with("block", block).with("content_hex", hex(bytes)));
    };
    if raw { text.write_all(bytes) } else { hexdump(text, bytes) }
}

/// Writes bytes as lines of offset, hexadecimal digits and characters; a `*` stands for lines that
/// are equal to the one before.
pub fn hexdump(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    let (mut before, mut is_skipping) = (None, false);
    for (number, line) in bytes.chunks(LINE).enumerate() {
        if before == Some(line) {
            if !is_skipping {
                writeln!(out, "*")?;
            }
            is_skipping = true;
            continue;
        }
        (before, is_skipping) = (Some(line), false);
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |byte: &u8| if matches!(byte, 0x20..=0x7e) { *byte as char } else { '.' };
        let characters: String = line.iter().map(shown).collect();
        writeln!(out, "{:08x}  {:<47}  |{characters}|", number * LINE, digits.join(" "))?;
    }
    writeln!(out, "{:08x}", bytes.len())
}

/// Prints the superblock and its copies.
pub fn superblocks(inspector: &Inspector, out: &mut Out) -> io::Result<()> {
    let mut primary: Option<Record> = None;
    let mut written = Ok(());
    inspector.superblocks(&mut |copy| {
        written = superblock(&copy, inspector, &mut primary, out);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written
}

fn superblock(
    copy: &SuperblockCopy,
    inspector: &Inspector,
    primary: &mut Option<Record>,
    out: &mut Out,
) -> io::Result<()> {
    let found = match &copy.superblock {
        Ok(found) => found,
        Err(error) => {
            return out.problem(&format!("group {}, block {}: {error}", copy.group, copy.block));
        }
    };
    let record = Record::new()
        .with("group", copy.group)
        .with("block", copy.block)
        .with("checksum", copy.checksum.map(|state| state.name()));
    let own = fields(found);
    if copy.group == 0 {
        *primary = Some(own.clone());
        let names = found.features().names();
        return out.record(&record.with("features", names).record("fields", own));
    }
    // Without a primary superblock, copies are compared with the one that is used.
    let first = primary.get_or_insert_with(|| fields(inspector.superblock()));
    let differences = own.differences(first, &["block_group_nr", "checksum"]);
    out.line(&record.with("differs", differences.len()).list("differences", differences))
}

/// Returns all fields of a superblock as they lie on the disk.
fn fields(sb: &Superblock) -> Record {
    let raw = sb.raw();
    macro_rules! numbers {
        ($record:expr; $($field:ident)*) => {
            $record$(.with(stringify!($field), raw.$field.get()))*
        };
    }
    macro_rules! bytes {
        ($record:expr; $($field:ident)*) => {
            $record$(.with(stringify!($field), raw.$field))*
        };
    }
    macro_rules! texts {
        ($record:expr; $($field:ident)*) => {
            $record$(.bytes(stringify!($field), text(&raw.$field)))*
        };
    }
    let record = numbers!(Record::new();
        inodes_count blocks_count_lo r_blocks_count_lo free_blocks_count_lo free_inodes_count
        first_data_block log_block_size log_cluster_size blocks_per_group clusters_per_group
        inodes_per_group mtime wtime mnt_count max_mnt_count magic state errors minor_rev_level
        lastcheck checkinterval creator_os rev_level def_resuid def_resgid first_ino inode_size
        block_group_nr feature_compat feature_incompat feature_ro_compat);
    let record = record.with("uuid", crate::text::uuid(sb.uuid()));
    let record = texts!(record; volume_name last_mounted);
    let record = numbers!(record; algorithm_usage_bitmap);
    let record = bytes!(record; prealloc_blocks prealloc_dir_blocks);
    let record = numbers!(record; reserved_gdt_blocks);
    let record = record.with("journal_uuid", crate::text::uuid(sb.journal_uuid()));
    let record = numbers!(record; journal_inum journal_dev last_orphan);
    let record = record.with("hash_seed", sb.hash_seed().to_vec());
    let record = bytes!(record; def_hash_version jnl_backup_type);
    let record = numbers!(record; desc_size default_mount_opts first_meta_bg mkfs_time);
    let blocks: Vec<u32> = raw.jnl_blocks.iter().map(|word| word.get()).collect();
    let record = record.with("jnl_blocks", blocks);
    let record = numbers!(record;
        blocks_count_hi r_blocks_count_hi free_blocks_count_hi min_extra_isize want_extra_isize
        flags raid_stride mmp_update_interval mmp_block raid_stripe_width);
    let record = bytes!(record; log_groups_per_flex checksum_type encryption_level reserved_pad);
    let record = numbers!(record;
        kbytes_written snapshot_inum snapshot_id snapshot_r_blocks_count snapshot_list error_count);
    let record = error_fields(record, sb);
    let record = texts!(record; mount_opts);
    let record = numbers!(record; usr_quota_inum grp_quota_inum overhead_clusters);
    let record = record.with("backup_bgs", sb.backup_bgs().to_vec());
    let record = record.with("encrypt_algos", raw.encrypt_algos.to_vec());
    let record = record.with("encrypt_pw_salt_hex", hex(&raw.encrypt_pw_salt));
    let record = numbers!(record; lpf_ino prj_quota_inum checksum_seed);
    let record = bytes!(record;
        wtime_hi mtime_hi mkfs_time_hi lastcheck_hi first_error_time_hi last_error_time_hi
        first_error_errcode last_error_errcode);
    numbers!(record; encoding encoding_flags orphan_file_inum checksum)
}

/// Adds the records of errors.
fn error_fields(record: Record, sb: &Superblock) -> Record {
    let (first, last) = (&sb.raw().first_error, &sb.raw().last_error);
    record
        .with("first_error_time", first.time.get())
        .with("first_error_ino", first.ino.get())
        .with("first_error_block", first.block.get())
        .bytes("first_error_func", text(&first.func))
        .with("first_error_line", first.line.get())
        .with("last_error_time", last.time.get())
        .with("last_error_ino", last.ino.get())
        .with("last_error_line", last.line.get())
        .with("last_error_block", last.block.get())
        .bytes("last_error_func", text(&last.func))
}

/// Returns the bytes of a text before its end.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Prints groups.
pub fn groups(inspector: &Inspector, groups: &[u32], out: &mut Out) -> io::Result<()> {
    let all = 0..inspector.group_count();
    let wanted: Vec<u32> = if groups.is_empty() { all.collect() } else { groups.to_vec() };
    for group in wanted {
        match inspector.group(group) {
            Ok(found) => print_group(&found, out)?,
            Err(error) => out.problem(&error.to_string())?,
        }
    }
    Ok(())
}

fn print_group(found: &InspectedGroup, out: &mut Out) -> io::Result<()> {
    let (desc, nr) = (&found.desc, found.group);
    let names: Vec<String> = desc.flags.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    let bitmap = |bitmap: &Result<InspectedBitmap, InspectError>| match bitmap {
        Ok(found) => Record::new()
            .with("checksum", found.checksum.name())
            .with("never_written", found.is_uninit)
            .with("free", found.free()),
        Err(_) => Record::new().with("checksum", None::<&str>),
    };
    let mut block_bitmap = bitmap(&found.block_bitmap);
    let mut inode_bitmap = bitmap(&found.inode_bitmap);
    block_bitmap = block_bitmap.with("bitmap", "blocks");
    inode_bitmap = inode_bitmap.with("bitmap", "inodes");
    out.line(
        &Record::new()
            .with("group", nr)
            .with("first_block", found.first_block)
            .with("blocks", found.blocks)
            .with("descriptor_block", found.desc_block)
            .with("checksum", found.checksum.map(|state| state.name()))
            .with("block_bitmap", desc.block_bitmap)
            .with("inode_bitmap", desc.inode_bitmap)
            .with("inode_table", desc.inode_table)
            .with("free_clusters", desc.free_clusters)
            .with("free_inodes", desc.free_inodes)
            .with("directories", desc.used_dirs)
            .with("unused_inodes", desc.itable_unused)
            .with("flags", names)
            .list("bitmaps", vec![block_bitmap, inode_bitmap]),
    )?;
    if found.checksum.is_none() {
        return out.problem(&format!("group {nr}: its descriptor cannot be read"));
    }
    if let Some(problem) = &found.problem {
        out.problem(&format!("group {nr}: {problem}"))?;
    }
    for bitmap in [&found.block_bitmap, &found.inode_bitmap] {
        if let Err(error) = bitmap {
            out.problem(&error.to_string())?;
        }
    }
    Ok(())
}

/// Prints a histogram of the free space.
pub fn free_space(inspector: &Inspector, out: &mut Out) -> io::Result<()> {
    let found = inspector.free_space();
    let classes = (0u32..).zip(&found.histogram).filter(|(_, (runs, _))| *runs > 0);
    let classes = classes.map(|(class, (runs, blocks))| {
        Record::new().with("from_blocks", 1u64 << class).with("runs", *runs).with("blocks", *blocks)
    });
    let classes: Vec<Record> = classes.collect();
    out.line(
        &Record::new()
            .with("free_blocks", found.blocks)
            .with("runs", found.runs)
            .with("shortest", found.shortest)
            .with("longest", found.longest)
            .with("block_size", inspector.geometry().block_size)
            .list("histogram", classes),
    )?;
    out.problems(&found.problems)
}

/// The pieces of a file.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Pieces {
    runs: u64,
    blocks: u64,
    ino: u32,
}

/// Prints the numbers of extents of files.
pub fn fragmentation(
    inspector: &Inspector,
    args: &FragmentationArgs,
    out: &mut Out,
) -> io::Result<()> {
    let mut inodes = BTreeSet::new();
    for file in &args.files {
        match number(inspector, file) {
            Ok(ino) => {
                inodes.insert(ino);
            }
            Err(message) => out.problem(&message)?,
        }
    }
    let (mut found, mut files, mut fragmented) = (BTreeSet::new(), 0u64, 0u64);
    let wanted = (!args.files.is_empty()).then_some(&inodes);
    let first = inspector.geometry().first_ino;
    let problems = inspector.each_map(wanted, &mut |ino, runs| {
        // Inodes of the file system itself, such as those of kept blocks, are scattered on purpose.
        if wanted.is_none() && ino < first && ino != InodeNr::ROOT.0 {
            return;
        }
        let mut pieces = Pieces { ino, ..Pieces::default() };
        let mut next = None;
        for (logical, physical, len) in runs {
            pieces.runs += u64::from(next != Some((logical, physical)));
            pieces.blocks = pieces.blocks.saturating_add(len);
            next = Some((logical.saturating_add(len), physical.saturating_add(len)));
        }
        files += u64::from(pieces.runs > 0);
        fragmented += u64::from(pieces.runs > 1);
        found.insert(Reverse(pieces));
        if found.len() > args.most {
            found.pop_last();
        }
    });
    let worst: BTreeSet<u32> = found.iter().map(|pieces| pieces.0.ino).collect();
    let names = inspector.names(&worst, false, None);
    out.line(&Record::new().with("files", files).with("fragmented", fragmented))?;
    for Reverse(pieces) in &found {
        let record = Record::new()
            .with("inode", pieces.ino)
            .with("extents", pieces.runs)
            .with("blocks", pieces.blocks);
        let name = names.names.iter().find(|name| name.ino == pieces.ino);
        let path = name.map(|name| names.path(name));
        out.line(&path.iter().fold(record, |record, path| record.bytes("path", path)))?;
    }
    out.problems(&problems)
}
