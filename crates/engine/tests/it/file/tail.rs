//! The bytes behind the end of a file, left by a truncate or by another program.

use extant_blocks::{BlockDevice, Event, RecordingDevice};
use extant_engine::{Falloc, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::kernel::Mount;
use extant_testkit::{Image, Memory, e2fsck};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const BYTES: u64 = 8 << 20;
const OLD: usize = 3000;
const CUT: usize = 1000;

/// A way to extend a file, with its name for messages.
type Way = (&'static str, fn(&Fs, &Node));

/// Ways to make the file longer than it was before the truncate, on disk, too.
const WAYS: [Way; 7] = [
    ("set_len", |fs, node| open(fs, node, false).set_len(5000).unwrap()),
    ("a direct write", |fs, node| {
        open(fs, node, true).write_at(8192, &[9; 4096]).unwrap();
    }),
    ("pages far behind that are written back", |fs, node| {
        open(fs, node, false).write_at(40_960, &[9; 4096]).unwrap();
        open(fs, node, true).read_at(40_960, &mut [0; 4096]).unwrap();
    }),
    ("a direct write behind pages", |fs, node| {
        open(fs, node, false).write_at(4096, &[9; 4096]).unwrap();
        open(fs, node, true).write_at(8192, &[9; 4096]).unwrap();
    }),
    ("allocation", |fs, node| {
        open(fs, node, false).allocate(Falloc::Allocate, 4096, 5000).unwrap()
    }),
    ("zeroes", |fs, node| open(fs, node, false).allocate(Falloc::Zero, 8192, 5000).unwrap()),
    ("a hole after a write", |fs, node| {
        open(fs, node, false).write_at(4096, &[9; 4096]).unwrap();
        open(fs, node, false).allocate(Falloc::Punch, 5000, 100).unwrap();
    }),
];

fn open(fs: &Fs, node: &Node, direct: bool) -> extant_engine::File {
    fs.open_file(node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
}

/// Commits the changes so far, without writing data of other files.
fn commit(fs: &Fs, name: &str) {
    let root = fs.root().unwrap();
    let other = fs.create(&root, name.as_bytes(), 0o600, NodeKind::File).unwrap();
    fs.sync_node(&other, false).unwrap();
}

fn content(device: Memory) -> Vec<u8> {
    let fs = Fs::open_device(Arc::new(device), &OpenOptions::new()).unwrap();
    let file = fs.open("/f", Follow::Yes, OpenFlags::default()).unwrap();
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    drop(file);
    fs.crash();
    bytes
}

/// Cuts the power at each write while the file is truncated and extended again.
fn grow_again(way: fn(&Fs, &Node), between: bool, what: &str) {
    let base = Image::mke2fs(BYTES, &["-t", "ext4", "-b", "4096"]).bytes();
    let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(&base))));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let node = fs.create(&fs.root().unwrap(), b"f", 0o600, NodeKind::File).unwrap();
    open(&fs, &node, false).write_at(0, &[7; OLD]).unwrap();
    fs.sync().unwrap();
    let begin = device.log().len();
    open(&fs, &node, false).set_len(CUT as u64).unwrap();
    if between {
        commit(&fs, "a");
    }
    way(&fs, &node);
    commit(&fs, "b");
    fs.crash();
    let events = device.log();
    let grown = (begin..=events.len()).filter(|cut| {
        let device = Memory::from_bytes(&base);
        events[..*cut].iter().for_each(|event| event.apply(&device).unwrap());
        let bytes = content(device);
        assert!(bytes[..CUT].iter().all(|byte| *byte == 7), "{what}, cut {cut}");
        let tail = &bytes[CUT..bytes.len().min(OLD)];
        let (old, zero) = (tail.iter().all(|byte| *byte == 7), tail.iter().all(|byte| *byte == 0));
        assert!(zero || old && bytes.len() == OLD, "{what}, cut {cut}: {} bytes", bytes.len());
        bytes.len() > OLD
    });
    assert!(grown.count() > 0, "{what}: the longer file is durable in the end");
    assert!(events.iter().any(|event| matches!(event, Event::Flush)));
}

#[test]
fn truncated_bytes_do_not_come_back_when_the_file_grows() {
    for (what, way) in WAYS {
        grow_again(way, true, what);
        grow_again(way, false, what);
    }
}

/// A kernel may leave bytes behind the end of a file that a program wrote into a mapping.
#[test]
fn foreign_bytes_behind_the_end_are_hidden_when_the_file_grows() {
    for (what, way) in WAYS {
        let device = Arc::new(Memory::from_bytes(
            &Image::mke2fs(BYTES, &["-t", "ext4", "-b", "4096"]).bytes(),
        ));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        let node = fs.create(&fs.root().unwrap(), b"f", 0o600, NodeKind::File).unwrap();
        let file = open(&fs, &node, false);
        file.write_at(0, &[7; CUT]).unwrap();
        file.sync().unwrap();
        let mut place = 0;
        file.extents(0, 1, |extent| {
            place = extent.physical;
            true
        })
        .unwrap();
        drop((file, node));
        fs.unmount().unwrap();
        device.write_all_at(&[0xEE; 2000], place + CUT as u64).unwrap();
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        let node = fs.resolve("/f", Follow::Yes).unwrap();
        let mut bytes = [0; 4096];
        assert_eq!(open(&fs, &node, false).read_at(0, &mut bytes).unwrap(), CUT);
        way(&fs, &node);
        drop(node);
        fs.unmount().unwrap();
        Image::holding(&device.to_vec()).assert_clean();
        let bytes = content(Memory::from_bytes(&device.to_vec()));
        assert!(bytes.len() > CUT && bytes[..CUT].iter().all(|byte| *byte == 7), "{what}");
        assert!(bytes[CUT..bytes.len().min(OLD)].iter().all(|byte| *byte == 0), "{what}");
    }
}

/// The pages of a file when it is truncated, with a name for messages.
type Before = (&'static str, fn(&Fs, &Node));

const BEFORE: [Before; 3] = [
    ("clean pages", |_, _| {}),
    ("changed pages", |fs, node| {
        assert_eq!(open(fs, node, false).write_at(0, &[7; OLD]).unwrap(), OLD);
    }),
    ("no pages", |fs, node| {
        let mut bytes = [0; OLD];
        open(fs, node, true).write_at(0, &[7; OLD]).unwrap();
        assert_eq!(open(fs, node, true).read_at(0, &mut bytes).unwrap(), OLD);
    }),
];

const KINDS: [(&str, &[&str], bool); 4] = [
    ("ext4", &["-t", "ext4", "-b", "4096"], false),
    ("ext3", &["-t", "ext3", "-b", "4096"], false),
    ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"], false),
    ("logged data", &["-t", "ext4", "-b", "4096"], true),
];

/// Returns the device after each write of a truncate that became durable.
fn states_of_a_cut(base: &[u8], logged: bool, before: fn(&Fs, &Node)) -> Vec<Memory> {
    let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(base))));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().log_data(logged)).unwrap();
    let node = fs.create(&fs.root().unwrap(), b"f", 0o600, NodeKind::File).unwrap();
    open(&fs, &node, false).write_at(0, &[7; OLD]).unwrap();
    fs.sync().unwrap();
    before(&fs, &node);
    let begin = device.log().len();
    open(&fs, &node, false).set_len(CUT as u64).unwrap();
    commit(&fs, "a");
    fs.crash();
    device.inner().leave_unjudged("each of its states is judged once it is recovered");
    let events = device.log();
    let state = |cut| {
        let device = Memory::from_bytes(base);
        events[..cut].iter().for_each(|event: &Event| event.apply(&device).unwrap());
        device
    };
    (begin..=events.len()).map(state).collect()
}

/// Recovers the image, and returns the device's bytes behind the end of the file. Returns `None` if
/// the file has its former length.
fn behind_the_end(device: Memory) -> Option<Vec<u8>> {
    let device = Arc::new(device);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let file = fs.open("/f", Follow::Yes, OpenFlags::default()).unwrap();
    let (len, mut place) = (file.len(), 0);
    file.extents(0, 1, |extent| {
        place = extent.physical;
        true
    })
    .unwrap();
    drop(file);
    fs.unmount().unwrap();
    let mut bytes = vec![0; 4096 - CUT];
    device.read_exact_at(&mut bytes, place + CUT as u64).unwrap();
    (len == CUT as u64).then_some(bytes)
}

fn grown_by_the_kernel(image: &Image) -> Vec<u8> {
    let mount = Mount::new(image.path(), "");
    let file = std::fs::File::options().read(true).write(true).open(mount.join("f")).unwrap();
    file.set_len(5000).unwrap();
    let mut bytes = vec![0; 5000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    drop(file);
    mount.unmount();
    bytes
}

/// After a crash, recovery and an extension of the file, its new bytes are zeroes: they are on the
/// device together with the shorter size.
#[test]
fn a_cut_inside_a_block_is_durable_with_its_zeroes() {
    for (kind, args, logged) in KINDS {
        let base = Image::mke2fs(BYTES, args).bytes();
        for (what, before) in BEFORE {
            let states = states_of_a_cut(&base, logged, before);
            let last = states.last().unwrap().to_vec();
            let mut shorter = 0;
            for (nth, state) in states.into_iter().enumerate() {
                if let Some(bytes) = behind_the_end(state) {
                    shorter += 1;
                    assert!(
                        bytes.iter().all(|byte| *byte == 0),
                        "{kind}, {what}, write {nth}: old bytes"
                    );
                }
            }
            assert!(shorter > 0, "{kind}, {what}: the cut is durable in the end");
            let images = [Image::holding(&last), Image::holding(&last)];
            e2fsck::recover(images[1].path()).assert_clean();
            for (image, by) in images.iter().zip(["the kernel", "e2fsck"]) {
                let bytes = grown_by_the_kernel(image);
                assert!(
                    bytes[..CUT].iter().all(|byte| *byte == 7),
                    "{kind}, {what}, recovered by {by}"
                );
                assert!(
                    bytes[CUT..].iter().all(|byte| *byte == 0),
                    "{kind}, {what}, recovered by {by}: old bytes"
                );
            }
        }
    }
}

/// The next recovery frees the file, although a crash followed a truncate of several transactions.
#[test]
fn a_cut_leaves_the_record_of_a_file_without_a_name() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-O", "orphan_file"],
    ] {
        let device = Arc::new(RecordingDevice::new(Arc::new(Memory::from_bytes(
            &Image::mke2fs(BYTES, args).bytes(),
        ))));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"f", 0o600, NodeKind::File).unwrap();
        let file = open(&fs, &node, false);
        (0..40).for_each(|n| assert_eq!(file.write_at(n * 8192, &[7; 1000]).unwrap(), 1000));
        fs.sync().unwrap();
        fs.unlink(&root, b"f").unwrap();
        file.set_len(CUT as u64).unwrap();
        commit(&fs, "a");
        drop((file, node, root));
        fs.crash();
        let image = Image::holding(&device.inner().to_vec());
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        assert_eq!(fs.recovery().orphans.freed, 1, "{args:?}");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}
