//! Small files on a mount: their content waits in the engine's pages for writeback.

use crate::served::{fast_opens, opening_fast, transport};
use crate::watchdog::{Watchdog, unmount_unused};
use extant_blocks::{BlockDevice, Fault, FaultDevice, Op, RecordingDevice, replay};
use extant_engine::{Follow, Fs, FsStats, OpenOptions, Operations};
use extant_fuse::{MountOptions, Mounted, mount};
use extant_testkit::cuts::each_cut;
use extant_testkit::{FeatureSet, Image, Memory, Scratch};
use nix::libc::{EIO, O_DIRECT};
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File, OpenOptions as Open};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A mount of a file system on a device, with access to the engine under it.
struct Live {
    ops: Arc<Operations>,
    scratch: Scratch,
    mounted: Mounted,
    watchdog: Watchdog,
}

impl Live {
    /// Mounts with the kernel's cache of writes. No job writes pages meanwhile.
    fn new(device: Arc<dyn BlockDevice>) -> Live {
        let hour = Duration::from_secs(3600);
        let options = OpenOptions::new().remember_names(false).commit_interval(hour);
        let fs = Fs::open_device(device, &options).expect("open");
        let ops = fs.operations().clone();
        let scratch = Scratch::new();
        let dir = scratch.dir("mnt");
        let (transport, fast_opens) = (transport(), fast_opens());
        let options = MountOptions { transport, fast_opens, ..MountOptions::default() };
        let mounted = mount(fs, &dir, &options).expect("mount");
        assert_eq!(mounted.instead(), None, "the transport that is tested can be had");
        let watchdog = Watchdog::over(&dir);
        Live { ops, scratch, mounted, watchdog }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join("mnt").join(name)
    }

    fn dirty(&self) -> u64 {
        FsStats::of(&self.ops).pages.dirty
    }

    fn unmount(self) -> io::Result<()> {
        unmount_unused(|| self.mounted.unmounter().unmount());
        let ended = self.mounted.wait();
        self.watchdog.rest();
        ended
    }
}

fn in_memory(bytes: u64) -> Arc<Memory> {
    Arc::new(Memory::from_bytes(&FeatureSet::named("default").make_sized(bytes).bytes()))
}

fn errno(done: io::Result<()>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

/// 500 files of 4 KiB become a few requests, and leave no page behind.
#[test]
pub fn small_files_share_requests() {
    const FILES: u64 = 500;
    let live = Live::new(in_memory(64 << 20));
    let before = FsStats::of(&live.ops);
    for i in 0..FILES {
        fs::write(live.path(&format!("f{i}")), [i as u8; 4096]).expect("write");
    }
    assert_eq!(live.dirty(), FILES * 4096, "closed files wait");
    live.ops.sync().expect("sync");
    let after = FsStats::of(&live.ops);
    assert_eq!(after.plug_files - before.plug_files, FILES);
    let requests = after.plugs.requests - before.plugs.requests;
    assert!(requests * 5 < FILES, "{requests} requests for {FILES} files");
    assert_eq!(after.pages.bytes, 0, "the kernel has the content");
    for i in 0..FILES {
        assert_eq!(fs::read(live.path(&format!("f{i}"))).expect("read"), [i as u8; 4096]);
    }
    live.unmount().expect("everything is written");
}

/// Each descriptor that was open when a writeback failed is told by its fsync, once.
#[test]
pub fn each_descriptor_is_told_of_a_failed_writeback_once() {
    let memory = Memory::from_bytes(&FeatureSet::named("default").make_sized(32 << 20).bytes());
    let device = Arc::new(FaultDevice::new(memory));
    let live = Live::new(device.clone());
    let path = live.path("f");
    fs::write(&path, [1; 4096]).expect("write");
    let node = live.ops.resolve("/f", Follow::No).expect("f");
    let at = live.ops.place_of(&node, 0, 4096).expect("placed").expect("placed");
    live.ops.sync().expect("sync");
    let open = || Open::new().read(true).write(true).open(&path).expect("open");
    let (a, b, reads) = (open(), open(), File::open(&path).expect("open"));
    a.write_all_at(&[2; 4096], 0).expect("write");
    // A close makes the kernel write its cache.
    drop(open());
    assert_eq!(live.dirty(), 4096);
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(at..at + 4096));
    assert!(live.ops.sync().is_err(), "as the writeback task does");
    device.heal();
    for file in [&a, &b, &reads] {
        assert_eq!(errno(file.sync_all()), Some(EIO));
        assert_eq!(errno(file.sync_all()), None);
    }
    assert_eq!(errno(open().sync_all()), None, "it was opened later");
    // The own writeback of an fsync fails.
    a.write_all_at(&[3; 4096], 0).expect("write");
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(at..at + 4096));
    assert_eq!(errno(a.sync_data()), Some(EIO));
    device.heal();
    assert_eq!(errno(a.sync_all()), None);
    assert_eq!(errno(b.sync_all()), Some(EIO));
    // The kernel has the lost bytes still. Written again, they are durable.
    a.write_all_at(&[4; 4096], 0).expect("write");
    a.sync_all().expect("fsync");
    drop((a, b, reads, node));
    let _ = live.unmount();
}

/// Where opens are no requests, each thread is told by its next fsync of the file, through whatever
/// descriptor, also one that it opened later.
fn threads_are_told() {
    let memory = Memory::from_bytes(&FeatureSet::named("default").make_sized(32 << 20).bytes());
    let device = Arc::new(FaultDevice::new(memory));
    let live = Live::new(device.clone());
    let path = live.path("f");
    fs::write(&path, [1; 4096]).expect("write");
    let node = live.ops.resolve("/f", Follow::No).expect("f");
    let at = live.ops.place_of(&node, 0, 4096).expect("placed").expect("placed");
    live.ops.sync().expect("sync");
    let open = || Open::new().read(true).write(true).open(&path).expect("open");
    let (a, b) = (open(), open());
    a.write_all_at(&[2; 4096], 0).expect("write");
    drop(open());
    assert_eq!(live.dirty(), 4096, "a close makes the kernel write its cache");
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(at..at + 4096));
    assert!(live.ops.sync().is_err(), "as the writeback task does");
    device.heal();
    let told = |file: &File| errno(file.sync_all());
    let beside = |file: &File| {
        std::thread::scope(|scope| {
            scope.spawn(|| [told(file), told(file)]).join().expect("no panic")
        })
    };
    assert_eq!([told(&a), told(&a), told(&b)], [Some(EIO), None, None]);
    assert_eq!(beside(&a), [Some(EIO), None]);
    assert_eq!(beside(&open()), [Some(EIO), None], "its open is not known to be later");
    a.write_all_at(&[3; 4096], 0).expect("write");
    assert_eq!(told(&a), None, "the kernel has the lost bytes still, and writes them again");
    drop((a, b, node));
    let _ = live.unmount();
}

#[test]
fn each_thread_is_told_of_a_failed_writeback_once() {
    opening_fast(threads_are_told);
}

/// Returns the contents that the names of a mount's directory may have after a power cut during
/// `change`. `/f` has old content before, durably.
fn contents_during(change: impl FnOnce(&Live)) -> Vec<Option<Vec<u8>>> {
    let base = Image::mke2fs(4 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]).bytes();
    let device = Arc::new(RecordingDevice::new(Memory::from_bytes(&base)));
    let live = Live::new(device.clone());
    fs::write(live.path("f"), "old").expect("write");
    live.ops.sync().expect("sync");
    let start = Memory::from_bytes(&base);
    start.leave_unjudged("its recovery is judged");
    replay(&device.take_log(), &start).expect("a device in memory");
    change(&live);
    // Commits all that was changed, without other files' pages.
    File::create(live.path("other")).and_then(|other| other.sync_all()).expect("fsync");
    let events = device.take_log();
    live.unmount().expect("everything is written");
    let mut found = Vec::new();
    each_cut(&start.to_vec(), &events, &mut |_, state| {
        let device = Arc::new(Memory::from_bytes(&state));
        let fs = Fs::open_device(device, &OpenOptions::new().seed(1)).expect("recovery");
        let content = fs.resolve("/f", Follow::No).ok().map(|node| {
            let mut content = vec![0; node.attr().size as usize];
            fs.read_direct(&node, 0, &mut content).expect("read");
            content
        });
        if !found.contains(&content) {
            found.push(content);
        }
        fs.unmount().expect("unmount");
    });
    found.sort();
    found
}

/// A program that replaces a file by a new one, and one that writes it anew, never lose both.
#[test]
pub fn replaced_files_have_their_old_or_new_content() {
    let old_and_new = vec![Some(b"new content".to_vec()), Some(b"old".to_vec())];
    let renamed = contents_during(|live| {
        fs::write(live.path("g"), "new content").expect("write");
        fs::rename(live.path("g"), live.path("f")).expect("rename");
    });
    assert_eq!(renamed, old_and_new);
    let written = contents_during(|live| {
        fs::write(live.path("f"), "new content").expect("write");
    });
    assert_eq!(written, old_and_new);
    let synced = contents_during(|live| {
        let file = File::create(live.path("f")).expect("create");
        file.write_all_at(b"new content", 0).expect("write");
        file.sync_all().expect("fsync");
    });
    assert_eq!(synced, old_and_new);
}

/// Direct access, mappings, copies, searches and changes of the size see content that waits.
#[test]
pub fn other_ways_to_a_file_see_waiting_content() {
    let live = Live::new(in_memory(64 << 20));
    let path = live.path("f");
    let fill = |byte: u8| {
        let _ = fs::remove_file(&path);
        fs::write(&path, [byte; 6000]).expect("write");
        assert_eq!(live.dirty(), 8192);
    };
    fill(1);
    assert_eq!(fs::metadata(&path).expect("stat").blocks(), 16);
    let direct = |path| Open::new().read(true).write(true).custom_flags(O_DIRECT).open(path);
    let mut read = Vec::new();
    direct(&path).expect("open").read_to_end(&mut read).expect("O_DIRECT");
    assert_eq!(read, [1; 6000]);

    fill(2);
    direct(&path).expect("open").write_all_at(&[9; 4096], 0).expect("O_DIRECT");
    assert_eq!(fs::read(&path).expect("read"), [[9; 4096].as_slice(), &[2; 1904]].concat());

    fill(3);
    let copy = live.path("copy");
    assert_eq!(fs::copy(&path, &copy).expect("copy_file_range"), 6000);
    assert_eq!(fs::read(&copy).expect("read"), [3; 6000]);
    live.ops.sync().expect("sync");

    fill(4);
    let file = direct(&path).expect("open");
    assert_eq!(seek(&file, SeekFrom::Hole(0)).expect("SEEK_HOLE"), 6000);
    file.set_len(5000).expect("truncate");
    file.set_len(100_000).expect("truncate");
    let other = Open::new().write(true).open(&path).expect("open");
    other.write_all_at(&[5; 3000], 80_000).expect("write");
    drop((file, other));
    let expected = [[4; 5000].as_slice(), &[0; 75_000], &[5; 3000], &[0; 17_000]].concat();
    assert_eq!(fs::read(&path).expect("read"), expected);
    assert_eq!(live.dirty(), 0, "it has grown beyond the bound");

    // Appends of a program that keeps the file open: pages are written over and over.
    let mut log = Open::new().create(true).append(true).open(live.path("log")).expect("open");
    for line in 0..1000 {
        writeln!(log, "line {line:4}").expect("write");
        if line % 100 == 99 {
            log.sync_data().expect("fsync");
        }
    }
    drop(log);
    let lines = fs::read_to_string(live.path("log")).expect("read");
    assert_eq!(lines.lines().nth(999), Some("line  999"));
    live.unmount().expect("everything is written");
}
