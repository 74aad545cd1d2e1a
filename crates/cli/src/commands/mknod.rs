//! `extant mknod`: devices, pipes and sockets made.

use crate::context::Context;
use crate::copy::owner::{Owner, parse_owner};
use crate::failure::{At, Failure, Result};
use crate::image::{Changes, ImageArgs, inside};
use extant_engine::{Fs, NodeKind};
use std::ffi::OsString;

/// Make a device, a named pipe or a socket
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The new node.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// The new name
    path: OsString,
    /// Type: b, c, p or s, for a block device, a character device, a named pipe and a socket
    #[arg(value_name = "TYPE", value_parser = ["b", "c", "p", "s"], hide_possible_values = true)]
    kind: String,
    /// Major number of a device
    #[arg(requires = "minor")]
    major: Option<u32>,
    /// Minor number of a device
    minor: Option<u32>,
    /// Permissions, octal
    #[arg(short, long, value_parser = crate::build::mode::parse_mode, default_value = "644")]
    mode: u16,
    /// Owner and group, as numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, default_value = "0:0")]
    owner: Owner,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.edit.kind()?;
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Returns the kind of the new node.
    pub fn kind(&self) -> Result<NodeKind<'static>> {
        match (self.kind.as_str(), self.major.zip(self.minor)) {
            ("b", Some((major, minor))) => Ok(NodeKind::BlockDevice(major, minor)),
            ("c", Some((major, minor))) => Ok(NodeKind::CharDevice(major, minor)),
            ("p", None) => Ok(NodeKind::Fifo),
            ("s", None) => Ok(NodeKind::Socket),
            (_, None) => Err(Failure::usage("a device needs a major and a minor number")),
            _ => Err(Failure::usage("only a device has a major and a minor number")),
        }
    }

    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let (path, kind) = (inside(&self.path), self.kind()?);
        let (dir, name) = fs.resolve_parent(path).at_path(path)?;
        fs.create_as(&self.owner.caller(), (&dir, name), self.mode, kind).at_path(path)?;
        changes.path(path);
        Ok(())
    }
}
