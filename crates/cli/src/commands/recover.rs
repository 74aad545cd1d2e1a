//! `extant recover`: an image made whole after a crash.

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::image::ImageArgs;
use crate::recovery;
use crate::sandbox::command::Preparation;
use extant_engine::device::{BlockDevice, OverlayDevice, image_spec};
use extant_engine::{Fs, OpenOptions, Recovery};
use serde_json::Value;
use std::sync::Arc;

/// Replay the journal and complete interrupted operations.
///
/// Usually the last transaction is torn by the crash: it is dropped, and the file system is in the
/// state before it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Recover in memory only, and print the result
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// Memory for the writes of a trial recovery, in bytes.
const TRIAL_BYTES: usize = 1 << 30;

/// Unit in which a trial recovery stores writes, in bytes.
const TRIAL_BLOCK: usize = 4096;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.contain_alone(context, Preparation::writing(!args.dry_run))?;
    let fs = if args.dry_run {
        on_trial(args)?
    } else {
        args.image.open(&OpenOptions::new().count_mount(false))?
    };
    let recovered = fs.recovery().clone();
    if let Some(why) = &recovered.read_only {
        return Err(Failure::new(format_args!("{} cannot be recovered: {why}", args.image.name())));
    }
    args.image.close(fs)?;
    if context.json {
        context.document(&document(&recovered, args.dry_run))
    } else {
        tell(args, context, &recovered);
        Ok(())
    }
}

/// Opens an image for writing whose writes stay in memory.
fn on_trial(args: &Args) -> Result<Fs> {
    let reading = OpenOptions::new().read_only(true).wait(args.image.wait);
    let base = reading.device_of(&args.image.spec()).map_err(|e| args.image.refused(&e))?;
    let trial = OverlayDevice::new(base, TRIAL_BLOCK, TRIAL_BYTES);
    let device: Arc<dyn BlockDevice> = Arc::new(trial);
    let mut options = args.image.with_memory(OpenOptions::new().count_mount(false));
    if let Some(path) = &args.image.journal {
        let base = reading.device_of(&image_spec(path)).map_err(|e| args.image.refused(&e))?;
        options = options.journal_on(Arc::new(OverlayDevice::new(base, TRIAL_BLOCK, TRIAL_BYTES)));
    }
    let fs = Fs::open_device(device, &options).map_err(|e| args.image.refused(&e))?;
    #[cfg(debug_assertions)]
    crate::planted::strike(&fs.superblock());
    Ok(fs)
}

fn document(recovery: &Recovery, dry_run: bool) -> Value {
    let mut document = recovery::document(recovery);
    document.insert("dry_run".into(), dry_run.into());
    Value::Object(document)
}

fn tell(args: &Args, context: &Context, recovery: &Recovery) {
    let name = args.image.name();
    let would = if args.dry_run { "would have " } else { "" };
    let lines = recovery::lines(recovery);
    for line in &lines {
        context.note(format_args!("{name}: {would}{line}"));
    }
    if lines.is_empty() {
        context.note(format_args!("{name}: nothing to recover"));
    }
}
