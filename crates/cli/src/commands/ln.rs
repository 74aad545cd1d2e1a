//! `extant ln`: links made.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, ends_with_slash, inside, join};
use crate::text::shown;
use extant_engine::{Errno, FileType, Follow, Fs, NodeKind};
use std::ffi::OsString;

/// Make hard links, or symlinks with -s
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Target of the link; several need a directory as PATH
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// The new name, or the directory to make links in under the targets' names
    path: OsString,
    /// Make a symlink
    #[arg(short, long)]
    symbolic: bool,
    /// Take PATH as the new name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let path = inside(&args.path);
    if args.no_target_directory && args.targets.len() > 1 {
        return Err(Failure::usage("-T takes one target and one new name"));
    }
    args.image.change(context, |fs, changes| {
        let into = !args.no_target_directory
            && fs
                .resolve(path, Follow::Yes)
                .is_ok_and(|node| node.file_type() == FileType::Directory);
        if let [target] = args.targets.as_slice() {
            changes.path(&link(args, fs, inside(target), path, into)?);
            return Ok(());
        }
        if !into {
            return Err(Failure::new(format_args!("{}: {}", shown(path), Errno::NotDir.message())));
        }
        for target in &args.targets {
            match link(args, fs, inside(target), path, into) {
                Ok(made) => changes.path(&made),
                Err(failure) => changes.failed(&failure),
            }
        }
        Ok(())
    })
}

/// Makes a link at `path`, or with `into` in this directory, and returns its path.
fn link(args: &Args, fs: &Fs, target: &[u8], path: &[u8], into: bool) -> Result<Vec<u8>> {
    let made = if into { join(path, last_name(target)) } else { path.to_vec() };
    let (dir, name) = fs.resolve_parent(&made).at_path(&made)?;
    if ends_with_slash(&made) {
        // No link is a directory: the name is taken, or not there.
        fs.lookup(&dir, name).and(Err(Errno::Exist.into())).at_path(&made)?;
    }
    if args.symbolic {
        fs.create(&dir, name, 0o777, NodeKind::Symlink(target)).at_path(&made)?;
    } else {
        let node = fs.resolve(target, Follow::No).at_path(target)?;
        fs.link(&node, &dir, name).at_path(&made)?;
    }
    Ok(made)
}

/// Returns the last component of a path, without slashes at its end.
fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or_default()
}
