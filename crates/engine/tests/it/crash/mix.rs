//! Random mixes of all operations, by seed, of one thread or of several at once. A file's bytes
//! identify their origin: the upper half is the file's, the lower half the write's.

use super::scene::{Content, Promise, Scene, Setup, Stage, record};
use extant_engine::{
    Caller, Errno, Falloc, File, Follow, Node, NodeKind, OpenFlags, RenameFlags, SetAttr, XattrMode,
};
use extant_hostile::deep;
use extant_testkit::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Operations of one mix.
const STEPS: u64 = 90;

/// Number of held files without a name.
const HELD: usize = 3;

/// The place of a write.
#[derive(Clone, Copy)]
enum Where {
    Anywhere,
    /// Over existing bytes, if there are any.
    Over,
    /// Behind the last byte, mostly within its block.
    End,
}

/// The state of a file as the mix expects it.
#[derive(Clone, Default)]
struct Known {
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Permissions, user and group.
    access: (u32, u32, u32),
    /// Upper half of the file's bytes.
    owner: u8,
    writes: u8,
    /// Whether writes come from a client with a cache of its own.
    direct: bool,
}

impl Known {
    fn content(&self) -> Arc<Content> {
        let (xattrs, access) = (Some(self.xattrs.clone()), Some(self.access));
        Arc::new(Content { data: self.data.clone(), xattrs, access })
    }

    /// The bytes of the next write.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.writes = self.writes.wrapping_add(7);
        (0..len)
            .map(|at| self.owner | (1 + (usize::from(self.writes) + at / 64) as u8 % 15))
            .collect()
    }
}

/// The expected state of the file system: names of files, and the files' bytes.
struct Mix<'a> {
    stage: &'a Stage,
    rng: Rng,
    dirs: Vec<(String, Node)>,
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Known>,
    /// Names of files that are not regular.
    others: BTreeSet<String>,
    /// Names that were removed and not created again.
    gone: BTreeSet<String>,
    /// Names that files had before a rename, or before one of several was removed.
    former: BTreeMap<u64, BTreeSet<String>>,
    held: Vec<File>,
    /// A file that never had a name.
    nameless: Option<(Node, Known)>,
    made: u8,
    /// Number of files of [`deep::DIR`] that were renamed.
    planted: u64,
    /// Files whose names have changed since their last fsync: fdatasync promises nothing of names.
    renamed: BTreeSet<u64>,
}

impl Mix<'_> {
    fn pick(&mut self) -> (Node, String, String) {
        let (prefix, dir) = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].clone();
        let name = format!("n{}", self.rng.below(8));
        (dir, name.clone(), format!("{prefix}/{name}"))
    }

    /// Drops the promises for the names of a file that is about to change.
    fn forget_file(&mut self, ino: u64) {
        let names: Vec<String> =
            self.names.iter().filter(|(_, i)| **i == ino).map(|(n, _)| n.clone()).collect();
        names.iter().for_each(|n| self.stage.forget(n));
    }

    fn drop_name(&mut self, path: &str) {
        self.stage.forget(path);
        let Some(ino) = self.names.remove(path) else { return };
        self.left(ino, path);
        if !self.names.values().any(|i| *i == ino) {
            self.files.remove(&ino);
            self.former.remove(&ino);
        }
    }

    /// Records that a file lost a name. Its next fsync makes that durable, too.
    fn left(&mut self, ino: u64, path: &str) {
        self.renamed.insert(ino);
        // Names that the path's previous inode had are no longer expected of it.
        self.former.values_mut().for_each(|names| _ = names.remove(path));
        self.former.entry(ino).or_default().insert(path.into());
    }

    fn open(&mut self, path: &str) -> Option<(u64, File)> {
        let ino = *self.names.get(path)?;
        let node = self.stage.fs.resolve(path, Follow::No).expect(path);
        assert_eq!(node.ino(), ino, "{path}");
        let file = self
            .stage
            .fs
            .open_file(&node, OpenFlags { write: true, ..Default::default() })
            .expect(path);
        self.forget_file(ino);
        Some((ino, file))
    }

    fn step(&mut self) {
        if self.rng.one_in(4) {
            self.forget_idle();
        }
        match self.rng.below(20) {
            0 => self.change_and_sync(),
            1..=4 => self.write(),
            5 => self.truncate(),
            6 | 7 => self.allocate(),
            8 => self.rename(),
            9 => self.link(),
            10 => self.unlink(),
            11 if self.rng.one_in(3) => self.sync_all(),
            11 => self.special(),
            12 if self.rng.one_in(2) => self.attribute(),
            12 => self.own(),
            13 => self.sync_dir(),
            14 => self.hold(),
            15 | 16 => self.make_nameless(),
            _ => self.sync(),
        }
    }

    /// Evicts unreferenced inodes, with their state in memory.
    fn forget_idle(&self) {
        for _ in 0..3 {
            self.stage.fs.operations().shrink(1000);
        }
    }

    /// Changes a durable file once more, in place or not, and makes the result durable again.
    fn change_and_sync(&mut self) {
        let Some(path) =
            self.names.keys().nth(self.rng.below(self.names.len().max(1) as u64) as usize).cloned()
        else {
            return;
        };
        self.sync_path(&path, false);
        for _ in 0..2 {
            match self.rng.below(6) {
                0 => self.truncate_path(&path),
                1 => self.allocate_path(&path),
                2 => self.write_path(&path, Where::Anywhere),
                3 => self.write_path(&path, Where::End),
                _ => self.write_path(&path, Where::Over),
            }
            if self.rng.one_in(2) {
                self.forget_idle();
            }
            let datasync = self.rng.one_in(2);
            self.sync_path(&path, datasync);
        }
    }

    fn create(&mut self, dir: &Node, name: &str, path: &str) {
        self.stage.forget(path);
        self.gone.remove(path);
        let node = self.planted(dir, name).unwrap_or_else(|| {
            self.stage.fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(path)
        });
        self.names.insert(path.into(), node.ino());
        self.renamed.insert(node.ino());
        let known = self.new_file();
        let data = vec![0; node.attr().size as usize];
        self.files.insert(node.ino(), Known { data, ..known });
    }

    /// Moves a file with a deep map to this name, if one is left. It contains only zeroes.
    fn planted(&mut self, dir: &Node, name: &str) -> Option<Node> {
        let from = self.stage.fs.resolve(format!("/{}", deep::DIR), Follow::No).ok()?;
        let file = format!("file{}", self.planted);
        let node = self.stage.fs.lookup(&from, file.as_bytes()).ok()?;
        self.stage
            .fs
            .rename((&from, file.as_bytes()), (dir, name.as_bytes()), RenameFlags::empty())
            .expect("rename");
        self.planted += 1;
        Some(node)
    }

    /// Returns the length of the range in which writes to a file of this size begin.
    fn span(&self, size: usize) -> u64 {
        if self.planted > 0 { size.max(30_000) as u64 } else { 30_000 }
    }

    fn new_file(&mut self) -> Known {
        // Not the half that garbage has.
        self.made = self.made % 9 + 1;
        Known {
            owner: self.made << 4,
            direct: self.rng.one_in(3),
            access: (0o644, 0, 0),
            ..Known::default()
        }
    }

    /// Makes a file without a name. The next call gives it a name or releases it.
    fn make_nameless(&mut self) {
        let (dir, name, path) = self.pick();
        let Some((node, known)) = self.nameless.take() else {
            let node =
                self.stage.fs.create_nameless(&Caller::default(), &dir, 0o644).expect("O_TMPFILE");
            let mut known = self.new_file();
            let len = self.rng.between(1, 9000) as usize;
            known.data = known.bytes(len);
            self.stage.fs.write_direct(&node, 0, &known.data, false).expect("write");
            self.nameless = Some((node, known));
            return;
        };
        if !self.names.contains_key(&path) && self.rng.one_in(2) {
            self.stage.forget(&path);
            self.stage.fs.link(&node, &dir, name.as_bytes()).expect("link");
            self.gone.remove(&path);
            self.names.insert(path, node.ino());
            self.files.insert(node.ino(), known);
            self.renamed.insert(node.ino());
        }
        self.stage.fs.release(&node, 1);
    }

    fn write(&mut self) {
        let (dir, name, path) = self.pick();
        if !self.names.contains_key(&path) {
            self.create(&dir, &name, &path);
        }
        self.write_path(&path, Where::Anywhere);
    }

    fn write_path(&mut self, path: &str, place: Where) {
        let (ino, file) = self.open(path).expect("a file");
        let size = self.files[&ino].data.len();
        let (at, len) = match place {
            Where::Over if size > 0 => {
                let at = self.rng.below(size as u64) as usize;
                (at, self.rng.between(1, 9000).min((size - at) as u64) as usize)
            }
            Where::End => (size, self.rng.between(1, 300) as usize),
            _ => (self.rng.below(self.span(size)) as usize, self.rng.between(1, 9000) as usize),
        };
        let known = self.files.get_mut(&ino).expect("a file");
        let bytes = known.bytes(len);
        // A client with a cache of its own writes one file by direct I/O, and the next one not.
        let keeps = known.owner & 1 << 4 != 0;
        if known.direct && keeps {
            self.stage.fs.write_kept(file.node(), at as u64, &bytes, false).expect(path)
        } else if known.direct {
            self.stage.fs.write_direct(file.node(), at as u64, &bytes, false).expect(path)
        } else {
            file.write_at(at as u64, &bytes).expect(path)
        };
        let end = known.data.len().max(at + len);
        known.data.resize(end, 0);
        known.data[at..at + len].copy_from_slice(&bytes);
    }

    /// Opens a file and removes its name: it is an orphan until it is closed.
    fn hold(&mut self) {
        if self.held.len() >= HELD {
            drop(self.held.remove(0));
            return;
        }
        let (dir, name, path) = self.pick();
        let Some((_, file)) = self.open(&path) else { return };
        self.stage.fs.unlink(&dir, name.as_bytes()).expect("unlink");
        self.drop_name(&path);
        self.gone.insert(path);
        self.held.push(file);
    }

    /// A sync of a directory makes its names durable.
    fn sync_dir(&mut self) {
        let (dir, _, path) = self.pick();
        let prefix = path.rsplit_once('/').map_or("", |(prefix, _)| prefix).to_owned() + "/";
        self.stage.fs.sync_node(&dir, false).expect("fsync");
        let here =
            |name: &&String| name.starts_with(&prefix) && !name[prefix.len()..].contains('/');
        let there: Vec<String> = self.names.keys().filter(here).cloned().collect();
        for name in self.gone.iter().filter(here) {
            self.stage.promise(name, Promise::Gone);
        }
        there
            .iter()
            .chain(self.others.iter().filter(here))
            .for_each(|name| self.stage.promise_there(name));
    }

    fn truncate(&mut self) {
        let (_, _, path) = self.pick();
        self.truncate_path(&path);
    }

    fn truncate_path(&mut self, path: &str) {
        let Some((ino, file)) = self.open(path) else { return };
        let size = self.rng.below(self.span(self.files[&ino].data.len()) + 10_000) as usize;
        file.set_len(size as u64).expect(path);
        self.files.get_mut(&ino).expect("a file").data.resize(size, 0);
    }

    fn allocate(&mut self) {
        let (_, _, path) = self.pick();
        self.allocate_path(&path);
    }

    fn allocate_path(&mut self, path: &str) {
        let Some((ino, file)) = self.open(path) else { return };
        let span = self.span(self.files[&ino].data.len());
        let bytes = &mut self.files.get_mut(&ino).expect("a file").data;
        // A whole number of blocks and of clusters, as collapse and insert want.
        let unit = 4096;
        let at = self.rng.below(span / 5000) as usize * unit;
        let len = self.rng.between(1, 4) as usize * unit;
        let how = *self.rng.pick(Falloc::ALL);
        match file.allocate(how, at as u64, len as u64) {
            Ok(()) => {}
            // Files with indirect blocks do not support this. A range at or behind the end cannot
            // be collapsed or inserted.
            Err(e) if e.is(Errno::OpNotSupp) || e.is(Errno::Inval) => return,
            Err(e) => panic!("{how:?} {path}: {e}"),
        }
        if matches!(how, Falloc::Allocate | Falloc::Zero) {
            bytes.resize(bytes.len().max(at + len), 0);
        }
        let end = bytes.len().min(at + len);
        match how {
            Falloc::Punch | Falloc::Zero | Falloc::ZeroKeepSize if at < end => {
                bytes[at..end].fill(0)
            }
            Falloc::Collapse => drop(bytes.drain(at..at + len)),
            Falloc::Insert => drop(bytes.splice(at..at, std::iter::repeat_n(0, len))),
            _ => {}
        }
    }

    fn rename(&mut self) {
        let (from_dir, from, from_path) = self.pick();
        let (to_dir, to, to_path) = self.pick();
        let (Some(moved), target) =
            (self.names.get(&from_path).copied(), self.names.get(&to_path).copied())
        else {
            return;
        };
        let exchange = target.is_some() && self.rng.one_in(2);
        self.stage.forget(&from_path);
        self.stage.forget(&to_path);
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.stage
            .fs
            .rename((&from_dir, from.as_bytes()), (&to_dir, to.as_bytes()), flags)
            .expect("rename");
        if target == Some(moved) {
            return;
        }
        self.renamed.extend([Some(moved), target].into_iter().flatten());
        if !exchange {
            self.drop_name(&to_path);
            self.names.remove(&from_path);
            self.left(moved, &from_path);
            self.gone.insert(from_path);
        } else if let Some(target) = target {
            self.names.insert(from_path, target);
        }
        self.gone.remove(&to_path);
        self.names.insert(to_path, moved);
    }

    fn link(&mut self) {
        let (_, _, from) = self.pick();
        let (dir, name, to) = self.pick();
        let Some(ino) = self.names.get(&from).copied().filter(|_| !self.names.contains_key(&to))
        else {
            return;
        };
        self.stage.forget(&to);
        let node = self.stage.fs.resolve(&from, Follow::No).expect("resolve");
        self.stage.fs.link(&node, &dir, name.as_bytes()).expect("link");
        self.gone.remove(&to);
        self.names.insert(to, ino);
        self.renamed.insert(ino);
    }

    fn unlink(&mut self) {
        let (dir, name, path) = self.pick();
        if self.names.contains_key(&path) {
            self.stage.forget(&path);
            self.stage.fs.unlink(&dir, name.as_bytes()).expect("unlink");
            self.drop_name(&path);
            self.gone.insert(path);
        }
    }

    fn special(&mut self) {
        let (dir, _, path) = self.pick();
        let name = format!("s{}", self.rng.below(6));
        let path = format!("{}/{name}", path.rsplit_once('/').map_or("", |(prefix, _)| prefix));
        self.stage.forget(&path);
        let what = match self.rng.below(4) {
            0 => NodeKind::Symlink(b"short"),
            1 => NodeKind::Symlink(&[b'y'; 300]),
            2 => NodeKind::Fifo,
            _ => NodeKind::Dir,
        };
        match self.stage.fs.create(&dir, name.as_bytes(), 0o700, what) {
            Ok(node) => {
                self.gone.remove(&path);
                if self.rng.one_in(2) {
                    self.stage.fs.sync_node(&node, false).expect("fsync");
                    self.stage.promise_there(&path);
                }
                self.others.insert(path);
            }
            Err(e) if e.is(Errno::Exist) => {
                let gone = self.stage.fs.unlink(&dir, name.as_bytes());
                gone.or_else(|_| self.stage.fs.rmdir(&dir, name.as_bytes())).expect("removed");
                self.others.remove(&path);
                self.gone.insert(path);
            }
            Err(e) => panic!("{name}: {e}"),
        }
    }

    fn attribute(&mut self) {
        let (_, _, path) = self.pick();
        let Some(ino) = self.names.get(&path).copied() else { return };
        self.forget_file(ino);
        // fdatasync promises nothing of attributes.
        self.renamed.insert(ino);
        let node = self.stage.fs.resolve(&path, Follow::No).expect("resolve");
        let len = *self.rng.pick(&[3usize, 90, 600]);
        let value = self.rng.bytes(len);
        let name = format!("user.a{}", self.rng.below(3));
        let known = self.files.get_mut(&ino).expect("a file");
        if known.xattrs.contains_key(name.as_bytes()) && self.rng.one_in(2) {
            self.stage.fs.remove_xattr(&node, name.as_bytes()).expect("an attribute");
            known.xattrs.remove(name.as_bytes());
            return;
        }
        match self.stage.fs.set_xattr(&node, name.as_bytes(), &value, XattrMode::Any) {
            Ok(()) => drop(known.xattrs.insert(name.into(), value)),
            Err(e) if e.is(Errno::NoSpc) => {}
            Err(e) => panic!("{name}: {e}"),
        }
    }

    /// Changes the owners of a file, and with them the usage that quotas count.
    fn own(&mut self) {
        let (_, _, path) = self.pick();
        let Some(ino) = self.names.get(&path).copied() else { return };
        self.forget_file(ino);
        // fdatasync promises nothing of owners.
        self.renamed.insert(ino);
        let node = self.stage.fs.resolve(&path, Follow::No).expect("resolve");
        let (mode, uid, gid) = (
            0o600 + self.rng.below(64) as u32,
            self.rng.below(40) as u32,
            self.rng.below(3) as u32,
        );
        let change = SetAttr {
            mode: Some(mode as u16),
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        self.stage.fs.set_attr(&node, &change).expect("chown and chmod");
        self.files.get_mut(&ino).expect("a file").access = (mode, uid, gid);
        match self.stage.fs.set_project(&node, self.rng.below(3) as u32) {
            Err(e) if e.is(Errno::OpNotSupp) => {}
            other => other.expect("project"),
        }
    }

    /// Promises the whole state, for a file system that was closed.
    fn promise_all(&mut self) {
        self.held.clear();
        if let Some((node, _)) = self.nameless.take() {
            self.stage.fs.release(&node, 1);
        }
        self.promise_now();
    }

    /// Promises the current state.
    fn promise_now(&mut self) {
        self.renamed.clear();
        self.former.clear();
        self.gone.iter().for_each(|name| self.stage.promise(name, Promise::Gone));
        self.others.iter().for_each(|name| self.stage.promise_there(name));
        self.names.iter().for_each(|(name, ino)| {
            self.stage.promise(name, Promise::Holds(self.files[ino].content()))
        });
    }

    fn sync_all(&mut self) {
        self.stage.fs.sync().expect("sync");
        self.promise_now();
    }

    fn sync(&mut self) {
        let (_, _, path) = self.pick();
        let datasync = self.rng.one_in(3);
        self.sync_path(&path, datasync);
    }

    /// Calls fsync, or fdatasync if it promises as much.
    fn sync_path(&mut self, path: &str, datasync: bool) {
        let Some(ino) = self.names.get(path).copied() else { return };
        let node = self.stage.fs.resolve(path, Follow::No).expect("resolve");
        let datasync = datasync && !self.renamed.contains(&ino);
        self.stage.fs.sync_node(&node, datasync).expect("fsync");
        if !datasync {
            self.renamed.remove(&ino);
            let former = self.former.remove(&ino).unwrap_or_default();
            for name in former.intersection(&self.gone) {
                self.stage.promise(name, Promise::Gone);
            }
        }
        let content = self.files[&ino].content();
        let names: Vec<String> =
            self.names.iter().filter(|(_, i)| **i == ino).map(|(n, _)| n.clone()).collect();
        names.iter().for_each(|n| self.stage.promise(n, Promise::Holds(content.clone())));
    }
}

/// Moves the directory with a deep index to this name, if it is there.
fn deep_directory(stage: &Stage, parent: &Node, name: &str) -> Option<Node> {
    let from = stage.fs.resolve(format!("/{}", deep::DIR), Follow::No).ok()?;
    let dir = stage.fs.lookup(&from, b"dir").ok()?;
    stage
        .fs
        .rename((&from, b"dir"), (parent, name.as_bytes()), RenameFlags::empty())
        .expect("rename");
    Some(dir)
}

/// A mix in directories of its own.
fn run(stage: &Stage, top: &str, seed: u64) {
    let mut dirs = Vec::new();
    let mut parent = stage.root();
    let mut prefix = String::new();
    for name in [top, "a", "b"] {
        let dir = deep_directory(stage, &parent, name).unwrap_or_else(|| {
            stage.fs.create(&parent, name.as_bytes(), 0o755, NodeKind::Dir).expect("mkdir")
        });
        let path = format!("{prefix}/{name}");
        dirs.push((path.clone(), dir.clone()));
        if name == top {
            (parent, prefix) = (dir, path);
        }
    }
    let mut mix = Mix {
        stage,
        rng: Rng::new(seed),
        dirs,
        names: BTreeMap::new(),
        files: BTreeMap::new(),
        others: BTreeSet::new(),
        gone: BTreeSet::new(),
        former: BTreeMap::new(),
        held: Vec::new(),
        nameless: None,
        made: 0,
        planted: 0,
        renamed: BTreeSet::new(),
    };
    for _ in 0..STEPS {
        mix.step();
    }
    if stage.unlogged {
        mix.promise_all();
    }
}

/// The changes that a mix makes to a new file system.
pub(crate) fn scene(setup: Setup, threads: usize, seed: u64) -> Scene {
    record(setup, true, |stage| {
        let stage = &*stage;
        match threads {
            1 => run(stage, "t", seed),
            _ => std::thread::scope(|scope| {
                for nr in 0..threads {
                    scope.spawn(move || run(stage, &format!("t{nr}"), seed * 100 + nr as u64));
                }
            }),
        }
    })
}
