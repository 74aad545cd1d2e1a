//! `extant overlay`: images that hold their difference from a base alone.

use crate::build::target::pack;
use crate::context::Context;
use crate::copy::output::{Output, check_other, hold_replaced};
use crate::failure::{At, Failure, Result};
use crate::format::{Format, parse_backing, spec};
use crate::image::ImageArgs;
use crate::json;
use crate::remote;
use crate::sandbox::command::{Images, Preparation};
use crate::text::{shown, size};
use extant_engine::device::{
    BackingSpec, BlockDevice, FileDevice, FileOptions, ImageFormat, ImageSpec, SignatureKind,
    identify,
};
use extant_engine::{Error, OpenOptions};
use extant_qcow2::{Qcow2Device, create};
use serde_json::Map;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long `--wait` waits for an overlay.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Make overlays, images in the format qcow2 that hold only their difference from a base, and put
/// them into their base or into a new image.
///
/// Commands open an overlay with `--format qcow2 --backing BASE[:FORMAT]`. The base must not change
/// while it has overlays. The name of the base in an overlay is never followed: each command names
/// it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    Create(CreateArgs),
    Commit(CommitArgs),
    Flatten(FlattenArgs),
}

/// Make an overlay without a difference from its base
#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// New overlay
    overlay: PathBuf,
    /// Base; again for its own backing file, if it is an overlay
    #[arg(long, value_name = "FILE[:FORMAT]", required = true, value_parser = parse_backing)]
    backing: Vec<BackingSpec>,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
}

/// Write the difference of an overlay into its base
///
/// The base may be used alone then. The overlay stays as it is, and may be removed. A damaged one
/// is refused, with its base unchanged. After a failure of a device or a power cut it still shows
/// the same files, and another run completes the base. Other overlays of the base become useless.
#[derive(clap::Args, Debug)]
struct CommitArgs {
    /// Overlay
    overlay: PathBuf,
    /// Its base, which is changed; again for its own backing file, if it is an overlay
    #[arg(long, value_name = "FILE[:FORMAT]", required = true, value_parser = parse_backing)]
    backing: Vec<BackingSpec>,
    /// Write into a base with another name than the overlay has for it
    #[arg(short, long)]
    force: bool,
    /// Wait until no other program uses the images
    #[arg(long)]
    wait: bool,
}

/// Make an image with all content of an overlay and of its base
#[derive(clap::Args, Debug)]
struct FlattenArgs {
    /// Overlay, or another image in the format qcow2
    overlay: PathBuf,
    /// New image
    out: PathBuf,
    /// Its base; again for its own backing file, if it is an overlay
    #[arg(long, value_name = "FILE[:FORMAT]", value_parser = parse_backing)]
    backing: Vec<BackingSpec>,
    /// Format of OUT
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Replace an existing file OUT
    #[arg(short, long)]
    force: bool,
    /// Wait until no other program changes the images
    #[arg(long)]
    wait: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    match &args.action {
        Action::Create(args) => args.run(context),
        Action::Commit(args) => args.run(context),
        Action::Flatten(args) => args.run(context),
    }
}

/// Returns the first of the backing files, with those of its own.
fn base_of(backing: &[BackingSpec]) -> ImageSpec {
    let [base, below @ ..] = backing else { return ImageSpec::whole("") };
    ImageSpec { format: base.format, backing: below.to_vec(), ..ImageSpec::whole(&base.path) }
}

/// Opens the disk of an image.
fn open(image: &ImageSpec, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    options.device_of(image).map_err(|error| ImageArgs::of(&image.path).refused(&error))
}

/// Enters a sandbox with an image.
fn contain(context: &Context, sandbox: Preparation, image: &ImageSpec, wait: bool) -> Result {
    let images = [Images { wait, ..Images::of_spec(image.clone()) }];
    let entered = sandbox.enter(context, &images);
    entered.map_err(|(_, error)| ImageArgs::of(&image.path).refused(&error))
}

/// Refuses a new file that is there, or that cannot be an image. One that is replaced is held.
fn hold_new(path: &Path, force: bool) -> Result<Option<FileDevice>> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(None) };
    let name = shown(path.as_os_str().as_bytes());
    if !found.is_file() {
        return Err(Failure::new(format_args!("{name} is no regular file")));
    }
    if !force {
        return Err(Failure::new(format_args!("{name} exists; --force replaces it")));
    }
    hold_replaced(path)
}

fn document(pairs: &[(&str, &Path)]) -> Map<String, serde_json::Value> {
    let mut document = Map::new();
    for (key, path) in pairs {
        json::put_bytes(&mut document, key, path.as_os_str().as_bytes());
    }
    document
}

impl CreateArgs {
    fn run(&self, context: &Context) -> Result {
        let base = base_of(&self.backing);
        check_other(&self.overlay, &base)?;
        let _held = hold_new(&self.overlay, self.force)?;
        let mut output = Output::begin(&self.overlay)?.before_sandbox(context)?;
        contain(context, Preparation::default().writing_to(&output.path()), &base, false)?;
        let disk = open(&base, &OpenOptions::new().read_only(true))?;
        note_disguise(&base, &*disk, context);
        let path = remote::absolute_path(&base.path)?;
        let name = self.overlay.as_os_str().as_bytes();
        let file = output.device(0).at_path(name)?;
        let backing = (path.as_os_str().as_bytes(), base.format.name());
        create(&file, disk.len(), Some(backing)).at_path(name)?;
        output.finish()?;
        if context.json {
            let mut document = document(&[("overlay", &self.overlay), ("base", &base.path)]);
            document.insert("bytes".into(), disk.len().into());
            return context.document(&document.into());
        }
        let (overlay, base) = (shown(name), shown(base.path.as_os_str().as_bytes()));
        context.note(format_args!("{overlay}: made an overlay of {base} ({})", size(disk.len())));
        Ok(())
    }
}

/// Tells of a raw base that looks like an image in another format.
fn note_disguise(base: &ImageSpec, disk: &dyn BlockDevice, context: &Context) {
    let looks = identify(disk).filter(|found| found.kind == SignatureKind::DiskImage);
    if let Some(found) = looks.filter(|_| base.format == ImageFormat::Raw) {
        let name = shown(base.path.as_os_str().as_bytes());
        context.note(format_args!(
            "{name} is taken as a raw image, and holds {}; --backing {name}:qcow2 takes it as one",
            found.name
        ));
    }
}

impl CommitArgs {
    fn run(&self, context: &Context) -> Result {
        let base = base_of(&self.backing);
        // Before the sandbox: which program uses it can be told only from outside.
        let file = self.hold()?;
        let sandbox = Preparation::writing(true).reading(&self.overlay);
        contain(context, sandbox, &base, self.wait)?;
        let layer = Qcow2Device::open_layer(Arc::new(file));
        let layer = layer.map_err(|error| self.refused(error))?;
        self.check_base(&layer, &base)?;
        let disk = open(&base, &OpenOptions::new().wait(self.wait))?;
        let name = shown(base.path.as_os_str().as_bytes());
        if disk.read_only() {
            return Err(Failure::new(format_args!("{name} is write-protected")));
        }
        let bytes = layer_bytes(&layer).at_path(self.overlay.as_os_str().as_bytes())?;
        let bar = context.progress(bytes);
        let done = layer.commit_to(&*disk, &mut |len| bar.inc(len));
        bar.finish_and_clear();
        done.map_err(|error| failed(&self.overlay, error))?;
        if context.json {
            let mut document = document(&[("overlay", &self.overlay), ("base", &base.path)]);
            document.insert("bytes".into(), bytes.into());
            return context.document(&document.into());
        }
        let overlay = shown(self.overlay.as_os_str().as_bytes());
        context.note(format_args!("{name}: has the {} of {overlay} now", size(bytes)));
        Ok(())
    }

    /// Opens the file of the overlay, which no program can write to then, and does not parse it.
    fn hold(&self) -> Result<FileDevice> {
        let wait = self.wait.then_some(PATIENCE);
        let opened = FileOptions::new(&self.overlay).read_only(true).wait(wait).open();
        opened.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: io::Error) -> Failure {
        let overlay = ImageArgs { wait: self.wait, ..ImageArgs::of(&self.overlay) };
        overlay.refused(&Error::Io(error))
    }

    /// Refuses a base in another format, or with another file name, than the overlay has for it.
    /// The path in the overlay may be that of a stranger, and is not looked at on the host.
    fn check_base(&self, layer: &Qcow2Device, base: &ImageSpec) -> Result {
        let overlay = shown(self.overlay.as_os_str().as_bytes());
        let Some(named) = layer.backing_name() else {
            return Err(Failure::new(format_args!("{overlay} is no overlay: it has no base")));
        };
        let name = Path::new(OsStr::from_bytes(&named.name));
        let path = shown(base.path.as_os_str().as_bytes());
        let stored = named.format.as_deref().unwrap_or(base.format.name());
        // Content of the disk would take the place of the tables of an image.
        if stored != base.format.name() {
            return Err(Failure::new(format_args!(
                "{overlay}: its base has the format {stored}; name it by --backing {path}:{stored}"
            )));
        }
        if self.force || name.file_name() == base.path.file_name() {
            return Ok(());
        }
        let (named, base) = (shown(&named.name), path);
        Err(Failure::new(format_args!(
            "{overlay} is an overlay of {named}, and not of {base}; --force writes into it all the \
             same"
        )))
    }
}

/// Returns the bytes that an overlay has itself.
fn layer_bytes(layer: &Qcow2Device) -> io::Result<u64> {
    let (mut bytes, mut at) = (0, 0);
    while let Some(found) = layer.next_in_layer(at)? {
        bytes += found.range.end - found.range.start;
        at = found.range.end;
    }
    Ok(bytes)
}

fn failed(path: &Path, error: io::Error) -> Failure {
    let name = path.as_os_str().as_bytes();
    let message = format!("{}: {error}", shown(name));
    Failure::of(&Error::Io(error), name, message)
}

impl FlattenArgs {
    fn run(&self, context: &Context) -> Result {
        let overlay = spec(&self.overlay, ImageFormat::Qcow2, &self.backing);
        check_other(&self.out, &overlay)?;
        let _held = hold_new(&self.out, self.force)?;
        let mut output = Output::begin(&self.out)?.before_sandbox(context)?;
        let sandbox = Preparation::default().writing_to(&output.path());
        contain(context, sandbox, &overlay, self.wait)?;
        let disk = open(&overlay, &OpenOptions::new().read_only(true).wait(self.wait))?;
        let name = self.out.as_os_str().as_bytes();
        let written = match self.format {
            Format::Raw => {
                let file = output.device(disk.len()).at_path(name)?;
                copy(&*disk, &file, context).and_then(|()| file.flush())
            }
            Format::Qcow2 => {
                let file = output.device(0).at_path(name)?;
                pack(&*disk, &file, context)
            }
        };
        written.map_err(|error| failed(&self.out, error))?;
        output.finish()?;
        if context.json {
            let mut document = document(&[("overlay", &self.overlay), ("image", &self.out)]);
            document.insert("bytes".into(), disk.len().into());
            return context.document(&document.into());
        }
        context.note(format_args!("{}: made an image of {}", shown(name), size(disk.len())));
        Ok(())
    }
}

/// Copies a disk to a file of its length that reads as zeroes.
fn copy(disk: &dyn BlockDevice, file: &dyn BlockDevice, context: &Context) -> io::Result<()> {
    const PIECE: usize = 1 << 20;
    let bar = context.progress(disk.len());
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while let Some(data) = disk.next_data(at)? {
        at = data.start;
        while at < data.end {
            let len = (data.end - at).min(PIECE as u64) as usize;
            disk.read_exact_at(&mut piece[..len], at)?;
            if piece[..len].iter().any(|byte| *byte != 0) {
                file.write_all_at(&piece[..len], at)?;
            }
            at += len as u64;
            bar.set_position(at);
        }
    }
    bar.finish_and_clear();
    Ok(())
}
