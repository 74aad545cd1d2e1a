//! The journal: superblock, transactions, and blocks as of a transaction.

use super::JournalArgs;
use super::out::{Out, Record};
use super::volume::content;
use crate::text::uuid;
use extant_check::debug::{Inspector, JournalLog, LoggedTransaction, TransactionState};
use std::io;

/// Prints the journal.
pub fn journal(inspector: &Inspector, args: &JournalArgs, out: &mut Out) -> io::Result<()> {
    let log = match inspector.journal() {
        Ok(log) => log,
        Err(error) => return out.problem(&error.to_string()),
    };
    if let Some(block) = args.block {
        return earlier(&log, block, args, out);
    }
    superblock(&log, out)?;
    for found in log.transactions() {
        if args.all || found.state != TransactionState::Done {
            transaction(&log, found, out)?;
        }
    }
    out.problems(log.problems())
}

fn superblock(log: &JournalLog<'_>, out: &mut Out) -> io::Result<()> {
    let sb = log.superblock();
    let compat = sb.compat().iter_names().map(|(name, _)| name.to_lowercase());
    let features: Vec<String> = compat.chain(sb.incompat().names()).collect();
    let in_log = log.transactions().count();
    let state = |state| log.transactions().filter(|found| found.state == state).count();
    out.record(
        &Record::new()
            .with("kind", "superblock")
            .with("checksum", log.checksum().name())
            .with("version", if sb.is_v2() { 2 } else { 1 })
            .with("block_size", sb.block_size())
            .with("blocks", sb.max_len())
            .with("first", sb.first())
            .with("sequence", sb.sequence())
            .with("start", sb.start())
            .with("errno", sb.errno())
            .with("features", features)
            .with("uuid", uuid(sb.uuid()))
            .with("users", sb.nr_users())
            .with("fast_commit_blocks", sb.fast_commit_blocks())
            .with("head", sb.head())
            .with("transactions", in_log)
            .with("pending", state(TransactionState::Pending))
            .with("incomplete", state(TransactionState::Incomplete)),
    )
}

fn transaction(log: &JournalLog<'_>, found: &LoggedTransaction, out: &mut Out) -> io::Result<()> {
    let blocks = found.blocks.iter().map(|copy| {
        let checksum = log.content(copy).map(|(_, checksum)| checksum.name());
        Record::new()
            .with("block", copy.block)
            .with("at", copy.at)
            .with("flags", copy.flags)
            .with("checksum", checksum.ok())
    });
    let blocks: Vec<Record> = blocks.collect();
    let mut revoked = Vec::new();
    log.revoked(found, &mut |block| revoked.push(block));
    let record = Record::new()
        .with("kind", "transaction")
        .with("sequence", found.sequence)
        .with("state", found.state.name())
        .with("first", found.headers.first().map(|(at, _)| *at))
        .with("damaged", found.is_damaged)
        .with("copies", blocks.len())
        .with("overwritten", found.overwritten)
        .with("revoked", revoked);
    let record = match found.committed {
        Some(time) => record.time("committed", time),
        None => record.with("committed", None::<u32>),
    };
    out.line(&record.list("blocks", blocks))
}

/// Prints a block of the file system as of a transaction.
fn earlier(log: &JournalLog<'_>, block: u64, args: &JournalArgs, out: &mut Out) -> io::Result<()> {
    let Some(copy) = log.copy_as_of(block, args.as_of) else {
        let up_to = args.as_of.map_or(String::new(), |last| format!(" up to {last}"));
        return out.problem(&format!(
            "block {block} is in no committed transaction{up_to} of the journal; \
             `block {block}` shows it as it is on the disk"
        ));
    };
    let (bytes, checksum) = match log.content(&copy) {
        Ok(found) => found,
        Err(error) => return out.problem(&error.to_string()),
    };
    if !args.raw {
        out.line(
            &Record::new()
                .with("block", block)
                .with("sequence", copy.sequence)
                .with("at", copy.at)
                .with("checksum", checksum.name()),
        )?;
    }
    content(block, &bytes, args.raw, out)
}
