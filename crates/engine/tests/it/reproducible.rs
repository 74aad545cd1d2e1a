//! With a seed, equal calls give equal bytes, independently of memory, load and time.

use extant_engine::{
    Clock, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags, Timestamp, XattrMode,
};
use extant_testkit::image::FeatureSet;
use extant_testkit::rng::Rng;
use extant_testkit::{Ending, Image, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The shortest interval that options take.
const INTERVAL: Duration = Duration::from_millis(10);

/// A clock that stands still.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { sec: 1_750_000_000, nsec: 0 }
    }
}

/// The circumstances of a run, on which no byte may depend.
#[derive(Clone, Copy)]
struct Circumstances {
    memory: u64,
    /// Shards of structures that threads share.
    shards: usize,
    /// Threads that take the processor away.
    thieves: u32,
    /// A pause longer than the commit interval follows after this number of steps.
    pause_every: u64,
}

fn create(fs: &Fs, dir: &Node, name: &str, bytes: &[u8], at: u64) {
    let node = fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap();
    for (n, piece) in bytes.chunks(100_000).enumerate() {
        file.write_at(at + n as u64 * 100_000, piece).unwrap();
    }
    if at == 0 && bytes.len() < 3500 && bytes.first().is_some_and(|byte| byte % 8 == 0) {
        file.sync().unwrap();
    }
}

/// One step: a change of some kind that depends on `n` only.
fn step(fs: &Fs, n: u64, held: &mut Vec<extant_engine::File>) {
    let mut rng = Rng::new(n);
    let root = fs.root().unwrap();
    let dir = fs.resolve(format!("/dir{}", n % 5), Follow::No).unwrap();
    let name = |n: u64| format!("file with a name of some length {n}");
    match n % 8 {
        0 | 1 => (0..20).for_each(|k| create(fs, &dir, &name(n * 100 + k), &rng.bytes(3000), 0)),
        2 => create(fs, &dir, &name(n), &rng.bytes(6_000_000), rng.below(3) * 8192),
        3 => {
            create(fs, &root, &name(n), &rng.bytes(200_000), 0);
            let node = fs.lookup(&root, name(n).as_bytes()).unwrap();
            fs.set_xattr(&node, b"user.long", &rng.bytes(700), XattrMode::Any).unwrap();
            held.push(
                fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap(),
            );
            fs.unlink(&root, name(n).as_bytes()).unwrap();
        }
        4 => held.clear(),
        5 => {
            for entry in
                fs.read_dir(&dir).unwrap().iter().filter(|entry| entry.name.len() > 2).step_by(2)
            {
                fs.unlink(&dir, &entry.name).unwrap();
            }
        }
        6 => {
            create(fs, &dir, &name(n), &rng.bytes(400_000), 0);
            let node = fs.lookup(&dir, name(n).as_bytes()).unwrap();
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap();
            file.set_len(rng.below(300_000)).unwrap();
            let flags = RenameFlags::empty();
            fs.rename((&dir, name(n).as_bytes()), (&root, name(n).as_bytes()), flags).unwrap();
        }
        _ if n % 32 == 31 => fs.sync().unwrap(),
        _ => {}
    }
}

/// The bytes of the image after all steps.
fn run(image: &Image, circumstances: Circumstances) -> Vec<u8> {
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let options = OpenOptions::new().seed(7).clock(Arc::new(Still)).commit_interval(INTERVAL);
    let options = options
        .memory(circumstances.memory)
        .shards(circumstances.shards)
        .discard(true)
        .zero_tables(true)
        .look_ahead(true);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&over);
        for _ in 0..circumstances.thieves {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let fs = Fs::open_device(device.clone(), &options).unwrap();
        let root = fs.root().unwrap();
        for n in 0..5 {
            fs.create(&root, format!("dir{n}").as_bytes(), 0o755, NodeKind::Dir).unwrap();
        }
        drop(root);
        let mut held = Vec::new();
        for n in 0..64 {
            step(&fs, n, &mut held);
            if n % circumstances.pause_every == circumstances.pause_every - 1 {
                std::thread::sleep(INTERVAL * 5);
            }
        }
        drop(held);
        fs.unmount().unwrap();
    });
    device.to_vec()
}

/// The numbers of the KiB in which two images differ.
fn differences(first: &[u8], second: &[u8]) -> Vec<usize> {
    let pairs = first.chunks(1024).zip(second.chunks(1024)).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(nr, _)| nr).collect()
}

#[test]
fn a_seed_gives_the_same_bytes_in_all_circumstances() {
    const QUIET: Circumstances =
        Circumstances { memory: 2 << 30, shards: 1, thieves: 0, pause_every: u64::MAX };
    const BUSY: Circumstances =
        Circumstances { memory: 64 << 20, shards: 128, thieves: 2, pause_every: 3 };
    let mut wrong = Vec::new();
    for set in ["default", "orphan_file", "1k", "ext2"] {
        let image = FeatureSet::named(set).make_sized(96 * MIB);
        // Each by a thread of its own, since threads differ in their shards.
        let [first, second] = [QUIET, BUSY].map(|circumstances| {
            let run = || run(&image, circumstances);
            std::thread::scope(|scope| scope.spawn(run).join().expect("a run that passes"))
        });
        let differ = differences(&first, &second);
        if !differ.is_empty() {
            wrong.push(format!(
                "{set}: {} KiB differ, the first are {:?}",
                differ.len(),
                &differ[..differ.len().min(20)]
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
