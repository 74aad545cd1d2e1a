//! `extant rm`: names removed.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{Changes, ImageArgs, ends_with_slash, inside, join};
use crate::text::shown;
use crate::walk::{Step, Walk};
use extant_engine::{Errno, Error, FileType, Follow, Fs, Node};
use std::ffi::OsString;

/// Remove files, or trees with -r
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The removal.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// Files or directories to remove
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Directories with all that they hold
    #[arg(short, long)]
    recursive: bool,
    /// It is no error if a path is not there
    #[arg(short, long)]
    force: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(context, fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, context: &Context, fs: &Fs, changes: &mut Changes) -> Result {
        for path in &self.paths {
            match remove(self, context, fs, inside(path)) {
                Ok(true) => changes.path(inside(path)),
                Ok(false) => {}
                Err(failure) => changes.failed(failure)?,
            }
        }
        Ok(())
    }
}

/// Removes a path; false if it is not there and that is no error.
fn remove(args: &Edit, context: &Context, fs: &Fs, path: &[u8]) -> Result<bool> {
    let is_absent = |e: &Error| e.is(Errno::NoEnt) || e.is(Errno::NotDir);
    let (dir, name) = match fs.resolve_parent(path) {
        Err(e) if e.is(Errno::Exist) => {
            return Err(Failure::new(format_args!(
                "{}: the root directory stays; name its entries to remove them",
                shown(path)
            )));
        }
        Err(e) if is_absent(&e) && args.force => return Ok(false),
        other => other.at_path(path)?,
    };
    if matches!(name, b"." | b"..") {
        return Err(Failure::new(format_args!(
            "{}: `.` and `..` are not removed; name the directory",
            shown(path)
        )));
    }
    let node = match fs.lookup(&dir, name) {
        Err(e) if e.is(Errno::NoEnt) && args.force => return Ok(false),
        other => other.at_path(path)?,
    };
    let is_directory = node.file_type() == FileType::Directory;
    // A path that ends with a slash names a directory only.
    if ends_with_slash(path) && !is_directory {
        return behind_slash(args, fs, path).map(|()| false);
    }
    if !is_directory {
        fs.unlink(&dir, name).at_path(path)?;
    } else if args.recursive {
        empty(context, fs, path, node)?;
        fs.rmdir(&dir, name).at_path(path)?;
    } else {
        return Err(needs_recursion(path));
    }
    context.detail(format_args!("removed {}", shown(path)));
    Ok(true)
}

fn needs_recursion(path: &[u8]) -> Failure {
    Failure::new(format_args!(
        "{}: is a directory (-r removes it and all that it holds)",
        shown(path)
    ))
}

/// Checks a path with a slash at its end: without a directory there, the path counts as missing. As
/// with rm(1), neither a symlink nor the directory to which it leads is removed.
fn behind_slash(args: &Edit, fs: &Fs, path: &[u8]) -> Result {
    match fs.resolve(path, Follow::Yes) {
        Ok(_) if !args.recursive => Err(needs_recursion(path)),
        _ if args.force => Ok(()),
        _ => Err(Error::from(Errno::NotDir)).at_path(path),
    }
}

/// Removes everything below a directory, each directory after its content.
fn empty(context: &Context, fs: &Fs, path: &[u8], top: Node) -> Result {
    let mut failed = false;
    let mut walk = Walk::new(fs, top, None);
    while let Some(step) = walk.step() {
        let whole = || shown(&join(path, walk.path()));
        match (step, walk.dir()) {
            (Step::Problem(problem), _) => {
                complain(format_args!("{}: {problem}", whole()));
                failed = true;
            }
            (Step::Found(item), Some(dir)) if item.node.file_type() != FileType::Directory => {
                fs.unlink(dir, &item.name)
                    .map_err(|e| Failure::new(format_args!("{}: {e}", whole())))?;
                context.detail(format_args!("removed {}", whole()));
            }
            (Step::Left(item), Some(dir)) => {
                fs.rmdir(dir, &item.name)
                    .map_err(|e| Failure::new(format_args!("{}: {e}", whole())))?;
            }
            // Directories that are emptied next, and the top itself.
            (Step::Found(_) | Step::Left(_), _) => {}
        }
    }
    if failed { Err(Failure::told()) } else { Ok(()) }
}
