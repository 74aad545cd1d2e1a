//! `extant ln`: links made.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{ImageArgs, inside};
use crate::text::shown;
use extant::{Caller, Follow, New};
use std::ffi::OsString;

/// Make a hard link, or a symlink with -s
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// What the link leads to
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
        let (dir, name) = fs.resolve_parent(path).at(shown(path))?;
        if args.symbolic {
            fs.create(&Caller::default(), &dir, name, 0o777, New::Symlink(target))
                .at(shown(path))?;
        } else {
            let node = fs.resolve(target, Follow::No).at(shown(target))?;
            fs.link(&node, &dir, name).at(shown(path))?;
        }
        changes.path(path);
        Ok(())
    })
}
