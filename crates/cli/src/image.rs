//! Images as commands open them: readers change nothing, writers recover first, and both refuse an
//! image in use.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::format::{Format, FormatArgs, parse_backing};
use crate::holders;
use crate::interrupt::Interrupt;
use crate::json;
use crate::recovery::{self, replayed};
use crate::remote;
use crate::sandbox::command::{Images, Preparation, leave_feigned_root};
use crate::substitutes::{self, Damaged, is_damage};
use crate::text::shown;
use extant_check::Substitutes;
use extant_engine::device::{
    BackingSpec, BlockDevice, FileOptions, ImageFormat, ImageSpec, Signature, SignatureKind,
    first_partition, image_spec, is_in_store, is_remote,
};
use extant_engine::format::MAGIC_FIELD;
use extant_engine::{Errno, Error, Follow, Fs, Node, OpenOptions};
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The image that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct ImageArgs {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Wait until no other program uses the image
    #[arg(long)]
    pub wait: bool,
    /// Image file or block device of the journal, where the file system has an external one
    #[arg(long, value_name = "PATH")]
    pub journal: Option<PathBuf>,
    /// Bound on all caches together, at least 64M [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub memory: Option<u64>,
    #[command(flatten)]
    pub stored: FormatArgs,
    /// It is read while another program uses it, and may change meanwhile.
    #[arg(skip)]
    pub in_use: bool,
}

/// The image that a command works on without opening its file system.
#[derive(Debug, clap::Args)]
pub struct OfflineArgs {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    /// Image file or block device of the journal, where the file system has an external one
    #[arg(long, value_name = "PATH")]
    pub journal: Option<PathBuf>,
    #[command(flatten)]
    stored: FormatArgs,
}

impl OfflineArgs {
    /// Returns whether to wait until no other program uses the image.
    pub fn waits(&self) -> bool {
        self.wait
    }

    /// Returns the image as commands that open its file system name it.
    pub fn named(&self) -> ImageArgs {
        let (image, journal) = (self.image.clone(), self.journal.clone());
        let stored = self.stored.clone();
        ImageArgs { image, wait: self.wait, journal, memory: None, stored, in_use: false }
    }
}

/// Bounds on memory, in bytes.
const MIN_MEMORY: u64 = 64 << 20;
pub const MAX_MEMORY: u64 = 16 << 40;

/// Values of a bound on all caches together.
pub const MEMORY: &str = "64M to 16T";

/// Parses a bound on all caches together, in bytes.
pub fn parse_memory(text: &str) -> Option<u64> {
    let bytes = extant_engine::mkfs::parse_size(text).ok()?;
    (MIN_MEMORY..=MAX_MEMORY).contains(&bytes).then_some(bytes)
}

/// Parses such a bound, for an argument.
pub fn memory_size(text: &str) -> Result<u64, String> {
    parse_memory(text).ok_or_else(|| format!("it must be {MEMORY}"))
}

/// The image that a command reads from.
#[derive(Clone, Debug, clap::Args)]
pub struct ReadArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Read the image as it is, without the changes in its journal
    #[arg(long, visible_alias = "norecovery")]
    noload: bool,
    /// Take copies in place of a damaged superblock and damaged descriptors, or fail
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    damaged: Damaged,
    /// Take the superblock from the copy in this block of the file system (`mke2fs -n` lists them)
    #[arg(long, value_name = "BLOCK", conflicts_with = "damaged")]
    superblock: Option<u64>,
}

impl Deref for ReadArgs {
    type Target = ImageArgs;
    fn deref(&self) -> &ImageArgs {
        &self.image
    }
}

impl ReadArgs {
    /// Opens for reading, in a sandbox. An image that needs recovery is recovered in memory;
    /// without its journal if that is damaged.
    pub fn read(&self, context: &Context) -> Result<Fs> {
        self.read_within(context, Preparation::default())
    }

    /// As [`ReadArgs::read`], in a sandbox with further files.
    pub fn read_within(&self, context: &Context, sandbox: Preparation) -> Result<Fs> {
        self.contain(context, sandbox)?;
        let options =
            OpenOptions::new().read_only(true).skip_damaged_log(true).no_recovery(self.noload);
        let options = self.options(&options);
        let fs = match self.superblock {
            Some(block) => self.read_at(block, &options, context)?,
            None => match Fs::open_image(&self.image.spec(), &options) {
                Err(error) if self.damaged == Damaged::Copies && is_damage(&error) => {
                    self.read_damaged(&error, &options, context)?
                }
                opened => opened.map_err(|error| self.refused(&error))?,
            },
        };
        #[cfg(debug_assertions)]
        crate::planted::strike(&fs.superblock());
        let (name, recovery) = (self.name(), fs.recovery());
        if let Some(replayed) = replayed(recovery) {
            context.detail(format_args!("{name}: {replayed} in memory, the image stays as it is"));
        }
        if let Some(why) = &recovery.log_skipped {
            context.note(format_args!(
                "{name}: the journal cannot be replayed ({why}): its changes are missing, and \
                names or content may be wrong"
            ));
        }
        Ok(fs)
    }

    /// Opens an image for reading with copies in place of its damaged superblock or descriptors.
    fn read_damaged(&self, error: &Error, options: &OpenOptions, context: &Context) -> Result<Fs> {
        let (image, journal) = self.specs();
        let opened = substitutes::open(&image, journal.as_ref(), options);
        let (fs, found) = opened.ok_or_else(|| self.refused(error))?;
        context.note_damage(substituted(&self.name(), &found, Some(error)));
        Ok(fs)
    }

    /// Opens an image for reading by the copy of the superblock in a block of the file system.
    fn read_at(&self, block: u64, options: &OpenOptions, context: &Context) -> Result<Fs> {
        let (image, journal) = self.specs();
        let opened = substitutes::open_at(block, &image, journal.as_ref(), options);
        let (fs, found) = opened.map_err(|error| self.refused(&error))?;
        context.note_damage(substituted(&self.name(), &found, None));
        Ok(fs)
    }
}

/// Says how an image is read.
pub fn substituted(name: &str, found: &Substitutes, error: Option<&Error>) -> String {
    let why =
        error.map_or(String::new(), |error| format!(" is damaged ({})", without_name(error, name)));
    let remedy = remedy(name, found);
    format!("{name}{why}: {found}; names and content may be missing, and {remedy}")
}

/// Returns the remedy of the damage.
fn remedy(name: &str, found: &Substitutes) -> String {
    if found.is_short() {
        "only another copy of the image has its end".into()
    } else {
        format!("`extant repair {name}` repairs it")
    }
}

/// Returns whether there is no connection to a network block device, or no more.
fn is_of_connection(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, InvalidData, InvalidInput, NotConnected};
    match error {
        Error::Io(error) => {
            [ConnectionRefused, InvalidData, InvalidInput, NotConnected].contains(&error.kind())
        }
        _ => false,
    }
}

/// Returns the text of an error without the name of the image before it.
fn without_name(error: &Error, name: &str) -> String {
    let text = error.to_string();
    match text.strip_prefix(&format!("{name}: ")) {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

/// Two images that a command compares.
#[derive(Debug, clap::Args)]
pub struct PairArgs {
    /// First image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Second image, likewise
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Wait until no other program changes the images
    #[arg(long)]
    wait: bool,
    /// Image file or block device of the journal of A, where that is an external one
    #[arg(long, value_name = "PATH")]
    journal_a: Option<PathBuf>,
    /// Image file or block device of the journal of B, where that is an external one
    #[arg(long, value_name = "PATH")]
    journal_b: Option<PathBuf>,
    /// Format of A, which is never guessed
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format_a: Format,
    /// Format of B, likewise
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format_b: Format,
    /// Backing file of A, an overlay in the format qcow2; again for the one of that
    #[arg(long, value_name = "FILE[:FORMAT]", value_parser = parse_backing)]
    backing_a: Vec<BackingSpec>,
    /// Backing file of B, likewise
    #[arg(long, value_name = "FILE[:FORMAT]", value_parser = parse_backing)]
    backing_b: Vec<BackingSpec>,
    /// Bound on all caches of each image, at least 64M [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    memory: Option<u64>,
    /// Read the images as they are, without the changes in their journals
    #[arg(long, visible_alias = "norecovery")]
    noload: bool,
    /// Take copies in place of damaged superblocks and damaged descriptors, or fail
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    damaged: Damaged,
}

impl PairArgs {
    /// Returns the images as commands that read one of them name it.
    pub fn images(&self) -> [ReadArgs; 2] {
        let (a, b) = ((self.format_a, &self.backing_a), (self.format_b, &self.backing_b));
        let images = [(&self.a, &self.journal_a, a), (&self.b, &self.journal_b, b)];
        images.map(|(image, journal, (format, backing))| {
            let (image, journal) = (image.clone(), journal.clone());
            let stored = FormatArgs { format, backing: backing.clone() };
            let (wait, memory) = (self.wait, self.memory);
            let image = ImageArgs { image, wait, journal, memory, stored, in_use: false };
            ReadArgs { image, noload: self.noload, damaged: self.damaged, superblock: None }
        })
    }
}

/// Changes of a command so far, for its JSON document.
#[derive(Debug)]
pub struct Changes {
    document: Map<String, Value>,
    changed: Vec<Value>,
    errors: Vec<Value>,
    /// The first failure ends the command.
    stops: bool,
}

impl Changes {
    fn new(image: &ImageArgs) -> Changes {
        let mut document = Map::new();
        json::put_bytes(&mut document, "image", image.image.as_os_str().as_bytes());
        Changes { document, changed: Vec::new(), errors: Vec::new(), stops: false }
    }

    /// Makes the changes of an edit that is made wholly or not at all.
    pub fn of_one() -> Changes {
        Changes { document: Map::new(), changed: Vec::new(), errors: Vec::new(), stops: true }
    }

    /// Returns the changed paths.
    pub fn into_changed(self) -> Vec<Value> {
        self.changed
    }

    /// Adds a changed path.
    pub fn path(&mut self, path: &[u8]) {
        let mut object = Map::new();
        json::put_bytes(&mut object, "path", path);
        self.changed.push(object.into());
    }

    /// Reports a failure after which the command continues.
    ///
    /// # Errors
    /// The failure, if the first one ends the command.
    pub fn failed(&mut self, failure: Failure) -> Result {
        if self.stops {
            return Err(failure);
        }
        if let Some(message) = failure.message() {
            complain(message);
        }
        self.errors.push(failure.object());
        Ok(())
    }

    /// Returns whether a part of the command failed.
    pub fn has_failed(&self) -> bool {
        !self.errors.is_empty()
    }

    fn document(mut self) -> Map<String, Value> {
        self.document.insert("changed".into(), self.changed.into());
        if !self.errors.is_empty() {
            self.document.insert("errors".into(), self.errors.into());
        }
        self.document
    }
}

impl ImageArgs {
    /// Makes the arguments of an image in a file or on a block device, or in a part of it.
    pub fn of(image: &Path) -> ImageArgs {
        let stored = FormatArgs::default();
        let (image, journal) = (image.into(), None);
        ImageArgs { image, wait: false, journal, memory: None, stored, in_use: false }
    }

    /// Returns the image's name for messages.
    pub fn name(&self) -> String {
        shown(self.image.as_os_str().as_bytes())
    }

    /// Returns the image.
    pub fn spec(&self) -> ImageSpec {
        self.stored.spec(&self.image)
    }

    /// Opens for writing, in a sandbox, unless this process is in one; recovers first.
    pub fn write_within(&self, context: &Context, sandbox: Preparation) -> Result<Fs> {
        self.contain(context, sandbox)?;
        let fs = self.open(&OpenOptions::new())?;
        self.opened(context, &fs)?;
        Ok(fs)
    }

    /// Checks that an image that was opened for writing may be changed, and reports its recovery.
    pub fn opened(&self, context: &Context, fs: &Fs) -> Result {
        if let Some(why) = &fs.recovery().read_only {
            return Err(Failure::new(format_args!("{} cannot be changed: {why}", self.name())));
        }
        if let Some(replayed) = replayed(fs.recovery()) {
            context.note(format_args!("{}: {replayed}", self.name()));
        }
        context.note_recovery(recovery::document(fs.recovery()).into());
        fs.set_use_reserve(may_use_reserve(fs));
        Ok(())
    }

    /// Opens for writing, calls `work`, makes everything durable and closes. Reports replay and
    /// changes, also if a part of them failed.
    pub fn change(
        &self,
        context: &Context,
        work: impl FnOnce(&Fs, &mut Changes) -> Result,
    ) -> Result {
        self.contain_alone(context, Preparation::writing(true))?;
        let fs = self.write_within(context, Preparation::writing(true))?;
        let mut changes = Changes::new(self);
        let worked = work(&fs, &mut changes);
        let closed = self.close(fs);
        let done = worked.and(closed).and(if changes.has_failed() {
            Err(Failure::told())
        } else {
            Ok(())
        });
        match done {
            Ok(()) if context.json => context.document(&changes.document().into()),
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.after(changes.document())),
        }
    }

    /// Opens as the options say. Signals end waits in order if it is opened for writing.
    pub fn open(&self, options: &OpenOptions) -> Result<Fs> {
        self.open_by(options, |options| Fs::open_image(&self.spec(), options))
    }

    /// Opens by `open`, as [`ImageArgs::open`] does.
    pub fn open_by(
        &self,
        options: &OpenOptions,
        open: impl Fn(&OpenOptions) -> extant_engine::Result<Fs>,
    ) -> Result<Fs> {
        let options = self.options(options);
        if options.is_read_only() {
            let fs = open(&options).map_err(|e| self.refused(&e))?;
            #[cfg(debug_assertions)]
            crate::planted::strike(&fs.superblock());
            return Ok(fs);
        }
        remote::refuse_mounted(&self.image).map_err(|e| self.refused(&e))?;
        let interrupt = Interrupt::register().at("signals")?;
        let opened = open(&options.interrupt(interrupt.flag()));
        let interrupted = interrupt.restore_default();
        let fs = opened.map_err(|e| self.refused(&e))?;
        #[cfg(debug_assertions)]
        crate::planted::strike(&fs.superblock());
        if interrupted {
            self.close(fs).and_then(|()| Err(self.refused(&Errno::Intr.into())))
        } else {
            Ok(fs)
        }
    }

    /// Lets an image that another program uses be read all the same, as programs of e2fsprogs do.
    /// It must be a file or disk as it is, without a format of its own.
    #[must_use]
    pub fn read_although_in_use(self) -> ImageArgs {
        let spec = self.spec();
        let is_plain = spec.format == ImageFormat::Raw && !is_remote(&spec.path);
        let in_use = is_plain && !self.wait && {
            let opened = OpenOptions::new().read_only(true).device_of(&spec);
            matches!(opened, Err(Error::Io(error)) if error.kind() == ErrorKind::ResourceBusy)
        };
        ImageArgs { in_use, ..self }
    }

    /// Opens a device of this image for reading.
    ///
    /// # Errors
    /// Those of the device; it is in use, unless that is no obstacle.
    pub fn reader(&self, place: &ImageSpec) -> Result<Arc<dyn BlockDevice>, Error> {
        if self.in_use {
            let options = FileOptions::from_spec(place).read_only(true).lock(false);
            return Ok(Arc::new(options.open().map_err(Error::Io)?));
        }
        OpenOptions::new().read_only(true).wait(self.wait).device_of(place)
    }

    /// Enters the sandbox of a command on this image.
    pub fn contain(&self, context: &Context, sandbox: Preparation) -> Result {
        sandbox.enter(context, &[self.files()]).map_err(|(_, error)| self.refused(&error))
    }

    /// As [`ImageArgs::contain`], for a command that has done nothing yet and needs no owners of
    /// the host: it leaves a library that feigns root.
    pub fn contain_alone(&self, context: &Context, sandbox: Preparation) -> Result {
        if context.sandbox {
            leave_feigned_root();
        }
        self.contain(context, sandbox)
    }

    /// Returns the files of the image for a sandbox.
    pub fn files(&self) -> Images {
        let (image, journal) = self.specs();
        Images { image, journal, wait: self.wait, in_use: self.in_use }
    }

    /// Returns the places of the image and of its external journal.
    fn specs(&self) -> (ImageSpec, Option<ImageSpec>) {
        (self.spec(), self.journal.as_deref().map(image_spec))
    }

    /// Returns options with those of the arguments.
    fn options(&self, options: &OpenOptions) -> OpenOptions {
        self.with_memory(self.with_journal(options.clone().wait(self.wait)))
    }

    /// Returns options that name the external journal, if there is one.
    pub fn with_journal(&self, options: OpenOptions) -> OpenOptions {
        match &self.journal {
            Some(path) => options.journal_image(image_spec(path)),
            None => options,
        }
    }

    /// Returns options with the bound on memory, if there is one.
    pub fn with_memory(&self, options: OpenOptions) -> OpenOptions {
        match self.memory {
            Some(bytes) => options.memory(bytes),
            None => options,
        }
    }

    /// Writes everything and closes.
    pub fn close(&self, fs: Fs) -> Result {
        let failed =
            |e: &Error| format!("{}: the last changes could not be written: {e}", self.name());
        fs.unmount().map_err(|e| Failure::of(&e, self.image.as_os_str().as_bytes(), failed(&e)))
    }

    /// Turns an error of opening into a failure that names object, cause and remedy.
    pub fn refused(&self, error: &Error) -> Failure {
        let name = self.name();
        let text = without_name(error, &name);
        let (image, journal) = self.specs();
        // Another connection would tell no more, and may take as long.
        let is_of_store = is_in_store(&image.path) && matches!(error, Error::Io(_));
        if is_of_store || is_remote(&image.path) && is_of_connection(error) {
            let address = shown(image.path.as_os_str().as_bytes());
            let message = format!("{name}: {}", without_name(error, &address));
            return Failure::of(error, self.image.as_os_str().as_bytes(), message);
        }
        let look = || substitutes::look(&image, journal.as_ref(), &OpenOptions::new());
        if let Some(found) = is_damage(error).then(look).flatten() {
            let message = format!(
                "{name} is damaged: {text}; {}, and `ls`, `get` and other readers read the rest",
                remedy(&name, &found)
            );
            return Failure::of(error, self.image.as_os_str().as_bytes(), message);
        }
        let message = match error {
            Error::Io(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                let path = image_spec(&self.image).path;
                let held = holders::named(&path);
                let end = if held.is_empty() {
                    let path = shown(path.as_os_str().as_bytes());
                    format!("let the other program end (`fuser -v {path}` names it to root)")
                } else {
                    "let that end".to_owned()
                };
                if self.wait {
                    format!("{text}{held}, for an hour now; unmount it or {end}")
                } else {
                    format!("{text}{held}; unmount it, {end}, or wait for that with --wait")
                }
            }
            Error::Posix(Errno::Busy) => {
                format!(
                    "{name} is in use by another host (MMP): {text}; end that there. Once it is \
                     gone, its claim is taken over, but for that of a killed `repair`, which \
                     `extant tune --clear-mmp {name}` ends"
                )
            }
            Error::Posix(Errno::Intr) => format!("{name}: interrupted"),
            Error::Foreign(found) => format!("{name} {text}{}", self.advice(found)),
            Error::Corrupt(corrupt)
                if corrupt.field_name() == Some(MAGIC_FIELD) && corrupt.what() == "superblock" =>
            {
                format!("{name} holds no file system that is known: {text}")
            }
            _ if self.is_readable_without_log() => format!(
                "{name}: the journal cannot be replayed: {text}; `ls`, `get` and other readers go \
                on without it, `mount -o noload` mounts it \
                 for reading, and `e2fsck -fy` drops the journal and repairs what that leaves"
            ),
            _ => format!("{name}: {text}"),
        };
        Failure::of(error, self.image.as_os_str().as_bytes(), message)
    }

    /// Returns whether the image can be opened for reading if its journal is left alone.
    fn is_readable_without_log(&self) -> bool {
        let opened = Fs::open_image(&self.spec(), &OpenOptions::new().no_recovery(true));
        opened.is_ok_and(|fs| {
            fs.superblock().features().names().iter().any(|name| name == "needs_recovery")
        })
    }

    /// Returns a remedy for content other than an ext4 file system, or an empty string.
    fn advice(&self, found: &Signature) -> String {
        let name = self.name();
        match found.kind {
            SignatureKind::PartitionTable => {
                let device = OpenOptions::new().read_only(true).device_of(&self.spec()).ok();
                let number = device.and_then(|device| first_partition(&*device)).unwrap_or(1);
                format!("; {name}@p{number} names a partition")
            }
            SignatureKind::DiskImage if self.stored.format == Format::Qcow2 => {
                "; its own disk or its base has another format: --backing BASE:qcow2 names a base \
                 that is not raw"
                    .into()
            }
            SignatureKind::DiskImage if found.name.contains("qcow2") => {
                "; --format qcow2 opens it".into()
            }
            SignatureKind::DiskImage => "; convert it first: qemu-img convert -O raw".into(),
            SignatureKind::Archive => "; unpack it first".into(),
            SignatureKind::Encrypted => {
                "; open it first, with cryptsetup for example, and name the opened disk".into()
            }
            SignatureKind::Volume => {
                "; name the logical volume or the assembled array instead".into()
            }
            SignatureKind::Ext | SignatureKind::FileSystem | SignatureKind::Swap => String::new(),
        }
    }
}

/// Changes each of the paths, in order.
pub fn change_each(
    fs: &Fs,
    changes: &mut Changes,
    (paths, follow): (&[OsString], Follow),
    change: impl Fn(&Node) -> extant_engine::Result<()>,
) -> Result {
    for path in paths {
        let path = inside(path);
        let node = fs.resolve(path, follow);
        node.and_then(|node| change(&node)).at_path(path)?;
        changes.path(path);
    }
    Ok(())
}

/// Returns whether this user may use the reserved blocks, as on a mount of the kernel.
fn may_use_reserve(fs: &Fs) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let groups = rustix::process::getgroups().unwrap_or_default();
    let is_member =
        |group: u32| gid.as_raw() == group || groups.iter().any(|own| own.as_raw() == group);
    uid.is_root() || fs.reserve_is_for(uid.as_raw(), is_member)
}

/// Returns a path inside an image: bytes.
pub fn inside(path: &OsStr) -> &[u8] {
    path.as_bytes()
}

/// Returns whether to follow a symlink at the end of a path: only with a slash at the end.
pub fn unless_slash(path: &[u8]) -> Follow {
    if ends_with_slash(path) { Follow::Yes } else { Follow::No }
}

/// Returns whether a path demands a directory, by a slash behind it.
pub fn ends_with_slash(path: &[u8]) -> bool {
    path.ends_with(b"/")
}

/// Returns the path below `dir` with `name` behind it; `dir` itself if that is empty.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !name.is_empty() && !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns the root, for commands whose path may be left out.
pub fn root_path() -> OsString {
    "/".into()
}
