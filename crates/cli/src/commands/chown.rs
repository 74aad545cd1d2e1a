//! `extant chown`: owners changed.

use crate::context::Context;
use crate::copy::owner::{Owner, parse_owner};
use crate::failure::Result;
use crate::image::ImageArgs;
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
    let Owner { uid, gid } = args.owner;
    let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    args.image.change_each(context, &args.paths, Follow::No, |fs, node| {
        fs.drop_privileges(node, |_| true)?;
        fs.set_attr(node, &set).map(drop)
    })
}
