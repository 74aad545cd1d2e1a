//! `extant mkfs`: a new file system.

mod completion;
mod journal_device;

pub use journal_device::device_number;

use super::check::is_disk;
use crate::bad_blocks::BadBlockArgs;
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::format::{Format, FormatArgs};
use crate::image::ImageArgs;
use crate::json;
use crate::layout::{LayoutArgs, creation_time};
use crate::overwrite;
use crate::remote;
use crate::text::{count, shown, size, uuid};
use completion::Completion;
use extant_engine::device::{BlockDevice, FileOptions, ImageSpec, Place, image_spec, is_remote};
use extant_engine::mkfs::{self, Options, Report, parse_size};
use extant_engine::{OpenOptions, Timestamp};
use journal_device::JournalDevice;
use serde_json::{Map, json};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Make a file system; existing content is lost.
///
/// The options are those of mke2fs(8). Without options the file system is that of `mke2fs -t ext4`,
/// with orphan_file and metadata_csum_seed. With `-O journal_dev` the image gets a journal alone,
/// to which `extant tune --journal-device` moves that of a file system.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Image file (made if it is not there) or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size in bytes, or with k, M, G or T; the whole file or device if it is left out
    #[arg(value_name = "SIZE", conflicts_with = "size")]
    plain_size: Option<String>,
    /// As SIZE
    #[arg(long = "size", value_name = "SIZE")]
    size: Option<String>,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Device or image file with the journal of the file system, which `extant mkfs -O journal_dev`
    /// has made; as -J device=PATH
    #[arg(long, value_name = "PATH")]
    journal_device: Option<PathBuf>,
    /// Seed of all that is random; with the same one, and the time in SOURCE_DATE_EPOCH (or 1970),
    /// the image is the same
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Describe the new file system, and where copies of its superblock would lie; write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Overwrite a file system, a partition table or the like that is there without asking
    #[arg(short = 'F', long)]
    force: bool,
    /// Discard the whole device first
    #[arg(long)]
    discard: bool,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    bad: BadBlockArgs,
    #[command(flatten)]
    stored: FormatArgs,
}

/// How long `--wait` waits.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let mut options = args.options()?;
    let journal = args.open_journal(&mut options)?;
    if args.dry_run {
        let report = args.plan(&options)?;
        return args.report(context, &report);
    }
    if args.stored.format == Format::Qcow2 {
        let report = args.make_in_disk(&options, &args.completion(context, journal))?;
        return args.report(context, &report);
    }
    let path = image_spec(&args.image).path;
    let was_there = is_there(&path);
    // Stays open to the end: closing it would release the locks of `device`, and its inode number
    // must not be used again.
    let new = if options.size.is_some() && !was_there { create_new(&path) } else { None };
    let device = match args.device(&options) {
        Ok(device) => device,
        Err(failure) => {
            args.report_rest(new.as_ref().map_or(Ok(()), |new| remove_own(&path, new)));
            return Err(failure);
        }
    };
    let len = device.len();
    let made = args.make(&device, &options, &args.completion(context, journal));
    if made.is_err() {
        args.restore(&*device, new.as_ref(), was_there, len);
    }
    args.report(context, &made?)
}

impl Args {
    fn name(&self) -> String {
        shown(self.image.as_os_str().as_bytes())
    }

    fn failed(&self, error: mkfs::Error) -> Failure {
        let name = self.name();
        match error {
            mkfs::Error::Invalid(why) => Failure::usage(why),
            other => {
                let message = format!("{name}: {other}");
                Failure::of(&other.into(), self.image.as_os_str().as_bytes(), message)
            }
        }
    }

    fn options(&self) -> Result<Options> {
        if self.stored.format == Format::Raw && !self.stored.backing.is_empty() {
            let text = "a raw image has no backing file; an overlay has --format qcow2";
            return Err(Failure::usage(text));
        }
        let mut options = self.layout.options()?;
        options.size = self.bytes()?;
        options.seed = self.seed;
        options.time = time(self.seed.is_some())?;
        options.discard = self.discard;
        Ok(options)
    }

    fn completion<'c>(
        &'c self,
        context: &'c Context,
        journal: Option<JournalDevice>,
    ) -> Completion<'c> {
        Completion { image: ImageArgs::of(&self.image), context, bad: &self.bad, journal }
    }

    /// Opens the device of the journal, if there is to be one, whose blocks the file system has.
    fn open_journal(&self, options: &mut Options) -> Result<Option<JournalDevice>> {
        let path = self.journal_device.as_deref().or_else(|| self.layout.journal_device());
        let Some(path) = path else { return Ok(None) };
        if options.journal_size.is_some() {
            let text = "a journal on another device has the length of that: leave the size out";
            return Err(Failure::usage(text));
        }
        let image = ImageArgs { wait: self.wait, ..ImageArgs::of(&self.image) };
        let journal = JournalDevice::open(path, &image, self.dry_run)?;
        let size = journal.block_size();
        if options.block_size.is_some_and(|wanted| wanted != size) {
            let path = shown(path.as_os_str().as_bytes());
            return Err(Failure::usage(format_args!(
                "{path} has a journal with blocks of {size} bytes: so must be those of the file \
                 system (-b {size})"
            )));
        }
        options.block_size = Some(size);
        Ok(Some(journal))
    }

    fn bytes(&self) -> Result<Option<u64>> {
        let text = self.plain_size.as_ref().or(self.size.as_ref());
        text.map(|text| parse_size(text).map_err(Failure::usage)).transpose()
    }

    /// Returns the description of the file system that would be made.
    fn plan(&self, options: &Options) -> Result<Report> {
        let there = || -> Result<u64> {
            if self.stored.format == Format::Qcow2 {
                return Ok(self.disk(&OpenOptions::new().read_only(true))?.len());
            }
            let spec = image_spec(&self.image);
            if is_remote(&spec.path) {
                return Ok(self.remote(true)?.len());
            }
            let open = FileOptions::from_spec(&spec).read_only(true).lock(false);
            let device = open.open().at_path(self.image.as_os_str().as_bytes())?;
            Ok(device.len())
        };
        self.require_size(options)?;
        let len = options.size.map_or_else(there, Ok)?;
        mkfs::preview(len, options).map_err(|e| self.failed(e))
    }

    fn report(&self, context: &Context, report: &Report) -> Result {
        if context.json {
            return context.document(&document(self, report));
        }
        if !context.quiet {
            tell(self, report);
        }
        Ok(())
    }

    /// Returns an error if there is neither an image nor a size.
    fn require_size(&self, options: &Options) -> Result {
        if is_there(&image_spec(&self.image).path) || options.size.is_some() {
            return Ok(());
        }
        let name = self.name();
        Err(Failure::usage(format_args!("{name} is not there: say how large it shall be")))
    }

    /// Opens the device of the new file system; makes a missing file.
    fn device(&self, options: &Options) -> Result<Arc<dyn BlockDevice>> {
        self.require_size(options)?;
        let spec = image_spec(&self.image);
        let device: Arc<dyn BlockDevice> =
            if is_remote(&spec.path) { self.remote(false)? } else { self.file(&spec)? };
        if device.read_only() {
            return Err(Failure::new(format_args!(
                "{} cannot be written: it is write-protected",
                self.name()
            )));
        }
        Ok(device)
    }

    /// Opens a network block device.
    fn remote(&self, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        let free = if read_only { Ok(()) } else { remote::refuse_mounted(&self.image) };
        let options = OpenOptions::new().read_only(read_only);
        let opened = free.and_then(|()| options.device_of(&image_spec(&self.image)));
        opened.map_err(|error| ImageArgs::of(&self.image).refused(&error))
    }

    /// Opens or makes a file, or opens a disk.
    fn file(&self, spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
        let wait = self.wait.then_some(PATIENCE);
        let is_direct = self.bad.reads_all() && is_disk(&spec.path);
        let open = FileOptions::from_spec(spec).create(true).wait(wait).direct(is_direct);
        let device = open.open().map_err(|e| {
            let advice = match e.kind() {
                std::io::ErrorKind::ResourceBusy => "; unmount it first, or wait with --wait",
                _ => "",
            };
            let message = format!("{e}{advice}");
            Failure::of(&extant_engine::Error::Io(e), self.image.as_os_str().as_bytes(), message)
        })?;
        Ok(Arc::new(device))
    }

    /// Opens the disk in an image of the format qcow2.
    fn disk(&self, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>> {
        let (wait, stored) = (self.wait, self.stored.clone());
        let image = ImageArgs { wait, stored, ..ImageArgs::of(&self.image) };
        let opened = options.clone().wait(wait).device_of(&image.spec());
        opened.map_err(|error| image.refused(&error))
    }

    /// Makes a file system in an image of the format qcow2, which is made if it is not there.
    fn make_in_disk(&self, options: &Options, completion: &Completion<'_>) -> Result<Report> {
        self.require_size(options)?;
        let spec = self.stored.spec(&self.image);
        let new = if is_there(&spec.path) { None } else { Some(self.new_disk(&spec, options)?) };
        let made = self.disk(&OpenOptions::new()).and_then(|disk| {
            let (name, len) = (self.name(), disk.len());
            if disk.read_only() {
                let text = format_args!("{name} cannot be written: it is write-protected");
                return Err(Failure::new(text));
            }
            if options.size.is_some_and(|size| size > len) {
                return Err(Failure::new(format_args!(
                    "{name}: its disk has {len} bytes; `qemu-img resize` makes it longer"
                )));
            }
            if !self.force {
                overwrite::check_image(&*disk, &spec)?;
            }
            completion.make(&disk, options, &|error| self.failed(error))
        });
        if let (Err(_), Some(new)) = (&made, &new) {
            self.report_rest(remove_own(&spec.path, new));
        }
        made
    }

    /// Makes an image file with a disk of the size of the file system.
    fn new_disk(&self, spec: &ImageSpec, options: &Options) -> Result<File> {
        let name = self.name();
        if !spec.backing.is_empty() {
            return Err(Failure::new(format_args!(
                "{name} is not there; `extant overlay create` makes an overlay"
            )));
        }
        if spec.place != Place::Whole {
            return Err(Failure::new(format_args!("{name}: a new disk has no parts")));
        }
        let path = spec.path.as_path();
        let bytes = self.image.as_os_str().as_bytes();
        let new = make_new(path).at_path(bytes)?;
        let made = FileOptions::new(path)
            .open()
            .and_then(|file| extant_qcow2::create(&file, options.size.unwrap_or_default(), None));
        if made.is_err() {
            self.report_rest(remove_own(path, &new));
        }
        made.at_path(bytes).map(|()| new)
    }

    fn make(
        &self,
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        completion: &Completion<'_>,
    ) -> Result<Report> {
        if !self.force {
            overwrite::check(&**device, &self.image)?;
        }
        self.grow(&**device, options)?;
        completion.make(device, options, &|error| self.failed(error))
    }

    /// Undoes a failed creation: removes the file `new`, which this process made, or restores the
    /// length of an existing file.
    fn restore(&self, device: &dyn BlockDevice, new: Option<&File>, was_there: bool, len: u64) {
        let restored = match new {
            Some(new) => remove_own(&image_spec(&self.image).path, new),
            None if device.len() > len => device.set_len(len),
            None => Ok(()),
        };
        if new.is_none() && !was_there {
            complain(format_args!(
                "{}: the file stays: IMAGE is a symlink, or another process made the file",
                self.name()
            ));
        }
        self.report_rest(restored);
    }

    /// Reports that the rest of a failed creation could not be removed.
    fn report_rest(&self, removed: io::Result<()>) {
        if let Err(e) = removed {
            complain(format_args!("{}: the rest of it cannot be removed: {e}", self.name()));
        }
    }

    /// Grows a file to the size of the file system.
    fn grow(&self, device: &dyn BlockDevice, options: &Options) -> Result {
        match options.size.filter(|size| *size > device.len()) {
            Some(size) => device.set_len(size).at_path(self.image.as_os_str().as_bytes()),
            None => Ok(()),
        }
    }
}

/// Returns whether there is a file, or an address, which is looked at later.
fn is_there(path: &Path) -> bool {
    is_remote(path) || path.exists()
}

/// Makes a file. Returns none if the name is taken, by a dangling symlink too, or if that fails:
/// opening the image shows the reason.
fn create_new(path: &Path) -> Option<File> {
    make_new(path).ok()
}

/// Makes a file whose name is durable.
fn make_new(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if let Err(error) = File::open(parent).and_then(|dir| dir.sync_all()) {
        tracing::warn!(path = %parent.display(), %error, "the new file's name may not be durable");
    }
    Ok(file)
}

/// Removes the name of `own`, unless it leads to another file by now.
fn remove_own(path: &Path, own: &File) -> io::Result<()> {
    let (there, own) = (std::fs::symlink_metadata(path)?, own.metadata()?);
    if (there.dev(), there.ino()) == (own.dev(), own.ino()) {
        std::fs::remove_file(path)
    } else {
        Err(io::Error::other("another process replaced the file"))
    }
}

/// Returns the time of making: that of the environment, or 1970 for a reproducible image, or now.
fn time(reproducible: bool) -> Result<Option<Timestamp>> {
    let sec = creation_time()?.or(reproducible.then_some(0));
    Ok(sec.map(|sec| Timestamp { sec, nsec: 0 }))
}

fn document(args: &Args, report: &Report) -> serde_json::Value {
    let mut document = Map::new();
    json::put_bytes(&mut document, "image", args.image.as_os_str().as_bytes());
    let report = json!({
        "uuid": uuid(report.uuid),
        "features": report.features.names(),
        "block_size": report.block_size,
        "blocks": report.blocks,
        "free_blocks": report.free_blocks,
        "inodes": report.inodes,
        "free_inodes": report.free_inodes,
        "groups": report.groups,
        "superblock_copies": report.copies,
        "journal_blocks": report.journal_blocks,
        "bytes_written": report.written,
    });
    document.extend(report.as_object().cloned().unwrap_or_default());
    document.into()
}

fn tell(args: &Args, report: &Report) {
    let bytes = report.blocks.saturating_mul(report.block_size.into());
    let verb = if args.dry_run { "would be" } else { "made" };
    if report.inodes == 0 {
        return complain(format_args!(
            "{}: {verb} a journal of {} ({} of {}) for another file system, UUID {}",
            args.name(),
            size(bytes),
            count(report.blocks, "block"),
            size(report.block_size.into()),
            uuid(report.uuid),
        ));
    }
    complain(format_args!(
        "{}: {verb} a file system of {} ({} of {}, {}, {}), UUID {}",
        args.name(),
        size(bytes),
        count(report.blocks, "block"),
        size(report.block_size.into()),
        count(report.groups.into(), "group"),
        count(report.inodes.into(), "inode"),
        uuid(report.uuid),
    ));
    if args.dry_run && !report.copies.is_empty() {
        let copies: Vec<String> = report.copies.iter().map(u64::to_string).collect();
        complain(format_args!("copies of the superblock in blocks {}", copies.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;

    #[test]
    fn only_the_own_file_is_removed() {
        let scratch = Scratch::new();
        let (path, other) = (scratch.join("image"), scratch.join("other"));
        let own = create_new(&path).unwrap();
        assert!(create_new(&path).is_none());
        std::fs::write(&other, "of another process").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(remove_own(&path, &own).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"of another process");
        std::fs::remove_file(&path).unwrap();
        let own = create_new(&path).unwrap();
        remove_own(&path, &own).unwrap();
        assert!(!path.exists());
    }
}
