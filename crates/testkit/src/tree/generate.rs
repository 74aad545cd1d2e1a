//! Random trees from a seed.

use super::plan::{Content, Entry, Plan, What, posix_acl};
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Shape of a random tree.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Regular files spread over the directories.
    pub files: usize,
    /// Directories.
    pub directories: usize,
    /// Levels of one chain of directories; 0 for none.
    pub depth: usize,
    /// Entries of one directory with many of them; 0 for none.
    pub wide: usize,
    /// Largest file in bytes; sizes are spread over the powers of two below.
    pub largest: u64,
    /// Largest extended attribute in bytes; 0 for no attributes and no ACLs.
    pub largest_xattr: usize,
    /// Longest target of a symbolic link in bytes, at most 4095, and less than a block where it is
    /// to be stored.
    pub longest_target: usize,
    /// Whether to make objects that need root: devices, named pipes and sockets, `trusted.`
    /// attributes, owners.
    pub privileged: bool,
}

impl Default for Shape {
    /// A few hundred files of every kind, about 10 MiB: good for images of 64 MiB with blocks of 1
    /// KiB or more.
    fn default() -> Self {
        Self {
            files: 200,
            directories: 30,
            depth: 20,
            wide: 2000,
            largest: 1 << 20,
            largest_xattr: 700,
            longest_target: 1000,
            privileged: true,
        }
    }
}

impl Shape {
    /// A few dozen files, no wide directory.
    pub fn small() -> Self {
        Self { files: 30, directories: 6, depth: 4, wide: 0, largest: 64 << 10, ..Self::default() }
    }
}

/// Times are spread over the years that fit into 34 bits, before 1970 and after 2038 among them.
const EARLIEST: i64 = -(1 << 31);
const LATEST: i64 = (1 << 33) - 1;

impl Plan {
    /// A random tree: equal seeds and shapes give equal trees.
    pub fn random(seed: u64, shape: &Shape) -> Self {
        let mut generator = Generator {
            rng: Rng::new(seed),
            shape,
            entries: Vec::new(),
            taken: BTreeSet::new(),
            directories: vec![Vec::new()],
            files: Vec::new(),
        };
        generator.directories();
        generator.chain();
        generator.files();
        generator.wide();
        generator.links();
        if shape.privileged {
            generator.nodes();
        }
        Plan { entries: generator.entries }
    }
}

struct Generator<'a> {
    rng: Rng,
    shape: &'a Shape,
    entries: Vec<Entry>,
    taken: BTreeSet<Vec<u8>>,
    directories: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
}

impl Generator<'_> {
    fn directories(&mut self) {
        for _ in 0..self.shape.directories {
            let path = self.fresh_path();
            self.push(path.clone(), What::Directory);
            self.directories.push(path);
        }
    }

    fn chain(&mut self) {
        let mut path = Vec::new();
        for level in 0..self.shape.depth {
            path = join(&path, format!("level{level}").as_bytes());
            self.push(path.clone(), What::Directory);
        }
        if self.shape.depth > 0 {
            self.push(join(&path, b"bottom"), What::File(Content::dense(100, 1)));
        }
    }

    fn files(&mut self) {
        for _ in 0..self.shape.files {
            let path = self.fresh_path();
            let content = self.content();
            self.push(path.clone(), What::File(content));
            self.files.push(path);
        }
    }

    fn wide(&mut self) {
        if self.shape.wide == 0 {
            return;
        }
        let directory = self.unused(b"wide".to_vec());
        self.push(directory.clone(), What::Directory);
        for number in 0..self.shape.wide {
            let pad = "n".repeat(self.rng.below(60) as usize);
            let path = join(&directory, format!("entry-{number:06}{pad}").as_bytes());
            self.push_plain(path, What::File(Content::default()));
        }
    }

    fn links(&mut self) {
        for _ in 0..self.shape.files.div_ceil(8) {
            let (path, len) = (self.fresh_path(), self.target_len());
            let target = vec![b't'; len];
            self.push(path, What::Symlink(target));
        }
        for _ in 0..self.shape.files.div_ceil(10).min(self.files.len()) {
            let path = self.fresh_path();
            let target = self.rng.pick(&self.files).clone();
            self.push_plain(path, What::HardLink(target));
        }
    }

    /// Lengths around the border between the inode and a block, and any others.
    fn target_len(&mut self) -> usize {
        let longest = self.shape.longest_target.clamp(1, 4095) as u64;
        let len = match self.rng.below(4) {
            0 => self.rng.between(57, 62),
            1 => longest,
            2 => self.rng.between(1, 59),
            _ => self.rng.between(60, longest.max(60)),
        };
        len.min(longest) as usize
    }

    fn nodes(&mut self) {
        let devices = [(1, 3), (8, 1), (259, 70000), (4095, 1_048_575), (255, 255), (256, 256)];
        for (index, (major, minor)) in devices.into_iter().enumerate() {
            let path = self.fresh_path();
            self.push(path, What::Device { block: index % 2 == 0, major, minor });
        }
        for _ in 0..2 {
            let (fifo, socket) = (self.fresh_path(), self.fresh_path());
            self.push(fifo, What::Fifo);
            self.push(socket, What::Socket);
        }
    }

    fn content(&mut self) -> Content {
        let size = self.size();
        let seed = self.rng.next_u64();
        if self.rng.one_in(5) { self.sparse(size, seed) } else { Content::dense(size, seed) }
    }

    /// Each power of two as likely as another, with the borders of blocks among them.
    fn size(&mut self) -> u64 {
        let bits = self.rng.below(u64::from(self.shape.largest.max(1).ilog2()) + 2);
        let size = if bits == 0 { 0 } else { self.rng.below(1 << bits) };
        let near =
            if self.rng.one_in(4) { size.next_multiple_of(1024) + self.rng.below(3) } else { size };
        near.min(self.shape.largest)
    }

    /// A few pieces with holes between them, a hole at the end perhaps.
    fn sparse(&mut self, size: u64, seed: u64) -> Content {
        let mut pieces = Vec::new();
        let mut at = self.rng.below(size / 4 + 1);
        while at < size && pieces.len() < 40 {
            let len = self.rng.between(1, 20_000).min(size - at);
            pieces.push((at, len));
            at += len + self.rng.between(1, size / 8 + 10_000);
        }
        Content { size, pieces, seed }
    }

    fn push(&mut self, path: Vec<u8>, what: What) {
        let mut entry = plain(path, what);
        entry.mode = (self.rng.next_u64() & 0o777) as u32;
        if matches!(entry.what, What::Directory) {
            entry.mode |= 0o700;
        }
        entry.mtime = (
            EARLIEST + self.rng.below((LATEST - EARLIEST) as u64) as i64,
            self.rng.below(1_000_000_000) as u32,
        );
        if self.shape.privileged {
            entry.mode |= (self.rng.below(8) as u32) << 9;
            entry.uid = *self.rng.pick(&[0, 1, 1000, 65534, 65536, 4_000_000_000]);
            entry.gid = *self.rng.pick(&[0, 1, 1000, 65534, 65536, 4_000_000_000]);
        }
        if self.shape.largest_xattr > 0 && self.rng.one_in(3) {
            entry.xattrs = self.xattrs(&entry);
        }
        self.taken.insert(entry.path.clone());
        self.entries.push(entry);
    }

    /// An entry without attributes, for the many and for hard links.
    fn push_plain(&mut self, path: Vec<u8>, what: What) {
        self.taken.insert(path.clone());
        self.entries.push(plain(path, what));
    }

    fn xattrs(&mut self, entry: &Entry) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let user = matches!(entry.what, What::File(_) | What::Directory);
        let prefixes: &[&str] = match (user, self.shape.privileged) {
            (true, true) => &["user.", "trusted."],
            (true, false) => &["user."],
            (false, true) => &["trusted."],
            (false, false) => return BTreeMap::new(),
        };
        let mut xattrs = BTreeMap::new();
        let mut room = self.shape.largest_xattr as u64;
        for number in 0..self.rng.between(1, 4) {
            let len = self.rng.below(room / 2 + 1);
            room -= len;
            let name = format!("{}attr{number}", self.rng.pick(prefixes));
            xattrs.insert(name.into_bytes(), self.rng.bytes(len as usize));
        }
        if user && self.rng.one_in(2) {
            self.acls(entry, &mut xattrs);
        }
        xattrs
    }

    fn acls(&mut self, entry: &Entry, xattrs: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        let user = (self.rng.between(1, 70_000) as u32, self.rng.below(8) as u16);
        let group = (self.rng.between(1, 70_000) as u32, self.rng.below(8) as u16);
        let acl = posix_acl(entry.mode, user, group);
        if matches!(entry.what, What::Directory) {
            xattrs.insert(b"system.posix_acl_default".to_vec(), acl.clone());
        }
        xattrs.insert(b"system.posix_acl_access".to_vec(), acl);
    }

    /// A path that is not taken, in a random directory.
    fn fresh_path(&mut self) -> Vec<u8> {
        let directory = self.rng.pick(&self.directories).clone();
        let name = self.name();
        self.unused(join(&directory, &name))
    }

    fn unused(&mut self, path: Vec<u8>) -> Vec<u8> {
        let mut candidate = path.clone();
        while self.taken.contains(&candidate) {
            let suffix = format!("{:04x}", self.rng.below(65536));
            candidate = path[..path.len().saturating_sub(4)].to_vec();
            candidate.extend_from_slice(suffix.as_bytes());
        }
        candidate
    }

    /// Short, long (255 bytes), UTF-8 and arbitrary names of at least six bytes.
    fn name(&mut self) -> Vec<u8> {
        let number = self.rng.below(1_000_000);
        match self.rng.below(10) {
            0 => format!("{number:06}{}", "L".repeat(249)).into_bytes(),
            1 => format!("ünïcödé-文件-{number}").into_bytes(),
            2 => [&[0xff, 0xfe, b'\n', 0x80][..], format!("{number:06}").as_bytes()].concat(),
            _ => format!("file-{number:06}.dat").into_bytes(),
        }
    }
}

fn plain(path: Vec<u8>, what: What) -> Entry {
    let mode = if matches!(what, What::Directory) { 0o755 } else { 0o644 };
    Entry {
        path,
        what,
        mode,
        uid: 0,
        gid: 0,
        mtime: (1_700_000_000, 123_456_789),
        xattrs: BTreeMap::new(),
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
