//! `extant recover`: an image made whole after a crash.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::text::count;
use extant::device::{BlockDevice, OverlayDevice, image_spec};
use extant::journal::{Dropped, Outcome};
use extant::{Fs, OpenOptions, Recovery};
use serde_json::{Value, json};
use std::sync::Arc;

/// Replay the journal and finish what a crash interrupted.
///
/// A last transaction that was torn by the crash is the usual case: it is dropped, and the file system is as it was before it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Recover in memory only, and tell what would be done
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// Memory that a recovery on trial may take for what it would write.
const TRIAL_BYTES: usize = 1 << 30;

/// Unit of what a recovery on trial keeps.
const TRIAL_BLOCK: usize = 4096;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = match args.dry_run {
        true => on_trial(args)?,
        false => args.image.open(&OpenOptions::new())?,
    };
    let recovery = fs.recovery().clone();
    if let Some(why) = &recovery.read_only {
        return Err(Failure::new(format_args!("{} cannot be recovered: {why}", args.image.name())));
    }
    args.image.close(fs)?;
    match context.json {
        true => context.document(&document(&recovery, args.dry_run)),
        false => {
            tell(args, context, &recovery);
            Ok(())
        }
    }
}

/// Opens an image for writing whose writes stay in memory.
fn on_trial(args: &Args) -> Result<Fs> {
    let reading = OpenOptions::new().read_only(true).wait(args.image.wait);
    let base = reading.device_of(&image_spec(&args.image.image)).map_err(|e| args.image.refused(&e))?;
    let trial = OverlayDevice::new(base, TRIAL_BLOCK, TRIAL_BYTES);
    let device: Arc<dyn BlockDevice> = Arc::new(trial);
    let mut options = args.image.with_memory(OpenOptions::new());
    if let Some(path) = &args.image.journal {
        let base = reading.device_of(&image_spec(path)).map_err(|e| args.image.refused(&e))?;
        options = options.journal_on(Arc::new(OverlayDevice::new(base, TRIAL_BLOCK, TRIAL_BYTES)));
    }
    Fs::open_device(device, &options).at(args.image.name())
}

fn dropped(outcome: &Outcome) -> Option<&'static str> {
    outcome.dropped.map(|why| match why {
        Dropped::Torn => "a transaction without a commit record, as a crash leaves it",
        Dropped::CommitChecksum => "a transaction whose commit record has a wrong checksum",
        Dropped::Stale => "blocks of an earlier use of the journal",
        Dropped::Incomplete => "a last transaction whose blocks did not all arrive",
    })
}

fn document(recovery: &Recovery, dry_run: bool) -> Value {
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
    json!({
        "dry_run": dry_run,
        "journal": journal,
        "orphans": {
            "freed": orphans.freed,
            "truncated": orphans.truncated,
            "invalid": orphans.invalid,
            "kept": orphans.kept,
        },
    })
}

fn tell(args: &Args, context: &Context, recovery: &Recovery) {
    let name = args.image.name();
    let would = if args.dry_run { "would have " } else { "" };
    let mut quiet = true;
    let mut say = |text: String| {
        quiet = false;
        context.note(format_args!("{name}: {would}{text}"));
    };
    if let Some(journal) = &recovery.journal {
        if journal.transactions > 0 {
            say(format!(
                "replayed {}: {} written, {} revoked",
                count(journal.transactions.into(), "transaction"),
                count(journal.blocks, "block"),
                count(journal.revoked, "copy").replace("copys", "copies"),
            ));
        }
        if journal.fast_records > 0 {
            say(format!("replayed {} of fast commits", count(journal.fast_records, "record")));
        }
        if let Some(what) = dropped(journal) {
            say(format!("dropped {what}"));
        }
        if journal.errno != 0 {
            say(format!(
                "found that the journal was aborted with error {}: the file system wants a check",
                journal.errno
            ));
        }
    }
    let orphans = &recovery.orphans;
    if orphans.freed > 0 {
        say(format!("freed {} that had no name any more", count(orphans.freed, "inode")));
    }
    if orphans.truncated > 0 {
        say(format!("finished cutting {}", count(orphans.truncated, "file")));
    }
    if orphans.invalid > 0 {
        say(format!("dropped {} that named nothing valid", count(orphans.invalid, "orphan record")));
    }
    if orphans.kept > 0 {
        let records = count(orphans.kept, "orphan record");
        say(format!("kept {records} whose inodes could not be recovered: the file system wants a check"));
    }
    if quiet {
        context.note(format_args!("{name}: nothing to recover"));
    }
}
