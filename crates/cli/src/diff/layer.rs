//! The difference of two trees as a layer of a container image.
//!
//! The layer has each entry of the second tree that the first one has not, or has otherwise;
//! whiteouts for names that are gone; and the directories on the way to all of these, since
//! unpackers change the times of directories when they add entries. A directory that kept none of
//! its names gets an opaque marker, which stands for a whiteout of each.
//!
//! # Hard links
//! All names of an inode are in the layer if one of them is, so that a link in the layer leads to a
//! file of the layer, and no unpacker has to link to a file of a lower one. A name that stays out
//! of the layer has the same content, attributes and links in both trees ([`super`]).

use super::compare;
use super::pairs::{Fault, Found, Pair, PairWalk};
use super::{Counts, Trees, each_change};
use crate::copy::archive::{Archive, Prepared, Style, WHITEOUT, prepare};
use crate::copy::tree::{AHEAD, Entry, Member};
use crate::ordered;
use extant_engine::FileType;
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

/// The name of tops in archives.
const TOP: &[u8] = b".";

/// The name of a marker that hides all entries of lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The inodes of the second tree whose names are in the layer, but for directories.
pub struct Changed(HashSet<u64>);

/// Compares the trees. Returns the inodes that the layer needs.
///
/// # Errors
/// None today: entries that cannot be read are problems of the job.
pub fn compare(trees: &Trees<'_>) -> io::Result<(Changed, Counts)> {
    let (mut changed, mut counts) = (HashSet::new(), Counts::default());
    each_change(trees, TOP, |pair, change| {
        counts.add(&change);
        let there = pair.sides[1].as_ref();
        changed.extend(there.filter(|found| !found.is_directory()).map(|found| found.attr.ino));
        Ok(())
    })?;
    Ok((Changed(changed), counts))
}

/// Writes the layer. Returns the latest time of an entry, in seconds since 1970.
///
/// # Errors
/// Those of `out`. The layer is not complete if the job has problems.
pub fn write(
    trees: &Trees<'_>,
    changed: &Changed,
    style: Style,
    out: &mut dyn Write,
) -> io::Result<i64> {
    let archive = Archive::new(trees.fs[1], trees.job, style, out);
    let mut writer = Writer { archive, above: Vec::new() };
    ordered::run(
        (trees.job.threads(), AHEAD),
        |part: Part| {
            let ready = part.prepare(trees, style);
            (part, ready)
        },
        |(part, ready)| writer.add(trees, part, ready),
        |pusher| {
            let mut parts = Parts { trees, changed, walk: trees.walk(TOP), met: HashSet::new() };
            while let Some(step) = parts.walk.step() {
                match step {
                    Ok(pair) => parts.of(pair).into_iter().try_for_each(|part| {
                        let cost = part.cost();
                        pusher.push(part, cost)
                    })?,
                    Err(problem) => trees.problem(&problem.path, &problem.fault),
                }
            }
            Ok(())
        },
    )?;
    writer.archive.finish()
}

/// A part of the layer.
enum Part {
    /// An entry that is in the layer.
    Entry(Entry),
    /// A directory of both trees, which is in the layer if it differs or if anything below does.
    Directory(Entry, Found),
    /// A marker in a directory: the directory, levels below the top, and the marker's name.
    Marker(Arc<Member>, usize, Vec<u8>),
}

/// The parts of the layer in the order of a walk.
struct Parts<'a> {
    trees: &'a Trees<'a>,
    changed: &'a Changed,
    walk: PairWalk<'a>,
    /// Inodes that are in the layer, but for directories.
    met: HashSet<u64>,
}

impl Parts<'_> {
    /// Returns the parts for a pair, in order.
    fn of(&mut self, pair: Pair) -> Vec<Part> {
        let Pair { member, depth, sides, is_replaced, is_below_replaced } = pair;
        if member.name().starts_with(WHITEOUT) {
            let text = "a layer cannot hold names that begin with .wh.";
            self.trees.job.problem(&member.path(), text);
            return Vec::new();
        }
        let [first, second] = sides;
        let was_directory = first.as_ref().is_some_and(Found::is_directory);
        if was_directory && !second.as_ref().is_some_and(Found::is_directory) {
            // Removed with everything below it, by a whiteout or by the entry in its place.
            self.walk.leave();
        }
        let Some(Found { node, attr }) = second else {
            // The opaque marker of the directory removes this entry, too.
            let above = member.above().filter(|_| !is_below_replaced).cloned();
            let name = [WHITEOUT, member.name()].concat();
            return above.map(|above| Part::Marker(above, depth, name)).into_iter().collect();
        };
        let (ino, is_directory) = (attr.ino, attr.ftype == FileType::Directory);
        let again = !is_directory && self.changed.0.contains(&ino) && !self.met.insert(ino);
        let entry = Entry { member: member.clone(), depth, node, attr, again };
        match first {
            _ if !is_directory && !self.changed.0.contains(&ino) => Vec::new(),
            Some(first) if was_directory && is_directory && !is_replaced => {
                vec![Part::Directory(entry, first)]
            }
            _ if is_replaced => {
                vec![Part::Entry(entry), Part::Marker(member, depth + 1, OPAQUE.to_vec())]
            }
            _ => vec![Part::Entry(entry)],
        }
    }
}

/// A part of the layer, read ahead.
struct Ready {
    /// Whether the part is in the layer.
    is_in: bool,
    prepared: Option<Result<Prepared, String>>,
}

impl Part {
    fn cost(&self) -> u64 {
        match self {
            Part::Entry(entry) | Part::Directory(entry, _) => entry.cost(),
            Part::Marker(..) => 0,
        }
    }

    /// Reads the part ahead, unless that takes much memory, or it is a further name.
    fn prepare(&self, trees: &Trees<'_>, style: Style) -> Result<Ready, Fault> {
        let (entry, is_in) = match self {
            Part::Entry(entry) => (entry, true),
            Part::Directory(entry, first) => {
                let second = Found { node: entry.node.clone(), attr: entry.attr };
                let differences = compare::attributes(trees.fs, [first, &second], trees.ignore)?;
                (entry, !differences.is_empty())
            }
            Part::Marker(..) => return Ok(Ready { is_in: true, prepared: None }),
        };
        let prepared =
            (is_in && !entry.again).then(|| prepare((trees.fs[1], trees.job), entry, style));
        let prepared = prepared.filter(|made| made.as_ref().map_or(true, Prepared::is_small));
        Ok(Ready { is_in, prepared })
    }
}

/// The layer under way.
struct Writer<'a, W: Write> {
    archive: Archive<'a, W>,
    /// Directories on the way to the current entry that are not in the layer yet.
    above: Vec<Entry>,
}

impl<W: Write> Writer<'_, W> {
    fn add(
        &mut self,
        trees: &Trees<'_>,
        part: Part,
        ready: Result<Ready, Fault>,
    ) -> io::Result<()> {
        let Ready { is_in, prepared } = match ready {
            Ok(ready) => ready,
            Err(fault) => {
                if let Part::Entry(entry) | Part::Directory(entry, _) = part {
                    trees.problem(&entry.path(), &fault);
                }
                return Ok(());
            }
        };
        match part {
            Part::Directory(entry, _) if !is_in => {
                self.leave(entry.depth);
                self.above.push(entry);
                Ok(())
            }
            Part::Entry(entry) | Part::Directory(entry, _) => {
                self.enter(entry.depth)?;
                self.archive.add(entry, prepared)
            }
            Part::Marker(directory, depth, name) => {
                self.enter(depth)?;
                self.archive.marker(&[&directory.path(), &b"/"[..], &name].concat())
            }
        }
    }

    /// Forgets directories that do not lead to an entry so many levels down.
    fn leave(&mut self, depth: usize) {
        self.above.truncate(self.above.partition_point(|entry| entry.depth < depth));
    }

    /// Adds the directories that lead to an entry so many levels down.
    fn enter(&mut self, depth: usize) -> io::Result<()> {
        self.leave(depth);
        let above = std::mem::take(&mut self.above);
        above.into_iter().try_for_each(|entry| self.archive.add(entry, None))
    }
}
