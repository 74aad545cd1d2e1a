//! `extant clone`: a copy of an image without its unused blocks.

use super::check::open_for_reading;
use crate::context::Context;
use crate::copy::output::{Output, check_other, hold_replaced};
use crate::failure::{At, Failure, Result};
use crate::format::FormatArgs;
use crate::image::ImageArgs;
use crate::interrupt::Interrupt;
use crate::json;
use crate::sandbox::command::{Preparation, leave_feigned_root};
use crate::text::{shown, size};
use extant_check::{Trim, TrimError, TrimPlan, UuidError, set_uuid};
use extant_engine::device::{BlockDevice, DataPieces, FileOptions, HostBytes, ImageFormat, Place};
use extant_engine::mkfs::parse_uuid;
use extant_engine::{Errno, Error, OpenOptions};
use serde_json::Map;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Copy an image without its unused space.
///
/// Where the host can share blocks between files, the copy shares all of them. Elsewhere the blocks
/// in use are copied, and free blocks and the blocks of an empty journal become holes. An image
/// that needs recovery or repair is copied as it is. DST gets its name when it is complete and
/// durable.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// New image file
    #[arg(value_name = "DST")]
    dest: PathBuf,
    /// Replace an existing file DST
    #[arg(short, long)]
    force: bool,
    /// Copy the blocks, also where the host could share them
    #[arg(long)]
    no_reflink: bool,
    /// Give the copy a random UUID
    #[arg(long)]
    new_uuid: bool,
    /// Wait until no other program changes the image
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    stored: FormatArgs,
}

/// Bytes of one request.
const CHUNK: u64 = 4 << 20;

/// A source as it was opened: locked against writers while it is copied.
struct Source {
    device: Arc<dyn BlockDevice>,
    image: ImageArgs,
    /// The host may copy bytes by itself, and let the files share them.
    by_host: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image =
        ImageArgs { wait: args.wait, stored: args.stored.clone(), ..ImageArgs::of(&args.source) };
    if context.sandbox {
        leave_feigned_root();
    }
    args.check()?;
    let _replaced = hold_replaced(&args.dest)?;
    let uuid = args.new_uuid.then(random_uuid).transpose()?;
    let mut output = Output::begin(&args.dest)?;
    let held = args.share(&image, output.file())?;
    let (is_shared, by_host) = (held.is_some(), !args.no_reflink);
    let source = match held {
        // Outside of a sandbox: nothing of the image was read, and nothing will be.
        Some(device) if uuid.is_none() => Source { device, image, by_host },
        _ => {
            output = output.before_sandbox(context)?;
            image.contain(context, Preparation::default().writing_to(&output.path()))?;
            let device =
                open_for_reading(&image, &image.spec()).map_err(|e| e.with_exit_code(1))?;
            Source { device, image, by_host }
        }
    };
    let interrupt = Interrupt::register().at("signals")?;
    let file = output.file();
    let copied = if is_shared {
        None
    } else {
        Some(source.copy((&args.dest, file), context, &interrupt.flag())?)
    };
    if let Some(uuid) = uuid {
        source.rename(file, uuid)?;
    }
    file.sync_all().at_path(args.dest.as_os_str().as_bytes())?;
    if interrupt.restore_default() {
        return Err(source.interrupted());
    }
    output.finish()?;
    args.report(context, source.device.len(), copied)
}

/// Returns a random UUID.
pub fn random_uuid() -> Result<[u8; 16]> {
    /// The kernel's source of them.
    const RANDOM: &str = "/proc/sys/kernel/random/uuid";
    let text = std::fs::read_to_string(RANDOM).at(RANDOM)?;
    parse_uuid(text.trim()).map_err(Failure::new)
}

impl Args {
    /// Refuses a destination that is there, or that cannot be an image.
    fn check(&self) -> Result {
        let Ok(found) = std::fs::metadata(&self.dest) else { return Ok(()) };
        let name = shown(self.dest.as_os_str().as_bytes());
        check_other(&self.dest, &self.stored.spec(&self.source))?;
        if !found.is_file() {
            return Err(Failure::new(format_args!("{name} is no regular file")));
        }
        if !self.force {
            return Err(Failure::new(format_args!("{name} exists; --force replaces it")));
        }
        Ok(())
    }

    /// Shares all blocks of the source with the new file. Returns the source, locked against
    /// writers; `None` if the host cannot share them.
    fn share(&self, image: &ImageArgs, file: &File) -> Result<Option<Arc<dyn BlockDevice>>> {
        let spec = image.spec();
        let is_whole = spec.place == Place::Whole && spec.format == ImageFormat::Raw;
        if self.no_reflink || !is_whole || !spec.path.is_file() {
            return Ok(None);
        }
        let options = OpenOptions::new().read_only(true).wait(image.wait);
        let device = options.device_of(&spec).map_err(|error| image.refused(&error))?;
        let source = File::open(&spec.path).at_path(spec.path.as_os_str().as_bytes())?;
        Ok(rustix::fs::ioctl_ficlone(file, &source).is_ok().then_some(device))
    }

    fn report(&self, context: &Context, len: u64, copied: Option<u64>) -> Result {
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.source.as_os_str().as_bytes());
            json::put_bytes(&mut document, "clone", self.dest.as_os_str().as_bytes());
            document.insert("bytes".into(), len.into());
            document.insert("shared".into(), copied.is_none().into());
            document.insert("copied_bytes".into(), copied.unwrap_or(0).into());
            return context.document(&document.into());
        }
        let name = shown(self.dest.as_os_str().as_bytes());
        match copied {
            None => context.note(format_args!("{name}: shares all blocks ({})", size(len))),
            Some(copied) => {
                context.note(format_args!("{name}: copied {} of {}", size(copied), size(len)))
            }
        }
        Ok(())
    }
}

impl Source {
    fn interrupted(&self) -> Failure {
        self.failed(Errno::Intr.into())
    }

    fn failed(&self, error: Error) -> Failure {
        let message = format!("{}: {error}", self.image.name());
        Failure::of(&error, self.image.image.as_os_str().as_bytes(), message)
    }

    /// Gives the copy a UUID.
    fn rename(&self, file: &File, uuid: [u8; 16]) -> Result {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // No other program knows the file, so it needs no lock.
        let device = FileOptions::new(path).lock(false).open().at("the new image")?;
        let name = self.image.name();
        set_uuid(&device, uuid).map_err(|error| {
            let advice = match error {
                UuidError::NeedsRecovery => format!("; run `extant recover {name}` first"),
                UuidError::Corrupt(_) => format!("; run `extant repair {name}` first"),
                _ => String::new(),
            };
            Failure::new(format_args!("{name}: the copy cannot get a UUID: {error}{advice}"))
        })
    }

    /// Copies the blocks in use. Returns the number of bytes.
    fn copy(
        &self,
        (dest, file): (&Path, &File),
        context: &Context,
        stop: &Arc<AtomicBool>,
    ) -> Result<u64> {
        let len = self.device.len();
        file.set_len(len).at_path(dest.as_os_str().as_bytes())?;
        let trim = Trim::new(self.device.clone()).threads(context.thread_count());
        let plan = match trim.interrupt(stop.clone()).plan() {
            Ok(plan) => Some(plan),
            Err(TrimError::Interrupted) => return Err(self.interrupted()),
            Err(TrimError::Io(error)) => return Err(self.failed(Error::Io(error))),
            Err(error) => {
                let name = self.image.name();
                context.note(format_args!("{name}: free blocks are copied, too: {error}"));
                None
            }
        };
        let bar = context.progress(0);
        let (device, copied) = (&*self.device, AtomicU64::new(0));
        let host = device.host_bytes().filter(|_| self.by_host);
        let copy = Copy { device, host, file, stop, copied };
        let done = copy.run(plan.as_ref(), context.thread_count(), &|len| bar.inc(len));
        bar.finish_and_clear();
        done.map_err(|failed| match failed {
            Failed::Writing(error) => {
                let name = shown(dest.as_os_str().as_bytes());
                Failure::new(format_args!("{name}: {error}"))
            }
            Failed::Reading(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.interrupted()
            }
            Failed::Reading(error) => self.failed(Error::Io(error)),
        })?;
        Ok(copy.copied.into_inner())
    }
}

/// A copy that ended early.
enum Failed {
    Reading(io::Error),
    Writing(io::Error),
}

/// A copy of blocks by several threads.
struct Copy<'c> {
    device: &'c dyn BlockDevice,
    /// The device's bytes, if the host may copy them.
    host: Option<HostBytes<'c>>,
    file: &'c File,
    stop: &'c AtomicBool,
    /// Bytes that were copied. Relaxed: read after the threads have ended.
    copied: AtomicU64,
}

impl Copy<'_> {
    fn run(
        &self,
        plan: Option<&TrimPlan>,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> std::result::Result<(), Failed> {
        let whole = std::iter::once(0..self.device.len());
        let used: Box<dyn Iterator<Item = Range<u64>> + Send + '_> = match plan {
            Some(plan) => Box::new(plan.used()),
            None => Box::new(whole),
        };
        let pieces = Mutex::new(DataPieces::new(self.device, used, CHUNK));
        let work = || {
            let mut buf = vec![0; CHUNK as usize];
            loop {
                let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(piece) = next.transpose().map_err(Failed::Reading)? else {
                    return Ok(());
                };
                // Relaxed: the flag orders nothing, and may be seen a piece later.
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Failed::Reading(io::ErrorKind::Interrupted.into()));
                }
                let len = piece.end - piece.start;
                self.piece(piece, &mut buf)?;
                self.copied.fetch_add(len, Ordering::Relaxed);
                progress(len);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let failed = || Failed::Reading(io::Error::other("a thread of the copy failed"));
            workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| failed())?)
        })
    }

    /// Copies at most [`CHUNK`] bytes: by the host, as far as it does so.
    fn piece(&self, piece: Range<u64>, buf: &mut [u8]) -> std::result::Result<(), Failed> {
        let source = self.host.and_then(|bytes| bytes.skip(piece.start));
        let done = source
            .map_or(0, |source| source.copy_to(self.file, piece.start, piece.end - piece.start));
        let start = piece.start + done;
        let bytes = &mut buf[..(piece.end - start) as usize];
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.read_exact_at(bytes, start).map_err(Failed::Reading)?;
        self.file.write_all_at(bytes, start).map_err(Failed::Writing)
    }
}
