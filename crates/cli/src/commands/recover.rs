//! `extant recover`: an image made whole after a crash.

use super::repair::open_for_writing;
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_checked;
use crate::image::ImageArgs;
use crate::interrupt::Interrupt;
use crate::recovery;
use crate::sandbox::command::Preparation;
use crate::text::{count, shown};
use extant_check::{RedoError, finish_redo};
use extant_engine::device::{BlockDevice, OverlayDevice, image_spec};
use extant_engine::{Fs, OpenOptions, Recovery};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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
    /// Complete an interrupted change that no journal makes whole, from the file that --redo of
    /// `apply`, `repair`, `resize` or `tune` named
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    redo: Option<PathBuf>,
}

/// Memory for the writes of a trial recovery, in bytes.
const TRIAL_BYTES: usize = 1 << 30;

/// Unit in which a trial recovery stores writes, in bytes.
const TRIAL_BLOCK: usize = 4096;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if let Some(file) = &args.redo {
        return complete(&args.image, file, context);
    }
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

/// Completes the change of a redo file.
fn complete(image: &ImageArgs, path: &Path, context: &Context) -> Result {
    image.contain(context, Preparation::writing(true).reading(path))?;
    let device = open_for_writing(image, &image.spec())?;
    let (name, shown) = (image.name(), shown(path.as_os_str().as_bytes()));
    let mut file = File::open(path).at_path(path.as_os_str().as_bytes())?;
    let stop = Interrupt::register().at("signals")?.flag();
    let blocks = while_checked(image, &device, &stop, |claim| {
        finish_redo(&*claim.device(), &mut file).map_err(|error| {
            let advice = match error {
                RedoError::Changed(_) => format!("; `extant repair {name}` makes it consistent"),
                RedoError::Partly(_) => "; run it again".into(),
                _ => String::new(),
            };
            Failure::new(format_args!("{name}: {shown}: {error}{advice}"))
        })
    })?;
    if context.json {
        return context.document(&json!({ "redo": shown, "blocks": blocks }));
    }
    let done = match blocks {
        0 => "the change was made already".into(),
        _ => format!("completed a change of {}", count(blocks, "block")),
    };
    context.note(format_args!("{name}: {done}; {shown} can be removed"));
    Ok(())
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
