//! The work on a failing device. It continues after errors, as programs do, and records the
//! promises.

use super::Device;
use crate::crash::{PageDevice, Pages, Setup};
use crate::file::model;
use extant_engine::{
    Errno, Error, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, RenameFlags, Result,
    SetAttr, XattrMode,
};
use extant_hostile::deep;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Directories that [`prepared`] makes.
const DIRS: u32 = 6;

/// Paths with their bytes, or that they are gone.
pub(crate) type Durable = BTreeMap<String, Option<Vec<u8>>>;

pub(crate) type Workload = fn(&mut Work<'_>);

pub(crate) const WORKLOADS: [(&str, Workload); 6] = [
    ("names", names),
    ("data", data),
    ("attributes", attributes),
    ("cuts", cuts),
    ("syncs", syncs),
    ("maps", maps),
];

/// Bytes by which a file is known.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Returns a file system with some files, so that there are blocks to read. Made once for each
/// kind.
pub(crate) fn prepared(setup: Setup) -> Pages {
    static MADE: OnceLock<Mutex<BTreeMap<Setup, Pages>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    made.entry(setup).or_insert_with(|| prepare(setup).expect(setup.name)).clone()
}

fn prepare(setup: Setup) -> Result<Pages> {
    let device = Arc::new(PageDevice::new(setup.pages()));
    let fs = Fs::open_device(device.clone(), &setup.options())?;
    let root = fs.root()?;
    for d in 0..DIRS {
        let dir = fs.create(&root, format!("d{d}").as_bytes(), 0o755, NodeKind::Dir)?;
        for name in ["a", "b", "c"] {
            let node = match name {
                "a" => planted(&fs, d, &dir)?,
                _ => fs.create(&dir, name.as_bytes(), 0o644, NodeKind::File)?,
            };
            open(&fs, &node)?.write_at(0, &bytes(d.into(), 9000))?;
            fs.set_xattr(&node, b"user.long", &[d as u8; 300], XattrMode::Any)?;
        }
        for n in 0..20 {
            fs.create(
                &dir,
                format!("a name that takes some space {n}").as_bytes(),
                0o644,
                NodeKind::File,
            )?;
        }
        fs.create(&dir, b"sub", 0o755, NodeKind::Dir)?;
    }
    drop(root);
    fs.unmount()?;
    Ok(device.pages())
}

/// Returns a file "a": where the file system has such, one with a deep map and zeroes behind its
/// first bytes.
fn planted(fs: &Fs, d: u32, dir: &Node) -> Result<Node> {
    let Ok(from) = fs.resolve(format!("/{}", deep::DIR), Follow::No) else {
        return fs.create(dir, b"a", 0o644, NodeKind::File);
    };
    fs.rename((&from, format!("file{d}").as_bytes()), (dir, b"a"), RenameFlags::empty())?;
    fs.lookup(dir, b"a")
}

fn open(fs: &Fs, node: &Node) -> Result<File> {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() })
}

/// Two open files of one inode, with whether each reported a loss.
struct Pair {
    path: String,
    files: [File; 2],
    told: [bool; 2],
    expected: Vec<u8>,
    /// A write or a truncate was refused: the content is not known.
    unknown: bool,
}

/// A file system that is worked on.
pub(crate) struct Work<'a> {
    fs: &'a Fs,
    device: &'a Device,
    /// The expected state without further failures.
    now: Durable,
    durable: Durable,
    errors: Vec<Error>,
    pairs: Vec<Pair>,
}

/// The result of the work.
pub(crate) struct Outcome {
    pub durable: Durable,
    pub errors: Vec<Error>,
    /// Whether each open file reported its loss, and once.
    pub told: std::result::Result<(), String>,
}

impl<'a> Work<'a> {
    pub fn new(fs: &'a Fs, device: &'a Device) -> Work<'a> {
        let (now, durable) = (Durable::new(), Durable::new());
        Work { fs, device, now, durable, errors: Vec::new(), pairs: Vec::new() }
    }

    /// Changes some paths. If the change fails, nothing is expected of them.
    fn step(
        &mut self,
        after: &[(&str, Option<Vec<u8>>)],
        op: impl FnOnce(&Fs) -> Result<()>,
    ) -> bool {
        after.iter().for_each(|(path, _)| drop(self.durable.remove(*path)));
        let result = op(self.fs);
        for (path, what) in after {
            match &result {
                Ok(()) => drop(self.now.insert((*path).into(), what.clone())),
                Err(_) => drop(self.now.remove(*path)),
            }
        }
        let ok = result.is_ok();
        self.errors.extend(result.err());
        ok
    }

    /// fsync of a file, or of a directory for the names in it.
    fn sync(&mut self, path: &str) {
        let synced =
            self.fs.resolve(path, Follow::No).and_then(|node| self.fs.sync_node(&node, false));
        self.promise(synced, |name| {
            name == path || name.rsplit_once('/').is_some_and(|(dir, _)| dir == path)
        });
    }

    fn sync_all(&mut self) {
        let synced = self.fs.sync();
        self.promise(synced, |_| true);
    }

    /// Records the promises of a sync that succeeded. A failed sync has reported losses: later ones
    /// promise nothing about the lost data.
    fn promise(&mut self, synced: Result<()>, which: impl Fn(&str) -> bool) {
        match synced {
            Ok(()) => {
                let held = self.now.iter().filter(|(path, _)| which(path));
                self.durable.extend(held.map(|(path, what)| (path.clone(), what.clone())));
            }
            Err(e) => {
                self.now.retain(|path, _| !which(path));
                self.errors.push(e);
            }
        }
    }

    /// Opens a file twice.
    fn pair(&mut self, path: &str) -> Option<usize> {
        let opened = self
            .fs
            .resolve(path, Follow::No)
            .and_then(|node| Ok([open(self.fs, &node)?, open(self.fs, &node)?]));
        let found = || {
            let files = opened?;
            let mut expected = vec![0; files[0].len() as usize];
            files[0].read_at(0, &mut expected)?;
            Ok::<_, Error>(Pair {
                path: path.into(),
                files,
                told: [false; 2],
                expected,
                unknown: false,
            })
        };
        match found() {
            Ok(pair) => {
                self.pairs.push(pair);
                Some(self.pairs.len() - 1)
            }
            Err(e) => {
                self.errors.push(e);
                None
            }
        }
    }

    fn write(&mut self, pair: Option<usize>, at: usize, data: &[u8]) {
        let Some(pair) = pair.and_then(|nr| self.pairs.get_mut(nr)) else { return };
        self.durable.remove(&pair.path);
        match pair.files[0].write_at(at as u64, data) {
            Ok(written) if written == data.len() => {
                let end = pair.expected.len().max(at + data.len());
                pair.expected.resize(end, 0);
                pair.expected[at..at + data.len()].copy_from_slice(data);
            }
            Ok(_) => pair.unknown = true,
            Err(e) => {
                pair.unknown = true;
                self.errors.push(e);
            }
        }
    }

    /// fsync through one of the two.
    fn sync_pair(&mut self, pair: Option<usize>, which: usize) {
        let Some(pair) = pair.and_then(|nr| self.pairs.get_mut(nr)) else { return };
        match pair.files[which].sync() {
            Ok(()) if !pair.unknown && !pair.told.contains(&true) => {
                self.durable.insert(pair.path.clone(), Some(pair.expected.clone()));
            }
            Ok(()) => {}
            Err(e) => {
                pair.told[which] = true;
                self.errors.push(e);
            }
        }
    }

    /// Syncs on the repaired device: each open file with an unreported loss reports it now, and
    /// none reports a loss twice.
    pub fn finish(mut self) -> Outcome {
        self.sync_all();
        let read_only = self.fs.is_read_only();
        let hit = self.device.failed() > 0;
        self.device.heal();
        let mut told = Ok(());
        for pair in std::mem::take(&mut self.pairs) {
            // On a file system that became read-only, every fsync fails.
            if !read_only {
                let once = told_once(pair, hit, &mut self.errors);
                // The log may have been given up meanwhile.
                told = told.and(if self.fs.is_read_only() { Ok(()) } else { once });
            }
        }
        Outcome { durable: self.durable, errors: self.errors, told }
    }
}

fn told_once(
    mut pair: Pair,
    hit: bool,
    errors: &mut Vec<Error>,
) -> std::result::Result<(), String> {
    for which in 0..2 {
        if let Err(e) = pair.files[which].sync() {
            pair.told[which] = true;
            errors.push(e);
            if !hit {
                return Err(format!("{}: an fsync failed for no reason", pair.path));
            }
        }
        if let Err(e) = pair.files[which].sync() {
            return Err(format!("{}: file {which} is told twice: {e}", pair.path));
        }
    }
    let mut found = vec![0; pair.files[0].len() as usize];
    pair.files[0].read_at(0, &mut found).map_err(|e| format!("{}: reading: {e}", pair.path))?;
    if found != pair.expected && !pair.unknown && pair.told != [true; 2] {
        return Err(format!("{} lost data, and its files were told: {:?}", pair.path, pair.told));
    }
    Ok(())
}

/// Verifies that all promised changes are there.
pub(crate) fn assert_durable(fs: &Fs, durable: &Durable) -> std::result::Result<(), String> {
    for (path, expected) in durable {
        let node = match (fs.resolve(path, Follow::No), expected) {
            (Err(e), None) if e.is(Errno::NoEnt) => continue,
            (_, None) => return Err(format!("{path} is back")),
            (node, Some(_)) => node.map_err(|e| format!("{path}: {e}"))?,
        };
        if node.file_type() == extant_engine::FileType::Directory {
            continue;
        }
        let read = || {
            let file = fs.open_file(&node, OpenFlags::default())?;
            let mut found = vec![0; file.len() as usize];
            file.read_at(0, &mut found)?;
            Ok::<_, Error>(found)
        };
        let found = read().map_err(|e| format!("{path}: {e}"))?;
        if Some(&found) != expected.as_ref() {
            return Err(format!("{path} was durable and has other bytes ({})", found.len()));
        }
    }
    Ok(())
}

fn dir(fs: &Fs, d: u32) -> Result<Node> {
    fs.resolve(format!("/d{d}"), Follow::No)
}

/// Names come, go and move.
fn names(w: &mut Work<'_>) {
    let old = |d: u32| Some(bytes(d.into(), 9000));
    w.step(&[("/d0/new", Some(Vec::new()))], |fs| {
        fs.create(&dir(fs, 0)?, b"new", 0o644, NodeKind::File).map(drop)
    });
    w.step(&[("/d0/dir", Some(Vec::new()))], |fs| {
        fs.create(&dir(fs, 0)?, b"dir", 0o755, NodeKind::Dir).map(drop)
    });
    w.sync("/d0");
    w.step(&[("/d1/b", None), ("/d2/moved", old(1))], |fs| {
        fs.rename((&dir(fs, 1)?, b"b"), (&dir(fs, 2)?, b"moved"), RenameFlags::empty())
    });
    w.sync("/d2/moved");
    w.step(&[("/d3/a", None)], |fs| fs.unlink(&dir(fs, 3)?, b"a"));
    w.step(&[("/d3/sub", None)], |fs| fs.rmdir(&dir(fs, 3)?, b"sub"));
    w.sync("/d3");
    w.step(&[("/d4/linked", old(5))], |fs| {
        fs.link(&fs.resolve("/d5/b", Follow::No)?, &dir(fs, 4)?, b"linked")
    });
    w.step(&[("/d4/b", None), ("/d4/c", old(4))], |fs| {
        fs.rename((&dir(fs, 4)?, b"b"), (&dir(fs, 4)?, b"c"), RenameFlags::empty())
    });
    w.sync_all();
    for n in 0..12 {
        let path = format!("/d5/another name that takes its space {n}");
        w.step(&[(&path, Some(Vec::new()))], |fs| {
            fs.create(&dir(fs, 5)?, &path.as_bytes()[4..], 0o644, NodeKind::File).map(drop)
        });
    }
}

/// Writes to files that are open twice, through pages and by direct I/O.
fn data(w: &mut Work<'_>) {
    let first = w.pair("/d0/a");
    w.write(first, 4000, &bytes(50, 30_000));
    w.sync_pair(first, 0);
    let second = w.pair("/d1/b");
    w.write(second, 0, &bytes(51, 5000));
    w.write(second, 60_000, &bytes(52, 5000));
    w.sync_pair(second, 1);
    w.write(first, 1000, &bytes(53, 20_000));
    w.sync_pair(first, 1);
    let past = bytes(54, 16_384);
    w.step(&[("/d2/a", Some(past.clone()))], |fs| {
        let node = fs.resolve("/d2/a", Follow::No)?;
        fs.set_attr(&node, &SetAttr { size: Some(0), ..Default::default() })?;
        fs.write_direct(&node, 0, &past, false).map(drop)
    });
    w.sync("/d2/a");
    w.step(&[], |fs| {
        let file = open(fs, &fs.resolve("/d3/c", Follow::No)?)?;
        let mut found = vec![0; 9000];
        file.read_at(0, &mut found)?;
        assert!(found == bytes(3, 9000), "bytes that were never written");
        Ok(())
    });
}

/// Attributes in inodes, in blocks, shared and not.
fn attributes(w: &mut Work<'_>) {
    for d in 0..DIRS {
        let set = move |fs: &Fs, name: &str, len: usize| {
            let node = fs.resolve(format!("/d{d}/a"), Follow::No)?;
            fs.set_xattr(&node, name.as_bytes(), &vec![7; len], XattrMode::Any)
        };
        w.step(&[], |fs| set(fs, "user.short", 3));
        w.step(&[], |fs| set(fs, "user.other", 350));
        w.step(&[], |fs| {
            fs.remove_xattr(&fs.resolve(format!("/d{d}/b"), Follow::No)?, b"user.long")
        });
        w.step(&[], |fs| {
            let mode = SetAttr { mode: Some(0o600), uid: Some(7), ..Default::default() };
            fs.set_attr(&fs.resolve(format!("/d{d}/c"), Follow::No)?, &mode).map(drop)
        });
        w.sync(&format!("/d{d}/a"));
    }
}

/// Truncates files, and frees files without names.
fn cuts(w: &mut Work<'_>) {
    let pieces = |fs: &Fs, path: &str| {
        let file = open(fs, &fs.resolve(path, Follow::No)?)?;
        (0..20).try_for_each(|n| file.write_at(n * 20_000, &[n as u8; 1500]).map(drop))?;
        Ok::<_, Error>(file)
    };
    w.step(&[], |fs| pieces(fs, "/d0/a")?.sync());
    w.step(&[("/d0/a", Some(bytes(0, 700)))], |fs| {
        let file = open(fs, &fs.resolve("/d0/a", Follow::No)?)?;
        file.set_len(0)?;
        file.write_at(0, &bytes(0, 700)).map(drop)
    });
    w.sync("/d0/a");
    w.step(&[("/d1/a", None)], |fs| {
        let file = pieces(fs, "/d1/a")?;
        fs.unlink(&dir(fs, 1)?, b"a")?;
        file.sync()
    });
    w.step(&[], |fs| {
        let file = pieces(fs, "/d2/a")?;
        // Maps of pointers cannot.
        let may = |e: Error| if e.is(Errno::OpNotSupp) { Ok(()) } else { Err(e) };
        file.allocate(Falloc::Punch, 10_000, 200_000).or_else(may)?;
        file.allocate(Falloc::KeepSize, 300_000, 50_000).or_else(may)?;
        file.sync()
    });
    w.sync_all();
}

/// Changes the file "a" of a directory so that its bytes equal `after`, and syncs it.
fn change(
    w: &mut Work<'_>,
    d: u32,
    after: impl Fn(&mut Vec<u8>),
    op: impl Fn(&File) -> Result<()>,
) {
    let path = format!("/d{d}/a");
    let read = |fs: &Fs| {
        let file = open(fs, &fs.resolve(&path, Follow::No)?)?;
        let mut found = vec![0; file.len() as usize];
        file.read_at(0, &mut found).map(|_| found)
    };
    match read(w.fs) {
        Ok(mut expected) => {
            after(&mut expected);
            w.step(&[(&path, Some(expected))], |fs| {
                op(&open(fs, &fs.resolve(&path, Follow::No)?)?)
            });
            w.sync(&path);
        }
        Err(e) => w.errors.push(e),
    }
}

/// Removes, adds and moves extents. Only the root directory is in memory at first.
fn maps(w: &mut Work<'_>) {
    let data = bytes(70, 30_000);
    change(
        w,
        0,
        |all| model::put(all, 33_000, &data),
        |file| file.write_at(33_000, &data).map(drop),
    );
    let fs = w.fs;
    change(
        w,
        1,
        |all| model::put(all, 16_384, &data),
        |file| fs.write_direct(file.node(), 16_384, &data, false).map(drop),
    );
    change(w, 2, |all| all.truncate(5001), |file| file.set_len(5001));
    if w.fs.resolve(format!("/{}", deep::DIR), Follow::No).is_err() {
        return;
    }
    for (d, (how, at, len)) in (3..).zip([
        (Falloc::Punch, 8192, 49_152),
        (Falloc::Collapse, 8192, 32_768),
        (Falloc::Insert, 16_384, 8192),
        (Falloc::ZeroKeepSize, 4096, 40_960),
    ]) {
        // One file gets two of them.
        let d = d.min(DIRS - 1);
        let after = |all: &mut Vec<u8>| model::allocate(all, how, at as usize, len as usize);
        change(w, d, after, |file| file.allocate(how, at, len));
    }
}

/// Many fsyncs, of all kinds.
fn syncs(w: &mut Work<'_>) {
    for round in 0..4u64 {
        let pair = w.pair(&format!("/d{round}/a"));
        w.write(pair, 0, &bytes(60 + round, 3000));
        w.sync_pair(pair, (round % 2) as usize);
        let path = format!("/d{round}/fresh");
        w.step(&[(&path, Some(Vec::new()))], |fs| {
            fs.create(&dir(fs, round as u32)?, b"fresh", 0o644, NodeKind::File).map(drop)
        });
        w.sync(&path);
        w.step(&[], |fs| fs.sync_node(&fs.resolve(format!("/d{round}/c"), Follow::No)?, true));
    }
    w.sync_all();
}
