//! `extant get`: files and trees copied out.

use super::cat;
use super::export::{self, Source};
use crate::context::Context;
use crate::copy::compress::Compression;
use crate::copy::dest;
use crate::copy::job::Job;
use crate::copy::keeper::Stage;
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, ends_with_slash, inside};
use crate::sandbox::FileCalls;
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_engine::{FileType, Follow, Fs, Node};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Copy a file or a tree out, with all attributes.
///
/// The entries of a directory are copied into DEST, which is made if it is missing; an existing
/// DEST keeps its attributes. A file is copied to DEST, or into it under its own name if DEST is a
/// directory. An existing file is replaced.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// File or directory to copy
    path: OsString,
    /// Where to; - is standard output, for a file's content
    #[arg(required_unless_present = "tar", conflicts_with = "tar")]
    dest: Option<PathBuf>,
    /// Make no devices, FIFOs and sockets
    #[arg(long, conflicts_with = "tar")]
    no_special: bool,
    /// Write a tar archive instead; - is standard output
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let path = inside(&args.path);
    match (&args.tar, &args.dest) {
        (Some(tar), _) => {
            let output = export::begin_tar(tar, context)?;
            let fs = args.image.read(context)?;
            let node = fs.resolve(path, Follow::No).at_path(path)?;
            let source = Source { fs: &fs, node, path };
            export::to_tar(context, source, (tar, output), Compression::None)
        }
        (None, Some(dest)) => {
            let dest = Destination::begin(dest)?;
            let fs = args.image.read_within(context, dest.sandbox())?;
            let node = fs.resolve(path, Follow::No).at_path(path)?;
            let job = Job::out_of(&fs, context).no_special(args.no_special);
            copy(context, &job, (&fs, node), path, &dest)
        }
        (None, None) => Err(Failure::usage("get needs a destination")),
    }
}

/// The destination of copies, begun before this process enters a sandbox.
pub struct Destination<'a> {
    path: &'a Path,
    /// It is no directory yet: copies go into one beside it first, and only that can be reached.
    stage: Option<Stage>,
}

impl Destination<'_> {
    /// Begins a destination; `-` is standard output.
    ///
    /// # Errors
    /// Nothing can be made beside it; a device, a FIFO or a socket, or a symlink to the standard
    /// output of this process: a copy would take its place, for all programs of the machine.
    pub fn begin(path: &Path) -> Result<Destination<'_>> {
        refuse_special(path)?;
        let is_new = path != OsStr::new("-") && !path.is_dir();
        let stage = is_new.then(|| Stage::begin(path, 0o755)).transpose()?;
        Ok(Destination { path, stage })
    }

    /// Returns the sandbox in which copies can be made.
    pub fn sandbox(&self) -> Preparation {
        if self.path == OsStr::new("-") {
            return Preparation::default();
        }
        Preparation::default().beneath(self.base(), FileCalls::Attributes)
    }

    /// Returns the directory that copies go into.
    fn base(&self) -> &Path {
        self.stage.as_ref().map_or(self.path, Stage::dir)
    }
}

/// Copies a file or the entries of a directory to `dest`.
pub fn copy(
    context: &Context,
    job: &Job<'_>,
    (fs, node): (&Fs, Node),
    path: &[u8],
    dest: &Destination<'_>,
) -> Result {
    let Destination { path: to, stage } = dest;
    if *to == OsStr::new("-") {
        return to_stdout(context, fs, &node, path);
    }
    let to_bytes = to.as_os_str().as_bytes();
    let copier = || dest::Copier::new(fs, job, dest.base()).at_path(to_bytes);
    if node.file_type() == FileType::Directory {
        let copier = copier()?;
        // At once: copies so far stay where the rest fails.
        stage.as_ref().map_or(Ok(()), Stage::place).at_path(to_bytes)?;
        copier.tree(node, stage.is_some(), context.thread_count()).at_path(to_bytes)?;
        return job.finish();
    }
    let Some(stage) = stage else {
        copier()?.single(&node, last_name(path));
        return job.finish();
    };
    if ends_with_slash(to_bytes) {
        return Err(Failure::new(format_args!(
            "{}: not a directory; without the slash it names the copy",
            to.display()
        )));
    }
    let name = to.file_name().unwrap_or_default();
    copier()?.single(&node, name.as_bytes());
    // It may be left out, or fail.
    if stage.dir().join(name).symlink_metadata().is_ok() {
        stage.place_file().at_path(to_bytes)?;
    }
    job.finish()
}

/// Refuses a destination that stands for something other than a file or a directory.
fn refuse_special(path: &Path) -> Result {
    let Some(found) = std::fs::metadata(path).ok().filter(|_| path != OsStr::new("-")) else {
        return Ok(());
    };
    let kind = if !found.is_file() && !found.is_dir() {
        "is a device, FIFO or socket"
    } else if found.is_file() && is_standard_output(path, &found) {
        "is standard output"
    } else {
        return Ok(());
    };
    let place = path.display();
    Err(Failure::usage(format_args!("{place}: {kind}; `-` writes to standard output")))
}

/// Returns whether a symlink, such as /dev/stdout, leads to the file that standard output is.
fn is_standard_output(path: &Path, found: &Metadata) -> bool {
    let stdout = rustix::fs::fstat(std::io::stdout());
    std::fs::symlink_metadata(path).is_ok_and(|own| own.is_symlink())
        && stdout.is_ok_and(|out| (out.st_dev, out.st_ino) == (found.dev(), found.ino()))
}

/// Writes the content of a file to standard output, as `cat` does, but does not follow symlinks.
fn to_stdout(context: &Context, fs: &Fs, node: &Node, path: &[u8]) -> Result {
    match node.file_type() {
        _ if context.json => Err(Failure::usage(
            "content and a JSON document cannot both go to standard output; ./- names a file",
        )),
        FileType::Regular => cat::print(fs, node, path),
        FileType::Directory => {
            Err(Failure::usage("a directory cannot go to standard output, but for --tar -"))
        }
        _ => Err(Failure::usage(format_args!(
            "{}: only a file's content can go to standard output",
            shown(path)
        ))),
    }
}

/// Returns the last component of a path, less slashes at its end.
pub fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').find(|part| !part.is_empty()).unwrap_or_default()
}
