//! Paths and names: bytes, in any of the types that programs keep them in.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

mod sealed {
    pub trait Sealed {}
}

/// A path in a file system, or a name in a directory: `str`, `Path`, `OsStr` or `[u8]`, owned or
/// borrowed. ext4 knows bytes alone; only `/` and NUL have a meaning. Paths begin at the root
/// directory, with or without a slash.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// fs.write("/plain", b"a str")?;
/// fs.write(std::path::Path::new("/path"), b"a Path")?;
/// fs.write(b"/\xff", b"bytes that are no UTF-8")?;
/// # fs.unmount()?; Ok::<(), Error>(())
/// ```
pub trait AsBytes: sealed::Sealed {
    /// The bytes of the path or name.
    fn as_bytes(&self) -> &[u8];
}

macro_rules! paths {
    ($($type:ty, $this:ident => $bytes:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl AsBytes for $type {
            fn as_bytes(&self) -> &[u8] {
                let $this = self;
                $bytes
            }
        }
    )*};
}

paths! {
    str, s => str::as_bytes(s);
    String, s => str::as_bytes(s);
    [u8], b => b;
    Vec<u8>, b => b;
    OsStr, s => s.as_encoded_bytes();
    OsString, s => s.as_encoded_bytes();
    Path, p => p.as_os_str().as_encoded_bytes();
    PathBuf, p => p.as_os_str().as_encoded_bytes();
}

impl<const N: usize> sealed::Sealed for [u8; N] {}
impl<const N: usize> AsBytes for [u8; N] {
    fn as_bytes(&self) -> &[u8] {
        self
    }
}

impl<T: sealed::Sealed + ?Sized> sealed::Sealed for &T {}
impl<T: AsBytes + ?Sized> AsBytes for &T {
    fn as_bytes(&self) -> &[u8] {
        (**self).as_bytes()
    }
}
