//! `extant find`: paths of a tree that fit.

use super::ls::write_bytes;
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, join, root_path, unless_slash};
use crate::json;
use crate::text::shown;
use crate::walk::{Item, Step, Walk};
use extant_archive::glob_matches;
use extant_engine::FileType;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// List the paths of a tree
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Where the tree begins
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    /// Names that match: * and ? stand for any bytes and any one byte
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// Of one type
    #[arg(long = "type", value_name = "TYPE", value_parser = ["f", "d", "l", "b", "c", "p", "s"])]
    ftype: Option<String>,
    /// Go down at most so many levels
    #[arg(long, value_name = "N")]
    max_depth: Option<usize>,
    /// End each path with a zero byte instead of a newline
    #[arg(long, short = '0')]
    print0: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let top = inside(&args.path);
    let node = fs.resolve(top, unless_slash(top)).at_path(top)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut failed = false;
    let walk = Walk::new(&fs, node, args.max_depth);
    if context.json {
        let mut array = context.array(out);
        search(args, top, walk, &mut failed, |path, item| Ok(array.push(&object(path, item))?))?;
        array.finish()?;
    } else {
        search(args, top, walk, &mut failed, |path, _| {
            write_bytes(&mut out, context, path)?;
            Ok(out.write_all(if args.print0 { b"\0" } else { b"\n" })?)
        })?;
        out.flush()?;
    }
    if failed { Err(Failure::told()) } else { Ok(()) }
}

/// Calls `each` for every entry that matches the arguments, with its path. Sets `failed` if a
/// directory or inode cannot be read.
fn search(
    args: &Args,
    top: &[u8],
    mut walk: Walk<'_>,
    failed: &mut bool,
    mut each: impl FnMut(&[u8], &Item) -> Result,
) -> Result {
    while let Some(step) = walk.step() {
        match step {
            Step::Found(item) if fits(args, &item) => each(&join(top, walk.path()), &item)?,
            Step::Found(_) | Step::Left(_) => {}
            Step::Problem(problem) => {
                complain(format_args!("{}: {problem}", shown(&join(top, walk.path()))));
                *failed = true;
            }
        }
    }
    Ok(())
}

fn object(path: &[u8], item: &Item) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "path", path);
    object.append(&mut json::attr(&item.node.attr()));
    Value::Object(object)
}

fn fits(args: &Args, item: &Item) -> bool {
    let ftype = match args.ftype.as_deref() {
        Some("f") => Some(FileType::Regular),
        Some("d") => Some(FileType::Directory),
        Some("l") => Some(FileType::Symlink),
        Some("b") => Some(FileType::BlockDevice),
        Some("c") => Some(FileType::CharDevice),
        Some("p") => Some(FileType::Fifo),
        Some("s") => Some(FileType::Socket),
        _ => None,
    };
    ftype.is_none_or(|t| t == item.node.file_type())
        && args.name.as_ref().is_none_or(|pattern| glob_matches(pattern.as_bytes(), &item.name))
}
