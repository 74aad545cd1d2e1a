//! Power cuts while files are written: synced bytes are there, other bytes are old, new or zero,
//! and no byte belongs to another file.

use super::model::{Step, allocate, put, random_step};
use extant_blocks::{BlockDevice, Event, RecordingDevice};
use extant_engine::{Errno, Falloc, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::Memory;
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Image, e2fsck};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 8 << 20;
const FILES: usize = 3;
const STEPS: usize = 40;
const STATES: usize = 40;

/// One file's content after a step, and whether that step made it durable.
struct Version {
    step: usize,
    bytes: Vec<u8>,
    synced: bool,
}

struct Scene {
    base: Vec<u8>,
    events: Vec<Event>,
    history: Vec<Vec<Version>>,
    options: OpenOptions,
}

/// A device with slow writes, so that commits overlap with them.
#[derive(Debug)]
struct Slow(Arc<RecordingDevice<Arc<Memory>>>);

impl BlockDevice for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        std::thread::sleep(Duration::from_micros(400));
        self.0.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        std::thread::sleep(Duration::from_micros(400));
        self.0.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

fn record(set: &FeatureSet, options: OpenOptions, seed: u64) -> Scene {
    let base = dirty_image(set, &options);
    let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(&base))));
    let fs = Fs::open_device(Arc::new(Slow(device.clone())), &options).unwrap();
    let root = fs.root().unwrap();
    let nodes: Vec<_> = (0..FILES)
        .map(|i| fs.create(&root, format!("f{i}").as_bytes(), 0o644, NodeKind::File).unwrap())
        .collect();
    fs.sync().unwrap();
    let mut history: Vec<Vec<Version>> =
        (0..FILES).map(|_| vec![Version { step: 0, bytes: Vec::new(), synced: true }]).collect();
    device.mark("0");
    let mut rng = Rng::new(seed);
    for step in 1..=STEPS {
        let f = rng.below(FILES as u64) as usize;
        let mut bytes = history[f].last().unwrap().bytes.clone();
        let what = random_step(&mut rng, bytes.len() as u64, 200_000, set.block_size.into());
        let open = |direct| {
            fs.open_file(&nodes[f], OpenFlags { write: true, direct, ..Default::default() })
                .unwrap()
        };
        let mut synced = false;
        match what {
            Step::Write { at, mut data, direct } => {
                data.iter_mut().for_each(|b| *b = tag(f) | (*b & 15));
                assert_eq!(open(direct).write_at(at, &data).unwrap(), data.len());
                put(&mut bytes, at as usize, &data);
            }
            Step::SetLen(len) => {
                open(false).set_len(len).unwrap();
                bytes.resize(len as usize, 0);
            }
            Step::Allocate { how: Falloc::Collapse | Falloc::Insert, .. } | Step::Read { .. } => {
                fs.sync().unwrap()
            }
            Step::Allocate { how, at, len } => match open(false).allocate(how, at, len) {
                Ok(()) => allocate(&mut bytes, how, at as usize, len as usize),
                Err(e) => assert!(e.is(Errno::OpNotSupp), "{e}"),
            },
            Step::Sync { data } => {
                if data {
                    open(false).sync_data().unwrap()
                } else {
                    open(false).sync().unwrap()
                }
                synced = true;
            }
        }
        history[f].push(Version { step, bytes, synced });
        device.mark(step.to_string());
    }
    fs.crash();
    Scene { base, events: device.log(), history, options }
}

/// Returns the high bits of all bytes of one file.
fn tag(file: usize) -> u8 {
    (file as u8 + 1) << 4
}

/// Makes an image whose free blocks hold bytes of a file that was removed.
fn dirty_image(set: &FeatureSet, options: &OpenOptions) -> Vec<u8> {
    let image = set.make_sized(BYTES);
    let fs = Fs::open(image.path(), options).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"junk", 0o600, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    let mut at = 0;
    while let Ok(n @ 1..) = file.write_at(at, &[0xEE; 50_000]) {
        at += n as u64;
    }
    file.sync().unwrap();
    drop(file);
    fs.unlink(&root, b"junk").unwrap();
    fs.unmount().unwrap();
    image.bytes()
}

/// Returns the device after a cut behind `cut` events, with any subset of the writes since the last
/// flush.
fn state(scene: &Scene, cut: usize, rng: &mut Rng) -> Memory {
    let device = Memory::from_bytes(&scene.base);
    let flushed = scene.events[..cut].iter().rposition(|e| matches!(e, Event::Flush)).unwrap_or(0);
    let (all, none) = (rng.one_in(3), rng.one_in(6));
    for (i, event) in scene.events[..cut].iter().enumerate() {
        if i < flushed || all || (!none && rng.one_in(2)) {
            event.apply(&device).unwrap();
        }
    }
    device
}

/// The last step that had ended before the cut.
fn last_step(scene: &Scene, cut: usize) -> Option<usize> {
    scene.events[..cut].iter().rev().find_map(|e| match e {
        Event::Mark(label) => Some(label.parse().unwrap()),
        _ => None,
    })
}

fn check_file(fs: &Fs, f: usize, versions: &[Version], done: usize, what: &str) {
    let node = fs.resolve(format!("/f{f}"), Follow::No).unwrap();
    let file = fs.open_file(&node, OpenFlags::default()).unwrap();
    let found = super::model::read_all(&file);
    let since = versions.iter().rposition(|v| v.synced && v.step <= done).unwrap_or(0);
    let possible: Vec<&[u8]> =
        versions[since..].iter().take_while(|v| v.step <= done + 1).map(|v| &v.bytes[..]).collect();
    let (least, most) = (
        possible.iter().map(|b| b.len()).min().unwrap(),
        possible.iter().map(|b| b.len()).max().unwrap(),
    );
    assert!(
        (least..=most).contains(&found.len()),
        "{what}: f{f} has {} bytes, not {least} to {most}",
        found.len()
    );
    for (p, byte) in found.iter().enumerate() {
        let first = possible[0].get(p);
        let known = first.filter(|_| possible.iter().all(|b| b.get(p) == first));
        match known {
            Some(known) => assert_eq!(byte, known, "{what}: f{f} byte {p} of {}", found.len()),
            None => assert!(
                *byte == 0 || byte & 0xF0 == tag(f),
                "{what}: f{f} byte {p} is {byte:#x}, another's"
            ),
        }
    }
}

fn cut(set: &str, options: OpenOptions, seed: u64) {
    let scene = record(FeatureSet::named(set), options, seed);
    let mut rng = Rng::new(seed);
    let first = scene.events.iter().position(|e| matches!(e, Event::Mark(_))).unwrap() + 1;
    for i in 0..STATES {
        let at = first + rng.below((scene.events.len() - first) as u64 + 1) as usize;
        let device = state(&scene, at, &mut rng);
        let done = last_step(&scene, at).unwrap();
        let what = format!(
            "{set}, seed {seed}, state {i}, cut {at} of {}, step {done}",
            scene.events.len()
        );
        if i % 4 == 0 {
            let image = Image::blank(BYTES);
            std::fs::write(image.path(), device.to_vec()).unwrap();
            let verdict = e2fsck::recover(image.path());
            assert!(verdict.is_clean(), "{what}: {verdict:?}");
        }
        let fs = Fs::open_device(Arc::new(device), &scene.options)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        for (f, versions) in scene.history.iter().enumerate() {
            check_file(&fs, f, versions, done, &what);
        }
        fs.unmount().unwrap();
    }
}

/// Commits and writeback without pause, so that cuts fall between any two of their steps.
fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).commit_interval(Duration::from_micros(300))
}

#[test]
fn ordered_data() {
    for (i, set) in
        ["default", "1k", "orphan_file", "ext3_1k", "bigalloc_1k", "inline_data"].iter().enumerate()
    {
        cut(set, options(), 40 + i as u64);
    }
}

#[test]
fn logged_data() {
    for set in ["1k", "ext3", "inline_data"] {
        cut(set, options().log_data(true), 50);
    }
}

/// Many seeds, from `EXTANT_SEED` on.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let first = number("EXTANT_SEED", 1);
    for seed in first..first + number("EXTANT_SEEDS", 10) {
        for set in [
            "default",
            "1k",
            "orphan_file",
            "ext3_1k",
            "bigalloc_1k",
            "inline_data",
            "no_csum",
            "2k",
        ] {
            for log_data in [false, true] {
                cut(set, options().log_data(log_data), seed);
            }
        }
    }
}
