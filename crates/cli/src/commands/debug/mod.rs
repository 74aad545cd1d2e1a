//! `extant debug`: the structures of an image one by one, also of a damaged one.

mod deleted;
mod directories;
pub mod inodes;
mod journal;
mod metadata;
mod out;
mod volume;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::image::{ImageArgs, OfflineArgs, inside};
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_check::debug::{InodeSlot, InspectOptions, Inspector};
use extant_engine::device::{ImageSpec, image_spec};
use out::Out;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Look at the structures of an image one by one
///
/// Nothing is written to IMAGE. A damaged image is shown as far as it can be read: problems are
/// reported, and the rest follows. FILE is a path from the root on, or the number of an inode, as
/// 12 or <12>. With --json each command prints an array. Exit codes: 0 done, 1 a part cannot be
/// shown, 2 wrong usage, 3 done with copies of a damaged superblock or damaged descriptors.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Show blocks as they are, without the changes in the journal
    #[arg(long)]
    as_is: bool,
    /// Take the superblock from the copy in this block of the file system
    #[arg(long, value_name = "BLOCK")]
    superblock: Option<u64>,
    /// Show an image that another program uses, as e2image does
    #[arg(long, hide = true)]
    in_use: bool,
    #[command(subcommand)]
    structure: Structure,
}

/// The structure to look at.
#[derive(clap::Subcommand, Debug)]
enum Structure {
    /// All fields of inodes, decoded and as they lie on the disk
    Inode(FileArgs),
    /// The map of a file: each node and extent, or each pointer block, with checksums
    Extents(FileArgs),
    /// The blocks and entries of a directory, with removed entries that are still readable
    Dir(FileArgs),
    /// The hash tree of a directory
    Htree(FileArgs),
    /// Extended attributes with their places and hashes
    Xattrs(FileArgs),
    /// Write the content of files to standard output; parts that cannot be read are zeroes
    Cat(FileArgs),
    /// The content of a block as hexadecimal digits, or as it is
    Block(BlockArgs),
    /// The owners of blocks: inodes with the block of the file, or metadata
    Owner(BlocksArgs),
    /// The names of inodes
    Names(NamesArgs),
    /// The superblock, and its copies with their differences
    Superblocks,
    /// Group descriptors and bitmaps
    Groups(GroupsArgs),
    /// A histogram of the free space
    FreeSpace,
    /// The numbers of extents of files, the most fragmented ones first
    Fragmentation(FragmentationArgs),
    /// The journal: its superblock, its transactions, or a block as of a transaction
    Journal(JournalArgs),
    /// Deleted files, their blocks that are still free, and their recovery into a directory
    Deleted(DeletedArgs),
    /// Write an image with all metadata and without content of files, to show damage to others
    Metadata(MetadataArgs),
}

/// Files to look at.
#[derive(clap::Args, Debug)]
struct FileArgs {
    /// Paths, or numbers of inodes as 12 or <12>
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

/// A block to look at.
#[derive(clap::Args, Debug)]
struct BlockArgs {
    /// The block
    block: u64,
    /// Number of blocks
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u64,
    /// Write the bytes as they are
    #[arg(long)]
    raw: bool,
}

/// Blocks to look for.
#[derive(clap::Args, Debug)]
struct BlocksArgs {
    /// Blocks
    #[arg(required = true, value_name = "BLOCK")]
    blocks: Vec<u64>,
}

/// Inodes to look for.
#[derive(clap::Args, Debug)]
struct NamesArgs {
    /// Numbers of inodes
    #[arg(required = true, value_name = "INODE")]
    inodes: Vec<u32>,
    /// Show names that were removed, too
    #[arg(long)]
    removed: bool,
}

/// Groups to look at.
#[derive(clap::Args, Debug)]
struct GroupsArgs {
    /// Groups [default: all]
    #[arg(value_name = "GROUP")]
    groups: Vec<u32>,
}

/// Files to count the extents of.
#[derive(clap::Args, Debug)]
struct FragmentationArgs {
    /// Paths, or numbers of inodes [default: all files]
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
    /// Files to show at most
    #[arg(long, default_value_t = 20, value_name = "N")]
    most: usize,
}

/// The part of the journal to look at.
#[derive(clap::Args, Debug)]
struct JournalArgs {
    /// Show this block of the file system as it is in the journal
    #[arg(long, value_name = "BLOCK")]
    block: Option<u64>,
    /// As of this transaction [default: the newest one with the block]
    #[arg(long, value_name = "TRANSACTION", requires = "block")]
    as_of: Option<u32>,
    /// Write the bytes of the block as they are
    #[arg(long, requires = "block")]
    raw: bool,
    /// Show transactions that a recovery does not replay, too
    #[arg(long, conflicts_with = "block")]
    all: bool,
}

/// The deleted files to look at.
#[derive(clap::Args, Debug)]
struct DeletedArgs {
    /// Inodes [default: all that are deleted]
    #[arg(value_name = "INODE")]
    inodes: Vec<u32>,
    /// Write the content in blocks that are still free to new files in this directory
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// The image of metadata to write.
#[derive(clap::Args, Debug)]
struct MetadataArgs {
    /// New image, sparse and as long as the file system
    out: PathBuf,
    /// Write it in the format qcow2
    #[arg(long)]
    qcow2: bool,
    /// Replace names, and targets of symbolic links, by others of the same length
    #[arg(long)]
    scramble: bool,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = args.on.named();
    let image = if args.in_use { image.read_although_in_use() } else { image };
    refuse_json(args, context)?;
    let mut sandbox = Preparation::default();
    if let Structure::Deleted(DeletedArgs { into: Some(dir), .. }) = &args.structure {
        sandbox = deleted::prepare(dir, sandbox)?;
    }
    let mut begun = None;
    if let Structure::Metadata(args) = &args.structure {
        let (image_begun, prepared) = metadata::begin(args, &image, context, sandbox)?;
        (begun, sandbox) = (Some(image_begun), prepared);
    }
    image.contain(context, sandbox)?;
    // An image of metadata has the blocks as they are, and the log.
    let as_is = args.as_is || begun.is_some();
    let options = InspectOptions { as_is, superblock: args.superblock };
    let inspector = open(&image, context, options)?;
    let mut out = Out::new(context);
    match &args.structure {
        Structure::Inode(FileArgs { files }) => inodes::inodes(&inspector, files, &mut out)?,
        Structure::Extents(FileArgs { files }) => inodes::extents(&inspector, files, &mut out)?,
        Structure::Dir(FileArgs { files }) => directories::entries(&inspector, files, &mut out)?,
        Structure::Htree(FileArgs { files }) => directories::trees(&inspector, files, &mut out)?,
        Structure::Xattrs(FileArgs { files }) => inodes::xattrs(&inspector, files, &mut out)?,
        Structure::Cat(FileArgs { files }) => inodes::cat(&inspector, files, &mut out)?,
        Structure::Block(args) => volume::blocks(&inspector, args, &mut out)?,
        Structure::Owner(args) => directories::owners(&inspector, &args.blocks, &mut out)?,
        Structure::Names(args) => directories::names(&inspector, args, &mut out)?,
        Structure::Superblocks => volume::superblocks(&inspector, &mut out)?,
        Structure::Groups(args) => volume::groups(&inspector, &args.groups, &mut out)?,
        Structure::FreeSpace => volume::free_space(&inspector, &mut out)?,
        Structure::Fragmentation(args) => volume::fragmentation(&inspector, args, &mut out)?,
        Structure::Journal(args) => journal::journal(&inspector, args, &mut out)?,
        Structure::Deleted(args) => deleted::deleted(&inspector, args, &mut out)?,
        Structure::Metadata(_) => {
            begun.map_or(Ok(()), |begun| begun.save(&inspector, context, &mut out))?;
        }
    }
    out.finish()
}

/// Refuses a JSON document of bytes.
fn refuse_json(args: &Args, context: &Context) -> Result {
    let is_raw = match &args.structure {
        Structure::Cat(_) => true,
        Structure::Block(args) => args.raw,
        Structure::Journal(args) => args.raw,
        _ => false,
    };
    if context.json && is_raw {
        return Err(Failure::usage("content has no JSON form: it is bytes"));
    }
    Ok(())
}

/// Opens an image, and says how.
pub fn open(image: &ImageArgs, context: &Context, options: InspectOptions) -> Result<Inspector> {
    let open = |place: &ImageSpec| image.reader(place).map_err(|error| image.refused(&error));
    let device = open(&image.spec())?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    let journal = image.journal.as_deref().map(|path| open(&image_spec(path))).transpose()?;
    let name = image.name();
    let opened = Inspector::open(device, journal, options);
    let inspector = opened.map_err(|error| Failure::new(format_args!("{name}: {error}")))?;
    if let Some(damage) = inspector.damage() {
        context.note_damage(format_args!("{name}: {damage}"));
    }
    for note in inspector.notes() {
        context.note(format_args!("{name}: {note}"));
    }
    Ok(inspector)
}

/// Returns the inode that an argument names: a number, alone or as <12>, or a path.
pub fn number(inspector: &Inspector, file: &OsStr) -> Result<u32, String> {
    let bytes = inside(file);
    let inner = bytes.strip_prefix(b"<").and_then(|rest| rest.strip_suffix(b">")).unwrap_or(bytes);
    if let Ok(text) = std::str::from_utf8(inner)
        && let Ok(number) = text.parse()
    {
        return Ok(number);
    }
    inspector.resolve(bytes).map_err(|error| format!("{}: {error}", shown(bytes)))
}

/// Returns the inode that an argument names.
pub fn slot(inspector: &Inspector, file: &OsStr) -> Result<InodeSlot, String> {
    let number = number(inspector, file)?;
    inspector.inode(number).map_err(|error| error.to_string())
}

/// Calls `show` for each inode that arguments name. Those that cannot be found are problems.
fn each(
    inspector: &Inspector,
    files: &[OsString],
    out: &mut Out,
    mut show: impl FnMut(&InodeSlot, &mut Out) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for file in files {
        match slot(inspector, file) {
            Ok(slot) => show(&slot, out)?,
            Err(message) => out.problem(&message)?,
        }
    }
    Ok(())
}
