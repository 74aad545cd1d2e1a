//! Opens many images at once and gives each the same file.
//!
//! `cargo run --features mkfs --example many_images SOURCE TARGET DISK.img..`

use extant::{BlockDevice, Fs, Runtime};
use std::sync::Arc;
use std::thread;

/// Bytes of caches for all file systems together.
const MEMORY: u64 = 256 << 20;

/// Writes `content` to `path` of the file system on each device, four at a time; the result of
/// each, in order.
pub fn distribute(
    devices: &[Arc<dyn BlockDevice>],
    path: &str,
    content: &[u8],
) -> Vec<extant::Result<()>> {
    let lot = devices.len().div_ceil(4).max(1);
    // Commits and writeback of all file systems share four threads, and their caches one bound.
    let runtime =
        Runtime::builder().threads(4).memory(MEMORY).build().expect("threads of the runtime");
    thread::scope(|scope| {
        let write_lot = |lot: &[Arc<dyn BlockDevice>]| -> Vec<extant::Result<()>> {
            lot.iter().map(|device| write(device, &runtime, path, content)).collect()
        };
        let threads: Vec<_> =
            devices.chunks(lot).map(|lot| scope.spawn(move || write_lot(lot))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

fn write(
    device: &Arc<dyn BlockDevice>,
    runtime: &Runtime,
    path: &str,
    content: &[u8],
) -> extant::Result<()> {
    let fs = Fs::options().runtime(runtime).open_on(device.clone())?;
    fs.write(path, content)?;
    fs.unmount()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [source, target, images @ ..] = &*args else {
        return Err("usage: many_images SOURCE TARGET DISK.img..".into());
    };
    let open = |image| -> std::io::Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(extant::device::FileDeviceOptions::new(image).open()?))
    };
    let devices: Vec<_> = images.iter().map(open).collect::<Result<_, _>>()?;
    for (image, done) in images.iter().zip(distribute(&devices, target, &std::fs::read(source)?)) {
        match done {
            Ok(()) => println!("{image}: done"),
            Err(error) => println!("{image}: {error}"),
        }
    }
    Ok(())
}
