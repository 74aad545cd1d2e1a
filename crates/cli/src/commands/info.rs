//! `extant info`: superblock, features, journal and usage of a file system.

use crate::context::Context;
use crate::failure::Result;
use crate::image::ReadArgs;
use crate::text::{count, seconds, size, uuid};
use extant_engine::format::{ErrorPolicy, JournalSuperblock, State, Superblock};
use extant_engine::{Fs, Usage};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};

/// Show superblock, features, journal and usage
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
}

/// Values that the command prints.
struct Info {
    superblock: Superblock,
    /// The journal's superblock, or why it cannot be read.
    journal: Result<Option<JournalSuperblock>, String>,
    usage: Usage,
    needs_recovery: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    // A damaged journal hides nothing else.
    let journal = fs.journal_superblock().map_err(|e| e.to_string());
    let info = Info {
        superblock: fs.superblock(),
        journal,
        usage: fs.usage(),
        needs_recovery: needs_recovery(&fs),
    };
    if context.json { context.document(&document(&info)) } else { print(&info) }
}

fn needs_recovery(fs: &Fs) -> bool {
    fs.superblock().features().names().iter().any(|name| name == "needs_recovery")
}

fn state(sb: &Superblock) -> Vec<&'static str> {
    let state = sb.state();
    let mut words = vec![if state.contains(State::VALID) { "clean" } else { "not clean" }];
    if state.contains(State::ERROR) {
        words.push("with errors");
    }
    if state.contains(State::ORPHANS) {
        words.push("orphans being recovered");
    }
    words
}

fn policy(sb: &Superblock) -> &'static str {
    match sb.error_policy() {
        ErrorPolicy::Continue => "continue",
        ErrorPolicy::RemountReadOnly => "remount read-only",
        ErrorPolicy::Panic => "panic",
    }
}

fn cluster_size(sb: &Superblock) -> u64 {
    1024u64.checked_shl(sb.log_cluster_size()).unwrap_or(0)
}

fn groups(sb: &Superblock) -> u64 {
    let blocks = sb.blocks_count().saturating_sub(sb.first_data_block().into());
    blocks.div_ceil(u64::from(sb.blocks_per_group()).max(1))
}

fn document(info: &Info) -> Value {
    let sb = &info.superblock;
    let block = u64::from(sb.block_size());
    json!({
        "label": sb.volume_name(),
        "uuid": uuid(sb.uuid()),
        "state": state(sb),
        "needs_recovery": info.needs_recovery,
        "errors": { "policy": policy(sb), "count": sb.error_count() },
        "features": sb.features().names(),
        "block_size": block,
        "cluster_size": cluster_size(sb),
        "blocks": sb.blocks_count(),
        "reserved_blocks": sb.r_blocks_count(),
        "groups": groups(sb),
        "blocks_per_group": sb.blocks_per_group(),
        "inodes_per_group": sb.inodes_per_group(),
        "inode_size": sb.inode_size(),
        "usage": {
            "blocks": info.usage.blocks,
            "free_blocks": info.usage.free,
            "available_blocks": info.usage.available,
            "inodes": info.usage.inodes,
            "free_inodes": info.usage.inodes_free,
            "bytes": info.usage.blocks.saturating_mul(block),
            "free_bytes": info.usage.free.saturating_mul(block),
        },
        "made": sb.mkfs_time(),
        "last_mount": sb.mtime(),
        "last_write": sb.wtime(),
        "last_check": sb.lastcheck(),
        "last_mounted_on": sb.last_mounted(),
        "mount_count": sb.mnt_count(),
        "lifetime_kib_written": sb.kbytes_written(),
        "journal": info.journal.as_ref().ok().and_then(Option::as_ref).map(journal_document),
        "journal_error": info.journal.as_ref().err(),
    })
}

fn journal_document(journal: &JournalSuperblock) -> Value {
    json!({
        "block_size": journal.block_size(),
        "blocks": journal.max_len(),
        "first_block": journal.first(),
        "sequence": journal.sequence(),
        "start": journal.start(),
        "errno": journal.errno(),
        "fast_commit_blocks": journal.fast_commit_blocks(),
        "features": journal_features(journal),
    })
}

fn journal_features(journal: &JournalSuperblock) -> Vec<String> {
    let compat = journal.compat();
    let compat = compat.iter_names().map(|(name, _)| name.to_lowercase());
    compat.chain(journal.incompat().names()).collect()
}

fn day(sec: u64) -> String {
    match sec {
        0 => "never".into(),
        sec => format!("{} UTC", seconds(i64::try_from(sec).unwrap_or(i64::MAX))),
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".into() } else { crate::text::shown(text.as_bytes()) }
}

fn print(info: &Info) -> Result {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let rows = identity(&info.superblock, info.needs_recovery)
        .into_iter()
        .chain(sizes(info))
        .chain(history(info));
    for (name, value) in rows {
        writeln!(out, "{name:<10} {value}")?;
    }
    Ok(out.flush()?)
}

/// Name and value of a line.
type Row = (&'static str, String);

fn identity(sb: &Superblock, needs_recovery: bool) -> Vec<Row> {
    let mut state = state(sb);
    state.extend(needs_recovery.then_some("needs recovery"));
    vec![
        ("Label", or_none(sb.volume_name())),
        ("UUID", uuid(sb.uuid())),
        ("State", state.join(", ")),
        ("On errors", format!("{} ({} so far)", policy(sb), sb.error_count())),
        ("Features", sb.features().names().join(" ")),
    ]
}

fn sizes(info: &Info) -> Vec<Row> {
    let (sb, usage) = (&info.superblock, &info.usage);
    let block = u64::from(sb.block_size());
    let bytes = |blocks: u64| size(blocks.saturating_mul(block));
    let used = usage.blocks.saturating_sub(usage.free);
    let inodes_used = usage.inodes.saturating_sub(usage.inodes_free);
    let in_group = [(sb.blocks_per_group(), "block"), (sb.inodes_per_group(), "inode")];
    let in_group = in_group.map(|(number, what)| count(number.into(), what));
    let clusters = match cluster_size(sb) {
        cluster if cluster == block => String::new(),
        cluster => format!(", in clusters of {}", size(cluster)),
    };
    let total = count(sb.blocks_count(), "block");
    vec![
        ("Size", format!("{} ({total} of {}{clusters})", bytes(sb.blocks_count()), size(block))),
        (
            "Used",
            format!(
                "{} of {} ({:.1}%)",
                bytes(used),
                bytes(usage.blocks),
                percent(used, usage.blocks)
            ),
        ),
        (
            "Available",
            format!("{}, and {} for root", bytes(usage.available), bytes(sb.r_blocks_count())),
        ),
        (
            "Inodes",
            format!("{inodes_used} of {} used, {} bytes each", usage.inodes, sb.inode_size()),
        ),
        ("Groups", format!("{} of {}", groups(sb), in_group.join(" and "))),
        ("Journal", journal_row(&info.journal)),
    ]
}

fn history(info: &Info) -> Vec<Row> {
    let sb = &info.superblock;
    let mounted = match sb.mtime() {
        0 => "never".into(),
        time => format!("{}, on {}", day(time), or_none(sb.last_mounted())),
    };
    let written = size(sb.kbytes_written().saturating_mul(1024));
    vec![
        ("Made", day(sb.mkfs_time())),
        (
            "Mounted",
            format!("{mounted}; {} since the last check", count(sb.mnt_count().into(), "time")),
        ),
        ("Written", format!("{}; {written} in its life", day(sb.wtime()))),
        ("Checked", day(sb.lastcheck())),
    ]
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn journal_row(journal: &Result<Option<JournalSuperblock>, String>) -> String {
    match journal {
        Ok(Some(journal)) => journal_text(journal),
        Ok(None) => "none".into(),
        Err(why) => format!("cannot be read: {}", crate::text::shown(why.as_bytes())),
    }
}

fn journal_text(journal: &JournalSuperblock) -> String {
    let bytes = u64::from(journal.max_len()).saturating_mul(journal.block_size().into());
    let state = match journal.start() {
        0 => "empty".to_string(),
        start => format!("in use from block {start}"),
    };
    let names = journal_features(journal);
    let features = if names.is_empty() { String::new() } else { format!(", {}", names.join(" ")) };
    format!("{}, {state}, sequence {}{features}", size(bytes), journal.sequence())
}
