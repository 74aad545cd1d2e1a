//! `extant diff`: the differences of two trees.

use super::hash::IgnoreArgs;
use crate::context::Context;
use crate::copy::job::Job;
use crate::diff::pairs::Pair;
use crate::diff::{Change, Counts, Trees, each_change};
use crate::failure::{Failure, Result};
use crate::image::{PairArgs, inside, root_path, unless_slash};
use crate::json::{self, Array};
use crate::text::{self, shown};
use extant_engine::{Fs, Node};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Compare the trees of two images.
///
/// Prints a line for each path that differs: names of one tree only, and for others the attributes
/// that differ, in the order of names. Compared is the same as by `hash`. Exit codes are those of
/// diff(1): 0 no difference, 1 some differences, 2 trouble.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    images: PairArgs,
    /// Top of the tree in both images
    #[arg(default_value_os_t = root_path())]
    path: OsString,
    #[command(flatten)]
    ignore: IgnoreArgs,
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
    /// Compares. Returns whether there are differences.
    fn compare(&self, context: &Context) -> Result<bool> {
        let images = self.images.images();
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
        print(&trees, path, context)
    }
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
