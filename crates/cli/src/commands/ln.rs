//! `extant ln`: links made.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{ImageArgs, ends_with_slash, inside};
use extant_engine::{Caller, Errno, Follow, New};
use std::ffi::OsString;

/// Make a hard link, or a symlink with -s
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Target of the link
    target: OsString,
    /// The new name
    path: OsString,
    /// Make a symlink
    #[arg(short, long)]
    symbolic: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| {
        let (target, path) = (inside(&args.target), inside(&args.path));
        let (dir, name) = fs.resolve_parent(path).at_path(path)?;
        if ends_with_slash(path) {
            // No link is a directory: the name is taken, or not there.
            fs.lookup(&dir, name).and(Err(Errno::Exist.into())).at_path(path)?;
        }
        if args.symbolic {
            fs.create(&Caller::default(), &dir, name, 0o777, New::Symlink(target)).at_path(path)?;
        } else {
            let node = fs.resolve(target, Follow::No).at_path(target)?;
            fs.link(&node, &dir, name).at_path(path)?;
        }
        changes.path(path);
        Ok(())
    })
}
