//! The superblock, the journal and the block of multi-mount protection, in the form of dumpe2fs(8)
//! and of `tune2fs -l`. Times are in UTC.

use crate::owner_names::OwnerNames;
use crate::text::{asctime, shown, uuid};
use extant_check::debug::{InspectError, Inspector};
use extant_engine::format::{ErrorPolicy, Superblock};
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::{MMP_MAGIC, Mmp};
use extant_format::superblock::{ErrorRecord, State, SuperFlags};
use extant_format::{Compat, Incompat, InodeNr, RoCompat};
use std::io::{self, Write};

/// Name and value of a line; lines without a value are left out.
type Row = (&'static str, Option<String>);

/// Columns of a name.
const NAME: usize = 26;

/// Names of errors by their codes.
const ERRORS: [&str; 18] = [
    "",
    "UNKNOWN",
    "EIO",
    "ENOMEM",
    "EFSBADCRC",
    "EFSCORRUPTED",
    "ENOSPC",
    "ENOKEY",
    "EROFS",
    "EFBIG",
    "EEXIST",
    "ERANGE",
    "EOVERFLOW",
    "EBUSY",
    "ENOTDIR",
    "ENOTEMPTY",
    "ESHUTDOWN",
    "EFAULT",
];

/// Number from which on a larger unit is used.
const MAX_IN_UNIT: u64 = 8192;

/// Writes the values of a superblock.
///
/// # Errors
/// Those of `out`.
pub fn write_superblock(
    sb: &Superblock,
    owners: &OwnerNames,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_journal = sb.incompat().contains(Incompat::JOURNAL_DEV);
    for (name, value) in identity(sb).into_iter().chain(layout(sb, is_journal)) {
        row(name, value, out)?;
    }
    for (name, value) in history(sb, owners).into_iter().chain(files(sb)) {
        row(name, value, out)?;
    }
    for (name, value) in errors(sb).into_iter().chain(protection(sb)) {
        row(name, value, out)?;
    }
    Ok(())
}

fn row(name: &str, value: Option<String>, out: &mut dyn Write) -> io::Result<()> {
    let Some(value) = value else { return Ok(()) };
    let name = format!("{name}:");
    match name.as_str() {
        // Tabs of dumpe2fs, for programs that look for them.
        "Inode size:" | "Journal device:" => writeln!(out, "{name}\t          {value}"),
        _ => writeln!(out, "{name:<NAME$}{value}"),
    }
}

/// Writes the values of the journal, and of the block of multi-mount protection.
///
/// # Errors
/// Those of `out`.
pub fn write_journal(
    journal: Result<JournalSuperblock, InspectError>,
    (is_external, out): (bool, &mut dyn Write),
) -> io::Result<()> {
    match journal {
        Ok(journal) => {
            for (name, value) in log(&journal, is_external) {
                row(name, value, out)?;
            }
            users(&journal, is_external, out)
        }
        Err(error) => writeln!(out, "Journal: {error}"),
    }
}

/// Writes the superblock with the journal and the block of multi-mount protection.
///
/// # Errors
/// Those of `out`.
pub fn write_all(
    inspector: &Inspector,
    owners: &OwnerNames,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sb = inspector.superblock();
    write_superblock(sb, owners, out)?;
    if sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inum() != InodeNr::NONE {
        write_journal(inspector.journal_superblock(), (false, out))?;
    }
    match inspector.mmp() {
        Ok(Some(mmp)) => write_mmp(&mmp, out),
        Ok(None) => Ok(()),
        Err(error) => writeln!(out, "MMP_block: {error}"),
    }
}

fn or(text: String, other: &str) -> Option<String> {
    Some(if text.is_empty() { other.into() } else { shown(text.as_bytes()) })
}

fn time(seconds: u64) -> String {
    asctime(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Returns a time, `n/a` for none.
fn past(seconds: u64) -> Option<String> {
    Some(if seconds == 0 { "n/a".into() } else { time(seconds) })
}

/// Returns a number, unless it is 0.
fn some(number: impl Into<u64>) -> Option<String> {
    let number = number.into();
    (number != 0).then(|| number.to_string())
}

fn identity(sb: &Superblock) -> Vec<Row> {
    let state = match (sb.state().contains(State::VALID), sb.state().contains(State::ERROR)) {
        (true, false) => "clean",
        (false, false) => "not clean",
        (true, true) => "clean with errors",
        (false, true) => "not clean with errors",
    };
    let errors = match sb.error_policy() {
        ErrorPolicy::Continue if sb.raw().errors.get() > 1 => "Unknown (continue)",
        ErrorPolicy::Continue => "Continue",
        ErrorPolicy::RemountReadOnly => "Remount read-only",
        ErrorPolicy::Panic => "Panic",
    };
    let revision = match sb.rev_level() {
        0 => "0 (original)".into(),
        1 => "1 (dynamic)".into(),
        other => format!("{other} (unknown)"),
    };
    let system = match sb.creator_os() {
        0 => "Linux",
        1 => "Hurd",
        2 => "Masix",
        3 => "FreeBSD",
        4 => "Lites",
        _ => "unknown",
    };
    vec![
        ("Filesystem volume name", or(sb.volume_name(), "<none>")),
        ("Last mounted on", or(sb.last_mounted(), "<not available>")),
        ("Filesystem UUID", Some(uuid(sb.uuid()))),
        ("Filesystem magic number", Some(format!("0x{:04X}", sb.raw().magic.get()))),
        ("Filesystem revision #", Some(revision)),
        ("Filesystem features", or(sb.features().names().join(" "), "(none)")),
        ("Filesystem flags", flags(sb)),
        ("Default mount options", or(mount_options(sb), "(none)")),
        ("Mount options", Some(shown(sb.mount_opts().as_bytes())).filter(|text| !text.is_empty())),
        ("Filesystem state", Some(state.into())),
        ("Errors behavior", Some(errors.into())),
        ("Filesystem OS type", Some(system.into())),
    ]
}

/// Returns the names of default mount options, the mode of the journal first.
fn mount_options(sb: &Superblock) -> String {
    let mut names = sb.default_mount_opts().names();
    names.sort_by_key(|name| !name.starts_with("journal_data"));
    names.join(" ")
}

/// Returns the names of the flags, each with a space behind it.
fn flags(sb: &Superblock) -> Option<String> {
    let names = [
        (SuperFlags::SIGNED_HASH, "signed_directory_hash "),
        (SuperFlags::UNSIGNED_HASH, "unsigned_directory_hash "),
        (SuperFlags::TEST_FILESYS, "test_filesystem "),
    ];
    let names = names.into_iter().filter(|(flag, _)| sb.flags().contains(*flag));
    let text: String = names.map(|(_, name)| name).collect();
    (!sb.flags().is_empty()).then_some(text)
}

fn layout(sb: &Superblock, is_journal: bool) -> Vec<Row> {
    let block_size = sb.block_size();
    let has_clusters = sb.ro_compat().contains(RoCompat::BIGALLOC);
    let cluster = 1024u64.checked_shl(sb.log_cluster_size()).unwrap_or(0).to_string();
    let clusters = Some(sb.clusters_per_group().to_string());
    let (cluster_name, group_name) = if has_clusters {
        ("Cluster size", "Clusters per group")
    } else {
        ("Fragment size", "Fragments per group")
    };
    let is_wide = sb.incompat().contains(Incompat::BIT64);
    let table = u64::from(sb.inodes_per_group()).saturating_mul(sb.inode_size().into());
    let table = table.div_ceil(u64::from(block_size).max(1));
    let first = Some(sb.first_data_block().to_string());
    let flex = 1u64.checked_shl(sb.log_groups_per_flex().into()).filter(|size| *size > 1);
    vec![
        ("Inode count", Some(sb.inodes_count().to_string())),
        ("Block count", Some(sb.blocks_count().to_string())),
        ("Reserved block count", Some(sb.r_blocks_count().to_string())),
        ("Overhead clusters", some(sb.overhead_clusters())),
        ("Free blocks", Some(sb.free_blocks_count().to_string())),
        ("Free inodes", Some(sb.free_inodes_count().to_string())),
        ("First block", first),
        ("Block size", Some(block_size.to_string())),
        (cluster_name, Some(cluster)),
        ("Group descriptor size", is_wide.then(|| sb.desc_size().to_string())),
        ("Reserved GDT blocks", some(sb.reserved_gdt_blocks())),
        ("Blocks per group", Some(sb.blocks_per_group().to_string())),
        (group_name, clusters),
        ("Inodes per group", Some(sb.inodes_per_group().to_string())),
        ("Inode blocks per group", Some(if is_journal { 0 } else { table }.to_string())),
        ("RAID stride", some(sb.raid_stride())),
        ("RAID stripe width", some(sb.raid_stripe_width())),
        ("First meta block group", some(sb.first_meta_bg())),
        ("Flex block group size", flex.map(|size| size.to_string())),
    ]
}

fn history(sb: &Superblock, owners: &OwnerNames) -> Vec<Row> {
    let (interval, checked) = (sb.checkinterval(), sb.lastcheck());
    let next = checked.saturating_add(interval.into());
    let (user, group) = (sb.def_resuid(), sb.def_resgid());
    let written = (sb.kbytes_written() != 0).then(|| units(sb.kbytes_written()));
    vec![
        ("Filesystem created", past(sb.mkfs_time())),
        ("Last mount time", past(sb.mtime())),
        ("Last write time", past(sb.wtime())),
        ("Mount count", Some(sb.mnt_count().to_string())),
        ("Maximum mount count", Some((sb.max_mnt_count() as i16).to_string())),
        ("Last checked", past(checked)),
        ("Check interval", Some(format!("{interval} ({})", span(interval)))),
        ("Next check after", (interval != 0).then(|| time(next))),
        ("Lifetime writes", written),
        ("Reserved blocks uid", Some(format!("{user} (user {})", owners.user(user.into())))),
        ("Reserved blocks gid", Some(format!("{group} (group {})", owners.group(group.into())))),
    ]
}

/// Returns KiB in the largest unit that leaves a number of some digits.
fn units(kib: u64) -> String {
    let (mut number, mut divisor, mut names) = (kib, 1u64, ["kB", "MB", "GB", "TB"].into_iter());
    let mut name = names.next().unwrap_or_default();
    for larger in names {
        if number < MAX_IN_UNIT {
            break;
        }
        divisor = divisor.saturating_mul(1024);
        number = kib.saturating_add(divisor / 2).checked_div(divisor).unwrap_or(0);
        name = larger;
    }
    format!("{number} {name}")
}

/// Returns a time between checks in words.
fn span(seconds: u32) -> String {
    if seconds == 0 {
        return "<none>".into();
    }
    let (mut left, mut parts) = (seconds, Vec::new());
    for (name, unit) in [("month", 2_592_000), ("week", 604_800), ("day", 86_400)] {
        let count = left / unit;
        left %= unit;
        match count {
            0 => {}
            1 => parts.push(format!("1 {name}")),
            _ => parts.push(format!("{count} {name}s")),
        }
    }
    if left > 0 {
        parts.push(format!("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60));
    }
    parts.join(", ")
}

fn files(sb: &Superblock) -> Vec<Row> {
    let (ino, is_new) = (|ino: InodeNr| some(ino.0), sb.rev_level() > 0);
    let hash = match sb.def_hash_version() {
        0 => "legacy".into(),
        1 => "half_md4".into(),
        2 => "tea".into(),
        6 => "siphash".into(),
        other => format!("hash_{other}"),
    };
    let seed = sb.raw().hash_seed.map(|word| word.to_bytes()).concat();
    let seed = <[u8; 16]>::try_from(seed).unwrap_or_default();
    let has_index = sb.def_hash_version() != 0 || seed != [0; 16];
    let backup = match sb.jnl_backup_type() {
        0 => None,
        1 => Some("inode blocks".into()),
        other => Some(format!("type {other}")),
    };
    let copies = sb.backup_bgs().into_iter().filter(|group| *group != 0);
    let copies: String = copies.map(|group| format!("{group} ")).collect();
    let journal = sb.journal_uuid();
    let device = sb.journal_dev();
    vec![
        ("First inode", is_new.then(|| sb.first_ino().to_string())),
        ("Inode size", is_new.then(|| sb.inode_size().to_string())),
        ("Required extra isize", some(sb.min_extra_isize())),
        ("Desired extra isize", some(sb.want_extra_isize())),
        ("Journal UUID", (journal != [0; 16]).then(|| uuid(journal))),
        ("Journal inode", ino(sb.journal_inum())),
        ("Journal device", (device != 0).then(|| format!("0x{device:04x}"))),
        ("First orphan inode", ino(sb.last_orphan())),
        ("Default directory hash", has_index.then_some(hash)),
        ("Directory Hash Seed", has_index.then(|| uuid(seed))),
        ("Journal backup", backup),
        ("Backup block groups", (!copies.is_empty()).then_some(copies)),
    ]
}

fn errors(sb: &Superblock) -> Vec<Row> {
    const FIRST: [&str; 6] = [
        "First error time",
        "First error function",
        "First error line #",
        "First error inode #",
        "First error block #",
        "First error err",
    ];
    const LAST: [&str; 6] = [
        "Last error time",
        "Last error function",
        "Last error line #",
        "Last error inode #",
        "Last error block #",
        "Last error err",
    ];
    let mut rows = vec![("FS Error count", some(sb.error_count()))];
    rows.extend(sb.first_error().into_iter().flat_map(|record| error(FIRST, &record)));
    rows.extend(sb.last_error().into_iter().flat_map(|record| error(LAST, &record)));
    rows
}

fn error(names: [&'static str; 6], record: &ErrorRecord) -> Vec<Row> {
    let code = match ERRORS.get(usize::from(record.errcode)) {
        Some(&"") => None,
        Some(name) => Some((*name).into()),
        None => Some(format!("UNKNOWN_ERRCODE_{}", record.errcode)),
    };
    let values = [
        Some(time(record.time)),
        Some(shown(record.func.as_bytes())),
        Some(record.line.to_string()),
        some(record.ino.0),
        some(record.block.0),
        code,
    ];
    names.into_iter().zip(values).collect()
}

/// Blocks and files of multi-mount protection, quotas, checksums, names and orphans.
fn protection(sb: &Superblock) -> Vec<Row> {
    let (incompat, ro_compat) = (sb.incompat(), sb.ro_compat());
    let has_mmp = incompat.contains(Incompat::MMP);
    let has_sums = ro_compat.contains(RoCompat::METADATA_CSUM);
    let has_seed = incompat.contains(Incompat::CSUM_SEED);
    let algorithm = if sb.checksum_type() == 1 { "crc32c" } else { "unknown" };
    let encoding = match sb.encoding() {
        1 => "utf8-12.1".into(),
        other => format!("unknown ({other})"),
    };
    let (has_quotas, ino) = (ro_compat.contains(RoCompat::QUOTA), |ino: InodeNr| some(ino.0));
    let quota = |file: InodeNr| ino(file).filter(|_| has_quotas);
    vec![
        ("MMP block number", has_mmp.then(|| sb.mmp_block().0.to_string())),
        ("MMP update interval", has_mmp.then(|| sb.mmp_update_interval().to_string())),
        ("User quota inode", quota(sb.usr_quota_inum())),
        ("Group quota inode", quota(sb.grp_quota_inum())),
        ("Project quota inode", quota(sb.prj_quota_inum())),
        ("Checksum type", has_sums.then(|| algorithm.into())),
        ("Checksum", has_sums.then(|| format!("0x{:08x}", sb.raw().checksum.get()))),
        ("Checksum seed", has_seed.then(|| format!("0x{:08x}", sb.checksum_seed()))),
        ("Character encoding", incompat.contains(Incompat::CASEFOLD).then_some(encoding)),
        ("Orphan file inode", ino(sb.orphan_file_inum())),
    ]
}

fn log(journal: &JournalSuperblock, is_external: bool) -> Vec<Row> {
    let names = journal.incompat().names().join(" ");
    let features = if names.is_empty() { "(none)".into() } else { names };
    // Of a new journal the kernel has not set the feature yet.
    let fast = match journal.num_fc_blks() {
        0 => journal.fast_commit_blocks(),
        blocks => blocks,
    };
    let kib = u64::from(journal.max_len()).saturating_mul(journal.block_size().into()) >> 10;
    let size = if kib < MAX_IN_UNIT { format!("{kib}k") } else { format!("{}M", kib >> 10) };
    let longest = journal.max_len().saturating_sub(fast);
    let errno = journal.errno();
    let has_sums = journal.format().has_crc32c();
    vec![
        ("Journal features", Some(features)),
        ("Total journal size", Some(size)),
        ("Total journal blocks", Some(journal.max_len().to_string())),
        ("Max transaction length", Some(longest.to_string())),
        ("Fast commit length", Some(fast.to_string())),
        ("Journal first block", is_external.then(|| journal.first().to_string())),
        ("Journal sequence", Some(format!("0x{:08x}", journal.sequence()))),
        ("Journal start", Some(journal.start().to_string())),
        ("Journal checksum type", has_sums.then(|| "crc32c".into())),
        ("Journal checksum", has_sums.then(|| format!("0x{:08x}", journal.raw().checksum.get()))),
        ("Journal errno", (errno != 0).then(|| errno.to_string())),
    ]
}

/// Writes the users of a journal on a device of its own.
fn users(journal: &JournalSuperblock, is_external: bool, out: &mut dyn Write) -> io::Result<()> {
    if !is_external {
        return Ok(());
    }
    let users = journal.users();
    if users.is_empty() {
        return row("Journal number of users", Some("0".into()), out);
    }
    for (n, user) in users.iter().enumerate() {
        let name = if n == 0 { "Journal users:" } else { "" };
        writeln!(out, "{name:<NAME$}{}", uuid(*user))?;
    }
    Ok(())
}

fn write_mmp(mmp: &Mmp, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "MMP_block:")?;
    writeln!(out, "    mmp_magic: 0x{MMP_MAGIC:x}")?;
    writeln!(out, "    mmp_check_interval: {}", mmp.check_interval)?;
    writeln!(out, "    mmp_sequence: 0x{:08x}", mmp.seq)?;
    writeln!(out, "    mmp_update_date: {}", time(mmp.time))?;
    writeln!(out, "    mmp_update_time: {}", mmp.time)?;
    writeln!(out, "    mmp_node_name: {}", shown(mmp.node_name.as_bytes()))?;
    writeln!(out, "    mmp_device_name: {}", shown(mmp.bdev_name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_units_are_those_of_dumpe2fs() {
        for (seconds, text) in [
            (0, "<none>"),
            (86_400, "1 day"),
            (3_888_000, "1 month, 2 weeks, 1 day"),
            (90_000, "1 day, 1:00:00"),
            (100, "0:01:40"),
        ] {
            assert_eq!(span(seconds), text);
        }
        for (kib, text) in [
            (1023, "1023 kB"),
            (102_399, "100 MB"),
            (1_048_575, "1024 MB"),
            (10_485_760, "10 GB"),
            (10_000_000_000, "9 TB"),
        ] {
            assert_eq!(units(kib), text);
        }
    }
}
