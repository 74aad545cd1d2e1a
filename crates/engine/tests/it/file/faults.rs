//! Failing devices: each open file reports an error of writeback once, and nothing else is lost.

use super::model::read_all;
use extant_blocks::{BlockDevice, Fault, FaultDevice, Op};
use extant_engine::{Fs, NodeKind, OpenFlags, OpenOptions, SetAttr};
use extant_testkit::Memory;
use extant_testkit::{FeatureSet, Image, debugfs};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

#[test]
fn each_open_file_reports_a_writeback_error_once() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"f", 0o644, NodeKind::File).unwrap();
    let open = || fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    let (a, b) = (open(), open());
    a.write_at(0, &[1; 40_960]).unwrap();
    a.sync().unwrap();
    let mut bad = 0..0;
    a.extents(0, 4096, |e| {
        bad = e.physical + 8192..e.physical + 12288;
        true
    })
    .unwrap();

    a.write_at(0, &[2; 40_960]).unwrap();
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(bad));
    assert_eq!(a.sync().unwrap_err().errno(), 5);
    device.heal();
    a.sync().unwrap();
    assert_eq!(b.sync().unwrap_err().errno(), 5);
    b.sync().unwrap();
    open().sync().unwrap();

    // Only the page that could not be written is lost: the others are read from the device.
    let content = read_all(&a);
    assert!(content[..8192].iter().chain(&content[12288..]).all(|byte| *byte == 2));
    assert!(content[8192..12288].iter().all(|byte| *byte == 1));
    drop((a, b));
    fs.unmount().unwrap();
    Image::holding(&device.inner().to_vec()).assert_clean();
}

#[test]
fn parallel_writeback_writes_all_and_reports_failures() {
    const FILE: usize = 9 << 20;
    let image = FeatureSet::named("default").make_sized(128 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let open = |name: &str| {
        let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
        fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap()
    };
    let files: Vec<_> = (0..8).map(|i| open(&format!("f{i}"))).collect();
    let write = |round: u8| {
        for (file, i) in files.iter().zip(1..) {
            assert_eq!(file.write_at(0, &vec![round + i; FILE]).unwrap(), FILE);
        }
    };
    write(0);
    fs.sync().unwrap();

    // A page in the last third of a file, which its fsync shares with others, and of one that a
    // sync of all writes.
    let mut bad = 0..0;
    files[0]
        .extents(0, FILE as u64, |e| {
            let page = e.physical + (7 << 20).max(e.logical) - e.logical;
            bad = if e.logical + e.len > 7 << 20 && bad.is_empty() {
                page..page + 4096
            } else {
                bad.clone()
            };
            true
        })
        .unwrap();
    for (round, all) in [(10, false), (20, true)] {
        write(round);
        device.inject(Fault::new(Op::Write, 0).from_then_on().within(bad.clone()));
        let told = if all { fs.sync() } else { files[0].sync() };
        assert_eq!(told.unwrap_err().errno(), 5);
        device.heal();
        let _ = files[0].sync();
        fs.sync().unwrap();
        for (file, i) in files.iter().zip(1..) {
            let content = read_all(file);
            let kept = content.iter().filter(|byte| **byte == round + i).count();
            assert_eq!(kept, if i == 1 { FILE - 4096 } else { FILE }, "file {i}");
        }
    }
    drop(files);
    fs.unmount().unwrap();
    Image::holding(&device.inner().to_vec()).assert_clean();
}

#[test]
fn a_failed_direct_write_maps_nothing() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"f", 0o644, NodeKind::File).unwrap();
    fs.sync().unwrap();
    device.inject(Fault::new(Op::Write, 0));
    assert!(fs.write_direct(&node, 0, &[1; 10_000], false).is_err());
    device.heal();
    assert_eq!(node.attr().size, 0);
    assert_eq!(node.attr().blocks, 0);
    fs.close_hint(&node);
    let free = fs.usage().free;
    assert_eq!(fs.write_direct(&node, 0, &[1; 10_000], false).unwrap(), 10_000);
    fs.close_hint(&node);
    assert_eq!(fs.usage().free, free - 3);
    fs.unmount().unwrap();
    Image::holding(&device.inner().to_vec()).assert_clean();
}

/// The most sectors that an inode can count.
const MAX_SECTORS: u64 = (1 << 48) - 1;

#[test]
fn blocks_that_cannot_be_counted_stay_free() {
    // No block more can be counted, for one page and for many; one more, which leaves none for the
    // map.
    for (room, pages) in [(0, 1), (0, 40), (8, 1)] {
        let image = FeatureSet::named("default").make_sized(16 << 20);
        let write = |fs: &Fs, blocks: std::ops::Range<u64>| {
            let root = fs.root().unwrap();
            let node = match fs.lookup(&root, b"f") {
                Ok(node) => node,
                Err(_) => fs.create(&root, b"f", 0o644, NodeKind::File).unwrap(),
            };
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
            blocks.for_each(|block| {
                assert_eq!(file.write_at(block * 40_960, &[1; 4096]).unwrap(), 4096)
            });
            file.sync()
        };
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        write(&fs, 0..4).unwrap();
        fs.unmount().unwrap();
        image.leave_unjudged("a file counts blocks that it has not");
        debugfs::write(image.path(), &format!("set_inode_field f blocks {}", MAX_SECTORS - room));

        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let free = fs.usage().free;
        assert!(write(&fs, 4..4 + pages).is_err(), "{room} {pages}");
        let _ = fs.sync();
        assert_eq!(fs.usage().free, free, "with room for {room} sectors and {pages} pages");
        let _ = fs.unmount();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        assert_eq!(
            fs.usage().free,
            free,
            "on the device, with room for {room} sectors and {pages} pages"
        );
        fs.unmount().unwrap();
    }
}

/// A device whose first write fails once it is armed, and which lets another thread work before the
/// second one.
#[derive(Debug)]
struct Staged {
    inner: Memory,
    writes: AtomicU32,
    turn: Barrier,
}

/// Not armed.
const IDLE: u32 = 1000;

impl BlockDevice for Staged {
    extant_blocks::forward_device!(self => self.inner;
        len, name, read_exact_at, flush, discard, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self.writes.load(SeqCst) {
            IDLE => {}
            0 => {
                self.writes.store(1, SeqCst);
                return Err(io::ErrorKind::Other.into());
            }
            _ => {
                self.writes.store(IDLE, SeqCst);
                self.turn.wait();
                self.turn.wait();
            }
        }
        self.inner.write_all_at(data, offset)
    }
}

#[test]
fn space_of_a_failed_write_of_several_files_stays_theirs() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let inner = Memory::from_bytes(&image.bytes());
    let device = Arc::new(Staged { inner, writes: AtomicU32::new(IDLE), turn: Barrier::new(2) });
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let create = |name: &str| {
        let node = fs.create(&fs.root().unwrap(), name.as_bytes(), 0o644, NodeKind::File).unwrap();
        fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap()
    };
    let files = [create("a"), create("b"), create("c")];
    let filler = create("filler");
    fs.sync().unwrap();
    files.iter().for_each(|file| assert_eq!(file.write_at(0, &[7; 40_960]).unwrap(), 40_960));
    device.writes.store(0, SeqCst);
    let filled = std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            device.turn.wait();
            let mut filled = 0;
            let mut fill = |enough: u64| {
                while fs.usage().available > enough
                    && let Ok(more) = filler.write_at(filled, &[8; 40_960])
                {
                    filled += more as u64;
                }
            };
            // A writer without space waits for the writeback of other files, so some space is left
            // until the device works again.
            fill(64);
            device.turn.wait();
            fill(0);
            filled
        });
        fs.sync().unwrap();
        filling.join().unwrap()
    });
    assert!(filled > 1 << 20, "{filled}");
    fs.sync().unwrap();
    files.iter().for_each(|file| file.take_error().unwrap());
    drop((files, filler));
    fs.unmount().unwrap();

    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).unwrap();
    let fs =
        Fs::open_device(Arc::new(Memory::from_bytes(&bytes)), &OpenOptions::new().read_only(true))
            .unwrap();
    for (name, byte, len) in
        [("a", 7, 40_960), ("b", 7, 40_960), ("c", 7, 40_960), ("filler", 8, filled)]
    {
        let node = fs.lookup(&fs.root().unwrap(), name.as_bytes()).unwrap();
        let content = read_all(&fs.open_file(&node, OpenFlags::default()).unwrap());
        assert_eq!(content.len() as u64, len, "{name}");
        assert!(content.iter().all(|b| *b == byte), "{name}");
    }
    fs.unmount().unwrap();
}

/// Blocks whose bitmap cannot be read stay with their owner: no block is left without one.
#[test]
fn a_bitmap_that_cannot_be_read_costs_no_blocks() {
    for set in ["ext3", "default"] {
        let image = FeatureSet::named(set).make_sized(16 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap();
        for name in [&b"cut"[..], b"removed"] {
            let node = fs.create(&root, name, 0o644, NodeKind::File).unwrap();
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
            file.write_at(0, &[1; 100_000]).unwrap();
        }
        fs.unmount().unwrap();
        let bytes = image.bytes();
        for nth in 0.. {
            let device = Arc::new(FaultDevice::new(Memory::from_bytes(&bytes)));
            let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
            let root = fs.root().unwrap();
            let cut = fs.lookup(&root, b"cut").unwrap();
            device.inject(Fault::new(Op::Read, nth).from_then_on());
            let _answers = (fs.rmdir(&root, b"dir"), fs.unlink(&root, b"removed"));
            let _answer = fs.set_attr(&cut, &SetAttr { size: Some(0), ..SetAttr::default() });
            let failed = device.failed();
            device.heal();
            let _answer = fs.sync();
            fs.crash();
            let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
            fs.unmount().unwrap();
            Image::holding(&device.inner().to_vec()).assert_clean();
            if failed == 0 {
                assert!(nth > 2, "{set}: nothing was read");
                break;
            }
        }
    }
}
