//! `extant du`: space that trees take.

use super::ls::write_bytes;
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, join, root_path, unless_slash};
use crate::json;
use crate::text::{shown, size};
use crate::walk::{Item, Step, Walk};
use extant_engine::FileType;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufWriter, Write};

/// Sum up the space of a tree
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Where the tree begins
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    /// The total only
    #[arg(short)]
    summary: bool,
    /// Sizes with units
    #[arg(short = 'H', long)]
    human: bool,
    /// Lengths of files instead of the space that they take
    #[arg(long)]
    apparent: bool,
}

/// Where the sums go.
enum Out<'a, W: Write> {
    Text { out: W, context: &'a Context, human: bool },
    Json(json::Array<W>),
}

impl<W: Write> Out<'_, W> {
    fn write(&mut self, path: &[u8], bytes: u64) -> Result {
        match self {
            Out::Text { out, context, human } => {
                if *human {
                    write!(out, "{}\t", size(bytes))?
                } else {
                    write!(out, "{bytes}\t")?
                }
                write_bytes(out, context, path)?;
                Ok(out.write_all(b"\n")?)
            }
            Out::Json(array) => {
                let mut object = Map::new();
                json::put_bytes(&mut object, "path", path);
                object.insert("bytes".into(), bytes.into());
                Ok(array.push(&Value::Object(object))?)
            }
        }
    }

    fn finish(self) -> Result {
        match self {
            Out::Text { mut out, .. } => Ok(out.flush()?),
            Out::Json(array) => Ok(array.finish()?),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let top = inside(&args.path);
    let node = fs.resolve(top, unless_slash(top)).at_path(top)?;
    let mut failed = false;
    let mut counted = HashSet::new();
    // For each directory on the way down, the bytes found so far.
    let mut open: Vec<u64> = Vec::new();
    let out = BufWriter::new(std::io::stdout().lock());
    let mut out = if context.json {
        Out::Json(context.array(out))
    } else {
        Out::Text { out, context, human: args.human }
    };
    let mut walk = Walk::new(&fs, node, None);
    while let Some(step) = walk.step() {
        match step {
            Step::Found(item) => {
                let bytes = if counted.insert(item.node.ino()) { bytes_of(args, &item) } else { 0 };
                match open.last_mut() {
                    _ if item.node.file_type() == FileType::Directory => open.push(bytes),
                    Some(above) => *above = above.saturating_add(bytes),
                    None => out.write(top, bytes)?,
                }
            }
            Step::Left(item) => {
                let bytes = open.pop().unwrap_or(0);
                if let Some(above) = open.last_mut() {
                    *above = above.saturating_add(bytes);
                }
                if !args.summary || item.depth == 0 {
                    out.write(&join(top, walk.path()), bytes)?;
                }
            }
            Step::Problem(problem) => {
                complain(format_args!("{}: {problem}", shown(&join(top, walk.path()))));
                failed = true;
            }
        }
    }
    out.finish()?;
    if failed { Err(Failure::told()) } else { Ok(()) }
}

fn bytes_of(args: &Args, item: &Item) -> u64 {
    let attr = item.node.attr();
    if args.apparent { attr.size } else { attr.blocks.saturating_mul(512) }
}
