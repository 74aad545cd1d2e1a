//! `extant diff`: the differences of two trees, also as a layer of a container image.

use super::hash::IgnoreArgs;
use crate::context::Context;
use crate::copy::archive::Style;
use crate::copy::compress::Compression;
use crate::copy::job::Job;
use crate::copy::oci::Layer;
use crate::copy::output::Output;
use crate::diff::layer;
use crate::diff::pairs::Pair;
use crate::diff::{Change, Counts, Trees, each_change};
use crate::failure::{At, Failure, Result};
use crate::image::{PairArgs, inside, root_path, unless_slash};
use crate::json::{self, Array};
use crate::layout::epoch;
use crate::sandbox::command::Preparation;
use crate::text::{self, shown};
use extant_engine::{FileType, Fs, Node};
use serde_json::{Map, Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Compare the trees of two images.
///
/// Prints a line for each path that differs: names of one tree only, and for others the attributes
/// that differ, in the order of names. Compared is the same as by `hash`. With --oci-layer the
/// difference is written as a layer instead, which makes the tree of B out of that of A. Exit
/// codes are those of diff(1): 0 no difference, 1 some differences, 2 trouble; with --oci-layer 0
/// says that the layer is written.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    images: PairArgs,
    /// Top of the tree in both images
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    #[command(flatten)]
    ignore: IgnoreArgs,
    /// Write the difference as a layer of an OCI image
    #[arg(long, value_name = "FILE")]
    oci_layer: Option<PathBuf>,
    /// Compress the layer [default: gzip]
    #[arg(long, value_enum, value_name = "HOW", requires = "oci_layer")]
    compress: Option<Compression>,
}

/// Exit code of a comparison that failed.
const TROUBLE: u8 = 2;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let is_different = args.compare(context).map_err(|failure| failure.with_exit_code(TROUBLE))?;
    // The differences say the rest.
    if is_different { Err(Failure::told()) } else { Ok(()) }
}

impl Args {
    /// Compares, or writes the layer. Returns whether to end with the code of differences.
    fn compare(&self, context: &Context) -> Result<bool> {
        let images = self.images.images();
        let layer = self.oci_layer.as_deref().map(|dest| begin_layer(dest, context)).transpose()?;
        let files = images.each_ref().map(|image| image.files());
        let entered = Preparation::default().enter(context, &files);
        entered.map_err(|(number, error)| images[number].refused(&error))?;
        let [a, b] = [images[0].read(context)?, images[1].read(context)?];
        let path = inside(&self.path);
        let job = Job::out_of(&b, context);
        let trees = Trees {
            fs: [&a, &b],
            tops: [top(&a, path, images[0].name())?, top(&b, path, images[1].name())?],
            names: images.each_ref().map(|image| image.name()),
            ignore: self.ignore.flags(),
            job: &job,
        };
        match layer {
            Some(output) => self.write_layer(&trees, output, context).map(|()| false),
            None => print(&trees, path, context),
        }
    }

    fn write_layer(&self, trees: &Trees<'_>, mut output: Output, context: &Context) -> Result {
        if trees.tops.iter().any(|top| top.file_type() != FileType::Directory) {
            return Err(Failure::usage("a layer is made of directories"));
        }
        let style = Style { layer: true, latest: epoch()? };
        let (changed, counts) = layer::compare(trees)?;
        trees.job.check_complete()?;
        let compression = self.compress.unwrap_or(Compression::Gzip);
        let layer = Layer::write(compression, trees.job.threads(), output.file(), |out| {
            layer::write(trees, &changed, style, out)
        });
        let name = self.oci_layer.as_deref().unwrap_or(Path::new("")).as_os_str();
        let layer = layer.at_path(name.as_bytes())?;
        // A layer that lacks entries would make another tree.
        trees.job.close()?;
        output.finish()?;
        report(&layer, counts, context)
    }
}

/// Begins the file of a layer before this process enters a sandbox.
fn begin_layer(dest: &Path, context: &Context) -> Result<Output> {
    if dest == OsStr::new("-") {
        return Err(Failure::usage(
            "the digests of a layer go to standard output; name a file for the layer",
        ));
    }
    Output::begin(dest)?.before_sandbox(context)
}

/// Returns the top of a tree.
fn top(fs: &Fs, path: &[u8], image: String) -> Result<Node> {
    let found = fs.resolve(path, unless_slash(path));
    found.map_err(|error| {
        Failure::of(&error, path, format_args!("{image}: {}: {error}", shown(path)))
    })
}

/// Prints the differences. Returns whether there are some.
fn print(trees: &Trees<'_>, path: &[u8], context: &Context) -> Result<bool> {
    let name = path.strip_suffix(b"/").unwrap_or(path);
    let (mut out, mut counts) = (Out::new(context), Counts::default());
    each_change(trees, name, |pair, change| {
        counts.add(&change);
        out.change(pair, &change)
    })?;
    out.finish(counts, trees.job.problems())?;
    trees.job.close()?;
    Ok(counts.any())
}

/// The form in which differences are printed.
enum Out {
    Text(BufWriter<StdoutLock<'static>>),
    Json(Array<BufWriter<StdoutLock<'static>>>),
}

impl Out {
    fn new(context: &Context) -> Out {
        let out = BufWriter::new(io::stdout().lock());
        if context.json { Out::Json(context.array(out)) } else { Out::Text(out) }
    }

    fn change(&mut self, pair: &Pair, change: &Change) -> io::Result<()> {
        let path = match pair.member.path() {
            path if path.is_empty() => b"/".to_vec(),
            path => path,
        };
        match self {
            Out::Text(out) => {
                let path = shown(&path);
                match change {
                    Change::Added => writeln!(out, "added {path}"),
                    Change::Removed => writeln!(out, "removed {path}"),
                    Change::Changed(differences) => {
                        let texts: Vec<&str> = differences.iter().map(|d| &*d.text).collect();
                        writeln!(out, "changed {path}: {}", texts.join("; "))
                    }
                    Change::As(first) => {
                        writeln!(out, "changed {path}: as {}", shown(&first.path()))
                    }
                }
            }
            Out::Json(array) => array.push(&object(&path, pair, change)),
        }
    }

    fn finish(self, counts: Counts, errors: u64) -> io::Result<()> {
        match self {
            Out::Text(mut out) => out.flush(),
            Out::Json(mut array) => {
                let mut summary = document(counts);
                summary.insert("errors".into(), errors.into());
                array.push(&json!({ "summary": summary }))?;
                array.finish()
            }
        }
    }
}

/// Returns a change as an object of JSON.
fn object(path: &[u8], pair: &Pair, change: &Change) -> Value {
    let mut object = Map::new();
    let kind = match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::Changed(_) | Change::As(_) => "changed",
    };
    object.insert("change".into(), kind.into());
    json::put_bytes(&mut object, "path", path);
    let there = pair.sides.iter().rev().flatten().next();
    object.insert("type".into(), there.map(|found| text::type_name(found.attr.ftype)).into());
    match change {
        Change::Changed(differences) => {
            let each = differences.iter().map(|d| (d.attribute.to_owned(), d.json.clone()));
            object.insert("differences".into(), each.collect::<Map<_, _>>().into());
        }
        Change::As(first) => json::put_bytes(&mut object, "same_as", &first.path()),
        Change::Added | Change::Removed => {}
    }
    object.into()
}

fn document(counts: Counts) -> Map<String, Value> {
    let Counts { added, removed, changed } = counts;
    [("added", added), ("removed", removed), ("changed", changed)]
        .map(|(name, count)| (name.into(), count.into()))
        .into_iter()
        .collect()
}

fn report(layer: &Layer, counts: Counts, context: &Context) -> Result {
    let digests = [("layer", &layer.digest), ("diff_id", &layer.diff_id)];
    if context.json {
        let mut object = document(counts);
        object.extend(digests.map(|(name, digest)| (name.into(), digest.as_str().into())));
        object.insert("size".into(), layer.size.into());
        return context.document(&object.into());
    }
    let mut out = io::stdout().lock();
    digests.iter().try_for_each(|(name, digest)| writeln!(out, "{name} {digest}"))?;
    Ok(out.flush()?)
}
