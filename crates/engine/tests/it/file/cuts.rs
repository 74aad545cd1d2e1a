//! Power cuts while a file is cut, extended and written, with commits in between. Bytes that a
//! durable cut has removed are never there again, neither in the file nor behind its end, where
//! another program may extend it. Synced bytes that no later operation touches stay.

use extant_blocks::{BlockDevice, Event, RecordingDevice};
use extant_engine::{
    Errno, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, XattrMode,
};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::{Image, Memory, e2fsck};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const BYTES: u64 = 8 << 20;

/// Bytes of a file in the beginning, at most.
const LONGEST: u64 = 12_000;

/// Steps of a scene, fewer than there are values of a byte.
const STEPS: usize = 40;

/// States of a scene that Extant recovers, and how many of them other programs recover, too.
const STATES: usize = 60;
const JUDGED: usize = 2;

/// The attribute that holds the number of the last step.
const MARK: &[u8] = b"user.step";

const KINDS: [(&str, &[&str], bool); 5] = [
    ("ext4", &["-t", "ext4", "-b", "4096"], false),
    ("ext4 of 1 KiB", &["-t", "ext4", "-b", "1024"], false),
    ("ext3", &["-t", "ext3", "-b", "4096"], false),
    ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"], false),
    ("logged data", &["-t", "ext4", "-b", "1024"], true),
];

/// The effect of a step on the file.
#[derive(Clone, Debug)]
enum Effect {
    /// The bytes in front of it stay.
    Cut(u64),
    /// Zeroes follow the former end.
    Longer(u64),
    /// Bytes with the value of the step.
    Written(Range<u64>),
    Zeroed(Range<u64>),
    /// The content is durable.
    Synced,
    Nothing,
}

struct Scene {
    base: Vec<u8>,
    events: Vec<Event>,
    /// One for each step; step 0 made the file.
    effects: Vec<Effect>,
    options: OpenOptions,
}

/// The value of the bytes that a step writes.
fn value(step: usize) -> u8 {
    step as u8 + 1
}

fn open(fs: &Fs, node: &Node, direct: bool) -> File {
    fs.open_file(node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
}

/// Makes a change at random, mostly near the end of the file.
fn step(fs: &Fs, node: &Node, step: usize, rng: &mut Rng) -> Effect {
    let size = node.attr().size;
    let near = |rng: &mut Rng| size.saturating_sub(rng.between(1, 500));
    match rng.below(12) {
        0..=4 => {
            let to = if rng.one_in(4) { rng.below(size + 1) } else { near(rng) };
            open(fs, node, false).set_len(to).unwrap();
            Effect::Cut(to)
        }
        5 => {
            let to = size + rng.between(1, 3000);
            open(fs, node, false).set_len(to).unwrap();
            Effect::Longer(to)
        }
        6..=8 => {
            let at = *rng.pick(&[size, size.saturating_sub(100), size + 700, 0]);
            let data = vec![value(step); rng.between(1, 3000) as usize];
            let file = open(fs, node, rng.one_in(2));
            assert_eq!(file.write_at(at, &data).unwrap(), data.len());
            Effect::Written(at..at + data.len() as u64)
        }
        9 => allocate(&open(fs, node, false), near(rng), rng),
        10 => {
            open(fs, node, false).sync().unwrap();
            Effect::Synced
        }
        _ => {
            let name = format!("other{step}");
            let root = fs.root().unwrap();
            let other = fs.create(&root, name.as_bytes(), 0o600, NodeKind::File).unwrap();
            fs.sync_node(&other, false).unwrap();
            Effect::Nothing
        }
    }
}

fn allocate(file: &File, at: u64, rng: &mut Rng) -> Effect {
    let len = rng.between(1, 1500);
    let (how, effect) = match rng.below(4) {
        0 => (Falloc::Punch, Effect::Zeroed(at..at + len)),
        1 => (Falloc::ZeroKeepSize, Effect::Zeroed(at..at + len)),
        2 => (Falloc::KeepSize, Effect::Nothing),
        _ => (Falloc::Allocate, Effect::Longer(at + len)),
    };
    match file.allocate(how, at, len) {
        Ok(()) => effect,
        Err(e) => {
            assert!(e.is(Errno::OpNotSupp), "{e}");
            Effect::Nothing
        }
    }
}

fn record(args: &[&str], options: OpenOptions, seed: u64) -> Scene {
    let base = Image::mke2fs(BYTES, args).bytes();
    let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(&base))));
    device.inner().leave_unjudged("its states are judged once they are recovered");
    let fs = Fs::open_device(device.clone(), &options).unwrap();
    let mut rng = Rng::new(seed);
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"f", 0o600, NodeKind::File).unwrap();
    let first = vec![value(0); rng.between(2000, LONGEST) as usize];
    open(&fs, &node, false).write_at(0, &first).unwrap();
    let mut effects = vec![Effect::Written(0..first.len() as u64)];
    for nr in 0..STEPS {
        if nr > 0 {
            effects.push(step(&fs, &node, nr, &mut rng));
        }
        // A state with this number has the step.
        fs.set_xattr(&node, MARK, &[nr as u8], XattrMode::Any).unwrap();
        if nr == 0 {
            fs.sync().unwrap();
        }
        device.mark(nr.to_string());
    }
    drop((node, root));
    fs.crash();
    Scene { base, events: device.log(), effects, options }
}

/// Returns the device after a cut behind `cut` events: all before the last flush, and each later
/// one, or each with an even chance.
fn state(scene: &Scene, cut: usize, rng: &mut Rng) -> Vec<u8> {
    let device = Memory::from_bytes(&scene.base);
    device.leave_unjudged("it is recovered before it is judged");
    let events = &scene.events[..cut];
    let flushed = events.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
    let all = rng.one_in(3);
    for (nr, event) in events.iter().enumerate() {
        if nr < flushed || all || rng.one_in(2) {
            event.apply(&device).unwrap();
        }
    }
    device.to_vec()
}

/// A recovered file.
struct Found {
    /// The last step that the state has.
    step: usize,
    bytes: Vec<u8>,
    /// The bytes of the device behind the end, up to the end of the block.
    behind: Vec<u8>,
}

fn recover(scene: &Scene, state: &[u8]) -> Found {
    let device = Arc::new(Memory::from_bytes(state));
    let fs = Fs::open_device(device.clone(), &scene.options).unwrap();
    let node = fs.resolve("/f", Follow::No).unwrap();
    let step = usize::from(fs.get_xattr(&node, MARK).unwrap()[0]);
    let file = fs.open_file(&node, OpenFlags::default()).unwrap();
    let bytes = super::model::read_all(&file);
    let (size, block) = (bytes.len() as u64, u64::from(fs.superblock().block_size()));
    let mut last = None;
    file.extents(size / block * block, block, |extent| {
        last = (!extent.flags.unwritten).then_some(extent.physical + size - extent.logical);
        true
    })
    .unwrap();
    drop((file, node));
    fs.unmount().unwrap();
    let mut behind = vec![0; (size.next_multiple_of(block) - size) as usize];
    if let Some(at) = last {
        device.read_exact_at(&mut behind, at).unwrap();
    }
    Found { step, bytes, behind }
}

/// Fails if a byte was removed by a cut that the state has.
fn assert_no_old_bytes(scene: &Scene, step: usize, bytes: &[u8], what: &str) {
    for (at, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        let writer = usize::from(*byte - 1);
        let cut = (writer + 1..=step)
            .find(|nr| matches!(scene.effects[*nr], Effect::Cut(size) if size <= at as u64));
        assert!(
            cut.is_none(),
            "{what}: byte {at} was written by step {writer} and cut by step {cut:?}"
        );
    }
}

/// Returns whether an effect may change the byte at `at`.
fn touches(effect: &Effect, at: u64) -> bool {
    match effect {
        Effect::Cut(size) => *size <= at,
        Effect::Written(range) | Effect::Zeroed(range) => range.contains(&at),
        Effect::Longer(_) | Effect::Synced | Effect::Nothing => false,
    }
}

/// Fails if a synced byte is lost that no step since, up to the one under way, has touched.
fn assert_synced_bytes(scene: &Scene, done: usize, found: &Found, what: &str) {
    let synced = (0..=done).rev().find(|nr| matches!(scene.effects[*nr], Effect::Synced));
    let mut expected = Vec::new();
    for (nr, effect) in scene.effects.iter().enumerate().take(synced.unwrap_or(0) + 1) {
        match effect {
            Effect::Cut(size) => expected.truncate(*size as usize),
            Effect::Longer(size) => expected.resize(expected.len().max(*size as usize), 0),
            Effect::Written(range) => {
                expected.resize(expected.len().max(range.end as usize), 0);
                expected[range.start as usize..range.end as usize].fill(value(nr));
            }
            Effect::Zeroed(range) => {
                let end = expected.len().min(range.end as usize);
                expected[(range.start as usize).min(end)..end].fill(0);
            }
            Effect::Synced | Effect::Nothing => {}
        }
    }
    let since = &scene.effects[synced.unwrap_or(0) + 1..scene.effects.len().min(done + 2)];
    for (at, byte) in expected.iter().enumerate() {
        if !since.iter().any(|effect| touches(effect, at as u64)) {
            assert_eq!(found.bytes.get(at), Some(byte), "{what}: synced byte {at}");
        }
    }
}

/// Returns the file's bytes after an extension by the kernel.
fn grown_by_the_kernel(image: &Image) -> Vec<u8> {
    let mount = Mount::new(image.path(), "");
    let file = std::fs::File::options().read(true).write(true).open(mount.join("f")).unwrap();
    let size = file.metadata().unwrap().len() + 5000;
    file.set_len(size).unwrap();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    drop(file);
    mount.unmount();
    bytes
}

fn cut_power(kind: &str, args: &[&str], options: OpenOptions, seed: u64) {
    let scene = record(args, options, seed);
    let mut rng = Rng::new(seed);
    let marked = |event: &Event| matches!(event, Event::Mark(_));
    let first = scene.events.iter().position(marked).unwrap() + 1;
    for nr in 0..STATES {
        let left = scene.events.len() - first;
        let cut = if nr == 0 { left } else { rng.below(left as u64 + 1) as usize } + first;
        let done: usize = match scene.events[..cut].iter().rev().find(|event| marked(event)) {
            Some(Event::Mark(label)) => label.parse().unwrap(),
            _ => 0,
        };
        let what = format!("{kind}, seed {seed}, cut {cut} behind step {done}");
        let state = state(&scene, cut, &mut rng);
        let found = recover(&scene, &state);
        let with_behind = [&found.bytes[..], &found.behind].concat();
        assert_no_old_bytes(&scene, found.step, &with_behind, &what);
        assert_synced_bytes(&scene, done, &found, &what);
        if nr < JUDGED {
            let images = [Image::holding(&state), Image::holding(&state)];
            e2fsck::recover(images[1].path()).assert_clean();
            for image in images {
                let bytes = grown_by_the_kernel(&image);
                assert_no_old_bytes(&scene, found.step, &bytes, &format!("{what}, the kernel"));
            }
        }
    }
}

#[test]
fn old_bytes_stay_away_behind_cuts() {
    for (kind, args, logged) in KINDS {
        for seed in 1..=4 {
            let options = OpenOptions::new().log_data(logged).memory(64 << 20);
            cut_power(kind, args, options, seed);
        }
    }
}

/// Commits begin at any moment, and meet the writes of the next transaction.
#[test]
fn old_bytes_stay_away_behind_cuts_during_commits() {
    for (kind, args, logged) in KINDS {
        for seed in 11..=14 {
            let options = OpenOptions::new()
                .log_data(logged)
                .memory(64 << 20)
                .commit_interval(std::time::Duration::from_micros(300));
            cut_power(kind, args, options, seed);
        }
    }
}
