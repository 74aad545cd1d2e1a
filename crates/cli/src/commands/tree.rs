//! `extant tree`: a tree as a drawing.

use super::ls::{write_bytes, write_name};
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, join, root_path};
use crate::json;
use crate::text::{count, shown};
use crate::walk::{Item, Step, Walk};
use extant_engine::{FileType, Follow, Fs};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{BufWriter, Write};

/// Draw a tree of directories
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
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
    let top = fs.resolve(path, Follow::Yes).at_path(path)?;
    let mut failed = false;
    let mut walk = Walk::new(&fs, top, args.depth);
    let out = BufWriter::new(std::io::stdout().lock());
    if context.json {
        let mut array = context.array(out);
        while let Some(item) = next(args, path, &mut walk, &mut failed) {
            array.push(&object(&fs, walk.path(), &item))?;
        }
        array.finish()?;
    } else {
        let mut drawing =
            Drawing { context, fs: &fs, out, more: Vec::new(), directories: 0, others: 0 };
        while let Some(item) = next(args, path, &mut walk, &mut failed) {
            drawing.add(if item.depth == 0 { path } else { &item.name }, &item)?;
        }
        drawing.finish()?;
    }
    if failed { Err(Failure::told()) } else { Ok(()) }
}

/// Returns the next shown item. Reports errors before it.
fn next(args: &Args, top: &[u8], walk: &mut Walk<'_>, failed: &mut bool) -> Option<Item> {
    loop {
        match walk.step()? {
            Step::Found(item)
                if !args.directories || item.node.file_type() == FileType::Directory =>
            {
                return Some(item);
            }
            Step::Found(_) | Step::Left(_) => {}
            Step::Problem(problem) => {
                complain(format_args!("{}: {problem}", shown(&join(top, walk.path()))));
                *failed = true;
            }
        }
    }
}

fn object(fs: &Fs, path: &[u8], item: &Item) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "path", path);
    object.insert("depth".into(), item.depth.into());
    object.append(&mut json::attr(&item.node.attr()));
    if item.node.file_type() == FileType::Symlink
        && let Ok(target) = fs.read_link(&item.node)
    {
        json::put_bytes(&mut object, "target", &target);
    }
    Value::Object(object)
}

struct Drawing<'a, W: Write> {
    context: &'a Context,
    fs: &'a Fs,
    out: W,
    /// For each level above, whether more entries follow there.
    more: Vec<bool>,
    directories: u64,
    others: u64,
}

impl<W: Write> Drawing<'_, W> {
    /// Draws the line of an item.
    fn add(&mut self, name: &[u8], item: &Item) -> Result {
        let (out, ftype) = (&mut self.out, item.node.file_type());
        self.more.truncate(item.depth.saturating_sub(1));
        for follows in &self.more {
            out.write_all(if *follows { "│   ".as_bytes() } else { b"    " })?;
        }
        if item.depth > 0 {
            out.write_all(if item.last {
                "└── ".as_bytes()
            } else {
                "├── ".as_bytes()
            })?;
            self.more.push(!item.last);
        }
        write_name(out, self.context, name, ftype, item.node.attr().mode)?;
        if ftype == FileType::Symlink
            && let Ok(target) = self.fs.read_link(&item.node)
        {
            out.write_all(b" -> ")?;
            write_bytes(out, self.context, &target)?;
        }
        out.write_all(b"\n")?;
        match ftype {
            FileType::Directory if item.depth > 0 => self.directories += 1,
            FileType::Directory => {}
            _ => self.others += 1,
        }
        Ok(())
    }

    /// Writes the totals.
    fn finish(mut self) -> Result {
        let directories = match self.directories {
            1 => "1 directory".into(),
            n => format!("{n} directories"),
        };
        writeln!(self.out, "\n{directories}, {}", count(self.others, "file"))?;
        Ok(self.out.flush()?)
    }
}
