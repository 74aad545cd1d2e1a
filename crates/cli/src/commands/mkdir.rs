//! `extant mkdir`: directories made.

use crate::build::mode::parse_mode;
use crate::context::Context;
use crate::copy::owner::{Owner, parse_owner};
use crate::failure::{At, Failure, Result};
use crate::image::{Changes, ImageArgs, inside};
use crate::text::shown;
use extant_engine::{Caller, Errno, FileType, Follow, Fs, Node, NodeKind};
use std::ffi::OsString;

/// Make directories
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The new directories.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// Directories to make
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Make missing parent directories too; existing directories are no error
    #[arg(short, long)]
    parents: bool,
    /// Permissions, octal
    #[arg(short, long, value_parser = parse_mode, default_value = "755")]
    mode: u16,
    /// Owner and group, as numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, default_value = "0:0")]
    owner: Owner,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        for path in &self.paths {
            self.make_one(fs, inside(path))?;
            changes.path(inside(path));
        }
        Ok(())
    }

    fn make_one(&self, fs: &Fs, path: &[u8]) -> Result {
        let who = self.owner.caller();
        if self.parents {
            return make_all(fs, &who, path, self.mode).map(|_| ());
        }
        let (dir, name) = fs.resolve_parent(path).at_path(path)?;
        fs.create_as(&who, (&dir, name), self.mode, NodeKind::Dir).at_path(path)?;
        Ok(())
    }
}

/// Makes a directory and its missing parents, and returns the directory.
pub fn make_all(fs: &Fs, who: &Caller<'_>, path: &[u8], mode: u16) -> Result<Node> {
    let mut made = Vec::new();
    let mut dir = fs.root().at("/")?;
    let mut parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        made.push(b'/');
        made.extend_from_slice(part);
        let mode = if parts.peek().is_some() { 0o755 } else { mode };
        dir = match fs.resolve(&made, Follow::Yes) {
            Ok(node) => node,
            Err(e) if e.is(Errno::NoEnt) => {
                fs.create_as(who, (&dir, part), mode, NodeKind::Dir).at_path(&made)?
            }
            Err(e) => return Err(e).at_path(&made),
        };
        if dir.file_type() != FileType::Directory {
            return Err(Failure::new(format_args!(
                "{}: {}",
                shown(&made),
                Errno::NotDir.message()
            )));
        }
    }
    Ok(dir)
}
