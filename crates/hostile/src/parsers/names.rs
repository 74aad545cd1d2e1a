//! Parsers of structures of directories: records, hash trees, hashes of names.

use super::{block, number};
use extant_format::Geometry;
use extant_format::dir::{self, DirFormat, NewEntry};
use extant_format::htree::{self, HashVersion, Kind, Node, NodeMut, RootInfo};
use extant_format::types::{FileType, InodeNr};
use extant_format::{inline, seal};

type Name = (usize, u32, Vec<u8>);

/// Returns the used records; `None` after a bad one.
fn names(area: &[u8], format: &DirFormat) -> Option<Vec<Name>> {
    let mut found = Vec::new();
    for entry in dir::entries(area, format) {
        let entry = entry.ok()?;
        assert!(
            entry.offset + entry.rec_len <= area.len() && entry.rec_len > 0,
            "a record lies in its area"
        );
        if entry.is_used() {
            found.push((entry.offset, entry.ino.0, entry.name.to_vec()));
        }
    }
    Some(found)
}

pub(super) fn entries(geo: &Geometry, bytes: &[u8]) {
    let format = DirFormat::new(geo);
    let [len, name @ ..] = bytes else { return };
    let (name, area) = name.split_at(usize::from(*len).min(name.len()));
    let area =
        if area.len() % 4 == 0 { area.to_vec() } else { block(area, format.block_size as usize) };
    let found = names(&area, &format);
    let _ = (
        dir::find_room(&area, &format, 40),
        dir::largest_gap(&area, &format),
        dir::dot_dot(&area, &format),
    );
    let by_name = dir::find(&area, &format, name);
    let Some(found) = found else { return };
    let first = found.iter().find(|(_, _, own)| own == name).map(|(offset, ..)| *offset);
    assert_eq!(
        by_name.expect("a good area").map(|entry| entry.offset),
        first,
        "a name is found where it is"
    );
    if name.is_empty() || name.len() > dir::NAME_MAX {
        return;
    }
    let mut changed = area.clone();
    let entry = NewEntry { ino: InodeNr(5), file_type: FileType::Regular, name };
    let Ok(Some(at)) = dir::insert(&mut changed, &format, entry) else { return };
    let mut more = found.clone();
    more.push((at, 5, name.to_vec()));
    more.sort();
    assert_eq!(names(&changed, &format), Some(more), "one name more");
    dir::remove(&mut changed, &format, at, None).expect("a name that is there");
    assert_eq!(names(&changed, &format), Some(found), "the names from before");
}

pub(super) fn index(geo: &Geometry, bytes: &[u8]) {
    let format = DirFormat::new(geo);
    let mut own = block(bytes, format.block_size as usize);
    let _ = (
        RootInfo::parse(&own, &format),
        htree::is_interior(&own, &format),
        htree::verify_htree(&own, 1),
    );
    let _ = (dir::verify_leaf(&own, 1), dir::has_tail(&own));
    let hash = number(bytes.get(48..).unwrap_or(&[])) as u32;
    for kind in [Kind::Root, Kind::Interior] {
        let Ok(node) = Node::open(&own, kind, &format) else { continue };
        let before: Vec<(u32, u32)> = node.entries().collect();
        if node.check_order().is_ok() {
            let at = before.iter().skip(1).rposition(|(key, _)| *key <= hash).map_or(0, |n| n + 1);
            assert_eq!(node.find(hash), at, "a search finds the last that does not lie behind");
        }
        let Ok(mut changed) = NodeMut::open(&mut own, kind, &format) else { continue };
        let at = 1 + hash as usize % before.len();
        if changed.insert(at, hash, 3) {
            assert_eq!(changed.entries().len(), before.len() + 1);
            assert!(changed.remove(at), "an entry that was inserted");
        }
        assert_eq!(changed.entries(), before, "the old entries come back");
    }
    seal::seal_dir_block(&mut own, 1, 1);
    htree::seal_htree(&mut own, 1, 1);
    let area: [u8; 60] = block(bytes, 60).try_into().expect("sixty bytes");
    let _ = inline::join(&area, bytes, hash.into());
    let (first, rest) = inline::split(bytes);
    assert_eq!(inline::join(&first, rest, bytes.len() as u64), bytes, "inline data come back");
}

pub(super) fn hashes(_: &Geometry, bytes: &[u8]) {
    let [how, name @ ..] = bytes else { return };
    let version = HashVersion::from_raw(how & 3).unwrap_or_default();
    let (hash, _) = htree::dirhash(version, how & 4 != 0, &[u32::from(*how) >> 3; 4], name);
    assert!(hash & 1 == 0 && hash < u32::MAX - 1, "a hash is even, and never the end");
}
