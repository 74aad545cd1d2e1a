//! Files of an image, with their expected bytes.

use extant_engine::{
    Errno, Error, Falloc, File, Fs, NodeKind, OpenFlags, OpenOptions, RenameFlags,
};
use extant_hostile::deep::{self, Layout};
use extant_testkit::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use std::ops::Range;

/// An open file system and its files' expected content.
pub struct World {
    // Closed before the image is judged.
    pub fs: Option<Fs>,
    pub image: Image,
    options: OpenOptions,
    pub files: Vec<Vec<u8>>,
}

/// One change of a file.
#[derive(Debug, Clone)]
pub enum Step {
    Write { at: u64, data: Vec<u8>, direct: bool },
    Read { at: u64, len: usize, direct: bool },
    SetLen(u64),
    Allocate { how: Falloc, at: u64, len: u64 },
    Sync { data: bool },
}

impl World {
    pub fn new(image: Image, options: OpenOptions, files: usize) -> World {
        let fs = Fs::open(image.path(), &options).unwrap();
        let root = fs.root().unwrap();
        for i in 0..files {
            fs.create(&root, name(i).as_bytes(), 0o644, NodeKind::File).unwrap();
        }
        World { image, fs: Some(fs), options, files: vec![Vec::new(); files] }
    }

    /// Files with deep maps, which hold zeroes. Their nodes are not in memory.
    pub fn planted(image: Image, layout: &Layout, files: usize) -> World {
        std::fs::write(image.path(), layout.plant(&image.bytes())).unwrap();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let dir = fs.lookup(&root, deep::DIR.as_bytes()).unwrap();
        let moved = |i: usize| {
            fs.rename(
                (&dir, name(i).as_bytes()),
                (&root, name(i).as_bytes()),
                RenameFlags::NOREPLACE,
            )
            .unwrap();
            vec![0; fs.lookup(&root, name(i).as_bytes()).unwrap().attr().size as usize]
        };
        let files = (0..files).map(moved).collect();
        drop((root, dir));
        fs.unmount().unwrap();
        let options = OpenOptions::new();
        World { fs: Some(Fs::open(image.path(), &options).unwrap()), image, options, files }
    }

    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().unwrap()
    }

    pub fn open(&self, file: usize, direct: bool) -> File {
        let root = self.fs().root().unwrap();
        let node = self.fs().lookup(&root, name(file).as_bytes()).unwrap();
        self.fs().open_file(&node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
    }

    /// Applies a step to both, and compares the results.
    pub fn step(&mut self, file: usize, step: &Step) {
        match step {
            Step::Write { at, data, direct } => {
                // Half of the direct writes come from a client with a cache of its own.
                let open = self.open(file, *direct);
                let done = if *direct && data.len() % 2 == 0 {
                    self.fs().write_kept(open.node(), *at, data, false).unwrap()
                } else {
                    open.write_at(*at, data).unwrap()
                };
                assert_eq!(done, data.len());
                put(&mut self.files[file], *at as usize, data);
            }
            Step::Read { at, len, direct } => {
                let mut buf = vec![0xAA; *len];
                let n = self.open(file, *direct).read_at(*at, &mut buf).unwrap();
                let expected = part(&self.files[file], *at as usize, *len);
                assert_same(&buf[..n], expected, &format!("file {file} at {at}"));
            }
            Step::SetLen(len) => {
                self.open(file, false).set_len(*len).unwrap();
                self.files[file].resize(*len as usize, 0);
            }
            Step::Allocate { how, at, len } => {
                match self.open(file, false).allocate(*how, *at, *len) {
                    Ok(()) => allocate(&mut self.files[file], *how, *at as usize, *len as usize),
                    Err(e) if e.is(Errno::OpNotSupp) || e.is(Errno::Inval) => {}
                    Err(e) => panic!("{how:?} {at} {len}: {e}"),
                }
            }
            Step::Sync { data: true } => self.open(file, false).sync_data().unwrap(),
            Step::Sync { data: false } => self.open(file, false).sync().unwrap(),
        }
        assert_eq!(self.open(file, false).len(), self.files[file].len() as u64);
    }

    /// Reads everything back.
    pub fn verify(&self) {
        for (i, expected) in self.files.iter().enumerate() {
            assert_same(&read_all(&self.open(i, false)), expected, &format!("file {i}"));
            check_seek(&self.open(i, false), expected);
        }
    }

    /// Unmounts, has the image checked, and mounts it again.
    pub fn remount(&mut self) {
        self.close();
        self.fs = Some(Fs::open(self.image.path(), &self.options).unwrap());
    }

    pub fn close(&mut self) {
        self.fs.take().unwrap().unmount().unwrap();
        self.image.assert_clean();
    }

    /// The kernel reads the same.
    pub fn verify_by_kernel(&self) {
        let mount = Mount::new(self.image.path(), "ro");
        for (i, expected) in self.files.iter().enumerate() {
            let bytes = std::fs::read(mount.join(name(i))).unwrap();
            assert_same(&bytes, expected, &format!("file {i} by the kernel"));
        }
        mount.unmount();
    }
}

pub fn name(file: usize) -> String {
    format!("file{file}")
}

pub fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    let n = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

/// Bytes that SEEK_HOLE calls holes are zero.
fn check_seek(file: &File, expected: &[u8]) {
    let mut at = 0;
    while at < expected.len() {
        let data = match file.seek_data(at as u64) {
            Ok(data) => data as usize,
            Err(Error::Posix(Errno::Nxio)) => expected.len(),
            Err(e) => panic!("{e}"),
        };
        assert!(
            data >= at && expected[at..data].iter().all(|b| *b == 0),
            "a hole at {at}..{data} has data"
        );
        if data == expected.len() {
            return;
        }
        at = file.seek_hole(data as u64).unwrap() as usize;
        assert!(at > data);
    }
}

#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    if found == expected {
        return;
    }
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        let same = found[at..].iter().zip(&expected[at..]).position(|(a, b)| a == b);
        let end = at + same.unwrap_or(found.len() - at);
        panic!(
            "{what}: bytes {at}..{end} of {} differ: {:?} instead of {:?}",
            found.len(),
            &found[at..(at + 8).min(end)],
            &expected[at..(at + 8).min(end)]
        );
    }
}

pub fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    bytes.resize(bytes.len().max(at + data.len()), 0);
    bytes[at..at + data.len()].copy_from_slice(data);
}

fn part(bytes: &[u8], at: usize, len: usize) -> &[u8] {
    &bytes[at.min(bytes.len())..(at + len).min(bytes.len())]
}

pub fn allocate(bytes: &mut Vec<u8>, how: Falloc, at: usize, len: usize) {
    let end = at + len;
    let within = |bytes: &[u8]| -> Range<usize> { at.min(bytes.len())..end.min(bytes.len()) };
    match how {
        Falloc::Allocate => bytes.resize(bytes.len().max(end), 0),
        Falloc::KeepSize => {}
        Falloc::Punch | Falloc::ZeroKeepSize => {
            let range = within(bytes);
            bytes[range].fill(0);
        }
        Falloc::Zero => {
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].fill(0);
        }
        Falloc::Collapse => drop(bytes.drain(at..end)),
        Falloc::Insert => drop(bytes.splice(at..at, std::iter::repeat_n(0, len))),
        other => unreachable!("{other:?} has no model"),
    }
}

/// A random step on a file of `size` bytes that stays below `max`; `unit` is the cluster size.
pub fn random_step(rng: &mut Rng, size: u64, max: u64, unit: u64) -> Step {
    let at = rng.below(max * 3 / 4);
    let near = if rng.one_in(3) { size.min(max * 3 / 4) } else { at };
    let len =
        1 + if rng.one_in(4) { rng.below(max / 4) } else { rng.below(3 * unit).min(max / 4 - 1) };
    let direct = rng.one_in(2);
    match rng.below(20) {
        0..=7 => Step::Write { at: near, data: noise(rng, len as usize), direct },
        8..=10 => Step::Read { at, len: len as usize, direct },
        11 | 12 => Step::SetLen(if rng.one_in(4) { 0 } else { rng.below(max) }),
        13 => Step::Allocate { how: Falloc::Allocate, at, len },
        14 => Step::Allocate { how: Falloc::KeepSize, at, len },
        15 => Step::Allocate { how: Falloc::Punch, at, len },
        16 => Step::Allocate {
            how: if direct { Falloc::Zero } else { Falloc::ZeroKeepSize },
            at,
            len,
        },
        17 => Step::Allocate {
            how: Falloc::Collapse,
            at: at / unit * unit,
            len: len.next_multiple_of(unit),
        },
        18 if size + len.next_multiple_of(unit) < max => Step::Allocate {
            how: Falloc::Insert,
            at: at / unit * unit,
            len: len.next_multiple_of(unit),
        },
        _ => Step::Sync { data: direct },
    }
}

/// Bytes of which none is zero, so that holes show.
pub fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = rng.bytes(len);
    bytes.iter_mut().for_each(|b| *b |= 1);
    bytes
}
