//! `extant chmod`: permissions changed.

use super::mkdir::parse_mode;
use crate::context::Context;
use crate::failure::Result;
use crate::image::ImageArgs;
use extant_engine::{Follow, SetAttr};
use std::ffi::OsString;

/// Set permissions
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Permissions, octal
    #[arg(value_parser = parse_mode)]
    mode: u16,
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let set = SetAttr { mode: Some(args.mode), ..SetAttr::default() };
    args.image.change_each(context, &args.paths, Follow::Yes, |fs, node| {
        fs.set_attr(node, &set).map(drop)
    })
}
