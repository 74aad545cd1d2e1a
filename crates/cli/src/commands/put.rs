//! `extant put`: files and trees copied in.

use crate::context::Context;
use crate::copy::job::Job;
use crate::copy::owner::{Owner, parse_owner};
use crate::copy::replace::{Placer, Wanted};
use crate::copy::source;
use crate::failure::{At, Failure, Result};
use crate::image::{Changes, ImageArgs, ends_with_slash, inside, join};
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_engine::{Caller, Errno, FileType, Follow, Fs, Node, NodeKind, OpenFlags};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Copy a file or a tree in, with all attributes, as journaled transactions.
///
/// The entries of a directory are copied into PATH, which is made if it is missing. A file is
/// copied to PATH, or into it under its own name if PATH is a directory. An existing file is
/// replaced once its successor is complete and durable. Everything is durable when the command
/// ends.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The copy.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// File or directory to copy; - is standard input
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where to, in the image
    path: OsString,
    /// Owner and group of everything, as numbers, instead of the source's
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<Owner>,
}

/// Bytes of standard input copied at a time.
const PIECE: usize = 1 << 20;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let sandbox = args.edit.sandbox(Preparation::writing(true));
    let fs = args.image.write_within(context, sandbox)?;
    let copied = args.edit.copy(context, &fs, &args.image.image);
    let copied = copied.and_then(|(job, _)| job.finish());
    let closed = args.image.close(fs);
    copied.and(closed)
}

impl Edit {
    /// Returns whether the content is that of standard input.
    pub fn reads_stdin(&self) -> bool {
        self.source == OsStr::new("-")
    }

    /// Adds the source to a sandbox.
    pub fn sandbox(&self, sandbox: Preparation) -> Preparation {
        if self.reads_stdin() { sandbox } else { sandbox.copying(&self.source) }
    }

    /// Changes an open image, which lies at `image`.
    pub fn make(&self, context: &Context, image: (&Fs, &Path), changes: &mut Changes) -> Result {
        let (job, path) = self.copy(context, image.0, image.1)?;
        job.end()?;
        changes.path(&path);
        Ok(())
    }

    /// Copies. Returns the job, which may have had problems, and the path of the copy.
    fn copy<'c>(&self, context: &'c Context, fs: &Fs, image: &Path) -> Result<(Job<'c>, Vec<u8>)> {
        if self.reads_stdin() {
            return Ok((self.copy_stdin(context, fs)?, inside(&self.path).to_vec()));
        }
        let (source, path) = (self.source.as_path(), inside(&self.path));
        let meta = std::fs::symlink_metadata(source).at_path(source.as_os_str().as_bytes())?;
        let image = extant_engine::device::image_spec(image).path;
        if !meta.is_dir() {
            let (dir, name, into) = place(fs, path, source)?;
            let job = Job::new(context, meta.len());
            let above = match source.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            let copier = source::Copier::new(fs, &job, self.owner, &image, above)
                .at_path(above.as_os_str().as_bytes())?;
            let own = source.file_name().unwrap_or_default().as_bytes();
            copier.single(own, &dir, name).at_path(source.as_os_str().as_bytes())?;
            drop(copier);
            return Ok((job, if into { join(path, name) } else { path.to_vec() }));
        }
        let dir = base(fs, path, self.owner)?;
        let shows = context.shows_progress();
        let job = Job::new(context, if shows { source::total_bytes(source) } else { 0 });
        let copier = source::Copier::new(fs, &job, self.owner, &image, source)
            .at_path(source.as_os_str().as_bytes())?;
        copier.tree(dir, context.thread_count()).at_path(source.as_os_str().as_bytes())?;
        drop(copier);
        Ok((job, path.to_vec()))
    }

    /// Copies standard input. The new file inherits owner and permissions of the file that it
    /// replaces.
    fn copy_stdin<'c>(&self, context: &'c Context, fs: &Fs) -> Result<Job<'c>> {
        let path = inside(&self.path);
        let job = Job::new(context, 0);
        let (dir, name) = fs.resolve_parent(path).at_path(path)?;
        if ends_with_slash(path) {
            return Err(extant_engine::Error::from(Errno::IsDir)).at_path(path);
        }
        let old = match fs.lookup(&dir, name) {
            Err(e) if e.is(Errno::NoEnt) => None,
            other => {
                Some(other.at_path(path)?.attr()).filter(|attr| attr.ftype == FileType::Regular)
            }
        };
        let kept = old.as_ref().map(|attr| Owner { uid: attr.uid, gid: attr.gid });
        let wanted = Wanted {
            dir: &dir,
            name,
            owner: self.owner.or(kept).map_or_else(Caller::default, Owner::caller),
            mode: old.map_or(0o644, |attr| attr.mode & 0o7777),
            what: NodeKind::File,
        };
        let mut placer = Placer::new(fs, &job);
        let placed = placer.place(&wanted, path, |node| stream(fs, node, &job));
        placer.finish();
        drop(placer);
        job.check(|| path.to_vec(), placed);
        Ok(job)
    }
}

/// Returns the target directory of a tree; makes it if its parent exists.
fn base(fs: &Fs, path: &[u8], owner: Option<Owner>) -> Result<Node> {
    let who = owner.map_or_else(Caller::default, Owner::caller);
    let dir = match fs.resolve(path, Follow::Yes) {
        Err(e) if e.is(Errno::NoEnt) => {
            let (dir, name) = fs.resolve_parent(path).at_path(path)?;
            fs.create_as(&who, (&dir, name), 0o755, NodeKind::Dir).at_path(path)?
        }
        other => other.at_path(path)?,
    };
    match dir.file_type() {
        FileType::Directory => Ok(dir),
        _ => Err(Failure::new(format_args!("{}: {}", shown(path), Errno::NotDir.message()))),
    }
}

/// Returns directory and name for a file, and whether the path is that of the directory.
fn place<'p>(fs: &Fs, path: &'p [u8], source: &'p Path) -> Result<(Node, &'p [u8], bool)> {
    match fs.resolve(path, Follow::Yes) {
        Ok(node) if node.file_type() == FileType::Directory => {
            let name = source.file_name().ok_or_else(|| {
                Failure::usage("the source has no name; say the new path in full")
            })?;
            Ok((node, name.as_bytes(), true))
        }
        Err(e) if ends_with_slash(path) && !e.is(Errno::NoEnt) => Err(e).at_path(path),
        _ if ends_with_slash(path) => Err(extant_engine::Error::from(Errno::NotDir)).at_path(path),
        _ => fs.resolve_parent(path).at_path(path).map(|(dir, name)| (dir, name, false)),
    }
}

/// Copies standard input into a new file, past the pages of the file system.
fn stream(fs: &Fs, node: &Node, job: &Job<'_>) -> source::Result {
    let file =
        fs.open_file(node, OpenFlags { write: true, direct: true, ..OpenFlags::default() })?;
    let mut input = std::io::stdin().lock();
    let mut piece = Vec::with_capacity(PIECE);
    let mut at = 0;
    loop {
        piece.clear();
        // Pipes give less than is asked for.
        let len = input
            .by_ref()
            .take(PIECE as u64)
            .read_to_end(&mut piece)
            .map_err(|e| format!("standard input: {e}"))?;
        if len == 0 {
            return Ok(());
        }
        source::write_all(&file, at, &piece)?;
        job.bytes(len as u64);
        at += len as u64;
    }
}
