//! A host without space: a write that needs some fails with ENOSPC, flushes succeed, nothing that
//! was flushed is lost, and writes go on once there is space again.

use crate::images::*;
use crate::writing::try_change;
use extant_blocks::{BlockDevice, DeviceError, MemDevice, Op, forward_device, raw_os_error};
use extant_qcow2::{Qcow2Device, create};
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const ENOSPC: i32 = 28;
const PAGE: u64 = 4096;

/// A file of a host that has space for a number of pages: a write that needs more of them than are
/// left stores a part and fails.
#[derive(Debug)]
pub struct FullDevice<D> {
    inner: D,
    host: Mutex<Host>,
}

#[derive(Debug)]
struct Host {
    stored: BTreeSet<u64>,
    free: u64,
    refill: u64,
}

impl<D: BlockDevice> FullDevice<D> {
    /// Makes a file that stores the content of `inner`, on a host without further space.
    pub fn new(inner: D) -> FullDevice<D> {
        let mut stored = BTreeSet::new();
        let mut page = vec![0; PAGE as usize];
        for number in 0..inner.len().div_ceil(PAGE) {
            let len = (inner.len() - number * PAGE).min(PAGE) as usize;
            inner.read_exact_at(&mut page[..len], number * PAGE).unwrap();
            if page[..len].iter().any(|byte| *byte != 0) {
                stored.insert(number);
            }
        }
        FullDevice { inner, host: Mutex::new(Host { stored, free: 0, refill: 0 }) }
    }

    /// Has so many pages become free after each write that fails.
    pub fn refilled(self, pages: u64) -> FullDevice<D> {
        self.host().refill = pages;
        self
    }

    pub fn set_free(&self, pages: u64) {
        self.host().free = pages;
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap()
    }
}

impl<D: BlockDevice> BlockDevice for FullDevice<D> {
    forward_device!(self => self.inner; len, name, read_only, alignment, read_exact_at, flush,
        set_len, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut host = self.host();
        let len = data.len() as u64;
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            if host.stored.contains(&page) {
                continue;
            }
            if host.free == 0 {
                host.free += host.refill;
                let done = (page * PAGE).saturating_sub(offset) as usize;
                self.inner.write_all_at(&data[..done], offset)?;
                let cause = io::Error::from_raw_os_error(ENOSPC);
                let (op, device) = (Op::Write, self.name());
                return Err(DeviceError { op, device, offset, len, cause }.into());
            }
            host.free -= 1;
            host.stored.insert(page);
        }
        self.inner.write_all_at(data, offset)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let host = self.host();
        let page = host.stored.range(offset / PAGE..).next();
        let range = page.map(|page| page * PAGE..((page + 1) * PAGE).min(self.len()));
        Ok(range.map(|range| range.start.max(offset)..range.end))
    }
}

/// The content of a disk, with the bytes that a change may have touched since the last flush.
struct Flushed {
    disk: Vec<u8>,
    now: Vec<u8>,
    touched: Vec<bool>,
}

impl Flushed {
    fn new(disk: Vec<u8>) -> Flushed {
        Flushed { now: disk.clone(), touched: vec![false; disk.len()], disk }
    }

    /// Notes changes, or that all are durable.
    fn note(&mut self, disk: &[u8], is_flushed: bool) {
        if is_flushed {
            *self = Flushed::new(disk.to_vec());
            return;
        }
        for at in (0..disk.len()).filter(|at| self.now[*at] != disk[*at]) {
            let end = ((at | 511) + 1).min(disk.len());
            self.touched[at & !511..end].fill(true);
        }
        self.now.copy_from_slice(disk);
    }

    #[track_caller]
    fn assert_in(&self, disk: &[u8]) {
        let lost = (0..disk.len()).find(|at| !self.touched[*at] && disk[*at] != self.disk[*at]);
        assert_eq!(lost, None, "flushed content is lost");
    }
}

/// An image in memory, and its base.
fn images(scratch: &Scratch, options: &str, size: u64, base: Option<&Path>) -> PathBuf {
    let image = scratch.join("i.qcow2");
    match base {
        Some(base) => {
            let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-o", options, "-b"];
            qemu(&[&create[..], &[text(base), text(&image), &size.to_string()]].concat());
        }
        None => empty(&image, options, size),
    }
    image
}

fn memory_of(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::from_bytes(&fs::read(path).unwrap()))
}

#[test]
fn writes_go_on_once_the_host_has_space_again() {
    let scratch = Scratch::new();
    let base = scratch.join("base.raw");
    let size = 600 << 10;
    fs::write(&base, pattern(11, size - 5000)).unwrap();
    for (seed, options, overlays) in [
        (1, "cluster_size=512,refcount_bits=64", true),
        (2, "cluster_size=512", false),
        (3, "cluster_size=4k,refcount_bits=1", true),
        (4, "cluster_size=64k", false),
        (5, "cluster_size=64k,preallocation=metadata", false),
    ] {
        let image = images(&scratch, options, size as u64, overlays.then_some(&base));
        // QEMU respects the locks of files.
        let below = || overlays.then(|| memory_of(&base));
        let bytes = fs::read(&image).unwrap();
        let host = Arc::new(FullDevice::new(MemDevice::from_bytes(&bytes)));
        let device = Qcow2Device::open(host.clone(), below(), false).unwrap();
        let mut model = content(&device);
        let mut flushed = Flushed::new(model.clone());
        let (mut rng, mut refused) = (Rng::new(seed), 0);
        for _ in 0..250 {
            let done = try_change(&device, &mut model, &mut rng, 20_000);
            flushed.note(&model, false);
            if let Err(error) = done {
                assert_eq!(raw_os_error(&error), Some(ENOSPC), "{error}");
                refused += 1;
                // A flush succeeds, as the file stores the tables already.
                if rng.one_in(3) {
                    device.flush().unwrap();
                    flushed.note(&model, true);
                }
                // The state that a process leaves if it is killed here.
                fs::write(&image, host.inner.to_vec()).unwrap();
                assert_consistent(&image);
                flushed.assert_in(&content(
                    &Qcow2Device::open(file(&image, false), below(), false).unwrap(),
                ));
                host.set_free(rng.below(6));
            }
        }
        assert!(refused > 15, "{options}: {refused}");
        device.flush().unwrap();
        assert!(content(&device) == model, "{options}");
        host.set_free(u64::MAX);
        device.write_all_at(&model.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>(), 0).unwrap();
        device.write_all_at(&model, 0).unwrap();
        drop(device);
        fs::write(&image, host.inner.to_vec()).unwrap();
        assert_clean(&image);
        assert!(disk(&scratch, &image) == model, "{options}");
        fs::remove_file(&image).unwrap();
    }
}

/// Tables in holes of the file are stored before a write into a new cluster succeeds.
#[test]
fn a_flush_needs_no_space_for_tables_in_holes() {
    let file = MemDevice::new(0);
    create(&file, 64 << 30, None).unwrap();
    // The L1 table, the block of refcounts and the refcount table are all zeroes but for a few
    // bytes, and those pages alone are stored here.
    let host = Arc::new(FullDevice::new(file));
    let device = Qcow2Device::open(host.clone(), None, false).unwrap();
    for gib in [0, 40, 63] {
        let mut pages = 0;
        while let Err(error) = device.write_all_at(&[7; 512], gib << 30) {
            assert_eq!(raw_os_error(&error), Some(ENOSPC), "{error}");
            device.flush().unwrap();
            pages += 1;
            host.set_free(pages);
        }
        host.set_free(0);
        device.flush().unwrap();
    }
    drop(device);
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    fs::write(&image, host.inner.to_vec()).unwrap();
    assert_clean(&image);
}

/// A mounted tmpfs(5), which is unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(scratch: &Scratch, size: &str) -> Tmpfs {
        let dir = scratch.dir("small");
        let size = format!("size={size}");
        run("mount", &["-t", "tmpfs", "-o", &size, "none", text(&dir)]).must_succeed();
        Tmpfs(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run("umount", &[&self.0]);
    }
}

#[test]
fn a_full_tmpfs_costs_no_more_than_the_writes_that_fail() {
    let scratch = Scratch::new();
    let small = Tmpfs::new(&scratch, "3M");
    let (image, filler) = (small.0.join("o.qcow2"), small.0.join("filler"));
    let size = 8 << 20;
    let base = scratch.join("base.raw");
    fs::write(&base, pattern(12, size)).unwrap();
    fs::write(&image, []).unwrap();
    let named = Some((text(&base).as_bytes(), "raw"));
    create(&*file(&image, false), size as u64, named).unwrap();
    fs::write(&filler, vec![1; 1 << 20]).unwrap();
    let below = || Some(memory_of(&base));
    let device = Qcow2Device::open(file(&image, false), below(), false).unwrap();
    let mut model = content(&device);
    let write = |model: &mut [u8], at: usize, byte: u8| {
        let done = device.write_all_at(&[byte; 100_000], at as u64);
        match &done {
            Ok(()) => model[at..at + 100_000].fill(byte),
            Err(_) => device.read_exact_at(&mut model[at..at + 100_000], at as u64).unwrap(),
        }
        done
    };
    let mut at = 0;
    let error = loop {
        match write(&mut model, at, 7) {
            Ok(()) => at += 150_000,
            Err(error) => break error,
        }
    };
    assert_eq!(raw_os_error(&error), Some(ENOSPC), "{error}");
    // Clusters with a place are written, and all of it is durable.
    write(&mut model, 0, 8).unwrap();
    device.flush().unwrap();
    assert!(write(&mut model, at, 9).is_err());
    let killed = scratch.join("killed.qcow2");
    fs::copy(&image, &killed).unwrap();
    assert_consistent(&killed);
    let of_killed = content(&Qcow2Device::open(file(&killed, false), below(), false).unwrap());
    assert!(of_killed[..at] == model[..at] && of_killed[at + 100_000..] == model[at + 100_000..]);
    fs::remove_file(&filler).unwrap();
    write(&mut model, at, 9).unwrap();
    write(&mut model, at + 300_000, 10).unwrap();
    device.flush().unwrap();
    drop(device);
    assert_clean(&image);
    assert!(disk(&scratch, &image) == model);
}
