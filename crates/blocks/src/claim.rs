//! Claims on the devices of this process, so that no two file systems write to one.
//!
//! A device is identified by its address. The user of a device must keep the device as long as the
//! claim, so that the address is not reused.

use extant_sync::{LazyLock, Level, Mutex};
use std::collections::HashMap;
use std::io;

/// The claims on each device.
static CLAIMS: LazyLock<Mutex<HashMap<usize, Users>>> =
    LazyLock::new(|| Mutex::new(Level::Leaf, HashMap::new()));

/// The users of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    Readers(usize),
    Writer,
}

/// The right to use a device until dropped, shared with other readers or exclusive. See
/// [`BlockDevice::claim`](crate::BlockDevice::claim).
#[derive(Debug)]
#[must_use]
pub struct Claim {
    address: usize,
}

impl Claim {
    /// Claims the device at an address. `name` returns its name for an error.
    ///
    /// # Errors
    /// `ResourceBusy` if the device has a writer, or has any user and `exclusive` is set.
    pub(crate) fn of_address(
        address: usize,
        exclusive: bool,
        name: impl FnOnce() -> String,
    ) -> io::Result<Claim> {
        let mut claims = CLAIMS.lock();
        let users = match claims.get(&address) {
            None if exclusive => Users::Writer,
            None => Users::Readers(1),
            Some(Users::Readers(others)) if !exclusive => Users::Readers(others + 1),
            Some(_) => {
                drop(claims);
                let name = name();
                let text = format!(
                    "{name} is in use: this process has a file system open on it; unmount that \
                    first"
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
        };
        claims.insert(address, users);
        Ok(Claim { address })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock();
        match claims.get(&self.address) {
            Some(Users::Readers(readers @ 2..)) => {
                let left = Users::Readers(readers - 1);
                claims.insert(self.address, left);
            }
            _ => drop(claims.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{BlockDevice, MemDevice};
    use std::sync::Arc;

    #[test]
    fn readers_share_a_device_and_a_writer_does_not() {
        let device = Arc::new(MemDevice::new(4096));
        let (one, two) = (device.claim(false).unwrap(), device.claim(false).unwrap());
        drop(one);
        let refused = device.claim(true).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
        drop(two);
        let writer = device.claim(true).unwrap();
        assert!(device.claim(false).is_err() && device.claim(true).is_err());
        drop(writer);
        let _again = device.claim(true).unwrap();
    }

    #[test]
    fn a_device_is_claimed_through_its_wrappers() {
        let device = Arc::new(MemDevice::new(4096));
        let wrapped: Arc<dyn BlockDevice> = Arc::new(crate::RecordingDevice::new(device.clone()));
        let _claim = wrapped.claim(true).unwrap();
        assert!(device.claim(true).is_err());
        let _other = MemDevice::new(4096).claim(true).unwrap();
    }
}
