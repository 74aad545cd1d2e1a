//! Open, create, sync, freeze, unmount: owns and starts everything.

mod assemble;
#[cfg(all(test, feature = "designs"))]
mod designs;
mod fast_commit;
mod features;
mod freeze;
mod handover;
mod jobs;
mod journal_client;
mod marks;
mod memory;
mod open;
mod options;
mod recover;
mod report;
mod runtime;
mod shares;
mod shutdown;
mod superblocks;
mod sync;

pub use freeze::Frozen;
pub use handover::HeldInodes;
pub use options::{OpenOptions, image_spec};
pub use report::{FsStats, Health, Recovery};
pub use runtime::{Runtime, RuntimeBuilder, RuntimeStats};

use crate::error::{Errno, Error, Result};
#[cfg(feature = "mkfs")]
use crate::mkfs;
use crate::mmp::Mmp;
use crate::ops::{Anchor, Node, Operations};
use extant_blocks::{BlockDevice, GuardedDevice, ImageSpec, MountedDevice};
use extant_format::jbd2::JournalSuperblock;
use extant_format::superblock::{State, Superblock};
use extant_format::types::FileType;
use extant_sync::atomic::Ordering;
use jobs::Jobs;
use shares::PoolMember;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// An open file system. All operations come from [`Operations`], to which it dereferences; any
/// number of threads may call them at once.
///
/// Dropped without [`Fs::unmount`], it unmounts, and errors are only logged.
#[derive(Debug)]
pub struct Fs {
    ops: Arc<Operations>,
    /// The anchors of open files, by shard.
    _anchors: Vec<Arc<Anchor>>,
    jobs: Option<Jobs>,
    /// The part in the memory of a runtime.
    memory: Option<PoolMember>,
    recovery: Recovery,
    /// The journal refers to it weakly.
    _client: Arc<journal_client::StoreClient>,
    /// The superblock's state of the unmounted file system.
    clean_state: State,
    mmp: Option<Mmp>,
    /// The journal's device, if that is not the file system's own.
    external_log: Option<Arc<MountedDevice>>,
    /// It goes on with inodes that another opening has handed over.
    has_adopted: bool,
}

impl Deref for Fs {
    type Target = Arc<Operations>;
    fn deref(&self) -> &Arc<Operations> {
        &self.ops
    }
}

impl Fs {
    /// Opens an image file or block device. No character of the path has a special meaning.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Fs> {
        Self::open_device(options.device(path.as_ref())?, options)
    }

    /// Opens the file system that lies at a place in a file or disk, such as a partition.
    pub fn open_image(image: &ImageSpec, options: &OpenOptions) -> Result<Fs> {
        Self::open_device(options.device_of(image)?, options)
    }

    /// Opens the file system on a device. A panic of the device counts as an I/O error.
    pub fn open_device(dev: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Fs> {
        open::open(Arc::new(GuardedDevice::new(dev)), options)
    }

    /// Makes a file system on a device and opens it.
    #[cfg(feature = "mkfs")]
    pub fn create(
        dev: Arc<dyn BlockDevice>,
        make: &mkfs::Options,
        options: &OpenOptions,
    ) -> Result<Fs> {
        mkfs::make(&*dev, make)?;
        Self::open_device(dev, options)
    }

    /// Returns the repairs of the opening.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// A copy of the superblock as it stands.
    pub fn superblock(&self) -> Superblock {
        self.ops.st().groups.superblock()
    }

    /// Compares the storage behind bytes of this file system and of another one, at offsets of
    /// their devices as [`File::extents`](crate::File::extents) gives them. Returns how many bytes
    /// from there on are alike in this, at most `len`, and whether they are the same storage, such
    /// as that of a common backing file: if both are open for reading only, these bytes are equal.
    pub fn compare_storage(&self, offset: u64, other: (&Fs, u64), len: u64) -> Result<(u64, bool)> {
        self.ops.alive()?;
        let devices = [self, other.0].map(|fs| &*fs.ops.st().dev);
        Ok(extant_blocks::compare_origins(devices, [offset, other.1], len)?)
    }

    /// The superblock of the journal as it is on the device; None if there is no journal, or it has
    /// a device that was not named.
    pub fn journal_superblock(&self) -> Result<Option<JournalSuperblock>> {
        let st = self.ops.st();
        let sb = self.superblock();
        if sb.journal_inum().0 == 0 && self.external_log.is_none() {
            return Ok(None);
        }
        let external = self.external_log.clone().map(|log| -> Arc<dyn BlockDevice> { log });
        let log = superblocks::log(&st.dev, external.as_ref(), &st.geo, &sb)?;
        Ok(log.map(|log| log.superblock().clone()))
    }

    /// Returns the length of the device in bytes, which may be less than the file system's with
    /// [`OpenOptions::allow_short`].
    pub fn device_len(&self) -> u64 {
        self.ops.st().mounted.len()
    }

    /// Returns the operations, for callers that must share them, such as open files.
    pub fn operations(&self) -> &Arc<Operations> {
        &self.ops
    }

    /// Whether nothing can be changed: asked for, or after an error.
    pub fn is_read_only(&self) -> bool {
        let st = self.ops.st();
        // A thread that got the error of a failed log may be here before the file system is
        // informed.
        st.read_only.load(Ordering::Acquire) || st.journal.is_aborted()
    }

    /// Everything done so far is durable when this returns.
    pub fn sync(&self) -> Result<()> {
        self.ops.sync()
    }

    /// Counters of all rooms.
    pub fn stats(&self) -> FsStats {
        FsStats::of(&self.ops)
    }

    /// Writes everything, marks the file system clean and closes it. Handles that outlive this get
    /// ESTALE, and neither write to the device nor keep it open. Concurrent writes of other threads
    /// are either kept or refused.
    pub fn unmount(mut self) -> Result<()> {
        self.close(Operations::drain)
    }

    /// Lets go of the device as it is: nothing more is written, as in a power cut. For tests.
    #[doc(hidden)]
    pub fn crash(mut self) {
        self.refuse_operations();
        self.stop_jobs();
        self.ops.st().read_only.store(true, Ordering::Release);
        self.ops.st().journal.crash();
        self.mmp = None;
        self.revoke();
    }

    /// Lets no operation begin any more; whether that is new.
    fn refuse_operations(&self) -> bool {
        !self.ops.st().closed.swap(true, Ordering::AcqRel)
    }

    fn stop_jobs(&mut self) -> bool {
        self.ops.vfs.prefetch.bell().stop();
        self.memory = None;
        self.jobs.take().map(Jobs::stop).is_some()
    }

    /// The file system's device, and the journal's.
    fn devices(&self) -> impl Iterator<Item = &MountedDevice> {
        std::iter::once(&*self.ops.st().mounted).chain(self.external_log.as_deref())
    }

    /// Waits for transfers that run and lets go of the devices.
    fn revoke(&self) {
        self.devices().for_each(MountedDevice::revoke);
    }

    fn close(&mut self, drain: impl Fn(&Operations) -> Result<()>) -> Result<()> {
        if !self.refuse_operations() {
            return Ok(());
        }
        self.ops.wait_for_writers();
        let has_jobs = self.stop_jobs();
        let closed = self.finish_after(has_jobs, drain);
        self.let_go();
        closed
    }

    /// Ends an opening whose jobs are stopped. One for reading has none.
    fn finish_after(
        &mut self,
        has_jobs: bool,
        drain: impl Fn(&Operations) -> Result<()>,
    ) -> Result<()> {
        if has_jobs {
            return self.finish(drain);
        }
        self.ops.st().journal.crash();
        Ok(())
    }

    /// Releases the devices.
    fn let_go(&mut self) {
        self.mmp = None;
        self.revoke();
        self.ops.st().remarks.sum_up();
    }

    /// Brings the device into the state that it is left in. Only the caller uses the file system.
    fn finish(&mut self, drain: impl Fn(&Operations) -> Result<()>) -> Result<()> {
        let st = self.ops.st();
        match self.mmp.as_ref().map_or(Ok(()), Mmp::check) {
            Err(e) if e.is(Errno::Busy) => {
                // Another host has it.
                st.journal.crash();
                return Err(e);
            }
            // The release reports an error of reading.
            _ => {}
        }
        let closed = match self.is_read_only() {
            false => self.close_clean(drain),
            // The next recovery finds the changes until then; there is no error.
            true if st.is_shut_down() => Ok(()),
            true => {
                // An error stopped all changes; the next recovery replays the journal.
                st.journal.crash();
                marks::mark_error(st).and(Err(Error::Aborted(format!(
                    "an earlier error stopped all changes: {}",
                    st.cause()
                ))))
            }
        };
        closed.and(self.mmp.take().map_or(Ok(()), Mmp::release))
    }

    /// Writes everything and marks the file system clean. Unreported losses of data are errors of
    /// the close.
    fn close_clean(&self, drain: impl Fn(&Operations) -> Result<()>) -> Result<()> {
        let st = self.ops.st();
        let synced = drain(&self.ops);
        let closed = st.journal.shutdown();
        if let Err(error @ extant_journal::Error::NoSpace(_)) = closed {
            // As after a power cut: the log has the durable changes, and nothing is damaged.
            tracing::error!(
                "the device has no space for changes that were not yet durable: they are lost"
            );
            st.journal.crash();
            return Err(error.into());
        }
        let closed = closed.map_err(Error::from);
        if closed.is_err() || self.is_read_only() {
            let stopped = closed.and(Err(Error::Aborted("an error stopped all changes".into())));
            let caused = |e| match e {
                Error::Aborted(_) => {
                    Error::Aborted(format!("an error stopped all changes: {}", st.cause()))
                }
                other => other,
            };
            return marks::mark_error(st).and(stopped.map_err(caused));
        }
        st.alloc.finish_discards();
        marks::mark_clean(st, self.clean_state)?;
        synced
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        // Another process may go on with inodes that it handed over.
        let drain = if self.has_adopted { Operations::drain_unheld } else { Operations::drain };
        if let Err(e) = self.close(drain) {
            tracing::error!("unmounting failed: {e}");
        }
    }
}

impl Node {
    /// Type of the inode.
    pub fn file_type(&self) -> FileType {
        self.0.ftype
    }
}
