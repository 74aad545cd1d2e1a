//! `extant chown`: owners changed.

use crate::context::Context;
use crate::copy::owner::{Owner, parse_owner};
use crate::failure::{At, Result};
use crate::image::{ImageArgs, inside};
use extant_engine::{Follow, SetAttr};
use std::ffi::OsString;

/// Set owner and group
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Owner and group, as numbers
    #[arg(value_name = "UID:GID", value_parser = parse_owner)]
    owner: Owner,
    /// Files or directories; a symlink at the end is not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| {
        for path in &args.paths {
            let path = inside(path);
            let node = fs.resolve(path, Follow::No).at_path(path)?;
            fs.drop_privileges(&node, |_| true).at_path(path)?;
            let set = SetAttr {
                uid: Some(args.owner.uid),
                gid: Some(args.owner.gid),
                ..SetAttr::default()
            };
            fs.set_attr(&node, &set).at_path(path)?;
            changes.path(path);
        }
        Ok(())
    })
}
