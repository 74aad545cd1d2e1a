//! Discards: how they share the disk with writers, commits and the end of the mount.

use extant::{Caller, File, Fs, New, OpenFlags, OpenOptions};
use extant_blocks::{BlockDevice, forward_device};
use extant_testkit::{Image, Memory};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

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

    /// Holds all discards from now on, or lets them go.
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
    forward_device!(self => self.inner; len, name, read_at, write_at, flush, write_zeroes, next_data);

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

/// Lets held discards go when a test ends, also by a panic.
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
    let node = fs.create(&Caller::default(), &fs.root().unwrap(), name.as_bytes(), 0o644, New::File).unwrap();
    fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).unwrap()
}

fn append(file: &File, bytes: u64) -> extant::Result<()> {
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
