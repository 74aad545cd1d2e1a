//! `extant mv`: names moved.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{ImageArgs, inside};
use crate::text::shown;
use extant::{FileType, Follow, RenameFlags};
use std::ffi::OsString;

/// Move or rename
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// What to move
    from: OsString,
    /// The new path, or the directory to move it into
    to: OsString,
    /// Fail if the new path is there
    #[arg(short, long)]
    no_clobber: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| {
        let (from, to) = (inside(&args.from), inside(&args.to));
        let (dir, name) = fs.resolve_parent(from).at(shown(from))?;
        let flags = if args.no_clobber { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let (new_dir, new_name) = match fs.resolve(to, Follow::Yes) {
            Ok(node) if node.file_type() == FileType::Directory => (node, name),
            _ => fs.resolve_parent(to).at(shown(to))?,
        };
        fs.rename(&dir, name, &new_dir, new_name, flags).at(format_args!(
            "{} to {}",
            shown(from),
            shown(to)
        ))?;
        changes.path(to);
        Ok(())
    })
}
