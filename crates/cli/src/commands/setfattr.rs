//! `extant setfattr`: extended attributes set and removed.

use crate::context::Context;
use crate::failure::Result;
use crate::image::{Changes, ImageArgs, change_each};
use clap::builder::{OsStringValueParser, TypedValueParser};
use extant_engine::{Follow, Fs, XattrMode};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Set or remove an extended attribute
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The change of an attribute.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["name", "remove"]))]
pub struct Edit {
    /// Attribute to set, such as user.comment
    #[arg(short, long)]
    name: Option<OsString>,
    /// Its value; 0x… for hexadecimal digits
    #[arg(short = 'V', long, default_value = "", conflicts_with = "remove")]
    #[arg(value_parser = OsStringValueParser::new().try_map(value))]
    value: Value,
    /// Attribute to remove
    #[arg(short = 'x', long)]
    remove: Option<OsString>,
    /// Files or directories; a symlink at the end is not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// The bytes of a value.
#[derive(Clone, Debug)]
struct Value(Vec<u8>);

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        change_each(fs, changes, (&self.paths, Follow::No), |node| {
            if let Some(name) = &self.name {
                fs.set_xattr(node, name.as_bytes(), &self.value.0, XattrMode::Any)?;
            }
            if let Some(name) = &self.remove {
                fs.remove_xattr(node, name.as_bytes())?;
            }
            Ok(())
        })
    }
}

/// Parses a value of the command line into bytes.
fn value(text: OsString) -> Result<Value, String> {
    let text = text.as_bytes();
    let Some(digits) = text.strip_prefix(b"0x") else { return Ok(Value(text.to_vec())) };
    let wrong = || "a value in hexadecimal has an even number of digits after 0x".to_owned();
    if digits.len() % 2 != 0 {
        return Err(wrong());
    }
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    let bytes = digits.chunks(2).map(|pair| byte(pair).ok_or_else(wrong));
    bytes.collect::<Result<_, _>>().map(Value)
}
