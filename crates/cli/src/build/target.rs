//! Where an image goes: a file, a block device, or standard output.

use crate::context::Context;
use crate::copy::output::{Output, device_of, hold_replaced, parent};
use crate::failure::{At, Failure, Result};
use crate::format::Format;
use crate::image::ImageArgs;
use crate::overwrite;
use crate::remote;
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_engine::Error;
use extant_engine::OpenOptions;
use extant_engine::device::{BlockDevice, FileDevice, FileOptions, image_spec, is_remote};
use extant_qcow2::write_image;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are zeroed or copied at once.
const CHUNK: u64 = 64 << 20;

/// Bytes of a write to standard output.
const PIPE_CHUNK: usize = 1 << 20;

/// Device and inode number of a file.
pub type FileIdentity = (u64, u64);

/// A place for an image.
pub enum Target<'a> {
    /// A file, which appears when it is complete. An image that is replaced is held meanwhile.
    File(&'a Path, Option<FileDevice>, Begun),
    /// A block device, which is held.
    Device(&'a Path, Arc<dyn BlockDevice>),
    /// A network block device, which becomes such a device by [`Target::connect`]. Something known
    /// on it is overwritten if this is true.
    Remote(&'a Path, bool),
    /// Standard output.
    Stdout(Begun),
}

/// Files that a process in a sandbox could not make any more.
#[derive(Default)]
pub struct Begun {
    output: Option<Output>,
    /// Files without a name in the directory of the output, or in that for temporary files.
    scratch: Vec<File>,
}

impl Begun {
    fn scratch_in(&mut self, dir: &Path) -> io::Result<File> {
        self.scratch.pop().map_or_else(|| tempfile::tempfile_in(dir), Ok)
    }

    /// Adds the files to a sandbox.
    fn add_to(&mut self, sandbox: Preparation) -> Preparation {
        let of = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let output = self.output.as_mut().map(Output::path);
        let files = output.into_iter().chain(self.scratch.iter().map(of));
        files.fold(sandbox, |sandbox, file| sandbox.writing_to(&file))
    }
}

impl<'a> Target<'a> {
    /// Takes the place `path`; a device with something known on it if `force` is set.
    ///
    /// # Errors
    /// A place that is in use, or that no image can have. Nothing was changed.
    pub fn take(path: &'a Path, force: bool, context: &Context) -> Result<Target<'a>> {
        if path == OsStr::new("-") {
            return to_stdout(context);
        }
        if is_remote(&image_spec(path).path) {
            let free = remote::refuse_mounted(path);
            free.map_err(|error| ImageArgs::of(path).refused(&error))?;
            return Ok(Target::Remote(path, force));
        }
        let kind = match std::fs::metadata(path) {
            Err(_) => return Ok(Target::File(path, None, Begun::default())),
            Ok(found) => found.file_type(),
        };
        let name = shown(path.as_os_str().as_bytes());
        if kind.is_file() {
            return Ok(Target::File(path, hold_replaced(path)?, Begun::default()));
        }
        if !kind.is_block_device() {
            let other = if kind.is_dir() { "a directory" } else { "no regular file and no disk" };
            return Err(Failure::new(format_args!("{name} is {other}")));
        }
        let device = FileOptions::new(path).open().map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::ResourceBusy => "; unmount it first",
                _ => "",
            };
            let message = format!("{error}{advice}");
            Failure::of(&Error::Io(error), path.as_os_str().as_bytes(), message)
        })?;
        Target::of_device(path, Arc::new(device), force)
    }

    fn of_device(path: &'a Path, device: Arc<dyn BlockDevice>, force: bool) -> Result<Target<'a>> {
        if device.read_only() {
            let name = shown(path.as_os_str().as_bytes());
            return Err(Failure::new(format_args!("{name} is write-protected")));
        }
        if !force {
            overwrite::check(&*device, path)?;
        }
        Ok(Target::Device(path, device))
    }

    /// Connects to a network block device, from inside of a sandbox if there is one: its threads,
    /// which belong to the sandbox of the thread that starts them, parse messages of the server.
    ///
    /// # Errors
    /// Those of the connection, and of [`Target::take`]. Nothing was changed.
    pub fn connect(self) -> Result<Target<'a>> {
        let Target::Remote(path, force) = self else { return Ok(self) };
        let device = OpenOptions::new().device_of(&image_spec(path));
        let device = device.map_err(|error| ImageArgs::of(path).refused(&error))?;
        Target::of_device(path, device, force)
    }

    /// Makes all files that the image needs before this process enters a sandbox, and adds them to
    /// that.
    ///
    /// # Errors
    /// Those of creation; a network block device that is in use.
    pub fn begin(
        &mut self,
        format: Format,
        context: &Context,
        sandbox: &mut Preparation,
    ) -> Result {
        let packs = usize::from(format != Format::Raw);
        let (dir, count, begun) = match self {
            Target::Device(..) => return Ok(()),
            Target::Remote(path, _) => {
                let prepared = std::mem::take(sandbox).writing_to_remote(&image_spec(path));
                *sandbox = prepared.map_err(|error| ImageArgs::of(path).refused(&error))?;
                return Ok(());
            }
            Target::File(path, _, begun) => {
                begun.output = Some(Output::begin(path)?.before_sandbox(context)?);
                (parent(path).to_owned(), packs, begun)
            }
            Target::Stdout(begun) => (std::env::temp_dir(), 1 + packs, begun),
        };
        for _ in 0..count {
            begun.scratch.push(tempfile::tempfile_in(&dir).at_path(dir.as_os_str().as_bytes())?);
        }
        *sandbox = begun.add_to(std::mem::take(sandbox));
        Ok(())
    }

    /// Writes an image of `len` bytes by `write`, which gets a device of this length, or a longer
    /// one, that reads as zeroes, and the identity of the file that will be the image. In a format
    /// other than raw it is written to a temporary file first.
    ///
    /// # Errors
    /// Those of `write` and of the place. A file stays as it was; a device has no file system then,
    /// but is unchanged if it is too short.
    pub fn write<T>(
        self,
        format: Format,
        len: u64,
        context: &Context,
        write: impl FnOnce(&dyn BlockDevice, Option<FileIdentity>) -> Result<T>,
    ) -> Result<T> {
        let raw = format == Format::Raw;
        match self {
            Target::File(path, _held, mut begun) => {
                let name = path.as_os_str().as_bytes();
                let mut output = begun.output.take().map_or_else(|| Output::begin(path), Ok)?;
                let own = output.file().metadata().at_path(name)?;
                let own = Some((own.dev(), own.ino()));
                let made = if raw {
                    write(&output.device(len).at_path(name)?, own)?
                } else {
                    let scratch = begun.scratch_in(parent(path)).at_path(name)?;
                    let disk = device_of(&scratch, len).at_path(name)?;
                    let made = write(&disk, own)?;
                    let file = output.device(0).at_path(name)?;
                    pack(&disk, &file, context).at_path(name)?;
                    made
                };
                output.finish()?;
                Ok(made)
            }
            Target::Remote(..) => self.connect()?.write(format, len, context, write),
            Target::Device(path, _) if !raw => {
                let name = shown(path.as_os_str().as_bytes());
                Err(Failure::new(format_args!(
                    "{name}: a block device takes a raw image; leave --format out"
                )))
            }
            Target::Device(path, device) => {
                let name = path.as_os_str().as_bytes();
                if device.len() < len {
                    return Err(Failure::new(format_args!(
                        "{}: the device has {} bytes, and the image needs {len}",
                        shown(name),
                        device.len()
                    )));
                }
                zero(&*device, len, context).at_path(name)?;
                write(&*device, None)
            }
            Target::Stdout(mut begun) => {
                let temporary = std::env::temp_dir();
                let name = temporary.as_os_str().as_bytes();
                let file = begun.scratch_in(&temporary).at_path(name)?;
                let device = device_of(&file, len).at_path(name)?;
                let made = write(&device, None)?;
                if raw {
                    print(&device, len, context).at("standard output")?;
                    return Ok(made);
                }
                let packed = begun.scratch_in(&temporary).at_path(name)?;
                let packed = device_of(&packed, 0).at_path(name)?;
                pack(&device, &packed, context).at_path(name)?;
                print(&packed, packed.len(), context).at("standard output")?;
                Ok(made)
            }
        }
    }
}

/// Writes the content of a disk to an image file in the format qcow2.
pub fn pack(disk: &dyn BlockDevice, file: &FileDevice, context: &Context) -> io::Result<()> {
    let bar = context.progress(disk.len());
    let done = write_image(disk, file, &mut |position| bar.set_position(position));
    bar.finish_and_clear();
    done
}

/// Takes standard output.
fn to_stdout(context: &Context) -> Result<Target<'static>> {
    if context.json {
        return Err(Failure::usage(
            "an image and a JSON document cannot both go to standard output",
        ));
    }
    if io::stdout().is_terminal() {
        return Err(Failure::usage(
            "an image is not for a terminal; redirect standard output, or name a file",
        ));
    }
    Ok(Target::Stdout(Begun::default()))
}

/// Zeroes the beginning of a device. Old superblocks go first, so that a half-zeroed device has no
/// file system.
fn zero(device: &dyn BlockDevice, len: u64, context: &Context) -> io::Result<()> {
    let bar = context.progress(len);
    let mut at = 0;
    while at < len {
        let next = (at + CHUNK).min(len);
        device.write_zeroes(at, next - at)?;
        bar.set_position(next);
        at = next;
    }
    bar.finish_and_clear();
    device.flush()
}

/// Copies an image to standard output, its holes as zeroes.
fn print(device: &FileDevice, len: u64, context: &Context) -> io::Result<()> {
    let bar = context.progress(len);
    let mut out = io::stdout().lock();
    let zeroes = vec![0; PIPE_CHUNK];
    let mut buf = vec![0; PIPE_CHUNK];
    let (mut at, mut data) = (0, 0..0);
    while at < len {
        if data.end <= at {
            data = device.next_data(at)?.unwrap_or(len..len);
        }
        let is_data = data.start <= at;
        let end = if is_data { data.end } else { data.start }.min(len);
        let part = (end - at).min(PIPE_CHUNK as u64) as usize;
        if is_data {
            device.read_exact_at(&mut buf[..part], at)?;
        }
        out.write_all(if is_data { &buf[..part] } else { &zeroes[..part] })?;
        at += part as u64;
        bar.set_position(at);
    }
    bar.finish_and_clear();
    out.flush()
}
