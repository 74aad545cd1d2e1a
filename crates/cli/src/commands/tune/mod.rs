//! `extant tune`: label, UUID and other values of the superblock, features, journal, quota files.
//!
//! The short options are those of tune2fs(8), under whose name the program runs this command.

mod extended;
mod uuid;
mod values;

pub use values::parse_time;

use super::repair::open_for_writing;
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_claimed;
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json::put_bytes;
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_check::edit::EditError;
use extant_check::repair::{OfflineError, chosen_superblock};
use extant_check::tune::{JournalSize, ReservedShare, Tune, TuneChanges, TuneError};
use extant_engine::device::{BlockDevice, ImageSpec, identify, image_spec};
use extant_engine::format::{MAGIC_FIELD, Superblock};
use extant_engine::{Errno, Error, HostClaim, OpenOptions};
use extended::Extended;
use serde_json::Map;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Show or change label, UUID, features and other values of the superblock.
///
/// Without an option the values are printed. All changes of a call are made wholly or not at all,
/// with the copies of the superblock: with a journal in one transaction, else by the write of the
/// superblock, which the copies follow. Features change with the structures that they stand for,
/// such as all checksums, after a check of the file system; a journal in the same call is a step of
/// its own. An image that must be recovered or repaired first is refused.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long, value_name = "TEXT")]
    label: Option<OsString>,
    /// UUID: `random`, `time`, `clear`, or its text. Checksums of metadata keep their seed
    /// (`metadata_csum_seed`)
    #[arg(short = 'U', long, value_name = "UUID", value_parser = uuid::parse)]
    uuid: Option<uuid::Chosen>,
    /// Percent of the blocks that are reserved, 0 to 50
    #[arg(short = 'm', long, value_name = "PERCENT", conflicts_with = "reserved_blocks")]
    reserved_percent: Option<f64>,
    /// Number of reserved blocks, at most half of all
    #[arg(short = 'r', long, value_name = "COUNT")]
    reserved_blocks: Option<u64>,
    /// User that may use reserved blocks, as a number
    #[arg(short = 'u', long, value_name = "UID")]
    reserved_uid: Option<u16>,
    /// Group that may use reserved blocks, as a number
    #[arg(short = 'g', long, value_name = "GID")]
    reserved_gid: Option<u16>,
    /// Behavior of the kernel on errors
    #[arg(short = 'e', long, value_name = "WHAT")]
    #[arg(value_parser = ["continue", "remount-ro", "panic"])]
    errors: Option<String>,
    /// Names of default mount options to set, or with ^ to clear, separated by commas
    #[arg(short = 'o', long, value_name = "NAMES", allow_hyphen_values = true)]
    default_mount_options: Option<String>,
    /// Text of further mount options, at most 63 bytes; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    mount_options: Option<OsString>,
    /// Mounts until the kernel asks for a check, at most 16000; 0 or -1 for no limit
    #[arg(short = 'c', long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=16000))]
    max_mount_count: Option<i32>,
    /// Mounts since the last check, at most 16000
    #[arg(short = 'C', long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=16000))]
    mount_count: Option<u16>,
    /// Time between checks: days, or with s, d, w or m seconds, days, weeks or months of 30 days; 0
    /// for no limit
    #[arg(short = 'i', long, value_name = "TIME", value_parser = values::parse_interval)]
    check_interval: Option<u32>,
    /// Time of the last check: `now`, or YYYYMMDD[hh[mm[ss]]] in UTC
    #[arg(long, value_name = "TIME", value_parser = values::parse_time)]
    last_checked: Option<u64>,
    /// Names of features to set, or with ^ to clear, separated by commas
    #[arg(short = 'O', long, value_name = "NAMES", allow_hyphen_values = true)]
    features: Option<String>,
    /// Bytes of the journal: of a new one, or another length of that in the file system
    #[arg(long, value_name = "SIZE", value_parser = values::parse_bytes)]
    journal_size: Option<u64>,
    /// Move the journal to this device or image file, whose journal no file system uses: `mke2fs -O
    /// journal_dev` makes one. With --journal and a size it moves back
    #[arg(long, value_name = "PATH", conflicts_with = "journal_size")]
    journal_device: Option<PathBuf>,
    /// Kinds of quota files to add, or with ^ to remove, separated by commas: usrquota, grpquota,
    /// prjquota
    #[arg(short = 'Q', long, value_name = "KINDS", allow_hyphen_values = true)]
    quota: Option<String>,
    /// Seconds between updates of the block of multi-mount protection, at most 300; 0 for 5
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=300))]
    mmp_update_interval: Option<u16>,
    /// End the claim of multi-mount protection that a killed repair has left. The block is watched
    /// before, since another host may write it
    #[arg(long)]
    clear_mmp: bool,
    /// End the claim without a watch, and so that of a host that uses the file system, too
    #[arg(short, long)]
    force: bool,
    /// Add a journal, as tune2fs does
    #[arg(short = 'j', hide = true)]
    add_journal: bool,
    /// `size=MIB` or `device=PATH`, as tune2fs has them for --journal-size and --journal-device
    #[arg(short = 'J', hide = true, value_name = "OPTION")]
    #[arg(conflicts_with_all = ["journal_size", "journal_device"])]
    journal_option: Option<OsString>,
    /// `mmp_update_interval=N`, `clear_mmp` and `mount_opts=TEXT`, as tune2fs has them, separated
    /// by commas
    #[arg(short = 'E', hide = true, value_name = "OPTIONS")]
    extended: Vec<OsString>,
    /// Print the values, as without an option
    #[arg(short = 'l', hide = true)]
    list: bool,
    /// Print the label and nothing else, as e2label does
    #[arg(long, hide = true)]
    only_label: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = args.on.named();
    let extended = Extended::parse(&args.extended)?;
    let changes = args.changes(&extended)?;
    let clears = args.clear_mmp || extended.clear_mmp;
    if args.force && !clears {
        return Err(Failure::usage("--force: only --clear-mmp has a use for it"));
    }
    let has_changes = changes != TuneChanges::default();
    let writes = has_changes || clears;
    let destination = args.destination();
    let mut sandbox = Preparation::writing(writes);
    if let Some(path) = &destination {
        sandbox = sandbox.writing_to(path);
    }
    image.contain_alone(context, sandbox)?;
    if !writes {
        let options = OpenOptions::new().read_only(true).skip_damaged_log(true);
        let superblock = image.open(&options)?.superblock();
        if args.only_label {
            println!("{}", shown(superblock.volume_name().as_bytes()));
            return Ok(());
        }
        return tell(&image, context, &superblock, &[]);
    }
    let open = |spec: &ImageSpec| {
        open_for_writing(&image, spec).map_err(|failure| failure.with_exit_code(1))
    };
    let device = open(&image.spec())?;
    let journal = args.on.journal.as_ref().map(|path| open(&image_spec(path))).transpose()?;
    let new_journal = destination.map(|path| open(&image_spec(&path))).transpose()?;
    let interrupt = Interrupt::register().at("signals")?;
    let mut changed = values::names(&changes);
    if clears {
        let (superblock, is_cleared) = clear_claim(&image, &device, !args.force, &interrupt)?;
        if is_cleared {
            changed.push("mmp_claim");
        } else {
            context.note(format_args!("{}: no host has left a claim", image.name()));
        }
        if !has_changes {
            let is_told = !is_cleared && !context.json;
            return if is_told { Ok(()) } else { tell(&image, context, &superblock, &changed) };
        }
    }
    let superblock = while_claimed(&image, &device, &interrupt.flag(), |claim| {
        if interrupt.restore_default() {
            return Err(image.refused(&Errno::Intr.into()));
        }
        let mut tune = Tune::new(claim.device()).threads(context.thread_count());
        if let Some(journal) = journal {
            tune = tune.journal(journal);
        }
        if let Some(journal) = new_journal {
            tune = tune.new_journal(journal);
        }
        tune.apply(&changes).map_err(|error| {
            let foreign = match &error {
                TuneError::Corrupt(corrupt) if corrupt.field_name() == Some(MAGIC_FIELD) => {
                    identify(&*device).map(Error::Foreign)
                }
                _ => None,
            };
            foreign.map_or_else(|| failure(&image, error), |foreign| image.refused(&foreign))
        })
    })?;
    tell(&image, context, &superblock, &changed)
}

/// Ends the claim of a host that is gone. Returns the superblock, and whether there was a claim.
fn clear_claim(
    image: &ImageArgs,
    device: &Arc<dyn BlockDevice>,
    watches: bool,
    interrupt: &Interrupt,
) -> Result<(Superblock, bool)> {
    let missing = || Failure::new(format_args!("{}: no superblock is usable", image.name()));
    let superblock = chosen_superblock(&**device).ok_or_else(missing)?;
    let flag = interrupt.flag();
    let cleared = HostClaim::clear(device.clone(), &superblock, watches, Some(&flag));
    let is_cleared = cleared.map_err(|error| image.refused(&error))?;
    Ok((superblock, is_cleared))
}

impl Args {
    fn changes(&self, extended: &Extended) -> Result<TuneChanges> {
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        let share = self.reserved_percent.map(ReservedShare::Percent);
        let limit = |count: i32| u16::try_from(count).ok().filter(|count| *count > 0);
        Ok(TuneChanges {
            label: self.label.as_ref().map(bytes),
            uuid: self.uuid.as_ref().map(uuid::Chosen::bytes),
            reserved: self.reserved_blocks.map(ReservedShare::Blocks).or(share),
            reserved_uid: self.reserved_uid,
            reserved_gid: self.reserved_gid,
            errors: self.errors.as_deref().map(values::policy),
            default_mount_options: self.default_mount_options.clone(),
            mount_options: self.mount_options(extended)?,
            max_mount_count: self.max_mount_count.map(|count| limit(count).unwrap_or(u16::MAX)),
            mount_count: self.mount_count,
            check_interval: self.check_interval,
            last_check: self.last_checked,
            features: self.features.clone(),
            journal_size: self.journal()?,
            journal_device: self.destination().map(|path| device_number(&path)),
            quota: self.quota.clone(),
            mmp_update_interval: self.mmp_update_interval.or(extended.mmp_update_interval),
        })
    }

    fn journal(&self) -> Result<Option<JournalSize>> {
        let bytes = match &self.journal_option {
            Some(option) if self.destination().is_none() => {
                let mib = option.to_str().and_then(|text| text.strip_prefix("size="));
                let mib = mib.and_then(|text| text.parse::<u64>().ok());
                let bytes = mib.and_then(|mib| mib.checked_mul(1 << 20));
                let unknown =
                    || Failure::usage("-J: the options of a journal are size=MIB and device=PATH");
                Some(bytes.ok_or_else(unknown)?)
            }
            _ => self.journal_size,
        };
        let default = self.add_journal.then_some(JournalSize::Default);
        Ok(bytes.map(JournalSize::Bytes).or(default))
    }

    /// Returns the path of the device that the journal moves to.
    fn destination(&self) -> Option<PathBuf> {
        let option = self.journal_option.as_ref().map(|option| option.as_bytes());
        let path = option.and_then(|option| option.strip_prefix(b"device="));
        let path = path.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        path.or_else(|| self.journal_device.clone())
    }

    fn mount_options(&self, extended: &Extended) -> Result<Option<Vec<u8>>> {
        match (&self.mount_options, &extended.mount_opts) {
            (Some(_), Some(_)) => {
                Err(Failure::usage("--mount-options cannot be used with -E mount_opts="))
            }
            (Some(text), None) => Ok(Some(text.as_bytes().to_vec())),
            (None, text) => Ok(text.clone()),
        }
    }
}

/// Returns the number of a device as a superblock has it; 0 for a file, and for one that cannot be
/// looked at.
fn device_number(path: &Path) -> u32 {
    let number = std::fs::metadata(path).map_or(0, |found| found.rdev());
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    minor & 0xFF | major << 8 | (minor & !0xFF) << 12
}

/// Prints the values, and the names of the changed ones.
fn tell(image: &ImageArgs, context: &Context, superblock: &Superblock, changed: &[&str]) -> Result {
    if context.json {
        let mut document = Map::new();
        put_bytes(&mut document, "image", image.image.as_os_str().as_bytes());
        document.insert("changed".into(), changed.into());
        document.extend(values::document(superblock));
        return context.document(&document.into());
    }
    if changed.is_empty() {
        return values::print(superblock);
    }
    context.note(format_args!("{}: changed {}", image.name(), changed.join(", ")));
    Ok(())
}

/// Turns an error into a failure that names object, cause and remedy.
fn failure(image: &ImageArgs, error: TuneError) -> Failure {
    let name = image.name();
    let advice = match error {
        TuneError::Invalid(why) => return Failure::usage(why),
        TuneError::Corrupt(corrupt) => return image.refused(&Error::Corrupt(corrupt)),
        TuneError::Io(error) => return image.refused(&Error::Io(error)),
        TuneError::InUse => return image.refused(&Errno::Busy.into()),
        TuneError::Unsupported(why) => return image.refused(&Error::Unsupported(why)),
        TuneError::NeedsRecovery | TuneError::Edit(EditError::NeedsRecovery) => {
            format!("; run `extant recover {name}` first")
        }
        TuneError::HasErrors | TuneError::Damage(_) => {
            format!("; run `extant repair {name}` first")
        }
        TuneError::Apply(OfflineError::InLog(_))
        | TuneError::Edit(EditError::Apply(OfflineError::InLog(_))) => {
            format!("; `extant recover {name}` completes them")
        }
        TuneError::Edit(EditError::JournalMissing) => "; --journal names it".into(),
        TuneError::Edit(EditError::TooLarge { .. }) => "; nothing was changed".into(),
        TuneError::Edit(EditError::JournalStays(_)) => format!("; run `extant recover {name}`"),
        TuneError::NoSpace => "; `extant resize` makes the file system larger".into(),
        TuneError::JournalStays(_) => {
            "; --journal-size changes it, `--features ^has_journal` removes it".into()
        }
        TuneError::Partly("the blocks of the old journal", _) => {
            format!("; run `extant repair {name}`")
        }
        TuneError::Partly(..) => "; run it again".into(),
        TuneError::Stopped { .. } => {
            format!("; `extant recover {name}` and then the same command make the rest")
        }
        _ => String::new(),
    };
    Failure::new(format_args!("{name}: {error}{advice}"))
}
