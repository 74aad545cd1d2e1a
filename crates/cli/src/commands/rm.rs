//! `extant rm`: names removed.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, inside, join};
use crate::text::shown;
use crate::walk::Walk;
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
    let fs = args.image.write(context)?;
    let mut failed = false;
    for path in &args.paths {
        if let Err(failure) = remove(args, context, &fs, inside(path)) {
            if let Some(message) = failure.message() {
                complain(message);
            }
            failed = true;
        }
    }
    args.image.finish(fs, context)?;
    match failed {
        true => Err(Failure::told()),
        false => Ok(()),
    }
}

fn remove(args: &Args, context: &Context, fs: &Fs, path: &[u8]) -> Result {
    let (dir, name) = match fs.resolve_parent(path) {
        Err(e) if e.is(Errno::Exist) => return Err(Failure::new("the root directory stays")),
        other => other.at(shown(path))?,
    };
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

/// Removes what lies below a directory: files as they are met, directories afterwards, deepest first.
fn empty(context: &Context, fs: &Fs, path: &[u8], top: Node) -> Result {
    let mut directories: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut failed = false;
    // The directory of the entry before, as most have the same one.
    let mut at: (Vec<u8>, Node) = (Vec::new(), top.clone());
    for step in Walk::new(fs, top.clone(), None) {
        let item = match step {
            Ok(item) if item.depth == 0 => continue,
            Ok(item) => item,
            Err(e) => {
                complain(format_args!("{}: {}", shown(&join(path, &e.path)), e.error));
                failed = true;
                continue;
            }
        };
        let parent = &item.path[..item.path.len() - item.name.len()];
        if item.node.file_type() == FileType::Directory {
            directories.push((parent.to_vec(), item.name));
            continue;
        }
        if at.0 != parent {
            at = (parent.to_vec(), fs.resolve(join(path, parent), extant::Follow::No).at(shown(&item.path))?);
        }
        fs.unlink(&at.1, &item.name).at(shown(&join(path, &item.path)))?;
        context.detail(format_args!("removed {}", shown(&join(path, &item.path))));
    }
    for (parent, name) in directories.iter().rev() {
        let dir = fs.resolve(join(path, parent), extant::Follow::No).at(shown(parent))?;
        fs.rmdir(&dir, name).at(shown(&join(path, &join(parent, name))))?;
    }
    match failed {
        true => Err(Failure::told()),
        false => Ok(()),
    }
}
