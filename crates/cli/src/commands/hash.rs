//! `extant hash`: the digest of a tree.

use crate::context::Context;
use crate::copy::digest::{self, Ignore};
use crate::copy::job::Job;
use crate::copy::tree::Tree;
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, root_path, unless_slash};
use crate::json;
use serde_json::Map;
use std::ffi::OsString;
use std::io::Write;

/// Print a digest of the content and the attributes of a tree.
///
/// Equal trees have equal digests, wherever their blocks are, in whatever order directories hold
/// their entries, and whether zeroes are stored or holes. Counted are names, types, permissions,
/// owners, times of the last change of content, extended attributes, ACLs, link targets, device
/// numbers, hard links and content. An empty lost+found in the root is not counted.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Top of the tree
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    #[command(flatten)]
    ignore: IgnoreArgs,
}

/// Attributes that are left out.
#[derive(Clone, Debug, clap::Args)]
pub struct IgnoreArgs {
    /// Leave out attributes, separated by commas
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    ignore: Vec<Attribute>,
}

/// A kind of attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Attribute {
    /// Times of the last change of content.
    Times,
    /// Owners and groups.
    Owners,
    /// Permissions.
    Modes,
    /// Extended attributes and ACLs.
    Xattrs,
}

impl IgnoreArgs {
    /// Returns the attributes as flags.
    pub fn flags(&self) -> Ignore {
        let has = |attribute| self.ignore.contains(&attribute);
        Ignore {
            times: has(Attribute::Times),
            owners: has(Attribute::Owners),
            modes: has(Attribute::Modes),
            xattrs: has(Attribute::Xattrs),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let fs = args.image.read(context)?;
    let path = inside(&args.path);
    let top = fs.resolve(path, unless_slash(path)).at_path(path)?;
    let job = Job::out_of(&fs, context);
    let tree = Tree { fs: &fs, top, name: b"", job: &job };
    let sum = digest::of_tree(&tree, args.ignore.flags()).map_err(Failure::from)?;
    job.close()?;
    let digest = format!("sha256:{}", json::hex(&sum));
    if context.json {
        let mut object = Map::new();
        json::put_bytes(&mut object, "path", path);
        object.insert("digest".into(), digest.into());
        return context.document(&object.into());
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{digest}")?;
    Ok(out.flush()?)
}
