//! The tree of a file system as Extant reads it.

use super::scene::{Durable, GARBAGE, Promise};
use extant_engine::{Follow, Fs, Node as FsNode, OpenFlags};
use extant_testkit::tree::{Kind, Manifest, Node, content_hash, kind_of};
use std::collections::BTreeMap;

/// Upper half of a byte that identifies its file; see [`super::mix`].
const OWNER: u8 = 0xF0;

/// Everything that can be reached. With `tagged`, files are to hold only bytes that were written to
/// them.
pub(crate) fn seen(fs: &Fs, tagged: bool) -> Result<Manifest, String> {
    let mut manifest = Manifest::default();
    let root = fs.root().map_err(|e| e.to_string())?;
    let mut inodes = BTreeMap::new();
    let mut todo = vec![(Vec::new(), root)];
    while let Some((path, node)) = todo.pop() {
        let name = String::from_utf8_lossy(&path).into_owned();
        let found = look(fs, &node, tagged).map_err(|why| format!("/{name}: {why}"))?;
        if found.kind == Kind::Directory {
            let entries = fs.read_dir(&node).map_err(|e| format!("/{name}: {e}"))?;
            for entry in entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let mut child = path.clone();
                child.extend((!path.is_empty()).then_some(b'/'));
                child.extend_from_slice(&entry.name);
                let node = fs.lookup(&node, &entry.name).map_err(|e| format!("/{name}: {e}"))?;
                todo.push((child, node));
            }
        }
        inodes.insert(path.clone(), node.ino());
        manifest.nodes.insert(path, found);
    }
    manifest.group_links(&inodes);
    Ok(manifest)
}

/// Returns the blocks that the inode of each file counts, those behind its end included.
pub(crate) fn blocks(fs: &Fs, tree: &Manifest) -> Result<Vec<u64>, String> {
    let of = |path: &Vec<u8>| {
        fs.resolve([b"/", &path[..]].concat(), Follow::No).map(|node| node.attr().blocks)
    };
    tree.nodes.keys().map(of).collect::<extant_engine::Result<_>>().map_err(|e| e.to_string())
}

fn look(fs: &Fs, node: &FsNode, tagged: bool) -> Result<Node, String> {
    let told = |e: extant_engine::Error| e.to_string();
    let attr = node.attr();
    let kind = kind_of(attr.ftype);
    let mut found = Node {
        mode: u32::from(attr.mode) & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        xattrs: xattrs(fs, node)?,
        ..Node::new(kind)
    };
    if kind != Kind::Directory {
        (found.size, found.nlink) = (attr.size, attr.nlink.into());
    }
    match kind {
        Kind::Symlink => found.target = fs.read_link(node).map_err(told)?,
        Kind::File => {
            let file = fs.open_file(node, OpenFlags::default()).map_err(told)?;
            let mut data = vec![0; file.len() as usize];
            let mut read = 0;
            while read < data.len() {
                match file.read_at(read as u64, &mut data[read..]).map_err(told)? {
                    0 => return Err(format!("ends at {read} instead of {}", data.len())),
                    some => read += some,
                }
            }
            if tagged {
                check_owner(&data)?;
            }
            found.hash = content_hash(&data);
        }
        _ => {}
    }
    Ok(found)
}

fn xattrs(fs: &Fs, node: &FsNode) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let mut found = BTreeMap::new();
    for name in fs.list_xattrs(node).map_err(|e| e.to_string())? {
        let value = fs.get_xattr(node, &name).map_err(|e| e.to_string())?;
        found.insert(name, value);
    }
    Ok(found)
}

/// Verifies that a file holds zeroes and bytes of one owner, never the garbage of free blocks.
fn check_owner(data: &[u8]) -> Result<(), String> {
    let owner = data.iter().find(|byte| **byte != 0).map_or(0, |byte| byte & OWNER);
    let strange = |byte: &u8| *byte != 0 && (byte & OWNER != owner || *byte == GARBAGE);
    match data.iter().position(strange) {
        Some(at) => Err(format!(
            "holds {:#x} at {at}, which was never written to it (owner {owner:#x})",
            data[at]
        )),
        None => Ok(()),
    }
}

/// Returns the broken promises.
pub(crate) fn broken(durable: &Durable, seen: &Manifest) -> Vec<String> {
    let complaint = |(path, promise): (&String, &Promise)| {
        let node = seen.nodes.get(path.trim_start_matches('/').as_bytes());
        let why = match (promise, node) {
            (Promise::Gone, None) | (Promise::There, Some(_)) => return None,
            (Promise::Gone, Some(_)) => "is there again".to_owned(),
            (_, None) => "is not there".to_owned(),
            (Promise::Holds(content), Some(node)) if node.size != content.data.len() as u64 => {
                format!("has {} bytes instead of {}", node.size, content.data.len())
            }
            (Promise::Holds(content), Some(node)) if node.hash != content_hash(&content.data) => {
                "holds other bytes".into()
            }
            (Promise::Holds(content), Some(node))
                if content.xattrs.as_ref().is_some_and(|x| *x != node.xattrs) =>
            {
                format!("has other attributes: {:?}", node.xattrs.keys().collect::<Vec<_>>())
            }
            (Promise::Holds(content), Some(node))
                if content
                    .access
                    .is_some_and(|access| access != (node.mode, node.uid, node.gid)) =>
            {
                format!(
                    "has other permissions or owners: {:o}, {}, {}",
                    node.mode, node.uid, node.gid
                )
            }
            (Promise::Holds(_), Some(_)) => return None,
        };
        Some(format!("{path} was durable and {why}"))
    };
    durable.iter().filter_map(complaint).collect()
}

/// Reduces a tree that another program walked to the attributes that [`seen`] reads.
pub(crate) fn comparable(mut manifest: Manifest) -> Manifest {
    for node in manifest.nodes.values_mut() {
        (node.mtime, node.rdev) = ((0, 0), (0, 0));
    }
    manifest
}
