//! Changes a disk in an overlay in the format qcow2, and leaves the base image as it is.
//!
//! `cargo run --features qcow2 --example qcow2_overlay BASE.img NEW.qcow2 NAME` makes an overlay,
//! which other programs such as QEMU go on with, and gives its file system a host name.

use extant::device::FileDeviceOptions;
use extant::device::qcow2::{Qcow2Device, create};
use extant::{BlockDevice, Fs};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// Makes an overlay with a host name, and returns the bytes of the disk that it has itself.
pub fn fork(base: &Path, overlay: &Path, name: &str) -> Result<u64, Box<dyn Error>> {
    let disk = FileDeviceOptions::new(base).read_only(true).open()?;
    // Fails if the file is there and not empty.
    let file = FileDeviceOptions::new(overlay).create(true).open()?;
    // Other programs find the base by this name. It is never opened here.
    let path = std::path::absolute(base)?;
    create(&file, disk.len(), Some((path.as_os_str().as_encoded_bytes(), "raw")))?;
    let overlay = Arc::new(Qcow2Device::open(Arc::new(file), Some(Arc::new(disk)), false)?);
    let fs = Fs::options().open_on(overlay.clone())?;
    fs.create_dir_all("/etc")?;
    fs.write("/etc/hostname", name)?;
    fs.unmount()?;
    let (mut bytes, mut at) = (0, 0);
    while let Some(found) = overlay.next_in_layer(at)? {
        bytes += found.range.end - found.range.start;
        at = found.range.end;
    }
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, overlay, name] = &args[..] else {
        return Err("usage: qcow2_overlay BASE.img NEW.qcow2 NAME".into());
    };
    let bytes = fork(Path::new(base), Path::new(overlay), name)?;
    println!("{overlay} has {bytes} bytes of the disk");
    Ok(())
}
