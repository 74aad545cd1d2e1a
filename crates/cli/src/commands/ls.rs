//! `extant ls`: a directory's entries.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, root_path, unless_slash};
use crate::json;
use crate::text::{mode, seconds, shown};
use crate::walk::{self, Listing};
use extant_engine::{Errno, FileType, Follow, Fs, Node};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};

/// List a directory
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Directory or file
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    /// Type, permissions, links, owner, size and time of each
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot too
    #[arg(short)]
    all: bool,
    /// Inode numbers
    #[arg(short)]
    inode: bool,
    /// The directory itself instead of its entries
    #[arg(short)]
    directory: bool,
}

/// One line of the list.
struct Entry {
    name: Vec<u8>,
    node: Node,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let path = inside(&args.path);
    let top = named(args, &fs, path).at_path(path)?;
    let (entries, failed) = if top.file_type() == FileType::Directory && !args.directory {
        list(&fs, &top, path, args.all || context.json)
    } else {
        (vec![Entry { name: path.to_vec(), node: top }], false)
    };
    if context.json {
        context.document(&Value::Array(entries.iter().map(|e| object(&fs, e)).collect()))?
    } else {
        print(args, context, &fs, &entries)?
    }
    if failed { Err(Failure::told()) } else { Ok(()) }
}

/// Returns the node to list. Follows a symlink, unless the link dangles or forms a loop, or unless
/// its own attributes are wanted (`-l`, `-d`) and `path` does not end with a slash.
fn named(args: &Args, fs: &Fs, path: &[u8]) -> extant_engine::Result<Node> {
    if args.long || args.directory {
        return fs.resolve(path, unless_slash(path));
    }
    match fs.resolve(path, Follow::Yes) {
        Err(e) if e.is(Errno::NoEnt) || e.is(Errno::Loop) => {
            fs.resolve(path, Follow::No).map_err(|_| e)
        }
        found => found,
    }
}

/// Returns the entries, and whether some could not be read; reports each of these.
fn list(fs: &Fs, dir: &Node, path: &[u8], all: bool) -> (Vec<Entry>, bool) {
    let Listing { entries, problems } = walk::list(fs, dir);
    let mut failed = !problems.is_empty();
    for problem in problems {
        complain(format_args!("{}: {problem}", shown(path)));
    }
    let mut list = Vec::new();
    for entry in entries.into_iter().filter(|entry| all || !entry.name.starts_with(b".")) {
        match fs.node(entry.ino) {
            Ok(node) => list.push(Entry { name: entry.name, node }),
            Err(e) => {
                complain(format_args!("{}: inode {}: {e}", shown(&entry.name), entry.ino));
                failed = true;
            }
        }
    }
    (list, failed)
}

fn target(fs: &Fs, node: &Node) -> Option<Vec<u8>> {
    (node.file_type() == FileType::Symlink).then(|| fs.read_link(node).ok()).flatten()
}

fn object(fs: &Fs, entry: &Entry) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "name", &entry.name);
    object.append(&mut json::attr(&entry.node.attr()));
    if let Some(target) = target(fs, &entry.node) {
        json::put_bytes(&mut object, "target", &target);
    }
    Value::Object(object)
}

fn print(args: &Args, context: &Context, fs: &Fs, entries: &[Entry]) -> Result {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let inode_width = entries.iter().map(|e| e.node.ino()).max().unwrap_or(0).to_string().len();
    let size_width =
        entries.iter().map(|e| e.node.attr().size).max().unwrap_or(0).to_string().len().max(8);
    for entry in entries {
        if args.inode {
            write!(out, "{:>inode_width$} ", entry.node.ino())?;
        }
        if args.long {
            write_attributes(&mut out, &entry.node, size_width)?;
        }
        write_name(&mut out, context, &entry.name, entry.node.file_type(), entry.node.attr().mode)?;
        if let Some(target) = target(fs, &entry.node).filter(|_| args.long) {
            out.write_all(b" -> ")?;
            write_bytes(&mut out, context, &target)?;
        }
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

fn write_attributes(
    out: &mut BufWriter<StdoutLock<'_>>,
    node: &Node,
    width: usize,
) -> std::io::Result<()> {
    let a = node.attr();
    let size = match a.ftype {
        FileType::CharDevice | FileType::BlockDevice => format!("{},{}", a.rdev.0, a.rdev.1),
        _ => a.size.to_string(),
    };
    let time = seconds(a.mtime.sec);
    write!(
        out,
        "{} {:>3} {:>5} {:>5} {size:>width$} {time} ",
        mode(a.ftype, a.mode),
        a.nlink,
        a.uid,
        a.gid
    )
}

/// Writes bytes as they are, or escaped for a terminal.
pub fn write_bytes(out: &mut impl Write, context: &Context, bytes: &[u8]) -> std::io::Result<()> {
    if context.terminal { out.write_all(shown(bytes).as_bytes()) } else { out.write_all(bytes) }
}

/// As [`write_bytes`], in the colour of the type.
pub fn write_name(
    out: &mut impl Write,
    context: &Context,
    name: &[u8],
    ftype: FileType,
    mode: u16,
) -> std::io::Result<()> {
    let color = match ftype {
        _ if !context.color => None,
        FileType::Directory => Some("1;34"),
        FileType::Symlink => Some("1;36"),
        FileType::Fifo => Some("33"),
        FileType::Socket => Some("1;35"),
        FileType::BlockDevice | FileType::CharDevice => Some("1;33"),
        FileType::Regular if mode & 0o111 != 0 => Some("1;32"),
        _ => None,
    };
    if let Some(color) = color {
        write!(out, "\x1b[{color}m")?;
    }
    write_bytes(out, context, name)?;
    match color {
        Some(_) => out.write_all(b"\x1b[0m"),
        None => Ok(()),
    }
}
