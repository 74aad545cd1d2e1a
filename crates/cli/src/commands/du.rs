//! `extant du`: space that trees take.

use super::ls::write_bytes;
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, inside, join, root_path};
use crate::json;
use crate::text::{shown, size};
use crate::walk::Walk;
use extant::{FileType, Follow};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufWriter, Write};

/// Sum up the space of a tree
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
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

/// A directory and what lies below it.
struct Sum {
    path: Vec<u8>,
    depth: usize,
    bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let top = inside(&args.path);
    let node = fs.resolve(top, Follow::Yes).at(shown(top))?;
    let mut failed = false;
    let mut counted = HashSet::new();
    let mut done: Vec<Sum> = Vec::new();
    let mut open: Vec<Sum> = Vec::new();
    for step in Walk::new(&fs, node, None) {
        let item = match step {
            Ok(item) => item,
            Err(e) => {
                complain(format_args!("{}: {}", shown(&join(top, &e.path)), e.error));
                failed = true;
                continue;
            }
        };
        let attr = item.node.attr();
        let bytes = if args.apparent { attr.size } else { attr.blocks.saturating_mul(512) };
        let bytes = if counted.insert(attr.ino) { bytes } else { 0 };
        if attr.ftype == FileType::Directory || item.depth == 0 {
            close(&mut open, &mut done, item.depth);
            open.push(Sum { path: join(top, &item.path), depth: item.depth, bytes });
        } else {
            close(&mut open, &mut done, item.depth);
            if let Some(dir) = open.last_mut() {
                dir.bytes = dir.bytes.saturating_add(bytes);
            }
        }
    }
    close(&mut open, &mut done, 0);
    if args.summary {
        done.retain(|sum| sum.depth == 0);
    }
    print(args, context, &done)?;
    match failed {
        true => Err(Failure::told()),
        false => Ok(()),
    }
}

/// Completes the directories that lie as deep as `depth` or deeper: each adds to the one above it.
fn close(open: &mut Vec<Sum>, done: &mut Vec<Sum>, depth: usize) {
    while open.last().is_some_and(|sum| sum.depth >= depth) {
        let Some(sum) = open.pop() else { return };
        if let Some(above) = open.last_mut() {
            above.bytes = above.bytes.saturating_add(sum.bytes);
        }
        done.push(sum);
    }
}

fn print(args: &Args, context: &Context, sums: &[Sum]) -> Result {
    if context.json {
        let object = |sum: &Sum| {
            let mut object = Map::new();
            json::put_bytes(&mut object, "path", &sum.path);
            object.insert("bytes".into(), sum.bytes.into());
            Value::Object(object)
        };
        return context.document(&Value::Array(sums.iter().map(object).collect()));
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    for sum in sums {
        match args.human {
            true => write!(out, "{}\t", size(sum.bytes))?,
            false => write!(out, "{}\t", sum.bytes)?,
        }
        write_bytes(&mut out, context, &sum.path)?;
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}
