//! `extant ln`: links made.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::{Changes, ImageArgs, ends_with_slash, inside, join};
use crate::text::shown;
use extant_engine::{Errno, FileType, Follow, Fs, NodeKind};
use std::ffi::OsString;

/// Make hard links, or symlinks with -s
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The new links.
#[derive(clap::Args, Debug)]
pub struct Edit {
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

/// A new symlink under a full name: `ln -sT` of scripts.
#[derive(clap::Args, Debug)]
pub struct Symlink {
    /// Content of the symlink
    target: OsString,
    /// The new name
    path: OsString,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.edit.check()?;
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Symlink {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let path = inside(&self.path);
        link(fs, inside(&self.target), path, true)?;
        changes.path(path);
        Ok(())
    }
}

impl Edit {
    /// Checks that the arguments agree.
    pub fn check(&self) -> Result {
        if self.no_target_directory && self.targets.len() > 1 {
            return Err(Failure::usage("-T takes one target and one new name"));
        }
        Ok(())
    }

    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let path = inside(&self.path);
        let into = !self.no_target_directory
            && fs
                .resolve(path, Follow::Yes)
                .is_ok_and(|node| node.file_type() == FileType::Directory);
        let make = |target: &[u8]| {
            let made = if into { join(path, last_name(target)) } else { path.to_vec() };
            link(fs, target, &made, self.symbolic).map(|()| made)
        };
        if let [target] = self.targets.as_slice() {
            changes.path(&make(inside(target))?);
            return Ok(());
        }
        if !into {
            return Err(Failure::new(format_args!("{}: {}", shown(path), Errno::NotDir.message())));
        }
        for target in &self.targets {
            match make(inside(target)) {
                Ok(made) => changes.path(&made),
                Err(failure) => changes.failed(failure)?,
            }
        }
        Ok(())
    }
}

/// Makes a link under the name `made`.
fn link(fs: &Fs, target: &[u8], made: &[u8], symbolic: bool) -> Result {
    let (dir, name) = fs.resolve_parent(made).at_path(made)?;
    if ends_with_slash(made) {
        // No link is a directory: the name is taken, or not there.
        fs.lookup(&dir, name).and(Err(Errno::Exist.into())).at_path(made)?;
    }
    if symbolic {
        fs.create(&dir, name, 0o777, NodeKind::Symlink(target)).at_path(made)?;
    } else {
        let node = fs.resolve(target, Follow::No).at_path(target)?;
        fs.link(&node, &dir, name).at_path(made)?;
    }
    Ok(())
}

/// Returns the last component of a path, without slashes at its end.
fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or_default()
}
