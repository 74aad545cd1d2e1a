//! `extant chmod`: permissions changed.

use crate::build::mode::parse_mode;
use crate::context::Context;
use crate::failure::Result;
use crate::image::{Changes, ImageArgs, change_each};
use extant_engine::{Follow, Fs, SetAttr};
use std::ffi::OsString;

/// Set permissions
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The change of permissions.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// Permissions, octal
    #[arg(value_parser = parse_mode)]
    mode: u16,
    /// Files or directories
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
        let set = SetAttr { mode: Some(self.mode), ..SetAttr::default() };
        change_each(fs, changes, (&self.paths, Follow::Yes), |node| {
            fs.set_attr(node, &set).map(drop)
        })
    }
}
