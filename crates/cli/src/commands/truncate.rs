//! `extant truncate`: lengths set.

use crate::context::Context;
use crate::failure::Result;
use crate::image::{Changes, ImageArgs, change_each};
use extant_engine::{Follow, Fs, SetAttr};
use std::ffi::OsString;

/// Cut files or let them grow with a hole
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The change of lengths.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// New length, with k, M, G or T for powers of 1024
    #[arg(short, long, value_parser = parse_size)]
    size: u64,
    /// Files
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Parses a number of bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    extant_engine::mkfs::parse_size(text).map_err(|e| e.to_string())
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let set = SetAttr { size: Some(self.size), ..SetAttr::default() };
        change_each(fs, changes, (&self.paths, Follow::Yes), |node| {
            fs.set_attr(node, &set).map(drop)
        })
    }
}
