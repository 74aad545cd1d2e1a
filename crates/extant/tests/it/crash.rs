//! Power cuts: every operation family over a recording device, cut at every write and with subsets of the writes since the
//! last flush. Each state is recovered by Extant and, on a copy, by e2fsck; what had been fsynced is there; then it is
//! written to again and checked again.

use extant::{Caller, Follow, Fs, New, Node, OpenFlags, OpenOptions, RenameFlags, XattrMode};
use extant_blocks::{Event, MemDevice, RecordingDevice};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the images: small, since each state is checked from a copy.
const BYTES: u64 = 8 << 20;

/// States tried for one workload in `make test`.
const STATES: usize = 60;

/// Marks the moment after which a path holds these bytes (or is gone), durably, until the next mark of that path.
type Durable = BTreeMap<String, Option<Vec<u8>>>;

pub(crate) struct Scene {
    base: Vec<u8>,
    events: Vec<Event>,
    /// What was durable after each mark.
    promises: Vec<Durable>,
}

/// A file system that is being worked on, with what it has promised.
pub(crate) struct Stage {
    pub(crate) fs: Fs,
    device: Arc<RecordingDevice<Arc<MemDevice>>>,
    durable: Durable,
    promises: Vec<Durable>,
}

impl Stage {
    pub(crate) fn root(&self) -> Node {
        self.fs.root().expect("root")
    }

    fn write(&self, dir: &Node, name: &str, offset: u64, data: &[u8]) -> Node {
        let node = match self.fs.lookup(dir, name.as_bytes()) {
            Ok(node) => node,
            Err(_) => self.fs.create(&Caller::default(), dir, name.as_bytes(), 0o644, New::File).expect(name),
        };
        let file = self.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
        file.write_at(offset, data).expect(name);
        node
    }

    /// fsync; from here on `path` holds `data`.
    fn sync_file(&mut self, node: &Node, path: &str, data: &[u8]) {
        self.fs.sync_node(node, false).expect("fsync");
        self.promise(path, Some(data.to_vec()));
    }

    /// `path` may change from here on: nothing is promised of it.
    pub(crate) fn forget(&mut self, path: &str) {
        self.durable.remove(path);
        self.mark();
    }

    pub(crate) fn promise(&mut self, path: &str, data: Option<Vec<u8>>) {
        self.durable.insert(path.into(), data);
        self.mark();
    }

    fn mark(&mut self) {
        self.device.mark(self.promises.len().to_string());
        self.promises.push(self.durable.clone());
    }
}

pub(crate) fn record(args: &[&str], work: impl FnOnce(&mut Stage)) -> Scene {
    let image = Image::mke2fs(BYTES, args);
    let base = image.bytes();
    let device = RecordingDevice::new(Arc::new(MemDevice::from_bytes(&base)));
    let device = Arc::new(device);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().memory(64 << 20)).expect("open");
    let mut stage = Stage { fs, device: device.clone(), durable: Durable::new(), promises: Vec::new() };
    stage.mark();
    work(&mut stage);
    let promises = std::mem::take(&mut stage.promises);
    stage.fs.crash();
    Scene { base, events: device.log(), promises }
}

/// The device after a cut behind `cut` events: all flushed writes, and of those since the last flush the ones that `keep` names.
fn state(scene: &Scene, cut: usize, keep: impl Fn(usize) -> bool) -> MemDevice {
    let device = MemDevice::from_bytes(&scene.base);
    let flushed = scene.events[..cut].iter().rposition(|e| matches!(e, Event::Flush)).unwrap_or(0);
    for (i, event) in scene.events[..cut].iter().enumerate() {
        if i < flushed || keep(i) {
            event.apply(&device).expect("memory");
        }
    }
    device
}

fn promised(scene: &Scene, cut: usize) -> &Durable {
    let last = scene.events[..cut].iter().rev().find_map(|e| match e {
        Event::Mark(label) => label.parse::<usize>().ok(),
        _ => None,
    });
    &scene.promises[last.unwrap_or(0)]
}

fn check_promises(fs: &Fs, durable: &Durable, what: &str) {
    for (path, expected) in durable {
        let found = fs.resolve(path, Follow::No).ok().map(|node| {
            let file = fs.open_file(&node, OpenFlags::default()).expect("a file");
            let mut data = vec![0; file.len() as usize];
            file.read_at(0, &mut data).expect("readable");
            data
        });
        assert!(
            &found == expected,
            "{what}: {path} is not as it was when it was made durable: {}",
            difference(&found, expected)
        );
    }
}

fn difference(found: &Option<Vec<u8>>, expected: &Option<Vec<u8>>) -> String {
    let (Some(found), Some(expected)) = (found, expected) else { return format!("it is there: {}", found.is_some()) };
    let at = found.iter().zip(expected).position(|(f, e)| f != e);
    format!("{} bytes instead of {}, first difference at {at:?}", found.len(), expected.len())
}

fn save(bytes: &[u8]) -> Image {
    let image = Image::blank(BYTES);
    std::fs::write(image.path(), bytes).expect("an image file");
    image
}

/// Recovers one state in every way, and writes to it again.
fn examine(device: MemDevice, durable: &Durable, what: &str, with_kernel: bool) {
    let torn = save(&device.to_vec());
    let verdict = e2fsck::recover(torn.path());
    assert!(verdict.is_clean(), "{what}: e2fsck: {verdict:?}");
    let device = Arc::new(device);
    let fs =
        Fs::open_device(device.clone(), &OpenOptions::new().memory(64 << 20)).unwrap_or_else(|e| panic!("{what}: {e}"));
    check_promises(&fs, durable, what);
    let root = fs.root().expect("root");
    let node =
        fs.create(&Caller::default(), &root, b"afterwards", 0o644, New::File).unwrap_or_else(|e| panic!("{what}: {e}"));
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    file.write_at(0, &[7; 10_000]).expect("write");
    drop(file);
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    let after = save(&device.to_vec());
    let verdict = e2fsck::check(after.path());
    assert!(verdict.is_clean(), "{what}: after recovery: {verdict:?}");
    if with_kernel {
        let mount = Mount::new(after.path(), "ro");
        assert_eq!(std::fs::read(mount.join("afterwards")).expect("the kernel reads").len(), 10_000, "{what}");
    }
}

/// Cuts at sampled events, whole and with random subsets of what was not flushed.
pub(crate) fn sweep(name: &str, scene: &Scene, states: usize) {
    sweep_from(name, scene, states, 0x5eed);
}

/// As [`sweep`]; `seed` decides which cuts and which writes.
pub(crate) fn sweep_from(name: &str, scene: &Scene, states: usize, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let writes: Vec<usize> =
        (1..=scene.events.len()).filter(|&i| scene.events[i - 1].changes() || i == scene.events.len()).collect();
    let step = (writes.len() * 2).div_ceil(states).max(1);
    let mut examined = 0;
    let first = rng.below(step as u64) as usize;
    for &cut in writes.iter().skip(first).step_by(step) {
        let durable = promised(scene, cut);
        examine(state(scene, cut, |_| true), durable, &format!("{name}: cut at {cut}"), examined % 16 == 0);
        let chosen: Vec<bool> = (0..cut).map(|_| rng.one_in(2)).collect();
        examine(state(scene, cut, |i| chosen[i]), durable, &format!("{name}: subset at {cut}"), false);
        examined += 2;
    }
    println!("{name}: {examined} states of {} events", scene.events.len());
    assert!(examined > 4, "{name}: too few states to say anything");
    examined
}

pub(crate) const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed", "-J", "size=1"];
pub(crate) const INLINE: &[&str] =
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,inline_data,ea_inode", "-J", "size=1"];
pub(crate) const EXT3: &[&str] = &["-t", "ext3", "-b", "1024", "-J", "size=1"];

fn files(stage: &mut Stage) {
    let root = stage.root();
    for i in 0..12u64 {
        let name = format!("f{i}");
        let data = Rng::new(i).bytes((i * 1700 + 10) as usize);
        let node = stage.write(&root, &name, 0, &data);
        if i % 2 == 0 {
            stage.sync_file(&node, &format!("/{name}"), &data);
        }
    }
    for i in (0..12).step_by(4) {
        stage.forget(&format!("/f{i}"));
        stage.fs.unlink(&root, format!("f{i}").as_bytes()).expect("unlink");
        let other = stage.fs.lookup(&root, b"f2").expect("f2");
        stage.fs.sync_node(&other, false).expect("fsync");
    }
}

fn names(stage: &mut Stage) {
    let root = stage.root();
    let who = Caller::default();
    let a = stage.fs.create(&who, &root, b"a", 0o755, New::Dir).expect("a");
    let b = stage.fs.create(&who, &root, b"b", 0o755, New::Dir).expect("b");
    for i in 0..40 {
        let data = format!("file {i}").into_bytes();
        let name = format!("a-rather-long-name-that-fills-blocks-{i}");
        let node = stage.write(&a, &name, 0, &data);
        if i % 8 == 0 {
            stage.sync_file(&node, &format!("/a/{name}"), &data);
            stage.forget(&format!("/a/{name}"));
            stage.fs.rename(&a, name.as_bytes(), &b, name.as_bytes(), RenameFlags::empty()).expect("rename");
            stage.sync_file(&node, &format!("/b/{name}"), &data);
        }
    }
    stage.fs.rename(&root, b"b", &a, b"inner", RenameFlags::empty()).map_err(|e| panic!("{e}")).ok();
    stage.durable.clear();
    stage.mark();
    stage.fs.sync().expect("sync");
}

fn sizes(stage: &mut Stage) {
    let root = stage.root();
    let data = Rng::new(9).bytes(200_000);
    let node = stage.write(&root, "big", 0, &data);
    stage.sync_file(&node, "/big", &data);
    stage.forget("/big");
    let file = stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    file.set_len(70_001).expect("truncate");
    stage.sync_file(&node, "/big", &data[..70_001]);
    stage.forget("/big");
    file.write_at(500_000, &data[..3000]).expect("sparse write");
    let mut whole = data[..70_001].to_vec();
    whole.resize(500_000, 0);
    whole.extend_from_slice(&data[..3000]);
    stage.sync_file(&node, "/big", &whole);
    stage.forget("/big");
    file.allocate(extant::Falloc::Punch, 10_000, 30_000).expect("punch");
    whole[10_000..40_000].fill(0);
    stage.sync_file(&node, "/big", &whole);
    drop(file);
    stage.forget("/big");
    stage.fs.unlink(&root, b"big").expect("unlink");
    stage.fs.sync().expect("sync");
    stage.promise("/big", None);
}

/// A file of hundreds of extents: its tree splits, loses parts, is shifted and shrinks.
fn maps(stage: &mut Stage) {
    const BLOCK: usize = 1024;
    let root = stage.root();
    let mut whole = vec![0; 1200 * BLOCK];
    let node = stage.write(&root, "map", 0, &[]);
    let file = stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    for part in 0..3usize {
        for n in (0..400usize).rev().map(|n| (n * 3 + part) * BLOCK).filter(|at| at / BLOCK % 2 == part % 2) {
            let data = Rng::new(n as u64).bytes(BLOCK);
            file.write_at(n as u64, &data).expect("write");
            whole[n..n + BLOCK].copy_from_slice(&data);
        }
        whole.truncate(file.len() as usize);
        stage.sync_file(&node, "/map", &whole);
        stage.forget("/map");
        whole.resize(1200 * BLOCK, 0);
    }
    whole.truncate(file.len() as usize);
    for (how, at, len) in
        [(extant::Falloc::Punch, 100, 300), (extant::Falloc::Collapse, 50, 60), (extant::Falloc::Insert, 7, 90)]
    {
        file.allocate(how, (at * BLOCK) as u64, (len * BLOCK) as u64).expect("fallocate");
        match how {
            extant::Falloc::Punch => whole[at * BLOCK..(at + len) * BLOCK].fill(0),
            extant::Falloc::Collapse => drop(whole.drain(at * BLOCK..(at + len) * BLOCK)),
            _ => drop(whole.splice(at * BLOCK..at * BLOCK, vec![0; len * BLOCK])),
        }
        stage.sync_file(&node, "/map", &whole);
        stage.forget("/map");
    }
    file.set_len(30 * BLOCK as u64).expect("truncate");
    stage.sync_file(&node, "/map", &whole[..30 * BLOCK]);
}

/// A directory grows from one kind into the next and is emptied again; others come and go.
fn directories(stage: &mut Stage) {
    let root = stage.root();
    let who = Caller::default();
    let dir = stage.fs.create(&who, &root, b"d", 0o755, New::Dir).expect("d");
    let file = stage.write(&root, "f", 0, b"linked");
    let name = |n: u32| format!("{}-{n}", "x".repeat(40 + n as usize % 150)).into_bytes();
    for n in 0..300 {
        stage.fs.link(&file, &dir, &name(n)).expect("link");
        if n % 3 == 0 {
            stage.fs.unlink(&dir, &name(n / 2)).expect("unlink");
        }
        let other = format!("sub{}", n % 7).into_bytes();
        match n % 14 < 7 {
            true => drop(stage.fs.create(&who, &root, &other, 0o755, New::Dir).expect("mkdir")),
            false => stage.fs.rmdir(&root, &other).expect("rmdir"),
        }
        if n % 16 == 0 {
            stage.fs.sync().expect("sync");
        }
    }
}

/// Attributes move between inode, block and inodes of their own, and blocks come to be shared and copied.
fn attributes(stage: &mut Stage) {
    let root = stage.root();
    let nodes: Vec<Node> = (0..6).map(|n| stage.write(&root, &format!("f{n}"), 0, b"content")).collect();
    let mut rng = Rng::new(3);
    for round in 0..120 {
        let node = rng.pick(&nodes);
        let name = *rng.pick(&[&b"user.a"[..], b"user.b", b"trusted.c"]);
        let len = *rng.pick(&[10, 70, 400, 900, 3000]);
        let value = vec![rng.below(2) as u8; len];
        match rng.one_in(4) {
            true => drop(stage.fs.remove_xattr(node, name)),
            false => stage.fs.set_xattr(node, name, &value, XattrMode::Any).expect("set"),
        }
        if round % 10 == 0 {
            stage.fs.sync_node(node, false).expect("fsync");
        }
    }
    for n in 0..6 {
        stage.fs.unlink(&root, format!("f{n}").as_bytes()).expect("unlink");
    }
}

#[test]
fn directories_survive_power_cuts() {
    sweep("directories", &record(EXT4, directories), STATES);
    sweep("directories that begin inline", &record(INLINE, directories), STATES / 2);
    sweep("directories on ext3", &record(EXT3, directories), STATES / 2);
}

#[test]
fn attributes_survive_power_cuts() {
    sweep("attributes", &record(INLINE, attributes), STATES);
}

#[test]
fn maps_survive_power_cuts() {
    sweep("maps", &record(EXT4, maps), STATES);
}

#[test]
fn files_survive_power_cuts() {
    sweep("files", &record(EXT4, files), STATES);
}

#[test]
fn files_survive_power_cuts_on_ext3() {
    sweep("files on ext3", &record(EXT3, files), STATES);
}

#[test]
fn names_survive_power_cuts() {
    sweep("names", &record(EXT4, names), STATES);
}

#[test]
fn sizes_survive_power_cuts() {
    sweep("sizes", &record(EXT4, sizes), STATES);
}

#[test]
fn open_unlinked_files_are_freed_after_a_cut() {
    let scene = record(EXT4, |stage| {
        let root = stage.root();
        let node = stage.write(&root, "gone", 0, &[1; 50_000]);
        let held = stage.fs.open_file(&node, OpenFlags::default()).expect("open");
        stage.fs.unlink(&root, b"gone").expect("unlink");
        stage.fs.sync().expect("sync");
        stage.promise("/gone", None);
        std::mem::forget(held);
    });
    sweep("open unlinked", &scene, STATES / 2);
}
