//! Errors of devices, with their position.

use std::fmt;
use std::io;

/// An operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make completed writes durable.
    Flush,
    /// Discard a range.
    Discard,
    /// Make a range read as zeroes.
    Zero,
    /// Change the length.
    SetLen,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::Zero => "zero",
            Op::SetLen => "set length",
        })
    }
}

/// An error of a device: the operation, the device, the range and the cause. It is the inner error
/// of the [`io::Error`] that devices return, whose kind is that of the cause.
#[derive(Debug)]
pub struct DeviceError {
    /// The operation.
    pub op: Op,
    /// The device's name.
    pub device: String,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The cause of the failure.
    pub cause: io::Error,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceError { op, device, offset, len, cause } = self;
        write!(f, "{device}: {op} of {len} bytes at {offset}: {cause}")
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> io::Error {
        io::Error::new(error.cause.kind(), error)
    }
}

/// Returns the operating system's error number, also of an error that a device wrapped in a
/// [`DeviceError`].
pub fn raw_os_error(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| {
        let inner = error.get_ref()?.downcast_ref::<DeviceError>()?;
        raw_os_error(&inner.cause)
    })
}

/// The cause of a transfer that was requested after the unmount; the value is the device's name.
#[derive(Debug)]
pub(crate) struct Revoked(pub String);

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the file system is unmounted", self.0)
    }
}

impl std::error::Error for Revoked {}

/// Whether a [`MountedDevice`](crate::MountedDevice) refused a transfer after the unmount. An
/// ESTALE of the device itself is another error.
pub fn is_revoked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| match cause.downcast_ref::<DeviceError>() {
        Some(inner) => is_revoked(&inner.cause),
        None => cause.is::<Revoked>(),
    })
}

/// Checks that a range lies within a device of `device_len` bytes.
pub(crate) fn check_range(
    op: Op,
    device: &dyn Fn() -> String,
    device_len: u64,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    if offset.checked_add(len).is_some_and(|end| end <= device_len) {
        return Ok(());
    }
    let kind =
        if op == Op::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidInput };
    let cause = io::Error::new(kind, format!("beyond the end at {device_len}"));
    Err(DeviceError { op, device: device(), offset, len, cause }.into())
}

/// Returns the error of a write to a device that is open for reading only.
#[cfg(all(feature = "file-device", target_os = "linux"))]
pub(crate) fn read_only(op: Op, device: String, offset: u64, len: u64) -> io::Error {
    let cause =
        io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is open for reading only");
    DeviceError { op, device, offset, len, cause }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_and_number_are_kept() {
        let cause = io::Error::from_raw_os_error(28);
        let error: io::Error =
            DeviceError { op: Op::Write, device: "disk".into(), offset: 4096, len: 512, cause }
                .into();
        assert_eq!(raw_os_error(&error), Some(28));
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("disk: write of 512 bytes at 4096: "));
    }

    #[test]
    fn ranges_do_not_overflow() {
        let name = || "d".to_string();
        assert!(check_range(Op::Read, &name, 10, 0, 10).is_ok());
        assert!(check_range(Op::Read, &name, 10, 10, 0).is_ok());
        assert!(check_range(Op::Read, &name, 10, 1, 10).is_err());
        assert!(check_range(Op::Read, &name, u64::MAX, u64::MAX, 2).is_err());
    }
}
