//! The request `logdump`.

use super::requests::{Answer, Refusal, Request};
use extant_check::debug::{JournalLog, LoggedTransaction, TransactionState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// Prints the log from its start on.
pub fn logdump(request: &mut Request<'_>) -> Answer {
    let (all, wanted) = options(request)?;
    let log = request.inspector.journal().map_err(|error| Refusal::Message(error.to_string()))?;
    let sb = log.superblock();
    writeln!(request.out, "Journal starts at block {}, transaction {}", sb.start(), sb.sequence())?;
    if sb.start() == 0 {
        return Ok(());
    }
    let mut last = None;
    for found in log.transactions().filter(|found| found.state != TransactionState::Done) {
        transaction(request.out, &log, found, (all, wanted))?;
        last = found.headers.last().map(|(at, _)| at.saturating_add(1)).or(last);
    }
    if let Some(next) = last {
        writeln!(request.out, "No magic number at block {next}: end of journal.")?;
    }
    Ok(())
}

/// Returns whether all is to be shown, and the block that is.
fn options(request: &Request<'_>) -> Result<(bool, Option<u64>), Refusal> {
    let (mut all, mut wanted) = (false, None);
    let mut words = request.words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-a" => all = true,
            b"-b" => {
                let block = words.next().ok_or_else(|| request.usage("[-a] [-b <block>]"))?;
                wanted = Some(request.number("block number", block)?);
            }
            // Old transactions and superblocks are in `extant debug IMAGE journal --all`.
            b"-c" | b"-O" | b"-S" => {}
            _ => return Err(request.usage("[-a] [-b <block>]")),
        }
    }
    Ok((all, wanted))
}

fn transaction(
    out: &mut dyn Write,
    log: &JournalLog<'_>,
    found: &LoggedTransaction,
    (all, wanted): (bool, Option<u64>),
) -> io::Result<()> {
    let sequence = found.sequence;
    for (at, kind) in &found.headers {
        let name = match kind {
            1 => "descriptor block",
            2 => "commit block",
            _ => "revoke table",
        };
        if wanted.is_none() {
            let expected = format!("Found expected sequence {sequence}, type {kind} ({name})");
            writeln!(out, "{expected} at block {at}")?;
        }
        if *kind == 1 && all {
            writeln!(out, "Dumping descriptor block, sequence {sequence}, at block {at}:")?;
        }
        for copy in found.blocks.iter().filter(|copy| copy.descriptor == *at && *kind == 1) {
            let flags = format!("(flags 0x{:x})", copy.flags);
            let place = copy.at;
            if all {
                writeln!(out, "  FS block {} logged at journal block {place} {flags}", copy.block)?;
            } else if wanted == Some(copy.block) {
                let block = copy.block;
                let place = format!("sequence {sequence}, journal block {place}");
                writeln!(out, "  FS block {block} logged at {place} {flags}")?;
            }
        }
        if *kind == 5 && all {
            writeln!(out, "Dumping revoke block, sequence {sequence}, at block {at}:")?;
            let mut written = Ok(());
            log.revoked(found, &mut |block| {
                if written.is_ok() {
                    written = writeln!(out, "  Revoke FS block {block}");
                }
            });
            written?;
        }
    }
    Ok(())
}
