//! The content of a tree by path, and the differences between two trees.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// One file of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; 0 for directories, whose size depends on the file system.
    pub size: u64,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Number of links; 0 for directories.
    pub nlink: u64,
    /// The first path, in order, of the same inode, if that is another path.
    pub same_as: Option<Vec<u8>>,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// [`content_hash`] of a regular file.
    pub hash: u64,
}

impl Node {
    /// A node of this kind with everything else zero or empty.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: (0, 0),
            nlink: if kind == Kind::Directory { 0 } else { 1 },
            same_as: None,
            xattrs: BTreeMap::new(),
            rdev: (0, 0),
            target: Vec::new(),
            hash: if kind == Kind::File { content_hash(&[]) } else { 0 },
        }
    }
}

/// All files of a tree by path. Paths are bytes, relative, without a leading slash; the root is the
/// empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The nodes.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// Maximum number of differences in a message; the rest is counted only.
const SHOWN: usize = 40;

impl Manifest {
    /// Forgets `path` and everything below it, for instance `lost+found`.
    pub fn without(mut self, path: &str) -> Self {
        let below = format!("{path}/").into_bytes();
        self.nodes.retain(|name, _| name != path.as_bytes() && !name.starts_with(&below));
        self
    }

    /// Forgets the root's own node, which mounting and `lost+found` change.
    pub fn without_root(mut self) -> Self {
        self.nodes.remove(&b""[..]);
        self
    }

    /// Forgets all modification times.
    pub fn without_times(mut self) -> Self {
        self.nodes.values_mut().for_each(|node| node.mtime = (0, 0));
        self
    }

    /// Forgets the modification times of directories.
    pub fn without_directory_times(mut self) -> Self {
        self.nodes
            .values_mut()
            .filter(|n| n.kind == Kind::Directory)
            .for_each(|node| node.mtime = (0, 0));
        self
    }

    /// Keeps seconds only, for file systems with inodes of 128 bytes.
    pub fn in_whole_seconds(mut self) -> Self {
        self.nodes.values_mut().for_each(|node| node.mtime.1 = 0);
        self
    }

    /// One line for each difference, paths in order; empty if the trees are the same.
    pub fn diff(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, node) in &self.nodes {
            match other.nodes.get(path) {
                None => lines.push(format!("- {}", describe(path, node))),
                Some(found) => lines.extend(node_diff(path, node, found)),
            }
        }
        let added = other.nodes.iter().filter(|(path, _)| !self.nodes.contains_key(*path));
        lines.extend(added.map(|(path, node)| format!("+ {}", describe(path, node))));
        lines
    }

    /// Panics with the differences, if any; `self` is the expected manifest.
    #[track_caller]
    pub fn assert_same(&self, other: &Self) {
        let lines = self.diff(other);
        if !lines.is_empty() {
            let shown =
                lines.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n  ");
            panic!("trees differ in {} places (- expected, + found):\n  {shown}", lines.len());
        }
    }

    /// Sets `same_as` of every hard link from the inode numbers of all paths.
    pub fn group_links(&mut self, inodes: &BTreeMap<Vec<u8>, u64>) {
        let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (path, node) in &mut self.nodes {
            if node.kind == Kind::Directory {
                continue;
            }
            let Some(inode) = inodes.get(path) else {
                continue;
            };
            match first.get(inode) {
                Some(earlier) => node.same_as = Some(earlier.clone()),
                None => drop(first.insert(*inode, path.clone())),
            }
        }
    }
}

/// A hash of a file's bytes, for comparison only. FNV-1a over the 64-bit words that are not zero,
/// each with its place, so that a hole costs nothing; the length folded in last.
pub fn content_hash(bytes: &[u8]) -> u64 {
    let mut hasher = ContentHasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// [`content_hash`] piece by piece.
#[derive(Debug, Clone)]
pub(super) struct ContentHasher {
    state: u64,
    pending: Vec<u8>,
    len: u64,
    words: u64,
}

impl Default for ContentHasher {
    fn default() -> Self {
        Self { state: 0xcbf2_9ce4_8422_2325, pending: Vec::new(), len: 0, words: 0 }
    }
}

impl ContentHasher {
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.pending.is_empty() {
            let take = (8 - self.pending.len()).min(bytes.len());
            self.pending.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.pending.len() < 8 {
                return;
            }
            let word: [u8; 8] = self.pending[..].try_into().unwrap_or_default();
            self.word(u64::from_le_bytes(word));
            self.pending.clear();
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        self.pending.extend_from_slice(rest);
    }

    /// As many zeroes.
    pub(super) fn skip(&mut self, zeroes: u64) {
        let odd = zeroes.min((8 - self.pending.len() as u64) % 8);
        self.update(&[0; 8][..odd as usize]);
        let words = (zeroes - odd) / 8;
        self.words += words;
        self.len += words * 8;
        self.update(&[0; 8][..((zeroes - odd) % 8) as usize]);
    }

    fn word(&mut self, word: u64) {
        if word != 0 {
            self.mix(word);
            self.mix(self.words);
        }
        self.words += 1;
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(super) fn finish(mut self) -> u64 {
        self.pending.resize(8, 0);
        let word: [u8; 8] = self.pending[..].try_into().unwrap_or_default();
        self.word(u64::from_le_bytes(word));
        self.mix(self.len);
        self.state
    }
}

fn describe(path: &[u8], node: &Node) -> String {
    format!("{} ({:?}, mode {:o}, {} bytes)", show(path), node.kind, node.mode, node.size)
}

/// Formats a path for messages: escapes bytes other than printable ASCII, and shortens long paths.
fn show(path: &[u8]) -> String {
    let text = if path.is_empty() { "/".to_owned() } else { path.escape_ascii().to_string() };
    if text.len() <= 160 {
        text
    } else {
        format!("{}…{} ({} bytes)", &text[..90], &text[text.len() - 40..], path.len())
    }
}

fn node_diff(path: &[u8], expected: &Node, found: &Node) -> Option<String> {
    let mut text = String::new();
    let mut field = |name: &str, a: String, b: String| {
        if a != b {
            let _ = write!(text, " {name} {a} -> {b};");
        }
    };
    field("type", format!("{:?}", expected.kind), format!("{:?}", found.kind));
    field("mode", format!("{:o}", expected.mode), format!("{:o}", found.mode));
    field("uid", expected.uid.to_string(), found.uid.to_string());
    field("gid", expected.gid.to_string(), found.gid.to_string());
    field("size", expected.size.to_string(), found.size.to_string());
    field("mtime", format!("{:?}", expected.mtime), format!("{:?}", found.mtime));
    field("nlink", expected.nlink.to_string(), found.nlink.to_string());
    field("rdev", format!("{:?}", expected.rdev), format!("{:?}", found.rdev));
    field("target", show(&expected.target), show(&found.target));
    field("same as", link(expected), link(found));
    field("content", format!("{:016x}", expected.hash), format!("{:016x}", found.hash));
    xattr_diff(expected, found, &mut text);
    (!text.is_empty()).then(|| format!("! {}:{}", show(path), text.trim_end_matches(';')))
}

fn link(node: &Node) -> String {
    node.same_as.as_deref().map_or("nothing".to_owned(), show)
}

fn xattr_diff(expected: &Node, found: &Node, text: &mut String) {
    for (name, value) in &expected.xattrs {
        match found.xattrs.get(name) {
            None => drop(write!(text, " xattr {} is missing;", show(name))),
            Some(other) if other != value => {
                let _ = write!(
                    text,
                    " xattr {} differs ({} -> {} bytes);",
                    show(name),
                    value.len(),
                    other.len()
                );
            }
            Some(_) => {}
        }
    }
    for name in found.xattrs.keys().filter(|name| !expected.xattrs.contains_key(*name)) {
        let _ = write!(text, " xattr {} is new;", show(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_does_not_depend_on_pieces() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let mut hasher = ContentHasher::default();
        for piece in [0..3, 3..8, 8..9, 9..500, 500..1000] {
            hasher.update(&bytes[piece]);
        }
        assert_eq!(hasher.finish(), content_hash(&bytes));
        assert_ne!(content_hash(&[0; 8]), content_hash(&[0; 9]));
    }

    #[test]
    fn zeroes_may_be_skipped() {
        for (before, zeroes, after) in
            [(0, 1, 0), (3, 4, 1), (3, 5, 9), (8, 800, 8), (5, 1003, 2), (0, 16, 0)]
        {
            let bytes = [vec![7; before], vec![0; zeroes], vec![9; after]].concat();
            let mut hasher = ContentHasher::default();
            hasher.update(&bytes[..before]);
            hasher.skip(zeroes as u64);
            hasher.update(&bytes[before + zeroes..]);
            assert_eq!(hasher.finish(), content_hash(&bytes), "{before}, {zeroes}, {after}");
        }
        let (early, late) = ([[1; 8], [0; 8]].concat(), [[0; 8], [1; 8]].concat());
        assert_ne!(content_hash(&early), content_hash(&late));
    }

    #[test]
    fn differences_are_named() {
        let mut a = Manifest::default();
        let mut node = Node::new(Kind::File);
        node.xattrs.insert(b"user.x".to_vec(), b"1".to_vec());
        a.nodes.insert(b"f".to_vec(), node.clone());
        let mut b = a.clone();
        assert!(a.diff(&b).is_empty());
        node.size = 5;
        node.xattrs.clear();
        b.nodes.insert(b"f".to_vec(), node.clone());
        b.nodes.insert(b"g".to_vec(), node);
        let lines = a.diff(&b);
        assert_eq!(lines[0], "! f: size 0 -> 5; xattr user.x is missing");
        assert!(lines[1].starts_with("+ g"));
    }
}
