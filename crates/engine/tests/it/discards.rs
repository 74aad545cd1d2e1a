//! Discards beside writers, commits and unmount.

use extant_blocks::{BlockDevice, forward_device};
use extant_engine::{Errno, File, Fs, NodeKind, OpenFlags, OpenOptions, set_interrupt};
use extant_testkit::{Image, Memory, Scratch, tool};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A device whose discards wait while they are held.
#[derive(Debug)]
struct GatedDiscards {
    inner: Arc<Memory>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    held: bool,
    /// Discards that wait now.
    waiting: u32,
    /// Ranges that were discarded, in bytes.
    done: Vec<Range<u64>>,
}

impl GatedDiscards {
    fn on(image: &Image) -> Arc<GatedDiscards> {
        let inner = Arc::new(Memory::from_bytes(&image.bytes()));
        Arc::new(GatedDiscards { inner, gate: Mutex::default(), changed: Condvar::new() })
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap()
    }

    /// Holds all discards from now on, or releases them.
    fn hold(&self, yes: bool) {
        self.gate().held = yes;
        self.changed.notify_all();
    }

    /// Waits until a discard waits.
    fn wait_for_one(&self) {
        let waits = self.changed.wait_while(self.gate(), |gate| gate.waiting == 0);
        drop(waits.unwrap());
    }
}

impl BlockDevice for GatedDiscards {
    forward_device!(self => self.inner;
        len, name, read_exact_at, write_all_at, flush, write_zeroes, next_data);

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut gate = self.gate();
        gate.waiting += 1;
        self.changed.notify_all();
        gate = self.changed.wait_while(gate, |gate| gate.held).unwrap();
        gate.waiting -= 1;
        gate.done.push(offset..offset + len);
        drop(gate);
        self.changed.notify_all();
        self.inner.discard(offset, len)
    }
}

/// Releases held discards when a test ends, also by a panic.
struct LetGo<'a>(&'a GatedDiscards);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

fn ext4() -> Image {
    Image::mke2fs(64 * MIB, &["-t", "ext4", "-b", "4096"])
}

fn create(fs: &Fs, name: &str) -> File {
    let node = fs.create(&fs.root().unwrap(), name.as_bytes(), 0o644, NodeKind::File).unwrap();
    fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap()
}

fn append(file: &File, bytes: u64) -> extant_engine::Result<()> {
    let (piece, mut at) = (vec![7; MIB as usize], 0);
    while at < bytes {
        let len = (bytes - at).min(MIB);
        at += file.write_at(at, &piece[..len as usize])? as u64;
    }
    file.sync()
}

/// Ends the file system and has the image judged.
fn end(fs: Fs, device: &GatedDiscards, image: &Image) {
    fs.unmount().unwrap();
    std::fs::write(image.path(), device.inner.to_vec()).unwrap();
    image.assert_clean();
}

#[test]
fn files_grow_while_a_trim_waits_for_the_disk() {
    let image = ext4();
    let device = GatedDiscards::on(&image);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let file = create(&fs, "file");
    fs.sync().unwrap();
    let available = fs.usage().available * 4096;
    device.hold(true);
    std::thread::scope(|scope| {
        let _let_go = LetGo(&device);
        let trim = scope.spawn(|| fs.trim(0..u64::MAX, 1));
        device.wait_for_one();
        append(&file, available - 12 * MIB).expect("the disk has room");
        device.hold(false);
        assert!(trim.join().unwrap().unwrap() > 0);
    });
    let longest = device.gate().done.iter().map(|range| range.end - range.start).max();
    assert!(longest.is_some_and(|len| len <= 8 * MIB), "{longest:?}");
    drop(file);
    end(fs, &device, &image);
}

/// Space that becomes free before and behind the slice in flight: the trim does not return to it.
#[test]
fn a_trim_discards_each_block_once_and_can_be_interrupted() {
    let image = ext4();
    let device = GatedDiscards::on(&image);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let files = ["before", "between"].map(|name| create(&fs, name));
    files.iter().for_each(|file| append(file, 16 * MIB).unwrap());
    device.hold(true);
    std::thread::scope(|scope| {
        let _let_go = LetGo(&device);
        let trim = scope.spawn(|| fs.trim(0..u64::MAX, 1));
        device.wait_for_one();
        files.iter().for_each(|file| file.set_len(0).unwrap());
        fs.sync().unwrap();
        device.hold(false);
        assert!(trim.join().unwrap().unwrap() > 0);
    });
    let done = std::mem::take(&mut device.gate().done);
    assert!(done.len() > 1 && done.windows(2).all(|pair| pair[0].end <= pair[1].start), "{done:?}");
    assert!(done.iter().all(|slice| slice.end - slice.start <= 8 * MIB), "{done:?}");
    // Interrupts the trim after its first discard.
    let asked = device.clone();
    let before = set_interrupt(Some(Arc::new(move || !asked.gate().done.is_empty())));
    let ended = fs.trim(0..u64::MAX, 1);
    set_interrupt(before);
    assert!(ended.unwrap_err().is(Errno::Intr));
    assert_eq!(device.gate().done.len(), 1);
    drop(files);
    end(fs, &device, &image);
}

/// Time limit of operations that must not wait for a discard.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Runs `work`, which must not wait for held discards.
fn without_waiting<T: Send>(device: &GatedDiscards, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        scope.spawn(move || done.send(work()));
        let result = ended.recv_timeout(WATCHDOG);
        if result.is_err() {
            device.hold(false);
        }
        result.expect("it waits for no discard")
    })
}

/// A file system that has freed `bytes` of a file and committed that, while discards are held.
fn freed(image: &Image, bytes: u64) -> (Arc<GatedDiscards>, Fs, Vec<Range<u64>>) {
    let device = GatedDiscards::on(image);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().discard(true)).unwrap();
    let file = create(&fs, "file");
    append(&file, bytes).unwrap();
    let mut places = Vec::new();
    file.extents(0, u64::MAX, |extent| {
        places.push(extent.physical..extent.physical + extent.len);
        true
    })
    .unwrap();
    drop(file);
    device.hold(true);
    fs.unlink(&fs.root().unwrap(), b"file").unwrap();
    without_waiting(&device, || fs.sync()).unwrap();
    device.wait_for_one();
    (device, fs, places)
}

#[test]
fn commits_and_fsync_do_not_wait_for_discards() {
    let image = ext4();
    let (device, fs, places) = freed(&image, 20 * MIB);
    without_waiting(&device, || {
        for n in 0..3 {
            append(&create(&fs, &format!("later{n}")), MIB).unwrap();
        }
    });
    assert!(device.gate().done.is_empty());
    // The end of the mount discards the rest.
    device.hold(false);
    end(fs, &device, &image);
    let done = &device.gate().done;
    let is_done = |at: u64| done.iter().any(|range| range.contains(&at));
    assert!(
        places.iter().all(|place| is_done(place.start) && is_done(place.end - 1)),
        "{places:?}: {done:?}"
    );
}

#[test]
fn a_file_system_that_was_shut_down_discards_no_more() {
    let image = ext4();
    let (device, fs, _) = freed(&image, 30 * MIB);
    fs.shut_down().unwrap();
    device.hold(false);
    fs.unmount().unwrap();
    assert_eq!(device.gate().done.len(), 1, "the slice that was in flight");
}

#[test]
fn a_thaw_lets_discards_go_on() {
    let image = ext4();
    let (device, fs, places) = freed(&image, 30 * MIB);
    device.hold(false);
    let frozen = fs.freeze().unwrap();
    let done = device.gate().done.len();
    assert!(fs.resolve("/", extant_engine::Follow::No).is_ok());
    assert_eq!(device.gate().done.len(), done);
    frozen.thaw().unwrap();
    end(fs, &device, &image);
    assert!(device.gate().done.iter().any(|range| range.contains(&places[0].start)));
}

/// A device that returns an error without a number for discards.
#[derive(Debug)]
struct NoDiscards(Memory);

impl BlockDevice for NoDiscards {
    forward_device!(self => self.0;
        len, name, read_exact_at, write_all_at, flush, write_zeroes, next_data);

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_trim_says_that_the_host_cannot_punch() {
    let image = ext4();
    let device = Arc::new(NoDiscards(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
    let error = fs.trim_bytes(0, u64::MAX, 0).unwrap_err();
    assert_eq!(error.errno(), Errno::OpNotSupp as i32, "{error}");
    fs.unmount().unwrap();
    // ramfs cannot punch holes into a file.
    let directory = Scratch::new();
    let at = directory.dir("ramfs");
    tool::run("mount", &["-t", "ramfs", "none", at.to_str().unwrap()]).must_succeed();
    let path = at.join("image");
    std::fs::copy(image.path(), &path).unwrap();
    let trimmed = Fs::open(&path, &OpenOptions::new().discard(true)).and_then(|fs| {
        let free = fs.usage().free;
        // Freed space comes back all the same.
        append(&create(&fs, "file"), MIB)?;
        fs.unlink(&fs.root()?, b"file")?;
        fs.sync()?;
        let trimmed = fs.trim_bytes(0, u64::MAX, 0);
        let freed = fs.usage().free;
        fs.unmount()?;
        Ok((trimmed, free, freed))
    });
    tool::run("umount", &[at.to_str().unwrap()]).must_succeed();
    let (trimmed, free, freed) = trimmed.unwrap();
    assert_eq!(trimmed.unwrap_err().errno(), Errno::OpNotSupp as i32);
    assert_eq!(freed, free);
}
