//! Power cuts in random mixes of all operations, by seed. `make crash` goes on with new seeds for as long as it is told to.

use crate::crash::{EXT3, EXT4, INLINE, Scene, Stage, record, sweep_from};
use extant::{Caller, Errno, Falloc, File, New, Node, OpenFlags, RenameFlags, SetAttr, XattrMode};
use extant_testkit::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const BIGALLOC: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "bigalloc,orphan_file", "-C", "4096", "-J", "size=1"];
const POINTERS: &[&str] = &["-t", "ext3", "-b", "2048", "-O", "^dir_index", "-J", "size=2"];

const QUOTA: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "quota,project,orphan_file", "-J", "size=1"];

const KINDS: [(&str, &[&str]); 6] = [
    ("ext4", EXT4),
    ("inline", INLINE),
    ("ext3", EXT3),
    ("bigalloc", BIGALLOC),
    ("pointers", POINTERS),
    ("quota", QUOTA),
];

/// Operations of one mix.
const STEPS: u64 = 90;

/// What a mix believes: names of files, and the files' bytes.
struct Mix<'a> {
    stage: &'a mut Stage,
    rng: Rng,
    dirs: Vec<(String, Node)>,
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Vec<u8>>,
    /// Files whose names have changed since their last fsync: fdatasync promises nothing of names.
    renamed: BTreeSet<u64>,
}

impl Mix<'_> {
    fn pick(&mut self) -> (Node, String, String) {
        let (prefix, dir) = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].clone();
        let name = format!("n{}", self.rng.below(8));
        (dir, name.clone(), format!("{prefix}/{name}"))
    }

    /// Nothing is promised of the names of a file that is about to change.
    fn forget_file(&mut self, ino: u64) {
        let names: Vec<String> = self.names.iter().filter(|(_, i)| **i == ino).map(|(n, _)| n.clone()).collect();
        names.iter().for_each(|n| self.stage.forget(n));
    }

    fn drop_name(&mut self, path: &str) {
        self.stage.forget(path);
        let Some(ino) = self.names.remove(path) else { return };
        if !self.names.values().any(|i| *i == ino) {
            self.files.remove(&ino);
        }
    }

    fn open(&mut self, path: &str) -> Option<(u64, File)> {
        let ino = *self.names.get(path)?;
        let node = self.stage.fs.resolve(path, extant::Follow::No).expect(path);
        assert_eq!(node.ino(), ino, "{path}");
        let file = self.stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(path);
        self.forget_file(ino);
        Some((ino, file))
    }

    fn step(&mut self) {
        match self.rng.below(16) {
            0..=4 => self.write(),
            5 => self.truncate(),
            6 | 7 => self.allocate(),
            8 => self.rename(),
            9 => self.link(),
            10 => self.unlink(),
            11 => self.special(),
            12 if self.rng.below(2) == 0 => self.attribute(),
            12 => self.own(),
            _ => self.sync(),
        }
    }

    fn write(&mut self) {
        let (dir, name, path) = self.pick();
        if !self.names.contains_key(&path) {
            self.stage.forget(&path);
            let node = self.stage.fs.create(&Caller::default(), &dir, name.as_bytes(), 0o644, New::File).expect(&path);
            self.names.insert(path.clone(), node.ino());
            self.renamed.insert(node.ino());
            self.files.insert(node.ino(), Vec::new());
        }
        let (ino, file) = self.open(&path).expect("just made");
        let at = self.rng.below(30_000) as usize;
        let len = self.rng.between(1, 9000) as usize;
        let data = self.rng.bytes(len);
        file.write_at(at as u64, &data).expect(&path);
        let bytes = self.files.get_mut(&ino).expect("a file");
        let end = bytes.len().max(at + len);
        bytes.resize(end, 0);
        bytes[at..at + len].copy_from_slice(&data);
    }

    fn truncate(&mut self) {
        let (_, _, path) = self.pick();
        let Some((ino, file)) = self.open(&path) else { return };
        let size = self.rng.below(40_000) as usize;
        file.set_len(size as u64).expect(&path);
        self.files.get_mut(&ino).expect("a file").resize(size, 0);
    }

    fn allocate(&mut self) {
        let (_, _, path) = self.pick();
        let Some((ino, file)) = self.open(&path) else { return };
        let bytes = self.files.get_mut(&ino).expect("a file");
        // A whole number of blocks and of clusters, as collapse and insert want.
        let unit = 4096;
        let at = self.rng.below(6) as usize * unit;
        let len = self.rng.between(1, 4) as usize * unit;
        let how =
            *self.rng.pick(&[Falloc::KeepSize, Falloc::Punch, Falloc::ZeroKeepSize, Falloc::Collapse, Falloc::Insert]);
        match file.allocate(how, at as u64, len as u64) {
            Ok(()) => {}
            // Maps of pointers cannot; and what lies at or behind the end cannot be taken out or pushed apart.
            Err(e) if e.is(Errno::OpNotSupp) || e.is(Errno::Inval) => return,
            Err(e) => panic!("{how:?} {path}: {e}"),
        }
        let end = bytes.len().min(at + len);
        match how {
            Falloc::Punch | Falloc::ZeroKeepSize if at < end => bytes[at..end].fill(0),
            Falloc::Collapse => drop(bytes.drain(at..at + len)),
            Falloc::Insert => drop(bytes.splice(at..at, std::iter::repeat_n(0, len))),
            _ => {}
        }
    }

    fn rename(&mut self) {
        let (from_dir, from, from_path) = self.pick();
        let (to_dir, to, to_path) = self.pick();
        let (Some(moved), target) = (self.names.get(&from_path).copied(), self.names.get(&to_path).copied()) else {
            return;
        };
        let exchange = target.is_some() && self.rng.one_in(2);
        self.stage.forget(&from_path);
        self.stage.forget(&to_path);
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.stage.fs.rename(&from_dir, from.as_bytes(), &to_dir, to.as_bytes(), flags).expect("rename");
        if target == Some(moved) {
            return;
        }
        self.renamed.extend([Some(moved), target].into_iter().flatten());
        if !exchange {
            self.drop_name(&to_path);
            self.names.remove(&from_path);
        } else if let Some(target) = target {
            self.names.insert(from_path, target);
        }
        self.names.insert(to_path, moved);
    }

    fn link(&mut self) {
        let (_, _, from) = self.pick();
        let (dir, name, to) = self.pick();
        let Some(ino) = self.names.get(&from).copied().filter(|_| !self.names.contains_key(&to)) else { return };
        self.stage.forget(&to);
        let node = self.stage.fs.resolve(&from, extant::Follow::No).expect("resolve");
        self.stage.fs.link(&node, &dir, name.as_bytes()).expect("link");
        self.names.insert(to, ino);
        self.renamed.insert(ino);
    }

    fn unlink(&mut self) {
        let (dir, name, path) = self.pick();
        if self.names.contains_key(&path) {
            self.stage.forget(&path);
            self.stage.fs.unlink(&dir, name.as_bytes()).expect("unlink");
            self.drop_name(&path);
        }
    }

    fn special(&mut self) {
        let (dir, _, _) = self.pick();
        let name = format!("s{}", self.rng.below(6));
        let what = match self.rng.below(4) {
            0 => New::Symlink(b"short"),
            1 => New::Symlink(&[b'y'; 300]),
            2 => New::Special(extant::FileType::Fifo, (0, 0)),
            _ => New::Dir,
        };
        match self.stage.fs.create(&Caller::default(), &dir, name.as_bytes(), 0o700, what) {
            Ok(_) => {}
            Err(e) if e.is(Errno::Exist) => {
                let gone = self.stage.fs.unlink(&dir, name.as_bytes());
                gone.or_else(|_| self.stage.fs.rmdir(&dir, name.as_bytes())).expect("removed");
            }
            Err(e) => panic!("{name}: {e}"),
        }
    }

    fn attribute(&mut self) {
        let (_, _, path) = self.pick();
        if !self.names.contains_key(&path) {
            return;
        }
        let node = self.stage.fs.resolve(&path, extant::Follow::No).expect("resolve");
        let len = *self.rng.pick(&[3usize, 90, 600]);
        let value = self.rng.bytes(len);
        let name = format!("user.a{}", self.rng.below(3));
        match self.stage.fs.set_xattr(&node, name.as_bytes(), &value, XattrMode::Any) {
            Ok(()) => {}
            Err(e) if e.is(Errno::NoSpc) => {}
            Err(e) => panic!("{name}: {e}"),
        }
    }

    /// The file gets other owners, whose usage changes where it is counted.
    fn own(&mut self) {
        let (_, _, path) = self.pick();
        if !self.names.contains_key(&path) {
            return;
        }
        let node = self.stage.fs.resolve(&path, extant::Follow::No).expect("resolve");
        let (uid, gid) = (Some(self.rng.below(40) as u32), Some(self.rng.below(3) as u32));
        self.stage.fs.set_attr(&node, &SetAttr { uid, gid, ..SetAttr::default() }).expect("chown");
        match self.stage.fs.set_project(&node, self.rng.below(3) as u32) {
            Err(e) if e.is(Errno::OpNotSupp) => {}
            other => other.expect("project"),
        }
    }

    fn sync(&mut self) {
        let (_, _, path) = self.pick();
        let Some(ino) = self.names.get(&path).copied() else { return };
        let node = self.stage.fs.resolve(&path, extant::Follow::No).expect("resolve");
        let datasync = self.rng.one_in(3) && !self.renamed.contains(&ino);
        self.stage.fs.sync_node(&node, datasync).expect("fsync");
        self.renamed.remove(&ino);
        let bytes = self.files[&ino].clone();
        let names: Vec<String> = self.names.iter().filter(|(_, i)| **i == ino).map(|(n, _)| n.clone()).collect();
        names.iter().for_each(|n| self.stage.promise(n, Some(bytes.clone())));
    }
}

fn mix(args: &[&str], seed: u64) -> Scene {
    record(args, |stage| {
        let root = stage.root();
        let mut dirs = vec![(String::new(), root.clone())];
        for name in ["a", "b"] {
            let dir = stage.fs.create(&Caller::default(), &root, name.as_bytes(), 0o755, New::Dir).expect("mkdir");
            dirs.push((format!("/{name}"), dir));
        }
        let mut mix = Mix {
            stage,
            rng: Rng::new(seed),
            dirs,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            renamed: BTreeSet::new(),
        };
        for _ in 0..STEPS {
            mix.step();
        }
    })
}

fn survive(kind: (&str, &[&str]), seed: u64, states: usize) -> usize {
    sweep_from(&format!("mix on {}, seed {seed}", kind.0), &mix(kind.1, seed), states, seed)
}

#[test]
fn mixes_survive_power_cuts() {
    for (i, kind) in KINDS.into_iter().enumerate() {
        survive(kind, i as u64 + 1, 24);
    }
}

/// Goes on for `EXTANT_CRASH_SECONDS` (600 unless told), from the seed `EXTANT_CRASH_SEED`.
#[test]
#[ignore = "runs for as long as it is told to"]
fn crash_campaign() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let end = Instant::now() + Duration::from_secs(number("EXTANT_CRASH_SECONDS", 600));
    let mut seed = number("EXTANT_CRASH_SEED", 1000);
    let (first, mut states) = (seed, 0);
    while Instant::now() < end {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        states += survive(kind, seed, 60);
        seed += 1;
    }
    println!("{states} states, seeds {first} to {}", seed - 1);
}
