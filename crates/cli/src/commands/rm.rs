//! `extant rm`: names removed.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, inside, join};
use crate::text::shown;
use crate::walk::{Step, Walk};
use extant::{Errno, FileType, Fs, Node};
use std::ffi::OsString;

/// Remove files, or trees with -r
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// What to remove
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
    args.image.change(context, |fs, changes| {
        for path in &args.paths {
            match remove(args, context, fs, inside(path)) {
                Ok(()) => changes.path(inside(path)),
                Err(failure) => changes.failed(&failure),
            }
        }
        Ok(())
    })
}

fn remove(args: &Args, context: &Context, fs: &Fs, path: &[u8]) -> Result {
    let (dir, name) = match fs.resolve_parent(path) {
        Err(e) if e.is(Errno::Exist) => return Err(Failure::new("the root directory stays")),
        other => other.at(shown(path))?,
    };
    if matches!(name, b"." | b"..") {
        return Err(Failure::new(format_args!(
            "{}: `.` and `..` are not removed; name the directory",
            shown(path)
        )));
    }
    let node = match fs.lookup(&dir, name) {
        Err(e) if e.is(Errno::NoEnt) && args.force => return Ok(()),
        other => other.at(shown(path))?,
    };
    if node.file_type() != FileType::Directory {
        fs.unlink(&dir, name).at(shown(path))?;
    } else if args.recursive {
        empty(context, fs, path, node)?;
        fs.rmdir(&dir, name).at(shown(path))?;
    } else {
        return Err(Failure::new(format_args!(
            "{}: is a directory (-r removes it and all that it holds)",
            shown(path)
        )));
    }
    context.detail(format_args!("removed {}", shown(path)));
    Ok(())
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
    match failed {
        true => Err(Failure::told()),
        false => Ok(()),
    }
}
