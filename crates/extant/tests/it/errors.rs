//! Errors have kind, number, call, path, inode and cause.

use crate::new;
use extant::device::{DeviceError, MemDevice};
use extant::{ErrorKind, Fs, InodeNr, NodeKind, mkfs};
use std::error::Error;
use std::io;
use std::sync::Arc;

#[test]
fn an_error_of_a_path_names_call_and_path() {
    let fs = new();
    let error = fs.create_dir_all("/lost+found/a/../b").and(fs.metadata("/absent")).unwrap_err();
    assert_eq!((error.kind(), error.errno(), error.op()), (ErrorKind::NotFound, 2, "metadata"));
    assert_eq!(error.path(), Some(&b"/absent"[..]));
    assert_eq!(error.to_string(), "metadata of /absent: no such file or directory");
    assert!(error.source().is_none() && error.corrupt().is_none() && error.device().is_none());
    let io: io::Error = error.into();
    assert_eq!(io.kind(), io::ErrorKind::NotFound);
    assert!(io.get_ref().unwrap().is::<extant::Error>());
    fs.unmount().unwrap();
}

#[test]
fn a_path_in_a_message_cannot_steer_a_terminal() {
    let fs = new();
    let error = fs.metadata(&b"/\x1b[2J\xff"[..]).unwrap_err();
    assert_eq!(error.to_string(), "metadata of /\\u{1b}[2J\\xff: no such file or directory");
    fs.unmount().unwrap();
}

#[test]
fn an_error_of_a_handle_names_call_and_inode_and_no_path() {
    let fs = new();
    let inode = fs.root().unwrap().create("f", NodeKind::File).unwrap();
    let error = inode.xattr("user.absent").unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::NoData, "xattr"));
    assert_eq!((error.inode(), error.path()), (Some(inode.number()), None));
    let error = inode.clone().into_dir().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory);
    fs.unmount().unwrap();
}

#[test]
fn a_device_without_a_file_system_is_foreign_or_refused() {
    let error = Fs::options().open_on(Arc::new(MemDevice::new(1 << 20))).unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Other, "{error}");
    let error = Fs::open("/nonexistent/disk.img").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(error.path(), Some(&b"/nonexistent/disk.img"[..]));
    assert!(error.source().is_some());
}

/// Damages the root directory's first block, and asks for it.
#[test]
fn corruption_has_coordinates() {
    let device = Arc::new(MemDevice::new(16 << 20));
    let fs = Fs::options().create_on(device.clone(), &mkfs::Options::default()).unwrap();
    let file = fs.create_file("/f").unwrap();
    file.write_all_at(&[0x5a; 8192], 0).unwrap();
    file.sync().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let mut bytes = device.to_vec();
    // The only names of the root directory stand behind its `.` and `..`.
    let name = bytes.windows(10).position(|window| window == b"lost+found").unwrap();
    bytes[name..name + 4].copy_from_slice(b"LOST");
    let damaged = Arc::new(MemDevice::from_bytes(&bytes));
    let fs = Fs::options().read_only().open_on(damaged).unwrap();
    let error = fs.read_dir("/").unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Corrupt, 117), "{error}");
    assert_eq!(error.corrupt().unwrap().inode(), Some(InodeNr(2)));
    assert_eq!((error.inode(), error.path()), (Some(2), Some(&b"/"[..])));
    assert!(error.source().unwrap().to_string().contains("inode 2"));
    fs.unmount().unwrap();
}

#[test]
fn a_failed_request_has_its_place() {
    use extant_testkit::Memory;
    let device = Arc::new(Memory::new(16 << 20));
    let fs = Fs::options().create_on(device.clone(), &mkfs::Options::default()).unwrap();
    fs.write("/f", [7; 4096]).unwrap();
    fs.unmount().unwrap();
    let failing = Arc::new(Failing(MemDevice::from_bytes(&device.to_vec())));
    let fs = Fs::options().read_only().open_on(failing).unwrap();
    let error = fs.read("/f").unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, 5), "{error:?}");
    let place: &DeviceError = error.device().unwrap();
    assert!(place.offset > 0 && place.len >= 1024 && place.device == "failing");
    assert!(error.source().is_some());
    fs.unmount().unwrap();
}

/// A device that fails to read content of the byte 7.
#[derive(Debug)]
struct Failing(MemDevice);

impl extant::BlockDevice for Failing {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn name(&self) -> String {
        "failing".into()
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)?;
        if buf.starts_with(&[7; 1024]) {
            let (device, len) = (self.name(), buf.len() as u64);
            let op = extant::device::Op::Read;
            return Err(DeviceError {
                op,
                device,
                offset,
                len,
                cause: io::Error::from_raw_os_error(5),
            }
            .into());
        }
        Ok(())
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
