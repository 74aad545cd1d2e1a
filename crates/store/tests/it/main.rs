//! Images stored, fetched and read, with stores that fail and stores that lie.

mod caches;
mod hostile;
mod links;
mod losses;
mod server;
mod transfers;

use extant_blocks::{BlockDevice, MemDevice};
use extant_store::{PushOptions, PushReport, StoreAddress, StoreDevice, push, transport_of};
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Bytes of a chunk in most tests.
const CHUNK: u64 = 4096;

/// A disk with some content: chunk N of a group of 8 has N times the same byte, and one is zeroes.
fn disk(chunks: u64) -> MemDevice {
    let disk = MemDevice::new(chunks * CHUNK - 100);
    for number in (0..chunks).filter(|number| number % 8 != 3) {
        let data: Vec<u8> = (0..CHUNK).map(|at| (at % 61) as u8 ^ (number % 200) as u8).collect();
        let len = (disk.len() - number * CHUNK).min(CHUNK) as usize;
        disk.write_all_at(&data[..len], number * CHUNK).unwrap();
    }
    disk
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn options() -> PushOptions {
    let mut options = PushOptions::default();
    (options.chunk_size, options.threads) = (CHUNK as u32, 4);
    options
}

fn address(text: impl AsRef<str>) -> StoreAddress {
    text.as_ref().parse().unwrap()
}

fn in_directory(dir: &Path, name: &str) -> StoreAddress {
    address(format!("file://{}/{name}", dir.display()))
}

/// Stores a whole disk.
fn store(
    disk: &dyn BlockDevice,
    address: &StoreAddress,
    options: &PushOptions,
) -> io::Result<PushReport> {
    let transport = transport_of(address)?;
    let stop = AtomicBool::new(false);
    let whole = Box::new(std::iter::once(0..disk.len()));
    push(disk, whole, (address, &*transport), options, (&stop, &|_| ()))
}

fn open(text: impl AsRef<str>) -> io::Result<StoreDevice> {
    StoreDevice::open(&address(text))
}

/// Returns all chunks in a directory.
fn chunks_in(dir: &Path) -> Vec<std::path::PathBuf> {
    let dirs = std::fs::read_dir(dir.join("chunks")).unwrap().map(|entry| entry.unwrap().path());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()))
        .collect()
}
