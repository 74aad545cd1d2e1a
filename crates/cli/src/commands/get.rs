//! `extant get`: files and trees copied out.

use super::cat;
use super::export::{self, Source};
use crate::context::Context;
use crate::copy::compress::Compression;
use crate::copy::dest;
use crate::copy::job::Job;
use crate::copy::output::parent;
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, ends_with_slash, inside};
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_engine::{FileType, Follow, Fs, Node};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
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
    let sandbox = match (&args.tar, &args.dest) {
        (Some(tar), _) => Preparation::default().output(tar),
        (None, Some(dest)) => Preparation::default().copies(dest),
        (None, None) => Preparation::default(),
    };
    let fs = args.image.read_within(context, sandbox)?;
    let path = inside(&args.path);
    let node = fs.resolve(path, Follow::No).at_path(path)?;
    match (&args.tar, &args.dest) {
        (Some(tar), _) => {
            let source = Source { fs: &fs, node, path };
            export::to_tar(context, source, tar, Compression::None)
        }
        (None, Some(dest)) => {
            let job = Job::out_of(&fs, context).no_special(args.no_special);
            copy(context, &job, (&fs, node), path, dest)
        }
        (None, None) => Err(Failure::usage("get needs a destination")),
    }
}

/// Copies a file or the entries of a directory to `dest`.
pub fn copy(
    context: &Context,
    job: &Job<'_>,
    (fs, node): (&Fs, Node),
    path: &[u8],
    dest: &Path,
) -> Result {
    if dest == OsStr::new("-") {
        return to_stdout(context, fs, &node, path);
    }
    let place = dest.display();
    if node.file_type() == FileType::Directory {
        let made = dest::make_base(dest).at_path(dest.as_os_str().as_bytes())?;
        let copier = dest::Copier::new(fs, job, dest).at_path(dest.as_os_str().as_bytes())?;
        copier.tree(node, made, context.thread_count()).at_path(dest.as_os_str().as_bytes())?;
        return job.finish();
    }
    // The copy would take the place of a device, for all programs of the machine.
    if std::fs::metadata(dest).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return Err(Failure::usage(format_args!(
            "{place}: is a device, FIFO or socket; `-` writes to standard output"
        )));
    }
    if ends_with_slash(dest.as_os_str().as_bytes()) && !dest.is_dir() {
        return Err(Failure::new(format_args!(
            "{place}: not a directory; without the slash it names the copy"
        )));
    }
    let (dir, name) = if dest.is_dir() {
        (dest, last_name(path))
    } else {
        (parent(dest), dest.file_name().unwrap_or_default().as_bytes())
    };
    dest::Copier::new(fs, job, dir).at_path(dir.as_os_str().as_bytes())?.single(&node, name);
    job.finish()
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
