//! `extant setfattr`: extended attributes set and removed.

use crate::context::Context;
use crate::failure::Result;
use crate::image::ImageArgs;
use extant_engine::{Follow, XattrMode};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Set or remove an extended attribute
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["name", "remove"]))]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Attribute to set, such as user.comment
    #[arg(short, long)]
    name: Option<OsString>,
    /// Its value; 0x… for hexadecimal digits
    #[arg(short = 'V', long, default_value = "", conflicts_with = "remove")]
    value: OsString,
    /// Attribute to remove
    #[arg(short = 'x', long)]
    remove: Option<OsString>,
    /// Files or directories; a symlink at the end is not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let value = value(args.value.as_bytes())?;
    args.image.change_each(context, &args.paths, Follow::No, |fs, node| {
        if let Some(name) = &args.name {
            fs.set_xattr(node, name.as_bytes(), &value, XattrMode::Any)?;
        }
        if let Some(name) = &args.remove {
            fs.remove_xattr(node, name.as_bytes())?;
        }
        Ok(())
    })
}

/// Parses a value of the command line into bytes.
fn value(text: &[u8]) -> Result<Vec<u8>> {
    let Some(digits) = text.strip_prefix(b"0x") else { return Ok(text.to_vec()) };
    let wrong = || {
        crate::failure::Failure::usage(
            "a value in hexadecimal has an even number of digits after 0x",
        )
    };
    if digits.len() % 2 != 0 {
        return Err(wrong());
    }
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    digits.chunks(2).map(|pair| byte(pair).ok_or_else(wrong)).collect()
}
