//! A device while a file system is open on it.
//!
//! Every transfer of the file system goes through one [`MountedDevice`], which
//!
//! - takes requests of any alignment (see [`AlignedDevice`]),
//! - counts the bytes written,
//! - lets changes wait between [`MountedDevice::freeze`] and [`MountedDevice::thaw`],
//! - refuses every transfer after [`MountedDevice::revoke`], which waits for the transfers in
//!   progress and releases the device. A handle that outlives the file system can thus neither
//!   write to the device nor keep it open.
//!
//! # Locking
//! That of [`Pausable`]: a change that waits for the thaw may hold any lock of its caller, none of
//! which the thaw takes.

use crate::device::total_len;
use crate::error::Revoked;
use crate::{AlignedDevice, BlockDevice, Claim, OriginRun};
use extant_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_sync::{Level, Mutex, Pausable, Sharded};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// The number of the next mount.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// A device of an open file system.
pub struct MountedDevice {
    id: u32,
    /// Declared before `device`, so that it is dropped first: see [`MountedDevice::revoke`].
    claim: Mutex<Option<Claim>>,
    device: Pausable<Arc<dyn BlockDevice>>,
    name: String,
    /// The last known length, for use after the device is gone.
    len: AtomicU64,
    read_only: bool,
    /// Bytes written by the threads of each shard. Relaxed: counters that guard nothing.
    written: Sharded<AtomicU64>,
}

impl std::fmt::Debug for MountedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountedDevice")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl MountedDevice {
    /// Wraps a device without a claim, for a device with only one user, such as one over another
    /// device.
    pub fn unclaimed(device: Arc<dyn BlockDevice>) -> Arc<MountedDevice> {
        Self::new(device, None)
    }

    /// Claims the device until it is revoked; exclusively if `exclusive` is set.
    ///
    /// # Errors
    /// Those of [`BlockDevice::claim`].
    pub fn claimed(
        device: Arc<dyn BlockDevice>,
        exclusive: bool,
    ) -> io::Result<Arc<MountedDevice>> {
        let claim = device.claim(exclusive)?;
        Ok(Self::new(device, Some(claim)))
    }

    fn new(device: Arc<dyn BlockDevice>, claim: Option<Claim>) -> Arc<MountedDevice> {
        let device = AlignedDevice::over(device);
        Arc::new(MountedDevice {
            // Relaxed: the numbers only have to differ.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: device.name(),
            len: AtomicU64::new(device.len()),
            read_only: device.read_only(),
            device: Pausable::new(device),
            claim: Mutex::new(Level::Leaf, claim),
            written: Sharded::default(),
        })
    }

    /// Returns a number that is unique among the mounts of this process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the bytes written so far, including zeroes.
    pub fn written(&self) -> u64 {
        self.written.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Freezes the device: waits for the changes in progress, and lets later ones wait. No byte of
    /// the device changes after the return.
    pub fn freeze(&self) {
        self.device.pause();
    }

    /// Lets changes continue.
    pub fn thaw(&self) {
        self.device.resume();
    }

    /// Returns whether the device is frozen.
    pub fn is_frozen(&self) -> bool {
        self.device.is_paused()
    }

    /// Waits while the device is frozen. Must be called before taking locks that other threads need
    /// for reading.
    pub fn wait_for_thaw(&self) {
        self.device.wait();
    }

    /// Returns the device beneath, which outlives a revocation then.
    ///
    /// # Errors
    /// `StaleNetworkFileHandle` after a revocation.
    pub fn beneath(&self) -> io::Result<Arc<dyn BlockDevice>> {
        self.device.read(Arc::clone).ok_or_else(|| self.revoked())
    }

    /// Waits for the transfers in progress, refuses all later ones, and releases the device and the
    /// claim.
    pub fn revoke(&self) {
        let device = self.device.revoke();
        let claim = self.claim.lock().take();
        // The claim must go first: it identifies the device by its address, which a new device may
        // get once this one is gone.
        drop(claim);
        drop(device);
        // Waiting changes continue, and are refused.
        self.thaw();
    }

    fn with<R>(&self, transfer: impl FnOnce(&dyn BlockDevice) -> io::Result<R>) -> io::Result<R> {
        self.device.read(|device| transfer(&**device)).unwrap_or_else(|| Err(self.revoked()))
    }

    /// Runs a change that writes `bytes` bytes, once the device is not frozen.
    fn change(
        &self,
        bytes: u64,
        change: impl Fn(&dyn BlockDevice) -> io::Result<()>,
    ) -> io::Result<()> {
        self.device.change(|device| change(&**device)).unwrap_or_else(|| Err(self.revoked()))?;
        self.written.local().fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn revoked(&self) -> io::Error {
        io::Error::new(io::ErrorKind::StaleNetworkFileHandle, Revoked(self.name.clone()))
    }
}

impl BlockDevice for MountedDevice {
    fn len(&self) -> u64 {
        self.device.read(|device| device.len()).unwrap_or_else(|| self.len.load(Ordering::Acquire))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|device| device.read_exact_at(buf, offset))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(data.len() as u64, |device| device.write_all_at(data, offset))
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.with(|device| device.read_vectored_at(bufs, offset))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.change(total_len(bufs), |device| device.write_vectored_at(bufs, offset))
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(0, |device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(len, |device| device.write_zeroes(offset, len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(0, |device| device.set_len(len))?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn refresh_len(&self) -> io::Result<u64> {
        let len = self.with(|device| device.refresh_len())?;
        self.len.store(len, Ordering::Release);
        Ok(len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        self.with(|device| device.next_data(offset))
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.with(|device| device.origin(offset, len))
    }

    fn claim(&self, exclusive: bool) -> io::Result<Claim> {
        self.with(|device| device.claim(exclusive))
    }

    fn share_file(&self) -> io::Result<std::fs::File> {
        self.with(|device| device.share_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_revoked_device_is_released_and_refuses_transfers() {
        let inner = Arc::new(MemDevice::new(4096));
        let mounted = MountedDevice::claimed(inner.clone(), true).unwrap();
        mounted.write_all_at(&[1; 512], 0).unwrap();
        assert_eq!(mounted.written(), 512);
        assert!(inner.claim(true).is_err());
        mounted.revoke();
        assert_eq!(
            mounted.write_all_at(&[2; 512], 0).unwrap_err().kind(),
            io::ErrorKind::StaleNetworkFileHandle
        );
        assert!(mounted.read_exact_at(&mut [0; 1], 0).is_err() && mounted.flush().is_err());
        assert_eq!((Arc::strong_count(&inner), mounted.len()), (1, 4096));
        assert!(inner.claim(true).is_ok());
    }

    /// A device that reports at its drop whether its claim has ended.
    #[derive(Debug)]
    struct Reporting(MemDevice, mpsc::Sender<bool>);

    impl Drop for Reporting {
        fn drop(&mut self) {
            self.1.send(Claim::new(self, true).is_ok()).unwrap();
        }
    }

    impl BlockDevice for Reporting {
        crate::forward_device!(self => self.0;
            len, name, read_exact_at, write_all_at, flush, discard);
    }

    #[test]
    fn a_claim_ends_before_its_device() {
        let (report, ended) = mpsc::channel();
        let claimed = || {
            let device = Arc::new(Reporting(MemDevice::new(4096), report.clone()));
            MountedDevice::claimed(device, true).unwrap()
        };
        claimed().revoke();
        assert!(ended.recv().unwrap(), "a revoked device is gone before its claim");
        drop(claimed());
        assert!(ended.recv().unwrap(), "a device is gone before its claim");
    }

    #[test]
    fn changes_wait_for_the_thaw_and_reads_do_not() {
        let mounted = MountedDevice::unclaimed(Arc::new(MemDevice::new(4096)));
        mounted.freeze();
        let (done, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            for change in 0..4 {
                let (mounted, done) = (&mounted, done.clone());
                scope.spawn(move || {
                    let changed = match change {
                        0 => mounted.write_all_at(&[1; 4096], 0),
                        1 => mounted.write_vectored_at(&[IoSlice::new(&[1; 4096])], 0),
                        2 => mounted.write_zeroes(0, 512),
                        _ => mounted.discard(512, 512),
                    };
                    done.send(changed.is_ok()).unwrap();
                });
            }
            let mut bytes = [9; 4096];
            mounted.read_exact_at(&mut bytes, 0).unwrap();
            mounted.flush().unwrap();
            assert_eq!(bytes, [0; 4096]);
            // Enough time for a change that does not wait. A change that waits never fails this,
            // however late it begins.
            assert!(
                ended.recv_timeout(Duration::from_millis(200)).is_err(),
                "a change went through a freeze"
            );
            mounted.thaw();
            assert!((0..4).all(|_| ended.recv().unwrap()));
        });
    }
}
