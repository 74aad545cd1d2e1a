//! `extant export`: a tree as an archive, as a directory, or as an image of containers.

use super::get;
use crate::context::Context;
use crate::copy::archive::{self, Style};
use crate::copy::compress::{self, Compression};
use crate::copy::job::Job;
use crate::copy::oci::{self, Layer, Layout, Platform};
use crate::copy::output::Output;
use crate::copy::tree::Tree;
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside, root_path, unless_slash};
use crate::layout::epoch;
use extant_engine::{FileType, Fs, Node};
use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Copy a tree out as a tar archive, a directory, or an OCI image.
///
/// Archives and images have all attributes, and the same bytes on every machine and with any number
/// of threads. An empty lost+found in the root is left out of them.
#[derive(clap::Args, Debug)]
#[group(id = "export")]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Top of the tree
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    #[command(flatten)]
    target: Target,
    /// Compress the archive or the layer [default: gzip for --oci]
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "dir")]
    compress: Option<Compression>,
    /// Platform of the OCI image
    #[arg(long, value_name = "OS/ARCH", default_value = "linux/amd64", requires = "oci")]
    #[arg(value_parser = Platform::parse)]
    platform: Platform,
    /// Name of the OCI image in its index
    #[arg(long, value_name = "NAME", default_value = "latest", requires = "oci")]
    tag: String,
}

/// Where the tree goes.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// Write a tar archive (PAX); - is standard output
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Copy into a directory, as `get` does
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write an OCI image layout, or an archive of one if the name ends with .tar
    #[arg(long, value_name = "DIR|FILE.tar")]
    oci: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let path = inside(&args.path);
    let source = |fs: &Fs| fs.resolve(path, unless_slash(path)).at_path(path);
    match &args.target {
        Target { tar: Some(dest), .. } => {
            let output = begin_tar(dest, context)?;
            let fs = args.image.read(context)?;
            let source = Source { fs: &fs, node: source(&fs)?, path };
            to_tar(context, source, (dest, output), args.compress.unwrap_or(Compression::None))
        }
        Target { dir: Some(dest), .. } => {
            let dest = get::Destination::begin(dest)?;
            let fs = args.image.read_within(context, dest.sandbox())?;
            let node = source(&fs)?;
            get::copy(context, &Job::out_of(&fs, context), (&fs, node), path, &dest)
        }
        Target { oci: Some(dest), .. } => {
            let layout = Layout::begin(dest, context)?;
            let fs = args.image.read_within(context, layout.sandbox())?;
            let source = Source { fs: &fs, node: source(&fs)?, path };
            to_oci(context, source, (dest, layout), args)
        }
        _ => Err(Failure::usage("export needs --tar, --dir or --oci")),
    }
}

/// The top of a tree in an image.
pub struct Source<'a> {
    /// The image.
    pub fs: &'a Fs,
    /// The inode.
    pub node: Node,
    /// Its path.
    pub path: &'a [u8],
}

impl<'a> Source<'a> {
    /// Returns the tree with the name that its top has in archives.
    fn tree(self, job: &'a Job<'a>) -> Tree<'a> {
        let name = match get::last_name(self.path) {
            b"" => b".",
            name => name,
        };
        let is_dir = self.node.file_type() == FileType::Directory;
        Tree { fs: self.fs, top: self.node, name: if is_dir { b"." } else { name }, job }
    }
}

/// Begins an archive before this process enters a sandbox; `None` is standard output (`-`).
pub fn begin_tar(dest: &Path, context: &Context) -> Result<Option<Output>> {
    let is_file = dest != OsStr::new("-");
    is_file.then(|| Output::begin(dest)?.before_sandbox(context)).transpose()
}

/// Writes a tree to an archive, or to standard output.
pub fn to_tar(
    context: &Context,
    source: Source<'_>,
    (dest, output): (&Path, Option<Output>),
    compression: Compression,
) -> Result {
    let job = Job::out_of(source.fs, context);
    let tree = source.tree(&job);
    let write = |out: &mut dyn Write| {
        let mut out = BufWriter::with_capacity(1 << 20, out);
        match compression {
            Compression::None => archive::write(&tree, archive::PLAIN, &mut out),
            how => compress::through(how, job.threads(), &mut out, |out| {
                archive::write(&tree, archive::PLAIN, out)
            }),
        }?;
        out.flush()
    };
    let Some(mut output) = output else {
        let mut out = to_stdout(context)?;
        write(&mut out)?;
        return job.finish();
    };
    write(output.file()).at_path(dest.as_os_str().as_bytes())?;
    output.finish()?;
    job.finish()
}

fn to_stdout(context: &Context) -> Result<std::io::StdoutLock<'static>> {
    if context.json {
        return Err(Failure::usage(
            "an archive and a JSON document cannot both go to standard output",
        ));
    }
    let out = std::io::stdout().lock();
    if out.is_terminal() {
        return Err(Failure::usage(
            "an archive is not for a terminal; redirect standard output, or name a file",
        ));
    }
    Ok(out)
}

fn to_oci(
    context: &Context,
    source: Source<'_>,
    (dest, layout): (&Path, Layout),
    args: &Args,
) -> Result {
    if source.node.file_type() != FileType::Directory {
        return Err(Failure::usage("an OCI image is made of a directory"));
    }
    let job = Job::out_of(source.fs, context);
    let tree = source.tree(&job);
    let epoch = epoch()?;
    let style = Style { layer: true, latest: epoch };
    let compression = args.compress.unwrap_or(Compression::Gzip);
    let image = layout.write(dest, |out| {
        let layer =
            Layer::write(compression, job.threads(), out, |out| archive::write(&tree, style, out));
        let layer = layer.at_path(dest.as_os_str().as_bytes())?;
        Ok(oci::Image::new(layer, &args.platform, &args.tag, epoch))
    })?;
    let digests = image.digests();
    if !context.json {
        let mut out = std::io::stdout().lock();
        digests.iter().try_for_each(|(name, digest)| writeln!(out, "{name} {digest}"))?;
    }
    job.finish_with(
        digests.into_iter().map(|(name, digest)| (name.into(), digest.into())).collect(),
    )
}
