//! Result of the recovery at opening, as text and as JSON.

use crate::text::count;
use extant_engine::Recovery;
use extant_engine::journal::{Dropped, Outcome};
use serde_json::{Map, Value, json};

/// Describes the replay; `None` if there was none.
pub fn replayed(recovery: &Recovery) -> Option<String> {
    let journal = recovery.journal.as_ref().filter(|journal| journal.transactions > 0)?;
    let what = count(journal.transactions.into(), "transaction");
    Some(format!("replayed {what} ({}) of the journal", count(journal.blocks, "block")))
}

/// Describes the reason for dropped transactions at the end of the log.
pub fn dropped(outcome: &Outcome) -> Option<&'static str> {
    outcome.dropped.map(|why| match why {
        Dropped::Torn => "a transaction without a commit record, as a crash leaves it",
        Dropped::CommitChecksum => "a transaction whose commit record has a wrong checksum",
        Dropped::Stale => "blocks of an earlier use of the journal",
        Dropped::Incomplete => "a last transaction whose blocks did not all arrive",
    })
}

/// Returns the recovery for the JSON document.
pub fn document(recovery: &Recovery) -> Map<String, Value> {
    let journal = recovery.journal.as_ref().map(|journal| {
        json!({
            "transactions": journal.transactions,
            "blocks": journal.blocks,
            "revoked": journal.revoked,
            "fast_records": journal.fast_records,
            "first_sequence": journal.first,
            "end_sequence": journal.end,
            "dropped": dropped(journal),
            "errno": journal.errno,
        })
    });
    let orphans = &recovery.orphans;
    let orphans = json!({
        "freed": orphans.freed,
        "truncated": orphans.truncated,
        "invalid": orphans.invalid,
        "kept": orphans.kept,
    });
    let mut document = Map::new();
    document.insert("was_in_use".into(), recovery.was_in_use.into());
    document.insert("journal".into(), journal.into());
    document.insert("journal_emptied".into(), recovery.log_emptied.into());
    document.insert("orphans".into(), orphans);
    document
}

/// Returns the recovery as lines of text; none if there was nothing to do.
pub fn lines(recovery: &Recovery) -> Vec<String> {
    let mut lines = recovery.journal.as_ref().map(journal_lines).unwrap_or_default();
    if recovery.log_emptied {
        lines.push("emptied a journal whose changes are older than the file system".into());
    }
    let orphans = &recovery.orphans;
    if orphans.freed > 0 {
        lines.push(format!("freed {} without a name", count(orphans.freed, "inode")));
    }
    if orphans.truncated > 0 {
        lines.push(format!("completed the truncation of {}", count(orphans.truncated, "file")));
    }
    if orphans.invalid > 0 {
        lines.push(format!(
            "dropped {} without a valid inode",
            count(orphans.invalid, "orphan record")
        ));
    }
    if orphans.kept > 0 {
        let records = count(orphans.kept, "orphan record");
        lines.push(format!(
            "kept {records} whose inodes could not be recovered: the file system needs a check"
        ));
    }
    if lines.is_empty() && recovery.was_in_use {
        lines.push(
            "marked clean a file system that was not unmounted: its journal held no changes".into(),
        );
    }
    lines
}

fn journal_lines(journal: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    if journal.transactions > 0 {
        lines.push(format!(
            "replayed {}: {} written, {} revoked",
            count(journal.transactions.into(), "transaction"),
            count(journal.blocks, "block"),
            count(journal.revoked, "copy").replace("copys", "copies"),
        ));
    }
    if journal.fast_records > 0 {
        lines.push(format!("replayed {} of fast commits", count(journal.fast_records, "record")));
    }
    if let Some(what) = dropped(journal) {
        lines.push(format!("dropped {what}"));
    }
    if journal.errno != 0 {
        let errno = journal.errno;
        lines.push(format!(
            "found that the journal was aborted with error {errno}: the file system needs a check"
        ));
    }
    lines
}
