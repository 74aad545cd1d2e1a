//! `extant tune`: label, UUID and other values of the superblock, features, journal, quota files.
//!
//! The short options are those of tune2fs(8), under whose name the program runs this command.

mod extended;
mod live;
mod uuid;
mod values;

pub use values::parse_time;

use super::mkfs::device_number;
use super::repair::open_writable;
use crate::context::Context;
use crate::copy::redo::{RedoFile, SaveRedo};
use crate::copy::undo::UndoFile;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_claimed;
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json::put_bytes;
use crate::owner_names::OwnerNames;
use crate::sandbox::command::Preparation;
use crate::superblock_list::write_superblock;
use crate::text::shown;
use extant_check::edit::EditError;
use extant_check::repair::{OfflineError, chosen_superblock};
use extant_check::tune::{JournalSize, ReservedShare, Tune, TuneChanges, TuneError};
use extant_engine::device::{BlockDevice, ImageSpec, identify, image_spec};
use extant_engine::format::{MAGIC_FIELD, Superblock};
use extant_engine::{Errno, Error, Fs, HostClaim, OpenOptions};
use extended::Extended;
use serde_json::Map;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Show or change label, UUID, features and other values of the superblock.
///
/// Without an option the values are printed. All changes of a call are made wholly or not at all,
/// with the copies of the superblock: with a journal in one transaction, else by the write of the
/// superblock, which the copies follow, or by the file of --redo. Features change with the
/// structures that they stand for, such as all checksums, after a check of the file system; a
/// journal in the same call is a step of its own. An image that must be recovered or repaired first
/// is refused. IMAGE may be the directory of a live mount, or be mounted by extant: its server
/// changes label and UUID while programs go on to use it.
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
    /// Directory of the last mount, at most 63 bytes
    #[arg(short = 'M', long, value_name = "DIR")]
    last_mounted: Option<OsString>,
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
    #[arg(short = 'T', long, value_name = "TIME", value_parser = values::parse_time)]
    last_checked: Option<u64>,
    /// Names of features to set, or with ^ to clear, separated by commas. `extent` and `dir_index`
    /// also convert files and directories that lack them
    #[arg(short = 'O', long, value_name = "NAMES", allow_hyphen_values = true)]
    features: Option<String>,
    /// Write directories anew, with indexes and without gaps
    #[arg(long)]
    compact_directories: bool,
    /// Bytes of the journal: of a new one, or another length of that in the file system
    #[arg(long, value_name = "SIZE", value_parser = values::parse_bytes)]
    journal_size: Option<u64>,
    /// Move the journal to this device or image file, whose journal no file system uses: `extant
    /// mkfs -O journal_dev` makes one. With --journal and a size it moves back
    #[arg(long, value_name = "PATH", conflicts_with = "journal_size")]
    journal_device: Option<PathBuf>,
    /// Kinds of quota files to add, or with ^ to remove, separated by commas: usrquota, grpquota,
    /// prjquota
    #[arg(short = 'Q', long, value_name = "KINDS", allow_hyphen_values = true)]
    quota: Option<String>,
    /// Bytes of an inode: a power of two, not below the present size, up to the size of a block.
    /// Inode tables move where they lack space
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u32>,
    /// Seconds between updates of the block of multi-mount protection, at most 300; 0 for 5
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=300))]
    mmp_update_interval: Option<u16>,
    /// End the claim of multi-mount protection that a killed repair has left. The block is watched
    /// before, since another host may write it
    #[arg(long)]
    clear_mmp: bool,
    /// Where no journal makes the changes whole, keep them in a new file until they are made, by
    /// which `recover --redo` completes them after a power cut
    #[arg(long, value_name = "FILE")]
    redo: Option<PathBuf>,
    /// Save the old content of all blocks that change in a new file first, for `repair --restore`
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
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
    /// Extended options, as tune2fs has them, separated by commas
    #[arg(short = 'E', hide = true, value_name = "OPTIONS")]
    extended: Vec<OsString>,
    /// Print the values in the form of `tune2fs -l`
    #[arg(short = 'l', hide = true)]
    list: bool,
    /// Print the label and nothing else, as e2label does
    #[arg(long, hide = true)]
    only_label: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let mut image = args.on.named();
    let extended = Extended::parse(&args.extended)?;
    let changes = args.changes(&extended)?;
    let clears = args.clear_mmp || extended.clear_mmp;
    if args.force && !clears {
        return Err(Failure::usage("--force: only --clear-mmp has a use for it"));
    }
    let has_changes = changes != TuneChanges::default();
    let writes = has_changes || clears;
    // The table of mounts is out of sight in the sandbox.
    if writes
        && !args.on.waits()
        && let Some(mount) = live::mount_of(&args.on.image)
    {
        return live::run(args, (&changes, clears), &mount, context);
    }
    let files = args.files(&image, context, has_changes)?;
    let destination = args.destination();
    let mut sandbox = Preparation::writing(writes);
    if let Some(path) = &destination {
        sandbox = sandbox.writing_to(path);
    }
    if !writes && (args.list || args.only_label) {
        image = image.read_although_in_use();
    }
    let owners = if args.list { OwnerNames::read() } else { OwnerNames::default() };
    match &files {
        (None, None) => image.contain_alone(context, sandbox)?,
        _ => image.contain(context, sandbox)?,
    }
    if !writes {
        return args.show(&image, context, &owners);
    }
    let open = |spec: &ImageSpec| open_writable(&image, spec);
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
        apply((&tune, &changes), (&image, &*device), files, context)
    })?;
    tell(&image, context, &superblock, &changed)
}

/// Makes the changes, with the files that are asked for.
fn apply(
    (tune, changes): (&Tune, &TuneChanges),
    (image, device): (&ImageArgs, &dyn BlockDevice),
    (redo, undo): Files,
    context: &Context,
) -> Result<Superblock> {
    if let Some(undo) = undo {
        let save = |out: &mut dyn Write| tune.save_undo(changes, redo.is_some(), out);
        undo.save(save, |error| refused(image, device, error, None))?;
    }
    let Some(redo) = redo else {
        return tune.apply(changes).map_err(|error| refused(image, device, error, None));
    };
    let change = |save: &mut SaveRedo<'_>| tune.apply_with_redo(changes, save);
    let refuse = |error, remedy: &str| refused(image, device, error, Some(remedy));
    redo.make((image, context), change, refuse)
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

/// A redo file and an undo file.
type Files = (Option<RedoFile>, Option<UndoFile>);

impl Args {
    /// Begins the files of a change.
    fn files(&self, image: &ImageArgs, context: &Context, has_changes: bool) -> Result<Files> {
        let given = self.redo.as_ref().map(|_| "--redo").or(self.undo.as_ref().map(|_| "--undo"));
        if let Some(option) = given.filter(|_| !has_changes) {
            let why = "only changes of values and features have a use for it";
            return Err(Failure::usage(format_args!("{option}: {why}")));
        }
        let redo = self.redo.as_deref().map(|path| RedoFile::begin(path, image, context));
        let undo = self.undo.as_deref().map(|path| UndoFile::begin(path, context));
        Ok((redo.transpose()?, undo.transpose()?))
    }

    /// Prints values, which are those after a recovery.
    fn show(&self, image: &ImageArgs, context: &Context, owners: &OwnerNames) -> Result {
        let options = OpenOptions::new().read_only(true).skip_damaged_log(true);
        let superblock = if image.in_use {
            let device = image.reader(&image.spec()).map_err(|error| image.refused(&error))?;
            let opened = Fs::open_device(device, &options.no_recovery(true));
            opened.map_err(|error| image.refused(&error))?.superblock()
        } else {
            image.open(&options)?.superblock()
        };
        if self.only_label {
            println!("{}", shown(superblock.volume_name().as_bytes()));
            return Ok(());
        }
        if self.list && !context.json {
            return Ok(write_superblock(&superblock, owners, &mut std::io::stdout().lock())?);
        }
        tell(image, context, &superblock, &[])
    }

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
            last_mounted: self.last_mounted.as_ref().map(bytes),
            raid_stride: extended.stride,
            raid_stripe_width: extended.stripe_width,
            hash_version: extended.hash_version,
            is_test: extended.is_test,
            asks_check: extended.asks_check,
            max_mount_count: self.max_mount_count.map(|count| limit(count).unwrap_or(u16::MAX)),
            mount_count: self.mount_count,
            check_interval: self.check_interval,
            last_check: self.last_checked,
            features: self.features(extended),
            compacts_directories: self.compact_directories,
            journal_size: self.journal()?,
            journal_device: self.destination().map(|path| device_number(&path)),
            quota: self.quota.clone(),
            inode_size: self.inode_size,
            mmp_update_interval: self.mmp_update_interval.or(extended.mmp_update_interval),
        })
    }

    fn features(&self, extended: &Extended) -> Option<String> {
        let folds = extended.folds_case.then_some("casefold");
        let lists = self.features.as_deref().into_iter().chain(folds);
        let list = lists.collect::<Vec<_>>().join(",");
        (self.features.is_some() || extended.folds_case).then_some(list)
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

/// As [`failure`], with the command that completes a change with a redo file of which a part is
/// made; names another format where a file system is missing.
fn refused(
    image: &ImageArgs,
    device: &dyn BlockDevice,
    error: TuneError,
    remedy: Option<&str>,
) -> Failure {
    match (error, remedy) {
        (TuneError::Corrupt(corrupt), _) if corrupt.field_name() == Some(MAGIC_FIELD) => {
            let foreign = identify(device).map(Error::Foreign);
            image.refused(&foreign.unwrap_or(Error::Corrupt(corrupt)))
        }
        (
            error @ (TuneError::Edit(EditError::Partly(_)) | TuneError::Unfinished(_)),
            Some(remedy),
        ) => Failure::new(format_args!("{}: {error}; {remedy}", image.name())),
        (error, _) => failure(image, error),
    }
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
        TuneError::JournalNamed(_) => {
            format!("; `extant recover {name}` and then `e2fsck -f` take the name away")
        }
        TuneError::Unfinished(_) => {
            format!("; `extant repair {name}` makes the old state or the new")
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
