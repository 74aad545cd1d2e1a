//! Options of opening.

use super::Fs;
use crate::core::Core;
use crate::error::{Error, Op, Result};
use extant_blocks::{BlockDevice, ImageSpec};
use extant_engine as engine;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of opening a file system; [`Fs::options`] begins with the defaults, which allow changes,
/// recover first and commit every 5 seconds.
///
/// ```
/// # use extant::*;
/// # use std::time::Duration;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # Fs::options().create_on(device.clone(), &mkfs::Options::default())?.unmount()?;
/// let options = Fs::options().memory(256 << 20).commit_interval(Duration::from_secs(1));
/// let fs = options.open_on(device)?;
/// # fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(super) engine: engine::OpenOptions,
}

impl OpenOptions {
    fn with(mut self, set: impl FnOnce(engine::OpenOptions) -> engine::OpenOptions) -> Self {
        self.engine = set(self.engine);
        self
    }

    /// Changes nothing on the device: a journal that needs replay is replayed in memory.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.with(|options| options.read_only(true))
    }

    /// Ignores the journal (`noload`), and changes nothing. The tree may be torn.
    #[must_use]
    pub fn no_recovery(self) -> Self {
        self.with(|options| options.no_recovery(true))
    }

    /// Skips a damaged journal when opening for reading only;
    /// [`Recovery::skipped`](crate::Recovery::skipped) has the reason then.
    #[must_use]
    pub fn lenient(self) -> Self {
        self.with(|options| options.skip_damaged_log(true))
    }

    /// Waits for another program to release the image, for up to an hour, instead of failing.
    #[must_use]
    pub fn wait(self) -> Self {
        self.with(|options| options.wait(true))
    }

    /// Bounds all caches together, in bytes. Values below 64 MiB count as 64 MiB. The default is a
    /// quarter of the memory that the process may use. Without effect in a runtime with memory of
    /// its own ([`RuntimeBuilder::memory`](crate::RuntimeBuilder::memory)).
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        self.with(|options| options.memory(bytes))
    }

    /// Bounds the time for which a change stays in memory only. The minimum is 10 milliseconds,
    /// zero stands for the default of 5 seconds.
    #[must_use]
    pub fn commit_interval(self, interval: Duration) -> Self {
        self.with(|options| options.commit_interval(interval))
    }

    /// Runs commits, writeback and other jobs on the threads of `runtime`, which any number of file
    /// systems may share. By default each file system has threads of its own.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # Fs::options().create_on(device.clone(), &mkfs::Options::default())?.unmount()?;
    /// let runtime = Runtime::builder().threads(4).build().expect("threads");
    /// let fs = Fs::options().runtime(&runtime).open_on(device)?;
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn runtime(self, runtime: &engine::Runtime) -> Self {
        self.with(|options| options.runtime(runtime))
    }

    /// Bypasses the page cache of the host for the image file.
    #[must_use]
    pub fn direct_io(self) -> Self {
        self.with(|options| options.direct_io(true))
    }

    /// Sets the number of shards of the structures that threads share, such as lists of changes and
    /// counters. It is rounded up to a power of two; more than 128 count as 128. The default, which
    /// 0 stands for, is the number of processors, rounded up in the same way. With 128, two
    /// processors run the code of 128; with 1, all threads share everything.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// let fs = Fs::options().shards(128).create_on(device, &mkfs::Options::default())?;
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn shards(self, count: usize) -> Self {
        self.with(|options| options.shards(count))
    }

    /// Discards freed space on the device once its freeing is durable, in runs of 64 KiB and more.
    #[must_use]
    pub fn discard(self) -> Self {
        self.with(|options| options.discard(true))
    }

    /// Makes the bytes of the image a function of seed, clock and calls from one thread. Nothing
    /// runs in the background then: a change becomes durable at a sync, at the unmount, or when
    /// memory is full.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.with(|options| options.seed(seed))
    }

    /// Takes times from `clock`. It is called by any thread and must not call the file system.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn crate::Clock>) -> Self {
        self.with(|options| options.clock(clock))
    }

    /// Names the device of an external journal.
    #[must_use]
    pub fn journal_on(self, device: Arc<dyn BlockDevice>) -> Self {
        self.with(|options| options.journal_on(device))
    }

    /// Opens an image file or block device. The path is taken literally.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `Busy` while another program uses the image, `Foreign` for
    /// a device without ext4, `Corrupt`, `Unsupported`, `Device`, `InvalidInput`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Fs> {
        let path = path.as_ref();
        let opened = finish(engine::Fs::open(path, &self.engine));
        opened.map_err(|error| error.at(Op::Open, path.as_os_str().as_encoded_bytes()))
    }

    /// Opens the file system at a place in a file or disk, such as a partition:
    /// [`image_spec`](crate::device::image_spec) reads `disk.img@p1`.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_image(&self, image: &ImageSpec) -> Result<Fs> {
        let opened = finish(engine::Fs::open_image(image, &self.engine));
        opened.map_err(|error| error.at(Op::Open, image.to_string().as_bytes()))
    }

    /// Opens the file system on a device. A panic of the device counts as an I/O error. The device
    /// is released by [`Fs::unmount`]. See [`Fs`] for an example.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; `Busy` if this process has the device open already.
    pub fn open_on(&self, device: Arc<dyn BlockDevice>) -> Result<Fs> {
        finish(engine::Fs::open_device(device, &self.engine))
    }

    /// Makes a file system on a device and opens it; the content of the device is lost. See [`Fs`]
    /// for an example.
    ///
    /// # Errors
    /// `InvalidInput` for options that make no file system, or a device that is too small; as
    /// [`OpenOptions::open_on`].
    #[cfg(feature = "mkfs")]
    pub fn create_on(
        &self,
        device: Arc<dyn BlockDevice>,
        options: &crate::mkfs::Options,
    ) -> Result<Fs> {
        finish(engine::Fs::create(device, options, &self.engine))
    }
}

fn finish(opened: engine::Result<engine::Fs>) -> Result<Fs> {
    match opened {
        Ok(fs) => Ok(Fs { core: Core::new(fs) }),
        Err(error) => Err(Error::of(error, Op::Open, 0)),
    }
}
