//! `extant chown`: owners changed.

use crate::context::Context;
use crate::copy::owner::{Owner, parse_owner};
use crate::failure::Result;
use crate::image::{Changes, ImageArgs, change_each};
use extant_engine::{Follow, Fs, SetAttr};
use std::ffi::OsString;

/// Set owner and group
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The change of owners.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// Owner and group, as numbers
    #[arg(value_name = "UID:GID", value_parser = parse_owner)]
    owner: Owner,
    /// Files or directories; a symlink at the end is not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let Owner { uid, gid } = self.owner;
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        change_each(fs, changes, (&self.paths, Follow::No), |node| {
            fs.drop_privileges(node, |_| true)?;
            fs.set_attr(node, &set).map(drop)
        })
    }
}
