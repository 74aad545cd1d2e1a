//! `extant truncate`: lengths set.

use crate::context::Context;
use crate::failure::Result;
use crate::image::ImageArgs;
use extant_engine::{Follow, SetAttr};
use std::ffi::OsString;

/// Cut files or let them grow with a hole
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
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
    let set = SetAttr { size: Some(args.size), ..SetAttr::default() };
    args.image.change_each(context, &args.paths, Follow::Yes, |fs, node| {
        fs.set_attr(node, &set).map(drop)
    })
}
