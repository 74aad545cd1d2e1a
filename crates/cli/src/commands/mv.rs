//! `extant mv`: names moved.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{Changes, ImageArgs, ends_with_slash, inside, unless_slash};
use crate::text::shown;
use extant_engine::{Errno, FileType, Follow, Fs, Node, RenameFlags};
use std::ffi::OsString;

/// Move or rename
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The move.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// File or directory to move
    from: OsString,
    /// The new path, or the directory to move it into
    to: OsString,
    /// Fail if the new path is there
    #[arg(short, long)]
    no_clobber: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let (from, to) = (inside(&self.from), inside(&self.to));
        let (dir, name) = fs.resolve_parent(from).at_path(from)?;
        let flags = if self.no_clobber { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        // With a slash behind it, the name itself must be a directory, not a symlink to one.
        let moved = fs.resolve(from, unless_slash(from)).and_then(|_| fs.lookup(&dir, name));
        let moves_directory = moved.at_path(from)?.file_type() == FileType::Directory;
        if ends_with_slash(from) && !moves_directory {
            return Err(extant_engine::Error::from(Errno::NotDir)).at_path(from);
        }
        let (new_dir, new_name) = target(fs, to, name, moves_directory).at_path(to)?;
        fs.rename((&dir, name), (&new_dir, new_name), flags).at(format_args!(
            "{} to {}",
            shown(from),
            shown(to)
        ))?;
        changes.path(to);
        Ok(())
    }
}

/// Returns directory and name that an entry `name` gets by a move to `to`. A slash at the end of a
/// missing path is allowed for directories only.
fn target<'p>(
    fs: &Fs,
    to: &'p [u8],
    name: &'p [u8],
    moves_directory: bool,
) -> extant_engine::Result<(Node, &'p [u8])> {
    match fs.resolve(to, Follow::Yes) {
        Ok(node) if node.file_type() == FileType::Directory => Ok((node, name)),
        Err(e) if ends_with_slash(to) && !e.is(Errno::NoEnt) => Err(e),
        _ if ends_with_slash(to) && !moves_directory => Err(Errno::NotDir.into()),
        _ => fs.resolve_parent(to),
    }
}
