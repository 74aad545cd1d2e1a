//! Zeroes behind a cut wait for the commit. Meanwhile the successor's operations write to the same
//! blocks, and devices fail.

use extant_blocks::{BlockDevice, Event, Fault, FaultDevice, Op, RecordingDevice, forward_device};
use extant_engine::{Falloc, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::{Image, Memory};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

const BYTES: u64 = 8 << 20;
const BLOCK: u64 = 4096;
const OLD: usize = 3000;
const CUT: usize = 1000;

/// A device on which writes to some bytes wait while these are held.
#[derive(Debug)]
struct Gated {
    inner: Arc<Memory>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    held: Range<u64>,
    /// Writes that wait now.
    waiting: u32,
}

impl Gated {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap()
    }

    /// Holds writes to these bytes, and releases others.
    fn hold(&self, bytes: Range<u64>) {
        self.gate().held = bytes;
        self.changed.notify_all();
    }

    /// Waits until a write waits.
    fn wait_for_one(&self) {
        drop(self.changed.wait_while(self.gate(), |gate| gate.waiting == 0).unwrap());
    }
}

impl BlockDevice for Gated {
    forward_device!(self => self.inner; len, name, read_exact_at, flush, discard, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let mut gate = self.gate();
        gate.waiting += 1;
        self.changed.notify_all();
        let held = |gate: &mut Gate| gate.held.start < end && offset < gate.held.end;
        gate = self.changed.wait_while(gate, held).unwrap();
        gate.waiting -= 1;
        drop(gate);
        self.inner.write_all_at(data, offset)
    }
}

/// Releases held writes when a test ends, also by a panic.
struct LetGo<'a>(&'a Gated);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.hold(0..0);
    }
}

fn blank() -> Memory {
    Memory::from_bytes(&Image::mke2fs(BYTES, &["-t", "ext4", "-b", "4096"]).bytes())
}

fn create(fs: &Fs, name: &str) -> Node {
    let root = fs.root().unwrap();
    fs.create(&root, name.as_bytes(), 0o600, NodeKind::File).unwrap()
}

fn open(fs: &Fs, node: &Node, direct: bool) -> extant_engine::File {
    fs.open_file(node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
}

/// Commits the changes so far, without writing data of other files.
fn commit(fs: &Fs, name: &str) -> extant_engine::Result<()> {
    fs.sync_node(&create(fs, name), false)
}

/// Returns the bytes of the device that hold a file's first block.
fn place(fs: &Fs, node: &Node) -> Range<u64> {
    let mut place = 0..0;
    let found = |extent: &extant_engine::Extent| {
        place = extent.physical..extent.physical + BLOCK;
        true
    };
    open(fs, node, false).extents(0, 1, found).unwrap();
    place
}

fn content(fs: &Fs, name: &str) -> Vec<u8> {
    let file = fs.open(format!("/{name}"), Follow::Yes, OpenFlags::default()).unwrap();
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Cuts two files in one transaction. While its commit waits for the zeroes of the first one,
/// `meanwhile` changes the second one in the next transaction. Returns the device after a crash
/// behind the commit, or after a sync behind it.
fn during_a_commit(sync: bool, meanwhile: impl FnOnce(&Fs, &Node)) -> Memory {
    let device = Arc::new(Gated {
        inner: Arc::new(blank()),
        gate: Mutex::default(),
        changed: Condvar::new(),
    });
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let nodes = ["first", "second"].map(|name| create(&fs, name));
    for node in &nodes {
        open(&fs, node, false).write_at(0, &[7; OLD]).unwrap();
    }
    fs.sync().unwrap();
    for node in &nodes {
        open(&fs, node, false).set_len(CUT as u64).unwrap();
    }
    device.hold(place(&fs, &nodes[0]));
    std::thread::scope(|scope| {
        let _let_go = LetGo(&device);
        let committed = scope.spawn(|| commit(&fs, "other"));
        device.wait_for_one();
        meanwhile(&fs, &nodes[1]);
        device.hold(0..0);
        committed.join().unwrap().unwrap();
    });
    if sync {
        fs.sync().unwrap();
    }
    drop(nodes);
    fs.crash();
    device.inner.leave_unjudged("it is recovered before it is judged");
    Memory::from_bytes(&device.inner.to_vec())
}

fn recovered(device: Memory) -> Vec<u8> {
    let fs = Fs::open_device(Arc::new(device), &OpenOptions::new()).unwrap();
    let bytes = content(&fs, "second");
    fs.unmount().unwrap();
    bytes
}

/// A way to write 2000 bytes behind the cut without a commit, with its name for messages.
type Way = (&'static str, fn(&Fs, &Node));

const WAYS: [Way; 4] = [
    ("a direct write", |fs, node| {
        open(fs, node, true).write_at(CUT as u64, &[9; 2000]).unwrap();
    }),
    ("pages that are written back", |fs, node| {
        open(fs, node, false).write_at(CUT as u64, &[9; 2000]).unwrap();
        open(fs, node, true).read_at(0, &mut [0; OLD]).unwrap();
    }),
    ("pages that are written back after an extension", |fs, node| {
        open(fs, node, false).set_len(OLD as u64).unwrap();
        open(fs, node, false).write_at(CUT as u64, &[9; 2000]).unwrap();
        open(fs, node, true).read_at(0, &mut [0; OLD]).unwrap();
    }),
    ("a direct write after an allocation", |fs, node| {
        open(fs, node, false).allocate(Falloc::Allocate, 0, OLD as u64).unwrap();
        open(fs, node, true).write_at(CUT as u64, &[9; 2000]).unwrap();
    }),
];

#[test]
fn a_write_behind_a_cut_is_not_undone_by_the_commit_of_the_cut() {
    for (what, way) in WAYS {
        let bytes = recovered(during_a_commit(true, way));
        assert_eq!(bytes.len(), OLD, "{what}");
        assert!(bytes[..CUT].iter().all(|byte| *byte == 7), "{what}");
        assert!(bytes[CUT..].iter().all(|byte| *byte == 9), "{what}");
    }
}

/// The commit of a cut writes no zeroes of a later and smaller one: a crash in between would lose
/// bytes that the file still has.
#[test]
fn a_cut_of_the_next_transaction_takes_no_bytes_from_the_committed_size() {
    for again in [1, 500, CUT - 1] {
        let shorter = |fs: &Fs, node: &Node| open(fs, node, false).set_len(again as u64).unwrap();
        let bytes = recovered(during_a_commit(false, shorter));
        assert_eq!(bytes, [7; CUT]);
        let bytes = recovered(during_a_commit(true, shorter));
        assert_eq!(bytes, vec![7; again]);
    }
}

/// A file that is cut byte by byte costs one write to its block for each transaction.
#[test]
fn cuts_of_one_transaction_share_one_write() {
    let device = Arc::new(RecordingDevice::new(Arc::new(blank())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let node = create(&fs, "f");
    let file = open(&fs, &node, false);
    file.write_at(0, &[7; OLD]).unwrap();
    fs.sync().unwrap();
    let block = place(&fs, &node);
    let writes = |from: usize| -> Vec<(u64, usize)> {
        let events = device.log();
        let within = |event: &Event| match event {
            Event::Write { offset, data } if block.contains(offset) => {
                Some((offset - block.start, data.len()))
            }
            _ => None,
        };
        events[from..].iter().filter_map(within).collect()
    };
    for (from, to) in [(OLD, 2000), (2000, CUT)] {
        let begin = device.log().len();
        (to..from).rev().for_each(|size| file.set_len(size as u64).unwrap());
        assert_eq!(writes(begin), []);
        commit(&fs, &format!("to {to}")).unwrap();
        assert_eq!(writes(begin), [(to as u64, from - to)]);
    }
    drop((file, node));
    fs.unmount().unwrap();
}

/// Opens a file system on a failing device with a file that is cut; returns them with the place of
/// the file's block.
fn cut_on(device: &Arc<FaultDevice<Arc<Memory>>>) -> (Fs, extant_engine::File, Range<u64>) {
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let node = create(&fs, "f");
    let file = open(&fs, &node, true);
    file.write_at(0, &[7; OLD]).unwrap();
    fs.sync().unwrap();
    let block = place(&fs, &node);
    file.set_len(CUT as u64).unwrap();
    (fs, file, block)
}

/// Without its zeroes, no smaller size becomes durable.
#[test]
fn a_commit_that_cannot_write_its_zeroes_fails() {
    let device = Arc::new(FaultDevice::new(Arc::new(blank())));
    let (fs, file, block) = cut_on(&device);
    device.inject(Fault::new(Op::Write, 0).within(block));
    assert_eq!(file.sync().unwrap_err().errno(), 5);
    assert_eq!(device.failed(), 1);
    assert!(file.set_len(10).is_err(), "nothing can be changed any more");
    drop(file);
    assert!(fs.unmount().is_err());
    device.inner().leave_unjudged("it is recovered before it is judged");
    let fs = Fs::open_device(
        Arc::new(Memory::from_bytes(&device.inner().to_vec())),
        &OpenOptions::new(),
    )
    .unwrap();
    assert_eq!(content(&fs, "f"), [7; OLD]);
    fs.unmount().unwrap();
}

/// An operation that has to write pending zeroes first fails with the device's error and changes
/// nothing. Later ones, or the commit, try again.
#[test]
fn an_operation_that_cannot_write_pending_zeroes_changes_nothing() {
    type Operation = fn(&extant_engine::File) -> extant_engine::Result<()>;
    let operations: [(&str, Operation); 5] = [
        ("extension", |file| file.set_len(OLD as u64)),
        ("direct write", |file| file.write_at(CUT as u64, &[9; 100]).map(drop)),
        ("allocation", |file| file.allocate(Falloc::Allocate, 0, 10_000)),
        ("punch", |file| file.allocate(Falloc::Punch, 10, 100)),
        ("truncate to nothing", |file| file.set_len(0)),
    ];
    for (what, operation) in operations {
        let device = Arc::new(FaultDevice::new(Arc::new(blank())));
        let (fs, file, block) = cut_on(&device);
        device.inject(Fault::new(Op::Write, 0).within(block.clone()));
        assert_eq!(operation(&file).unwrap_err().errno(), 5, "{what}");
        assert_eq!(device.failed(), 1, "{what}");
        file.sync().unwrap();
        assert_eq!(content(&fs, "f"), [7; CUT], "{what}");
        let mut bytes = vec![1; OLD];
        device.inner().read_exact_at(&mut bytes, block.start).unwrap();
        assert!(bytes[CUT..].iter().all(|byte| *byte == 0), "{what}");
        operation(&file).unwrap();
        drop(file);
        fs.unmount().unwrap();
    }
}
