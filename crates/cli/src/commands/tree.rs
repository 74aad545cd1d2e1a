//! `extant tree`: a tree as a drawing.

use super::ls::{write_bytes, write_name};
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, inside, root_path};
use crate::json;
use crate::text::{count, shown};
use crate::walk::{Item, Walk};
use extant::{FileType, Follow, Fs};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{BufWriter, Write};

/// Draw a tree of directories
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Where the tree begins
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    /// Go down at most so many levels
    #[arg(short = 'L', long, value_name = "N")]
    depth: Option<usize>,
    /// Directories only
    #[arg(short)]
    directories: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let path = inside(&args.path);
    let top = fs.resolve(path, Follow::Yes).at(shown(path))?;
    let mut failed = false;
    let found = Walk::new(&fs, top, args.depth).filter_map(|step| match step {
        Ok(item) => Some(item),
        Err(e) => {
            complain(format_args!("{}: {}", shown(&crate::image::join(path, &e.path)), e.error));
            failed = true;
            None
        }
    });
    let found = found.filter(|item| !args.directories || item.node.file_type() == FileType::Directory);
    match context.json {
        true => context.document(&Value::Array(found.map(|item| object(&fs, &item)).collect()))?,
        false => draw(context, &fs, path, found)?,
    }
    match failed {
        true => Err(Failure::told()),
        false => Ok(()),
    }
}

fn object(fs: &Fs, item: &Item) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "path", &item.path);
    object.insert("depth".into(), item.depth.into());
    object.append(&mut json::attr(&item.node.attr()));
    if item.node.file_type() == FileType::Symlink
        && let Ok(target) = fs.read_link(&item.node)
    {
        json::put_bytes(&mut object, "target", &target);
    }
    Value::Object(object)
}

fn draw(context: &Context, fs: &Fs, top: &[u8], found: impl Iterator<Item = Item>) -> Result {
    let mut out = BufWriter::new(std::io::stdout().lock());
    // For each level above, whether more entries follow there.
    let mut more: Vec<bool> = Vec::new();
    let (mut directories, mut others) = (0, 0);
    for item in found {
        let ftype = item.node.file_type();
        more.truncate(item.depth.saturating_sub(1));
        for follows in &more {
            out.write_all(if *follows { "│   ".as_bytes() } else { b"    " })?;
        }
        if item.depth > 0 {
            out.write_all(if item.last { "└── ".as_bytes() } else { "├── ".as_bytes() })?;
            more.push(!item.last);
        }
        let name = if item.depth == 0 { top } else { &item.name };
        write_name(&mut out, context, name, ftype, item.node.attr().mode)?;
        if ftype == FileType::Symlink
            && let Ok(target) = fs.read_link(&item.node)
        {
            out.write_all(b" -> ")?;
            write_bytes(&mut out, context, &target)?;
        }
        out.write_all(b"\n")?;
        match ftype {
            FileType::Directory if item.depth > 0 => directories += 1,
            FileType::Directory => {}
            _ => others += 1,
        }
    }
    let directories = if directories == 1 { "1 directory".into() } else { format!("{directories} directories") };
    writeln!(out, "\n{directories}, {}", count(others, "file"))?;
    Ok(out.flush()?)
}
