//! `extant stat`: everything that an inode says.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::image::{ReadArgs, inside};
use crate::json;
use crate::text::{flags, mode, shown, time, type_name};
use extant_engine::{Extent, FileType, Follow, Fs, Node, OpenFlags};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{BufWriter, Write};

/// Show the attributes of an inode
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Follow a symlink at the end of the path
    #[arg(short = 'L')]
    follow: bool,
    /// Show where the content lies
    #[arg(long)]
    extents: bool,
}

/// Extents shown of one file.
const MAX_EXTENTS: usize = 100_000;

/// Values that the command prints of one path.
struct Found<'a> {
    path: &'a [u8],
    node: Node,
    target: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    extents: Option<Vec<Extent>>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let found =
        args.paths.iter().map(|path| find(args, &fs, inside(path))).collect::<Result<Vec<_>>>()?;
    if context.json {
        return context.document(&Value::Array(found.iter().map(object).collect()));
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    for one in &found {
        print(&mut out, one)?;
    }
    Ok(out.flush()?)
}

fn find<'a>(args: &Args, fs: &Fs, path: &'a [u8]) -> Result<Found<'a>> {
    let follow = if args.follow { Follow::Yes } else { Follow::No };
    let node = fs.resolve(path, follow).at_path(path)?;
    let target = match node.file_type() {
        FileType::Symlink => Some(fs.read_link(&node).at_path(path)?),
        _ => None,
    };
    let names = fs.list_xattrs(&node).at(format_args!("{}: attributes", shown(path)))?;
    let value = |name: Vec<u8>| {
        let value = fs.get_xattr(&node, &name).at(format_args!(
            "{}: attribute {}",
            shown(path),
            shown(&name)
        ))?;
        Ok((name, value))
    };
    let xattrs = names.into_iter().map(value).collect::<Result<Vec<_>>>()?;
    let extents = if args.extents && node.file_type() == FileType::Regular {
        Some(extents(fs, &node).at(format_args!("{}: extents", shown(path)))?)
    } else {
        None
    };
    Ok(Found { path, node, target, xattrs, extents })
}

fn extents(fs: &Fs, node: &Node) -> extant_engine::Result<Vec<Extent>> {
    let file = fs.open_file(node, OpenFlags::default())?;
    let mut extents = Vec::new();
    file.extents(0, u64::MAX, |extent| {
        extents.push(*extent);
        extents.len() < MAX_EXTENTS
    })?;
    Ok(extents)
}

/// Returns the state of an extent, and its physical place if it has one.
fn state(extent: &Extent) -> (&'static str, Option<u64>) {
    let flags = extent.flags;
    match (flags.inline, flags.delayed, flags.unwritten) {
        (true, ..) => ("in the inode", None),
        (_, true, _) => ("delayed", None),
        (_, _, true) => ("unwritten", Some(extent.physical)),
        _ => ("written", Some(extent.physical)),
    }
}

fn object(found: &Found<'_>) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "path", found.path);
    object.append(&mut json::attr(&found.node.attr()));
    if let Some(target) = &found.target {
        json::put_bytes(&mut object, "target", target);
    }
    let xattr = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let mut object = Map::new();
        json::put_bytes(&mut object, "name", name);
        json::put_bytes(&mut object, "value", value);
        Value::Object(object)
    };
    object.insert("xattrs".into(), found.xattrs.iter().map(xattr).collect());
    if let Some(extents) = &found.extents {
        let extent = |e: &Extent| {
            let (state, physical) = state(e);
            json!({ "logical": e.logical, "bytes": e.len, "physical": physical, "state": state })
        };
        object.insert("extents".into(), extents.iter().map(extent).collect());
    }
    Value::Object(object)
}

fn print(out: &mut impl Write, found: &Found<'_>) -> std::io::Result<()> {
    let a = found.node.attr();
    write!(out, "  Path: {}", shown(found.path))?;
    if let Some(target) = &found.target {
        write!(out, " -> {}", shown(target))?;
    }
    writeln!(out, "\n Inode: {}  Generation: {}  Links: {}", a.ino, a.generation, a.nlink)?;
    writeln!(out, "  Type: {}", type_name(a.ftype))?;
    match a.ftype {
        FileType::BlockDevice | FileType::CharDevice => {
            writeln!(out, "Device: {},{}", a.rdev.0, a.rdev.1)?
        }
        _ => writeln!(out, "  Size: {}  Blocks of 512: {}", a.size, a.blocks)?,
    }
    writeln!(
        out,
        "Access: {:04o} ({})  Uid: {}  Gid: {}",
        a.mode & 0o7777,
        mode(a.ftype, a.mode),
        a.uid,
        a.gid
    )?;
    writeln!(out, " Flags: {:#x} ({})", a.flags, flags(a.flags))?;
    writeln!(
        out,
        "Access: {}\nModify: {}\nChange: {}",
        time(a.atime),
        time(a.mtime),
        time(a.ctime)
    )?;
    if let Some(birth) = a.crtime {
        writeln!(out, " Birth: {}", time(birth))?;
    }
    for (name, value) in &found.xattrs {
        writeln!(out, " Xattr: {} = \"{}\" ({} bytes)", shown(name), shown(value), value.len())?;
    }
    for extent in found.extents.iter().flatten() {
        match state(extent) {
            (state, Some(at)) => {
                writeln!(out, "Extent: {} +{} at {at} ({state})", extent.logical, extent.len)?
            }
            (state, None) => writeln!(out, "Extent: {} +{} ({state})", extent.logical, extent.len)?,
        }
    }
    Ok(())
}
