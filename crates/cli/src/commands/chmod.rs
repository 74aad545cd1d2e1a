//! `extant chmod`: permissions changed.

use super::mkdir::parse_mode;
use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{ImageArgs, inside};
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
    args.image.change(context, |fs, changes| {
        for path in &args.paths {
            let path = inside(path);
            let node = fs.resolve(path, Follow::Yes).at_path(path)?;
            fs.set_attr(&node, &SetAttr { mode: Some(args.mode), ..SetAttr::default() })
                .at_path(path)?;
            changes.path(path);
        }
        Ok(())
    })
}
