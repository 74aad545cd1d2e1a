//! `extant verity`: a hash tree of dm-verity for a finished image.

use super::check::open_for_reading;
use super::repair::open_for_writing;
use super::trim;
use crate::build::verity::{HashTree, TreePlace};
use crate::context::Context;
use crate::copy::output::{Output, hold_replaced};
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json;
use crate::sandbox::command::{Preparation, leave_feigned_root};
use crate::text::{shown, size};
use extant_check::Trim;
use extant_engine::device::{BlockDevice, DeviceError, FileDevice, ImageFormat, Place, image_spec};
use extant_engine::format::Superblock;
use extant_engine::{Errno, Error};
use serde_json::Map;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Append a hash tree of dm-verity to an image.
///
/// Prints root hash, salt and UUID of the tree, and its offset: veritysetup(8) and the kernel
/// verify the image with them at each read. The same image has the same tree. Any later change of
/// the image, also a mount for writing, makes the tree invalid; the command makes a new one in its
/// place. The file system is checked first: one that needs recovery, that is marked as having
/// errors, or that is damaged is refused.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Write the tree to this new file, and leave the image as it is
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
}

/// Where the superblock lies, and its length, in bytes.
const SUPERBLOCK: (u64, usize) = (1024, 1024);

/// First bytes of a hash tree.
const MAGIC: &[u8] = b"verity\0\0";

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = args.on.named();
    if context.sandbox {
        leave_feigned_root();
    }
    let beside = args.tree.as_deref().map(|dest| Beside::begin(dest, context)).transpose()?;
    let (beside, sandbox) = match beside {
        None => {
            args.check_file(&image)?;
            (None, Preparation::writing(true))
        }
        Some(mut beside) => {
            let sandbox = Preparation::default().writing_to(&beside.output.path());
            (Some(beside), sandbox)
        }
    };
    image.contain(context, sandbox)?;
    let open = if args.tree.is_some() { open_for_reading } else { open_for_writing };
    let device = open(&image, &image.spec()).map_err(|failure| failure.with_exit_code(1))?;
    let mut check = Trim::new(device.clone()).threads(context.thread_count());
    if let Some(path) = &args.on.journal {
        let journal =
            open_for_reading(&image, &image_spec(path)).map_err(|f| f.with_exit_code(1))?;
        check = check.journal(journal);
    }
    let interrupt = Interrupt::register().at("signals")?;
    check = check.interrupt(interrupt.flag());
    check.plan().map_err(|error| trim::refuse(&image, error))?;
    let place = if args.tree.is_some() { TreePlace::Own } else { TreePlace::Behind };
    let (facts, uuid) = facts(&image, &*device)?;
    let tree = HashTree::plan(facts, uuid, place, context.thread_count())?;
    let stop = interrupt.flag();
    let root = match beside {
        Some(beside) => beside.write(&image, &tree, &device, &stop)?,
        None => behind(&image, &tree, (&device, facts.0), &stop)?,
    };
    if interrupt.restore_default() {
        tracing::warn!("the signal came after the tree was complete");
    }
    args.report(context, &image, &tree, &root)
}

impl Args {
    /// Refuses an image behind which no tree can be.
    fn check_file(&self, image: &ImageArgs) -> Result {
        let spec = image.spec();
        let is_other = std::fs::metadata(&spec.path).is_ok_and(|found| !found.is_file());
        if spec.place == Place::Whole && spec.format == ImageFormat::Raw && !is_other {
            return Ok(());
        }
        let name = image.name();
        Err(Failure::new(format_args!(
            "{name}: a tree is appended to a whole raw image file; --tree FILE makes it elsewhere"
        )))
    }

    fn report(&self, context: &Context, image: &ImageArgs, tree: &HashTree, root: &str) -> Result {
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.on.image.as_os_str().as_bytes());
            document.extend(tree.document(root).as_object().cloned().unwrap_or_default());
            return context.document(&document.into());
        }
        tree.print(root)?;
        let name = image.name();
        let bytes = size(tree.end() - tree.offset());
        context.note(format_args!("{name}: made a hash tree of {bytes}"));
        Ok(())
    }
}

/// Returns bytes, block size and UUID of a file system that was checked.
fn facts(image: &ImageArgs, device: &dyn BlockDevice) -> Result<((u64, u32), [u8; 16])> {
    let (offset, len) = SUPERBLOCK;
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, offset).map_err(|error| failed(image, error))?;
    let superblock = Superblock::parse(&bytes)
        .map_err(|error| Failure::new(format_args!("{}: {error}", image.name())))?;
    let block_size = superblock.block_size();
    let bytes = superblock.blocks_count().saturating_mul(block_size.into());
    Ok(((bytes, block_size), superblock.uuid()))
}

/// A file of its own for the tree, begun before this process enters a sandbox.
struct Beside<'a> {
    dest: &'a Path,
    output: Output,
    /// An older file there, held.
    _replaced: Option<FileDevice>,
}

impl<'a> Beside<'a> {
    fn begin(dest: &'a Path, context: &Context) -> Result<Beside<'a>> {
        let replaced = hold_replaced(dest)?;
        if std::fs::metadata(dest).is_ok_and(|found| !found.is_file()) {
            let name = shown(dest.as_os_str().as_bytes());
            return Err(Failure::new(format_args!("{name} is no regular file")));
        }
        let output = Output::begin(dest)?.before_sandbox(context)?;
        Ok(Beside { dest, output, _replaced: replaced })
    }

    fn write(
        mut self,
        image: &ImageArgs,
        tree: &HashTree,
        data: &Arc<dyn BlockDevice>,
        stop: &AtomicBool,
    ) -> Result<String> {
        let device = self.output.device(tree.end()).at_path(self.dest.as_os_str().as_bytes())?;
        let root = tree.write(&**data, &device, stop).map_err(|error| {
            of_tree(&error, &device.name(), self.dest).unwrap_or_else(|| failed(image, error))
        })?;
        drop(device);
        self.output.finish()?;
        Ok(root)
    }
}

/// Writes the tree behind the file system, over an older tree.
fn behind(
    image: &ImageArgs,
    tree: &HashTree,
    (device, data): (&Arc<dyn BlockDevice>, u64),
    stop: &AtomicBool,
) -> Result<String> {
    let old = device.len();
    if old > data && (old > tree.end() || !has_tree(&**device, tree.offset())) {
        let name = image.name();
        return Err(Failure::new(format_args!(
            "{name}: other content follows the file system; --tree FILE makes the tree elsewhere, \
             `truncate -s {data} {name}` removes the content"
        )));
    }
    let io = |error| failed(image, error);
    device.set_len(tree.end()).map_err(io)?;
    tree.write(&**device, &**device, stop).map_err(|error| {
        // Only an older tree can be lost, which was to be replaced.
        let _ = device.set_len(data);
        failed(image, error)
    })
}

/// Returns the failure for an error of the new file, which its device knows by another name.
fn of_tree(error: &extant_image::Error, own: &str, dest: &Path) -> Option<Failure> {
    let extant_image::Error::Layout(extant_image::mkfs::Error::Io(error)) = error else {
        return None;
    };
    let inner = error.get_ref()?.downcast_ref::<DeviceError>()?;
    let cause = inner.cause.raw_os_error().filter(|_| inner.device == own)?;
    let cause = io::Error::from_raw_os_error(cause);
    let name = dest.as_os_str().as_bytes();
    let message = format!("{}: {cause}", shown(name));
    Some(Failure::of(&Error::Io(cause), name, message))
}

fn has_tree(device: &dyn BlockDevice, offset: u64) -> bool {
    let mut magic = [0; MAGIC.len()];
    device.read_exact_at(&mut magic, offset).is_ok() && magic == MAGIC
}

fn failed(image: &ImageArgs, error: impl Into<extant_image::Error>) -> Failure {
    let error = error.into();
    let name = image.name();
    let path = image.image.as_os_str().as_bytes();
    match error {
        extant_image::Error::Layout(extant_image::mkfs::Error::Io(error)) => {
            if error.kind() == io::ErrorKind::Interrupted {
                let message = format!("{name}: interrupted; the image is unchanged");
                return Failure::of(&Errno::Intr.into(), path, message);
            }
            let message = format!("{name}: {error}");
            Failure::of(&Error::Io(error), path, message)
        }
        other => Failure::new(format_args!("{name}: {other}")),
    }
}
