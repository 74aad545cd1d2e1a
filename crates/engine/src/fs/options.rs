//! How a file system is opened.

use super::Runtime;
use super::handover::HeldInodes;
use super::memory::{MIN_MEMORY, default_memory};
use super::runtime::task_owner;
use super::shares::MemoryPool;
use crate::alloc::MAX_AGGRESSION;
use crate::error::{Error, Result};
use crate::mmp::HostClaim;
use crate::volume::{Clock, SystemClock};
#[cfg(all(feature = "file-device", target_os = "linux", feature = "nbd"))]
use extant_blocks::AlignedDevice;
#[cfg(all(feature = "file-device", target_os = "linux"))]
use extant_blocks::ImageFormat;
#[cfg(all(
    feature = "file-device",
    target_os = "linux",
    any(feature = "nbd", feature = "qcow2")
))]
use extant_blocks::PartDevice;
use extant_blocks::{BlockDevice, GuardedDevice, ImageSpec, parse_image_spec};
#[cfg(all(feature = "file-device", target_os = "linux"))]
use extant_blocks::{is_in_store, is_remote};
use extant_format::superblock::ErrorPolicy;
use extant_sync::scheduler::TaskOwner;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long a change may stay in memory only, by default.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// More commits than this make cost more than they are worth.
const MIN_COMMIT_INTERVAL: Duration = Duration::from_millis(10);

/// How a file system is opened. `OpenOptions::new()` reads and writes, recovers first, and commits
/// every 5 seconds.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) read_only: bool,
    pub(crate) no_recovery: bool,
    pub(crate) skip_damaged_log: bool,
    pub(crate) allow_short: bool,
    pub(crate) count_mount: bool,
    pub(crate) wait: bool,
    pub(crate) interrupt: Option<Arc<AtomicBool>>,
    pub(crate) claimed: bool,
    pub(crate) direct_io: bool,
    pub(crate) commit_interval: Duration,
    pub(crate) errors: Option<ErrorPolicy>,
    pub(crate) memory: u64,
    pub(crate) names: bool,
    pub(crate) look_ahead: bool,
    pub(crate) shards: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: Option<u64>,
    pub(crate) mount_point: Option<String>,
    pub(crate) log_data: bool,
    pub(crate) discard: bool,
    pub(crate) zero_tables: bool,
    pub(crate) use_reserve: bool,
    pub(crate) tunables: Vec<(&'static str, u64)>,
    pub(crate) runtime: Option<Runtime>,
    /// Set when a file system is opened.
    pub(super) tasks: Option<TaskOwner>,
    journal: Option<Journal>,
    pub(super) under_claim: bool,
    pub(super) adopts: Option<Arc<HeldInodes>>,
}

/// Where an external journal is.
#[derive(Clone, Debug)]
enum Journal {
    Image(ImageSpec),
    Device(Arc<dyn BlockDevice>),
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            no_recovery: false,
            skip_damaged_log: false,
            allow_short: false,
            count_mount: true,
            wait: false,
            interrupt: None,
            direct_io: false,
            commit_interval: COMMIT_INTERVAL,
            errors: None,
            memory: default_memory(),
            names: true,
            look_ahead: false,
            shards: 0,
            clock: Arc::new(SystemClock),
            seed: None,
            mount_point: None,
            log_data: false,
            discard: false,
            zero_tables: false,
            use_reserve: false,
            claimed: false,
            tunables: Vec::new(),
            runtime: None,
            tasks: None,
            journal: None,
            under_claim: false,
            adopts: None,
        }
    }
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Change nothing on the device. If the journal needs replay, blocks are read from their copies
    /// in it. Orphans are not freed, and the MMP block is not looked at.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Ignore the journal (`noload`); implies reading only.
    pub fn no_recovery(mut self, yes: bool) -> Self {
        self.no_recovery = yes;
        self.read_only |= yes;
        self
    }

    /// If the journal is damaged, a file system that is opened for reading is shown without it,
    /// instead of being refused; [`Recovery::log_skipped`](crate::Recovery::log_skipped) says so.
    /// Opening for writing is refused all the same.
    pub fn skip_damaged_log(mut self, yes: bool) -> Self {
        self.skip_damaged_log = yes;
        self
    }

    /// Opens a file system for reading although the device ends before it, as far as the blocks
    /// that opening itself needs are there. Reads behind the end of the device fail. Opening for
    /// writing is refused all the same.
    pub fn allow_short(mut self, yes: bool) -> Self {
        self.allow_short = yes;
        self
    }

    /// Whether opening for writing counts as a mount in the superblock (time, number, place); it
    /// does by default. A recovery does not.
    pub fn count_mount(mut self, yes: bool) -> Self {
        self.count_mount = yes;
        self
    }

    /// Goes on with a file system that [`Fs::hand_over`](crate::Fs::hand_over) has closed: inodes
    /// of the table are held, and those of them that have no name are not freed. The opening counts
    /// as no mount. The image must not have been unlocked since.
    pub fn adopt(mut self, held: Arc<HeldInodes>) -> Self {
        self.adopts = Some(held);
        self.count_mount = false;
        self
    }

    /// Whether the options ask for reading only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Wait for another program to let go of the image, instead of failing.
    pub fn wait(mut self, yes: bool) -> Self {
        self.wait = yes;
        self
    }

    /// Ends waits of the opening with EINTR once another thread sets the flag: for another program,
    /// and for another host, which takes minutes where multiple mount protection says so.
    pub fn interrupt(mut self, flag: Arc<AtomicBool>) -> Self {
        self.interrupt = Some(flag);
        self
    }

    /// The caller has had the kernel claim the disk: it is not opened exclusively.
    pub fn claimed(mut self, yes: bool) -> Self {
        self.claimed = yes;
        self
    }

    /// Bypass the page cache of the machine for the image.
    pub fn direct_io(mut self, yes: bool) -> Self {
        self.direct_io = yes;
        self
    }

    /// How long a change may stay in memory only: 5 seconds by default, which zero stands for, too,
    /// and at least 10 milliseconds.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval =
            if interval.is_zero() { COMMIT_INTERVAL } else { interval.max(MIN_COMMIT_INTERVAL) };
        self
    }

    /// Sets the reaction to damage in the file system's own structures, in place of the
    /// superblock's: changes continue, or end. The policy of a panic ends changes, too, since a
    /// library does not panic the machine.
    pub fn errors(mut self, policy: ErrorPolicy) -> Self {
        self.errors = Some(policy);
        self
    }

    /// Bounds all caches together, in bytes. Values below 64 MiB count as 64 MiB. The default is a
    /// quarter of the memory that this process may have: the machine's, or the limit of its control
    /// groups. Without effect in a runtime with memory of its own ([`RuntimeBuilder::memory`]).
    ///
    /// [`RuntimeBuilder::memory`]: super::RuntimeBuilder::memory
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes.max(MIN_MEMORY);
        self
    }

    /// Sets whether names are cached after a lookup, as by default. Not useful if the caller caches
    /// them, as the kernel does for a FUSE mount, and looks up each only once.
    pub fn remember_names(mut self, yes: bool) -> Self {
        self.names = yes;
        self
    }

    /// Sets whether inodes are prefetched for clients that walk a tree; not by default. Useful if
    /// clients wait for each answer, as those of a FUSE mount do, and names are not cached here
    /// ([`Self::remember_names`]).
    pub fn look_ahead(mut self, yes: bool) -> Self {
        self.look_ahead = yes;
        self
    }

    /// Sets the number of shards of the structures that threads share, such as lists of changes,
    /// reserved space, handles, and counters. It is rounded up to a power of two; more than 128
    /// count as 128. The default, which 0 stands for, is the number of processors, rounded up in
    /// the same way. With 128, two processors run the code of 128; with 1 all threads share
    /// everything. The on-disk format does not depend on it; the order of operations of different
    /// threads, and with it the place of a block, may.
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = count;
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Seed of generations, for reproducible images: the same calls from one thread give the same
    /// bytes, on each machine and at each load, if [`Self::clock`] and the image give the same,
    /// too. No work is done in the background then: a change stays in memory until a sync, or until
    /// memory is full, with any [`Self::commit_interval`]; the opening zeroes tables; walks have no
    /// prefetch. Caches with a size that affects the bytes have 64 MiB, with any [`Self::memory`].
    /// Multiple mount protection still writes times and names of the machine.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Log file data as well as metadata (`data=journal`).
    pub fn log_data(mut self, yes: bool) -> Self {
        self.log_data = yes;
        self
    }

    /// Sets whether unused parts of inode tables are zeroed in the background (`init_itable`).
    pub fn zero_tables(mut self, yes: bool) -> Self {
        self.zero_tables = yes;
        self
    }

    /// Tell the device of freed space once its freeing is durable: of runs of 64 KiB and more, on a
    /// thread of its own, unless the space is needed before.
    pub fn discard(mut self, yes: bool) -> Self {
        self.discard = yes;
        self
    }

    /// File content may use the blocks that are reserved for root.
    pub fn use_reserve(mut self, yes: bool) -> Self {
        self.use_reserve = yes;
        self
    }

    /// Bounds the bytes of free-space trees, 0 for any number; at least the bytes of the largest
    /// tree. The default is two blocks for each group, and no more than a part of [`Self::memory`].
    pub fn mb_frsp_max_mem(self, bytes: u64) -> Self {
        self.tunable("mb_frsp_max_mem", bytes)
    }

    /// How many trees of which nothing is known a request without a run of its whole length looks
    /// at: none at level 0, at most 2, 3 and 18 at levels 1, 2 and 3 (more counts as 3). At level
    /// 1, the default, it looks at the tree of its goal only while bitmaps are scanned.
    pub fn frsp_cache_aggression(self, level: u8) -> Self {
        self.tunable("frsp_cache_aggression", level.min(MAX_AGGRESSION).into())
    }

    /// Whether all block bitmaps are scanned in the background, from the mount on; they are by
    /// default.
    pub fn prefetch_block_bitmaps(self, yes: bool) -> Self {
        self.tunable("prefetch_block_bitmaps", yes.into())
    }

    /// Of several values of one name the last holds.
    fn tunable(mut self, name: &'static str, value: u64) -> Self {
        self.tunables.push((name, value));
        self
    }

    /// Sets the last mount point in the superblock.
    pub fn mount_point(mut self, path: impl Into<String>) -> Self {
        self.mount_point = Some(path.into());
        self
    }

    /// The threads that do the work which no caller waits for, shared with other file systems. Each
    /// file system has threads of its own by default.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// The image file or block device of an external journal.
    pub fn journal(self, path: impl Into<PathBuf>) -> Self {
        self.journal_image(ImageSpec::whole(path))
    }

    /// An external journal at a place in a file or disk.
    pub fn journal_image(mut self, image: ImageSpec) -> Self {
        self.journal = Some(Journal::Image(image));
        self
    }

    /// The device of an external journal.
    pub fn journal_on(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(Journal::Device(Arc::new(GuardedDevice::new(device))));
        self
    }

    /// Opens a file system on the device of this claim against other hosts, or over an overlay of
    /// it: it makes none of its own. It must be closed before the claim ends.
    pub fn under_claim(mut self, _claim: &HostClaim) -> Self {
        self.under_claim = true;
        self
    }

    /// The device of the external journal, if one was named.
    pub(super) fn journal_device(&self, read_only: bool) -> Result<Option<Arc<dyn BlockDevice>>> {
        match &self.journal {
            None => Ok(None),
            Some(Journal::Device(device)) => Ok(Some(device.clone())),
            Some(Journal::Image(image)) => self.open_device(image, read_only, false).map(Some),
        }
    }

    /// These options, with an owner for the tasks of a file system.
    pub(super) fn with_tasks(&self) -> OpenOptions {
        OpenOptions { tasks: Some(task_owner(self)), ..self.clone() }
    }

    /// The owner of the file system's tasks.
    pub(super) fn tasks(&self) -> TaskOwner {
        self.tasks.clone().unwrap_or_else(|| task_owner(self))
    }

    /// Whether the bytes of the image depend on the calls only.
    pub(crate) fn is_deterministic(&self) -> bool {
        self.seed.is_some()
    }

    /// Returns the bytes that are divided among caches with a size that affects the bytes of the
    /// image.
    pub(crate) fn shared_memory(&self) -> u64 {
        match self.memory_pool() {
            None if !self.is_deterministic() => self.memory,
            // Those that can grow and shrink get a share of the pool.
            _ => MIN_MEMORY,
        }
    }

    /// Returns the memory that the file system shares with others, if it does.
    pub(super) fn memory_pool(&self) -> Option<&Arc<MemoryPool>> {
        self.runtime.as_ref().and_then(Runtime::memory).filter(|_| !self.is_deterministic())
    }

    /// Returns the most bytes that the caches may take.
    pub(super) fn total_memory(&self) -> u64 {
        self.memory_pool().map_or(self.memory, |pool| pool.total())
    }

    /// Opens the device that a path leads to, as [`crate::Fs::open`] does.
    pub fn device(&self, path: &Path) -> Result<Arc<dyn BlockDevice>> {
        self.device_of(&ImageSpec::whole(path))
    }

    /// Opens the device that lies at a place in a file or disk, as [`crate::Fs::open_image`] does.
    /// Backing files are opened for reading, and shared with other readers.
    pub fn device_of(&self, image: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
        self.open_device(image, self.read_only, self.claimed)
    }

    /// Only callers' own devices are known.
    #[cfg(not(all(feature = "file-device", target_os = "linux")))]
    fn open_device(&self, image: &ImageSpec, _: bool, _: bool) -> Result<Arc<dyn BlockDevice>> {
        Err(Error::Unsupported(format!("{image}: devices in files; open a device of your own")))
    }

    #[cfg(all(feature = "file-device", target_os = "linux"))]
    fn open_device(
        &self,
        image: &ImageSpec,
        read_only: bool,
        claimed: bool,
    ) -> Result<Arc<dyn BlockDevice>> {
        match image.format {
            ImageFormat::Raw if image.backing.is_empty() => {
                self.open_file(image, read_only, claimed)
            }
            ImageFormat::Raw => Err(Error::Invalid(format!(
                "{image}: a raw image has no backing file; an overlay has the format qcow2"
            ))),
            ImageFormat::Qcow2 => self.open_qcow2(image, read_only, claimed),
            other => Err(Error::Unsupported(format!("{image}: the format {}", other.name()))),
        }
    }

    #[cfg(all(feature = "file-device", target_os = "linux", not(feature = "nbd")))]
    fn open_remote(&self, image: &ImageSpec, _: bool) -> Result<Arc<dyn BlockDevice>> {
        Err(Error::Unsupported(format!("{image}: network block devices, in this build")))
    }

    /// Opens a network block device, or a part of it.
    #[cfg(all(feature = "file-device", target_os = "linux", feature = "nbd"))]
    fn open_remote(&self, image: &ImageSpec, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        let address: extant_nbd::Address = image.path.to_string_lossy().parse()?;
        let device = extant_nbd::NbdDevice::open(&address, read_only)?;
        // The place of a part need not be that of a block.
        let device = AlignedDevice::over(Arc::new(device));
        Ok(PartDevice::at(device, image.place)?)
    }

    #[cfg(all(feature = "file-device", target_os = "linux", not(feature = "store")))]
    fn open_stored(&self, image: &ImageSpec, _: bool) -> Result<Arc<dyn BlockDevice>> {
        Err(Error::Unsupported(format!("{image}: images in object stores, in this build")))
    }

    /// Opens an image in an object store, or a part of it.
    #[cfg(all(feature = "file-device", target_os = "linux", feature = "store"))]
    fn open_stored(&self, image: &ImageSpec, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        if !read_only {
            let path = image.path.display();
            let text = format!(
                "{path}: an image in a store is for reading only; `extant pull` copies it, and an \
                 overlay over it takes changes (`extant overlay create NEW --backing {path}`)"
            );
            return Err(Error::Io(std::io::Error::new(
                std::io::ErrorKind::ReadOnlyFilesystem,
                text,
            )));
        }
        let address: extant_store::StoreAddress = image.path.to_string_lossy().parse()?;
        let device = extant_store::StoreDevice::open(&address)?;
        Ok(PartDevice::at(Arc::new(device), image.place)?)
    }

    /// Opens a file, disk, network block device or image in a store, or a part of it, as it is.
    #[cfg(all(feature = "file-device", target_os = "linux"))]
    fn open_file(
        &self,
        image: &ImageSpec,
        read_only: bool,
        claimed: bool,
    ) -> Result<Arc<dyn BlockDevice>> {
        if is_in_store(&image.path) {
            return self.open_stored(image, read_only);
        }
        if is_remote(&image.path) {
            return self.open_remote(image, read_only);
        }
        /// How long to wait at most for another program to release an image.
        const PATIENCE: Duration = Duration::from_secs(3600);
        let how = extant_blocks::OpenOptions::from_spec(image)
            .read_only(read_only)
            .direct(self.direct_io);
        let patience = self.wait.then_some(PATIENCE);
        let how = how.claimed(claimed).wait(patience).interrupt(self.interrupt.clone());
        Ok(Arc::new(how.open().map_err(|error| match error.kind() {
            std::io::ErrorKind::Interrupted => crate::Errno::Intr.into(),
            _ => Error::Io(error),
        })?))
    }

    #[cfg(all(feature = "file-device", target_os = "linux", not(feature = "qcow2")))]
    fn open_qcow2(&self, image: &ImageSpec, _: bool, _: bool) -> Result<Arc<dyn BlockDevice>> {
        Err(Error::Unsupported(format!("{image}: the format qcow2, in this build")))
    }

    /// Opens the disk in an image of the format qcow2, or a part of it. The last backing file is
    /// opened first.
    #[cfg(all(feature = "file-device", target_os = "linux", feature = "qcow2"))]
    fn open_qcow2(
        &self,
        image: &ImageSpec,
        read_only: bool,
        claimed: bool,
    ) -> Result<Arc<dyn BlockDevice>> {
        use extant_qcow2::Qcow2Device;
        let mut below: Option<Arc<dyn BlockDevice>> = None;
        let mut backing_of = None;
        for backing in image.backing.iter().rev() {
            let file = self.open_file(&ImageSpec::whole(&backing.path), true, false)?;
            below = Some(match backing.format {
                ImageFormat::Qcow2 => {
                    let disk = Qcow2Device::open(file, below, true)?;
                    check_backing(&disk, backing_of)?;
                    Arc::new(disk)
                }
                _ if below.is_some() => {
                    return Err(Error::Invalid(format!(
                        "{}: a raw image has no backing file",
                        backing.path.display()
                    )));
                }
                _ => file,
            });
            backing_of = Some(backing);
        }
        let file = self.open_file(&ImageSpec::whole(&image.path), read_only, claimed)?;
        let disk = Qcow2Device::open(file, below, read_only)?;
        check_backing(&disk, backing_of)?;
        Ok(PartDevice::at(Arc::new(disk), image.place)?)
    }
}

/// Refuses a backing file in another format than the header of its overlay says, and warns of one
/// with another name, which may be a wrong one.
#[cfg(all(feature = "file-device", target_os = "linux", feature = "qcow2"))]
fn check_backing(
    disk: &extant_qcow2::Qcow2Device,
    backing: Option<&extant_blocks::BackingSpec>,
) -> Result<()> {
    let (Some(named), Some(backing)) = (disk.backing_name(), backing) else { return Ok(()) };
    let (overlay, path, format) = (disk.name(), backing.path.display(), backing.format.name());
    let stored = named.format.as_deref().and_then(ImageFormat::named).map(ImageFormat::name);
    if let Some(stored) = stored.filter(|stored| *stored != format) {
        return Err(Error::Invalid(format!(
            "{overlay}: its header says that the backing file has the format {stored}, and \
             {path}:{format} was named; name {path}:{stored}"
        )));
    }
    let name = String::from_utf8_lossy(&named.name);
    if Path::new(&*name).file_name() != backing.path.file_name() && !disk.read_only() {
        tracing::warn!("{overlay}: its header calls the backing file {name:?}, not {path:?}");
    }
    Ok(())
}

/// The file or disk that a word of a command line names, and the place in it: `PATH`, `PATH@OFFSET`
/// or `PATH@pN`, a raw image. A path that is no UTF-8 has no place after it.
pub fn image_spec(path: &Path) -> ImageSpec {
    match path.to_str() {
        Some(text) => parse_image_spec(text),
        None => ImageSpec::whole(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_interval_is_never_too_short() {
        let interval = |asked| OpenOptions::new().commit_interval(asked).commit_interval;
        assert_eq!(interval(Duration::ZERO), COMMIT_INTERVAL);
        assert_eq!(interval(Duration::from_nanos(1)), MIN_COMMIT_INTERVAL);
        assert_eq!(interval(Duration::from_secs(60)), Duration::from_secs(60));
    }
}
