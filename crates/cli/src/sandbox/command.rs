//! The sandbox of a command on the image of a stranger: entered before it parses the image.

use super::{FileCalls, Sandbox, files_of};
use crate::context::Context;
use crate::format::{backing_files, files};
use crate::inherited;
use crate::process::program;
use crate::remote;
use extant_archive::root_is_feigned;
use extant_engine::device::{ImageSpec, image_spec, is_remote};
use extant_engine::{Error, OpenOptions};
use rustix::process::geteuid;
use std::env;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long another process that writes to a network block device is waited for: a mount ends a
/// moment after its unmount.
const REMOTE_PATIENCE: Duration = Duration::from_secs(5);

/// This process is in a sandbox, which it cannot enter twice.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// The files of a file system.
#[derive(Debug)]
pub struct Images {
    /// The image, with its backing files, which are only read.
    pub image: ImageSpec,
    /// Its external journal.
    pub journal: Option<ImageSpec>,
    /// Wait until no other program uses it.
    pub wait: bool,
    /// It is read while another program uses it.
    pub in_use: bool,
}

impl Images {
    /// Returns the files of an image without an external journal.
    pub fn of(image: &Path) -> Images {
        Images::of_spec(image_spec(image))
    }

    /// As [`Images::of`], for an image at a place.
    pub fn of_spec(image: ImageSpec) -> Images {
        Images { image, journal: None, wait: false, in_use: false }
    }
}

/// A sandbox in the making.
#[derive(Debug, Default)]
pub struct Preparation {
    sandbox: Sandbox,
    writes: bool,
}

impl Preparation {
    /// Prepares to write to the images, too.
    pub fn writing(writes: bool) -> Preparation {
        Preparation { writes, ..Preparation::default() }
    }

    /// Adds a file to read.
    #[must_use]
    pub fn reading(mut self, file: &Path) -> Preparation {
        self.sandbox.read.push(file.into());
        self
    }

    /// Adds a file that is opened again to be written.
    #[must_use]
    pub fn writing_to(mut self, file: &Path) -> Preparation {
        self.sandbox.write.push(file.into());
        self
    }

    /// Adds a file or a tree that is copied into an image, with its attributes. A symlink has no
    /// content.
    #[must_use]
    pub fn copying(mut self, source: &Path) -> Preparation {
        let found = std::fs::symlink_metadata(source);
        match found.map(|found| found.file_type()) {
            Ok(kind) if kind.is_dir() => self.sandbox.read_trees.push(source.into()),
            Ok(kind) if kind.is_file() => self.sandbox.read.push(source.into()),
            _ => {}
        }
        self.sandbox.files = FileCalls::Reading;
        self
    }

    /// Adds a directory beneath which files are read.
    #[must_use]
    pub fn reading_beneath(mut self, dir: &Path) -> Preparation {
        self.sandbox.read_trees.push(dir.into());
        self
    }

    /// Adds a directory beneath which files are read with their attributes.
    #[must_use]
    pub fn scanning(mut self, dir: &Path) -> Preparation {
        self.sandbox.files = FileCalls::Reading;
        self.reading_beneath(dir)
    }

    /// Adds a network block device that is written. No other process of this user writes to it
    /// until this one ends.
    ///
    /// # Errors
    /// `ResourceBusy` if one does, or has mounted it; those of a new process.
    pub fn writing_to_remote(self, image: &ImageSpec) -> Result<Preparation, Error> {
        remote::hold(image, REMOTE_PATIENCE)?;
        remote::prepare(image)?;
        Ok(self)
    }

    /// Takes connections at sockets that are there.
    #[must_use]
    pub fn serving(mut self) -> Preparation {
        self.sandbox.serves = true;
        self
    }

    /// Adds a directory beneath which files are made.
    #[must_use]
    pub fn beneath(mut self, dir: &Path, calls: FileCalls) -> Preparation {
        self.sandbox.trees.extend(dir.canonicalize());
        self.sandbox.files = calls;
        self
    }

    /// Enters, unless the user asked for none, once no other program uses the images: that can be
    /// told only from outside.
    ///
    /// # Errors
    /// An image is in use, with its number in the list. Other errors come again when it is opened.
    pub fn enter(mut self, context: &Context, images: &[Images]) -> Result<(), (usize, Error)> {
        if !context.sandbox || ENTERED.load(Ordering::Acquire) {
            return Ok(());
        }
        check_libraries().map_err(|error| (0, error))?;
        for (number, Images { image, journal, wait, in_use }) in images.iter().enumerate() {
            for (place, file) in files(image).iter().enumerate() {
                if is_remote(&file.path) {
                    // Looked at inside alone: a thread of a connection must not be outside.
                    let held = if self.writes && place == 0 {
                        remote::hold(file, REMOTE_PATIENCE)
                    } else {
                        Ok(())
                    };
                    let prepared = held.and_then(|()| remote::prepare(file));
                    prepared.map_err(|error| (number, error))?;
                    continue;
                }
                if *in_use {
                    continue;
                }
                let read_only = !self.writes || place > 0;
                let options = OpenOptions::new().read_only(read_only).wait(*wait);
                match options.device_of(file) {
                    Err(Error::Io(error)) if error.kind() == ErrorKind::ResourceBusy => {
                        return Err((number, Error::Io(error)));
                    }
                    _ => {}
                }
            }
            if let Some(journal) = journal {
                remote::prepare(journal).map_err(|error| (number, error))?;
            }
            let journal = journal.as_ref().map(|spec| spec.path.as_path());
            let own = files_of(&image.path, journal);
            self.sandbox.read.extend(backing_files(image));
            let allowed =
                if self.writes { &mut self.sandbox.write } else { &mut self.sandbox.read };
            allowed.extend(own);
        }
        ENTERED.store(true, Ordering::Release);
        inherited::close_unnamed();
        for (part, state) in self.sandbox.enter() {
            tracing::debug!("sandbox: {part}: {state}");
            let is_of_copies = self.sandbox.files == FileCalls::Attributes && part == "mounts";
            if is_of_copies && geteuid().is_root() && state.starts_with("none") {
                context.note(format_args!(
                    "the sandbox is weaker here: an image that takes this process over could \
                    change owners and modes of other files, whose mounts cannot be made read-only \
                    ({state}); allow CAP_SYS_ADMIN, or copy as another user"
                ));
            }
        }
        Ok(())
    }
}

/// Refuses a process with a library that feigns root, whose own system calls the filter would fail.
///
/// # Errors
/// With the remedy.
pub fn check_libraries() -> Result<(), Error> {
    if !root_is_feigned() {
        return Ok(());
    }
    Err(Error::Io(io::Error::other(
        "the libraries of fakeroot and pseudo do not work in a sandbox; call the command without \
         them, or with --no-sandbox if you trust the image",
    )))
}

/// Executes this program again without the library, before it has done anything: a check of an
/// image needs no feigned owners. Returns where no root is feigned, or where that fails.
pub fn leave_feigned_root() {
    // pseudo(1) loads its library again in programs that are executed without it.
    const UNLOAD: &str = "PSEUDO_UNLOAD";
    if !root_is_feigned() || env::var_os(UNLOAD).is_some() {
        return;
    }
    let mut words = env::args_os();
    let mut again = Command::new(program());
    again.arg0(words.next().unwrap_or_default()).args(words);
    let error = again.env_remove("LD_PRELOAD").env(UNLOAD, "1").exec();
    tracing::debug!("cannot leave the library that feigns root: {error}");
}
