//! `extant info`: what a file system says of itself.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::ImageArgs;
use crate::text::{count, seconds, size, uuid};
use extant::format::{ErrorPolicy, JournalSuperblock, State, Superblock};
use extant::{Fs, Usage};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};

/// Show superblock, features, journal and usage
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
}

/// What is shown.
struct Info {
    superblock: Superblock,
    journal: Option<JournalSuperblock>,
    usage: Usage,
    needs_recovery: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let journal = fs.journal_superblock().at(format_args!("{}: journal", args.image.name()))?;
    let info = Info { superblock: fs.superblock(), journal, usage: fs.usage(), needs_recovery: needs_recovery(&fs) };
    match context.json {
        true => context.document(&document(&info)),
        false => print(&info),
    }
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
        "journal": info.journal.as_ref().map(journal_document),
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
    let sb = &info.superblock;
    let block = u64::from(sb.block_size());
    let used = info.usage.blocks.saturating_sub(info.usage.free);
    let mut line = |name: &str, value: String| writeln!(out, "{name:<12} {value}");
    line("Label", or_none(sb.volume_name()))?;
    line("UUID", uuid(sb.uuid()))?;
    line("State", format!("{}{}", state(sb).join(", "), if info.needs_recovery { ", needs recovery" } else { "" }))?;
    line("On errors", format!("{} ({} so far)", policy(sb), sb.error_count()))?;
    line("Features", sb.features().names().join(" "))?;
    line("Size", format!("{} ({} of {})", size(sb.blocks_count().saturating_mul(block)), count(sb.blocks_count(), "block"), size(block)))?;
    if cluster_size(sb) != block {
        line("Clusters", size(cluster_size(sb)))?;
    }
    line("Used", format!("{} of {} ({:.1}%)", size(used.saturating_mul(block)), size(info.usage.blocks.saturating_mul(block)), percent(used, info.usage.blocks)))?;
    line("Available", format!("{}, and {} for root", size(info.usage.available.saturating_mul(block)), size(sb.r_blocks_count().saturating_mul(block))))?;
    let inodes_used = info.usage.inodes.saturating_sub(info.usage.inodes_free);
    line("Inodes", format!("{inodes_used} of {} used, {} bytes each", info.usage.inodes, sb.inode_size()))?;
    line("Groups", format!("{} of {} and {}", groups(sb), count(sb.blocks_per_group().into(), "block"), count(sb.inodes_per_group().into(), "inode")))?;
    match &info.journal {
        Some(journal) => line("Journal", journal_text(journal))?,
        None => line("Journal", "none".into())?,
    }
    line("Made", day(sb.mkfs_time()))?;
    line("Mounted", format!("{}, {}, last on {}", day(sb.mtime()), count(sb.mnt_count().into(), "time"), or_none(sb.last_mounted())))?;
    line("Written", format!("{}, {} in its life", day(sb.wtime()), size(sb.kbytes_written().saturating_mul(1024))))?;
    line("Checked", day(sb.lastcheck()))?;
    Ok(out.flush()?)
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
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
