//! The comparison of two entries: attributes, and content piece by piece.

use super::pairs::{Fault, Found};
use crate::copy::content::{Content, Range, pieces};
use crate::copy::digest::Ignore;
use crate::json;
use crate::ordered;
use crate::text::{self, shown};
use extant_engine::{Extent, FileType, Fs};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Bytes of both files that are read ahead.
const AHEAD: u64 = 32 << 20;

/// A difference of one attribute.
#[derive(Debug)]
pub struct Difference {
    /// The name of the attribute.
    pub attribute: &'static str,
    /// Both values as people read them.
    pub text: String,
    /// Both values for programs.
    pub json: Value,
}

impl Difference {
    /// Returns a difference without values.
    pub fn bare(attribute: &'static str) -> Difference {
        Difference { attribute, text: attribute.into(), json: true.into() }
    }

    /// Returns a difference of two names or targets.
    pub fn of_bytes(attribute: &'static str, values: [&[u8]; 2]) -> Difference {
        let mut object = Map::new();
        json::put_bytes(&mut object, "a", values[0]);
        json::put_bytes(&mut object, "b", values[1]);
        let [a, b] = values.map(shown);
        Difference { attribute, text: format!("{attribute} {a} -> {b}"), json: object.into() }
    }

    fn of(attribute: &'static str, texts: [String; 2], values: [Value; 2]) -> Difference {
        let text = format!("{attribute} {} -> {}", texts[0], texts[1]);
        Difference { attribute, text, json: json!({ "a": values[0], "b": values[1] }) }
    }
}

/// Returns the differing attributes of two entries. If the types differ, that is the only one.
///
/// # Errors
/// An attribute that cannot be read.
pub fn attributes(
    fs: [&Fs; 2],
    found: [&Found; 2],
    ignore: Ignore,
) -> Result<Vec<Difference>, Fault> {
    let attr = found.map(|found| &found.attr);
    let ftype = attr.map(|attr| attr.ftype);
    if ftype[0] != ftype[1] {
        let names = ftype.map(text::type_name);
        return Ok(vec![Difference::of("type", names.map(Into::into), names.map(Into::into))]);
    }
    let mut differences = Vec::new();
    let mut number = |attribute, values: [u64; 2]| {
        if values[0] != values[1] {
            let texts = values.map(|value| value.to_string());
            differences.push(Difference::of(attribute, texts, values.map(Into::into)));
        }
    };
    if ftype[0] == FileType::Regular {
        number("size", attr.map(|attr| attr.size));
    }
    if !ignore.owners {
        number("uid", attr.map(|attr| attr.uid.into()));
        number("gid", attr.map(|attr| attr.gid.into()));
    }
    let mode = attr.map(|attr| attr.mode & 0o7777);
    if !ignore.modes && mode[0] != mode[1] {
        let texts = mode.map(|mode| format!("{mode:04o}"));
        differences.push(Difference::of("mode", texts, mode.map(Into::into)));
    }
    let time = attr.map(|attr| attr.mtime);
    if !ignore.times && time[0] != time[1] {
        differences.push(Difference::of("mtime", time.map(text::time), time.map(json::time)));
    }
    let device = attr.map(|attr| attr.rdev);
    let is_device = matches!(ftype[0], FileType::BlockDevice | FileType::CharDevice);
    if is_device && device[0] != device[1] {
        let texts = device.map(|(major, minor)| format!("{major}:{minor}"));
        let values = device.map(|(major, minor)| json!({ "major": major, "minor": minor }));
        differences.push(Difference::of("device", texts, values));
    }
    if ftype[0] == FileType::Symlink {
        differences.extend(targets(fs, found)?);
    }
    if !ignore.xattrs {
        differences.extend(xattrs(fs, found)?);
    }
    Ok(differences)
}

/// Calls `read` for both trees.
fn both<T>(
    fs: [&Fs; 2],
    found: [&Found; 2],
    read: impl Fn(&Fs, &Found) -> extant_engine::Result<T>,
) -> Result<[T; 2], Fault> {
    let read = |side: usize| read(fs[side], found[side]).map_err(Fault::of(side));
    Ok([read(0)?, read(1)?])
}

fn targets(fs: [&Fs; 2], found: [&Found; 2]) -> Result<Option<Difference>, Fault> {
    let [a, b] = both(fs, found, |fs, found| fs.read_link(&found.node))?;
    Ok((a != b).then(|| Difference::of_bytes("target", [&a, &b])))
}

/// Compares the extended attributes: one difference with the names of those that differ.
fn xattrs(fs: [&Fs; 2], found: [&Found; 2]) -> Result<Option<Difference>, Fault> {
    /// The bits of the trees that have a name.
    const BOTH: u8 = 3;
    let lists = both(fs, found, |fs, found| fs.list_xattrs(&found.node))?;
    let mut names: BTreeMap<Vec<u8>, u8> = BTreeMap::new();
    for (list, bit) in lists.into_iter().zip([1, 2]) {
        list.into_iter().for_each(|name| *names.entry(name).or_default() |= bit);
    }
    let (mut texts, mut changes) = (Vec::new(), Vec::new());
    for (name, bits) in names {
        let change = match bits {
            BOTH => {
                let [a, b] = both(fs, found, |fs, found| fs.get_xattr(&found.node, &name))?;
                if a == b {
                    continue;
                }
                "changed"
            }
            1 => "removed",
            _ => "added",
        };
        let sign = match change {
            "changed" => "",
            "removed" => "-",
            _ => "+",
        };
        texts.push(format!("{sign}{}", shown(&name)));
        let mut object = Map::new();
        json::put_bytes(&mut object, "name", &name);
        object.insert("change".into(), change.into());
        changes.push(Value::from(object));
    }
    Ok((!texts.is_empty()).then(|| Difference {
        attribute: "xattrs",
        text: format!("xattrs {}", texts.join(",")),
        json: changes.into(),
    }))
}

/// Returns whether two files of one length have the same bytes, read by so many threads, or by this
/// one. Only ranges that have data in one of them are read, but for those that both have in the
/// same storage of the host. Reading ends at the first difference.
///
/// # Errors
/// A range that cannot be read.
pub fn have_same_content(
    fs: [&Fs; 2],
    files: &[Content; 2],
    threads: Option<usize>,
) -> Result<bool, Fault> {
    let ranges = union(&files[0].parts, &files[1].parts);
    let ranges = unshared(fs, files, &ranges)?;
    let mut ranges = pieces(&ranges);
    let work = |range| has_same_bytes(files, range);
    // An error ends the reading, also at a difference.
    let go_on = |same: Result<bool, Fault>| match same {
        Ok(true) => Ok(()),
        Ok(false) => Err(None),
        Err(fault) => Err(Some(fault)),
    };
    let done = match threads {
        Some(threads) => ordered::run((threads, AHEAD), work, go_on, |pusher| {
            ranges.try_for_each(|range| pusher.push(range, 2 * (range.1 - range.0)))
        }),
        None => ranges.try_for_each(|range| go_on(work(range))),
    };
    match done {
        Ok(()) => Ok(true),
        Err(None) => Ok(false),
        Err(Some(fault)) => Err(fault),
    }
}

fn has_same_bytes(files: &[Content; 2], range: Range) -> Result<bool, Fault> {
    let read = |side: usize| files[side].read(range).map_err(Fault::of(side));
    Ok(read(0)? == read(1)?)
}

/// Returns the parts of sorted ranges that are not in the same storage in both files. Overlays of
/// one backing file share the ranges that neither has changed.
fn unshared(fs: [&Fs; 2], files: &[Content; 2], ranges: &[Range]) -> Result<Vec<Range>, Fault> {
    let extents = |side: usize| files[side].extents().map_err(Fault::of(side));
    let extents = [extents(0)?, extents(1)?];
    let mut left: Vec<Range> = Vec::new();
    for &(start, stop) in ranges {
        let mut at = start;
        while at < stop {
            let [a, b] = extents.each_ref().map(|extents| stored_at(extents, at));
            let len = a.1.min(b.1).min(stop - at);
            let storage = a.0.zip(b.0).map(|(a, b)| fs[0].compare_storage(a, (fs[1], b), len));
            // A failure to tell is told by the read.
            let (len, is_shared) = storage.and_then(Result::ok).unwrap_or((len, false));
            match left.last_mut() {
                _ if is_shared => {}
                Some(last) if last.1 == at => last.1 = at + len,
                _ => left.push((at, at + len)),
            }
            at += len;
        }
    }
    Ok(left)
}

/// Returns the place on the device of a byte of a file, if it has one, and the number of bytes from
/// there on for which that holds.
fn stored_at(extents: &[Extent], at: u64) -> (Option<u64>, u64) {
    let next = extents.partition_point(|extent| extent.logical.saturating_add(extent.len) <= at);
    match extents.get(next) {
        Some(extent) if extent.logical <= at => {
            let within = at - extent.logical;
            (Some(extent.physical.saturating_add(within)), extent.len - within)
        }
        Some(extent) => (None, extent.logical - at),
        None => (None, u64::MAX),
    }
}

/// Merges two sorted lists of ranges.
fn union(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    let mut merged: Vec<Range> = Vec::with_capacity(all.len());
    for (start, stop) in all {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(stop),
            _ => merged.push((start, stop)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_engine::ExtentFlags;

    #[test]
    fn bytes_have_places_in_extents() {
        let extent = |logical, physical, len| {
            let flags = ExtentFlags::default();
            Extent { logical, physical, len, flags }
        };
        let extents = [extent(0, 80, 8), extent(16, 160, 4)];
        for (at, expected) in [
            (0, (Some(80), 8)),
            (7, (Some(87), 1)),
            (8, (None, 8)),
            (17, (Some(161), 3)),
            (20, (None, u64::MAX)),
        ] {
            assert_eq!(stored_at(&extents, at), expected, "{at}");
        }
    }

    #[test]
    fn ranges_of_both_files_are_merged() {
        let merged = union(&[(0, 10), (20, 30), (40, 50)], &[(5, 20), (60, 70)]);
        assert_eq!(merged, [(0, 30), (40, 50), (60, 70)]);
        assert_eq!(union(&[], &[(1, 2)]), [(1, 2)]);
    }
}
