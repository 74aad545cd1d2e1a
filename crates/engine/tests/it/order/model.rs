//! The sequential model of two directories and some open files, to which histories are compared.

use extant_engine::{
    Errno, Error, File, FileType, Follow, Fs, Node, NodeKind, OpenFlags, RenameFlags, XattrMode,
};
use extant_hostile::deep;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;

/// Files that are open all the time, whether or not they have names.
pub(crate) const FILES: usize = 2;
const DIRS: u64 = 2;
const NAMES: u64 = 3;

/// Bytes of one write and one read.
pub(crate) const PIECE: usize = 40;

const ATTRIBUTE: &[u8] = b"user.value";

/// A directory and a name in it.
pub(crate) type Name = (usize, u8);

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Create(Name),
    Mkdir(Name),
    Unlink(Name),
    Rmdir(Name),
    Rename(Name, Name),
    RenameNew(Name, Name),
    Exchange(Name, Name),
    Link(usize, Name),
    Lookup(Name),
    Write(usize, usize, u8),
    Read(usize, usize),
    Cut(usize, usize),
    SetAttribute(usize, u8),
    Attribute(usize),
    Stat(usize),
    /// fsync of a file, or of all.
    Sync(Option<usize>),
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    Done,
    Inode(u64),
    Bytes(Vec<u8>),
    Stat { links: u32, size: u64 },
    Refused(i32),
}

fn refused<T>(errno: Errno) -> Result<T, i32> {
    Err(errno as i32)
}

fn name(rng: &mut Rng) -> Name {
    (rng.below(DIRS) as usize, rng.below(NAMES) as u8)
}

impl Ask {
    pub fn any(rng: &mut Rng) -> Ask {
        let file = rng.below(FILES as u64) as usize;
        let at = rng.below(120) as usize;
        match rng.below(19) {
            0 | 1 => Ask::Create(name(rng)),
            2 => Ask::Mkdir(name(rng)),
            3 | 4 => Ask::Unlink(name(rng)),
            5 => Ask::Rmdir(name(rng)),
            6 | 7 => Ask::Rename(name(rng), name(rng)),
            8 => Ask::RenameNew(name(rng), name(rng)),
            9 => Ask::Exchange(name(rng), name(rng)),
            10 => Ask::Link(file, name(rng)),
            11 | 12 => Ask::Lookup(name(rng)),
            13 => Ask::Write(file, at, 1 + rng.below(200) as u8),
            14 => Ask::Read(file, at),
            15 => Ask::Cut(file, at),
            16 => Ask::SetAttribute(file, rng.below(200) as u8),
            17 => *rng.pick(&[Ask::Attribute(file), Ask::Stat(file)]),
            _ => Ask::Sync(rng.one_in(2).then_some(file)),
        }
    }
}

/// The byte of a file with a deep map at which the model's bytes begin, in two blocks, and more
/// bytes than those are.
const DEEP_BASE: u64 = 49 * 1024 - 60;
const MAX_BYTES: u64 = 1000;

/// Directories and files of one group of threads.
pub(crate) struct Place {
    dirs: Vec<Node>,
    files: Vec<File>,
    /// The byte of the files at which the model's begin: in the middle of a deep map, where there
    /// is one.
    base: u64,
}

impl Place {
    /// Creates the initial state of the model: both directories are empty, and the files' only
    /// names are in a third one.
    pub fn new(fs: &Fs, nr: usize) -> extant_engine::Result<Place> {
        let root = fs.root()?;
        let top = format!("g{nr}");
        let top = match fs.lookup(&root, top.as_bytes()) {
            Ok(top) => top,
            Err(_) => fs.create(&root, top.as_bytes(), 0o755, NodeKind::Dir)?,
        };
        let deep = fs.resolve(format!("/{}", deep::DIR), Follow::No).ok();
        let get = |name: String, planted: String, what: NodeKind<'_>| {
            let move_planted = |deep: &Node| {
                fs.rename(
                    (deep, planted.as_bytes()),
                    (&top, name.as_bytes()),
                    RenameFlags::NOREPLACE,
                )
            };
            if fs.lookup(&top, name.as_bytes()).is_err()
                && deep.as_ref().is_none_or(|deep| move_planted(deep).is_err())
            {
                return fs.create(&top, name.as_bytes(), 0o755, what);
            }
            fs.lookup(&top, name.as_bytes())
        };
        let dirs = (0..DIRS)
            .map(|n| get(format!("dir{n}"), "dir".into(), NodeKind::Dir))
            .collect::<extant_engine::Result<_>>()?;
        let open =
            |node: Node| fs.open_file(&node, OpenFlags { write: true, ..Default::default() });
        let files = (0..FILES).map(|n| {
            get(format!("file{n}"), format!("file{}", nr * FILES + n), NodeKind::File)
                .and_then(open)
        });
        let files = files.collect::<extant_engine::Result<Vec<File>>>()?;
        let base = if deep.is_some() { DEEP_BASE } else { 0 };
        let new = |file: &&File| deep.is_some() && !(base..base + MAX_BYTES).contains(&file.len());
        files.iter().filter(new).try_for_each(|file| file.set_len(base))?;
        Ok(Place { dirs, files, base })
    }

    /// Asks the file system.
    pub fn ask(&self, fs: &Fs, ask: Ask) -> Answer {
        self.try_ask(fs, ask).unwrap_or_else(|e| Answer::Refused(e.errno()))
    }

    fn try_ask(&self, fs: &Fs, ask: Ask) -> Result<Answer, Error> {
        let dir = |(dir, _): Name| &self.dirs[dir];
        let done = |()| Answer::Done;
        let made = |node: Node| Answer::Inode(node.ino());
        let rename = |from: Name, to: Name, flags| {
            fs.rename((dir(from), &[b'a' + from.1]), (dir(to), &[b'a' + to.1]), flags)
        };
        match ask {
            Ask::Create(name) => {
                fs.create(dir(name), &[b'a' + name.1], 0o644, NodeKind::File).map(made)
            }
            Ask::Mkdir(name) => {
                fs.create(dir(name), &[b'a' + name.1], 0o755, NodeKind::Dir).map(made)
            }
            Ask::Unlink(name) => fs.unlink(dir(name), &[b'a' + name.1]).map(done),
            Ask::Rmdir(name) => fs.rmdir(dir(name), &[b'a' + name.1]).map(done),
            Ask::Rename(from, to) => rename(from, to, RenameFlags::empty()).map(done),
            Ask::RenameNew(from, to) => rename(from, to, RenameFlags::NOREPLACE).map(done),
            Ask::Exchange(from, to) => rename(from, to, RenameFlags::EXCHANGE).map(done),
            Ask::Link(file, name) => {
                fs.link(self.files[file].node(), dir(name), &[b'a' + name.1]).map(done)
            }
            Ask::Lookup(name) => fs.lookup(dir(name), &[b'a' + name.1]).map(made),
            Ask::Write(file, at, byte) => self.files[file]
                .write_at(self.base + at as u64, &[byte; PIECE])
                .map(|_| Answer::Done),
            Ask::Read(file, at) => {
                let mut bytes = vec![0; PIECE];
                let len = self.files[file].read_at(self.base + at as u64, &mut bytes)?;
                bytes.truncate(len);
                Ok(Answer::Bytes(bytes))
            }
            Ask::Cut(file, size) => self.files[file].set_len(self.base + size as u64).map(done),
            Ask::SetAttribute(file, byte) => fs
                .set_xattr(self.files[file].node(), ATTRIBUTE, &[byte; 5], XattrMode::Any)
                .map(done),
            Ask::Attribute(file) => {
                fs.get_xattr(self.files[file].node(), ATTRIBUTE).map(Answer::Bytes)
            }
            Ask::Stat(file) => {
                let attr = self.files[file].node().attr();
                Ok(Answer::Stat { links: attr.nlink, size: attr.size - self.base })
            }
            Ask::Sync(Some(file)) => self.files[file].sync().map(done),
            Ask::Sync(None) => fs.sync().map(done),
        }
    }

    /// Returns the state of the file system as a model.
    pub fn state(&self, fs: &Fs) -> extant_engine::Result<Model> {
        let (mut names, mut files) = (BTreeMap::new(), Vec::new());
        for (nr, dir) in self.dirs.iter().enumerate() {
            // The other names are those that a deep index has for others.
            for entry in fs
                .read_dir(dir)?
                .iter()
                .filter(|entry| entry.name.len() == 1 && entry.name[0] != b'.')
            {
                let node = fs.lookup(dir, &entry.name)?;
                assert_eq!(node.ino(), entry.ino, "a listing and a lookup do not agree");
                let is_dir = node.file_type() == FileType::Directory;
                names.insert((nr, entry.name[0] - b'a'), Entry { ino: node.ino(), is_dir });
            }
        }
        for file in &self.files {
            let mut bytes = vec![0; (file.len() - self.base) as usize];
            file.read_at(self.base, &mut bytes)?;
            let attribute = fs.get_xattr(file.node(), ATTRIBUTE).ok();
            files.push(Content {
                ino: file.node().ino(),
                links: file.node().attr().nlink,
                bytes,
                attribute,
            });
        }
        Ok(Model { names, files })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    ino: u64,
    is_dir: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Content {
    ino: u64,
    links: u32,
    bytes: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

/// A plain file system in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Model {
    names: BTreeMap<Name, Entry>,
    files: Vec<Content>,
}

impl Model {
    /// Returns whether this answer is right now. The numbers of new inodes are taken from it.
    pub fn allows(&mut self, ask: Ask, answer: &Answer) -> bool {
        let own = match (ask, answer) {
            (Ask::Create(name) | Ask::Mkdir(name), Answer::Inode(ino)) => {
                let entry = Entry { ino: *ino, is_dir: matches!(ask, Ask::Mkdir(_)) };
                return self.names.insert(name, entry).is_none();
            }
            // Both errors are right; their precedence is not specified.
            (Ask::Link(file, name), Answer::Refused(errno))
                if self.files[file].links == 0 && self.names.contains_key(&name) =>
            {
                return [Errno::NoEnt as i32, Errno::Exist as i32].contains(errno);
            }
            _ => self.answer(ask),
        };
        own.unwrap_or_else(Answer::Refused) == *answer
    }

    /// The state after this answer, if it is right now.
    pub fn next(&self, ask: Ask, answer: &Answer) -> Vec<Model> {
        let mut after = self.clone();
        if after.allows(ask, answer) { vec![after] } else { Vec::new() }
    }

    /// Returns the states as [`Model::next`] does, on a device that may have failed: an operation
    /// refused for that reason took place or did not.
    pub fn next_after_failure(&self, ask: Ask, answer: &Answer) -> Vec<Model> {
        let failed = [Errno::Io as i32, Errno::RoFs as i32];
        if !matches!(answer, Answer::Refused(errno) if failed.contains(errno)) {
            return self.next(ask, answer);
        }
        let mut after = self.clone();
        let happened = !matches!(ask, Ask::Create(_) | Ask::Mkdir(_))
            && after.answer(ask).is_ok()
            && after != *self;
        if happened { vec![self.clone(), after] } else { vec![self.clone()] }
    }

    /// Whether the other has the same names, links and attributes.
    pub fn same_metadata(&self, other: &Model) -> bool {
        let of_file = |file: &Content| (file.ino, file.links, file.attribute.clone());
        self.names == other.names
            && self.files.iter().map(of_file).eq(other.files.iter().map(of_file))
    }

    /// Returns the content of each file.
    pub fn contents(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|file| &file.bytes[..])
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer, i32> {
        match ask {
            // Only refusals come here.
            Ask::Create(name) | Ask::Mkdir(name) => {
                if self.names.contains_key(&name) {
                    refused(Errno::Exist)
                } else {
                    Ok(Answer::Done)
                }
            }
            Ask::Unlink(name) => self.remove(name, false),
            Ask::Rmdir(name) => self.remove(name, true),
            Ask::Rename(from, to) => self.rename(from, to),
            Ask::RenameNew(from, to) => {
                self.entry(from)?;
                if self.names.contains_key(&to) {
                    refused(Errno::Exist)
                } else {
                    self.rename(from, to)
                }
            }
            Ask::Exchange(from, to) => {
                let (one, other) = (self.entry(from)?, self.entry(to)?);
                self.names.extend([(from, other), (to, one)]);
                Ok(Answer::Done)
            }
            Ask::Link(file, name) => {
                let content = &mut self.files[file];
                match (content.links, self.names.contains_key(&name)) {
                    (0, _) => refused(Errno::NoEnt),
                    (_, true) => refused(Errno::Exist),
                    _ => {
                        content.links += 1;
                        self.names.insert(name, Entry { ino: content.ino, is_dir: false });
                        Ok(Answer::Done)
                    }
                }
            }
            Ask::Lookup(name) => self.entry(name).map(|entry| Answer::Inode(entry.ino)),
            _ => self.of_file(ask),
        }
    }

    fn entry(&self, name: Name) -> Result<Entry, i32> {
        self.names.get(&name).copied().ok_or(Errno::NoEnt as i32)
    }

    fn of_file(&mut self, ask: Ask) -> Result<Answer, i32> {
        match ask {
            Ask::Write(file, at, byte) => {
                let bytes = &mut self.files[file].bytes;
                bytes.resize(bytes.len().max(at + PIECE), 0);
                bytes[at..at + PIECE].fill(byte);
            }
            Ask::Read(file, at) => {
                let bytes = &self.files[file].bytes;
                let end = (at + PIECE).min(bytes.len());
                return Ok(Answer::Bytes(bytes[at.min(end)..end].to_vec()));
            }
            Ask::Cut(file, size) => self.files[file].bytes.resize(size, 0),
            Ask::SetAttribute(file, byte) => self.files[file].attribute = Some(vec![byte; 5]),
            Ask::Attribute(file) => {
                let value = self.files[file].attribute.clone();
                return value.map(Answer::Bytes).ok_or(Errno::NoData as i32);
            }
            Ask::Stat(file) => {
                let Content { links, bytes, .. } = &self.files[file];
                return Ok(Answer::Stat { links: *links, size: bytes.len() as u64 });
            }
            _ => {}
        }
        Ok(Answer::Done)
    }

    fn remove(&mut self, name: Name, dir: bool) -> Result<Answer, i32> {
        match (self.entry(name)?.is_dir, dir) {
            (true, false) => refused(Errno::IsDir),
            (false, true) => refused(Errno::NotDir),
            _ => {
                self.drop_name(name);
                Ok(Answer::Done)
            }
        }
    }

    fn drop_name(&mut self, name: Name) {
        let Some(gone) = self.names.remove(&name) else { return };
        self.files.iter_mut().filter(|file| file.ino == gone.ino).for_each(|file| file.links -= 1);
    }

    fn rename(&mut self, from: Name, to: Name) -> Result<Answer, i32> {
        let moved = self.entry(from)?;
        match self.names.get(&to).copied() {
            Some(target) if target.ino == moved.ino => return Ok(Answer::Done),
            Some(target) if moved.is_dir && !target.is_dir => return refused(Errno::NotDir),
            Some(target) if !moved.is_dir && target.is_dir => return refused(Errno::IsDir),
            _ => self.drop_name(to),
        }
        self.names.remove(&from);
        self.names.insert(to, moved);
        Ok(Answer::Done)
    }
}
