//! Options of opening an image or a disk, and the refusals.

use super::claim::{self, Extent, busy};
use super::zero::Deallocator;
use super::{FileDevice, kernel_use};
use crate::{BlockDevice, ImageSpec, Place, partition};
use extant_sync::atomic::{self as shared, AtomicU64};
use rustix::fs::{Access, OFlags, access, major, minor};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

const RETRY: Duration = Duration::from_millis(50);

/// Options for opening a [`FileDevice`].
///
/// An image in use is refused: one that another program has locked (see below), a disk that is open
/// exclusively, for example because it is mounted, and an image that the kernel has mounted through
/// a loop device. Writers lock the image's bytes exclusively, readers share the lock.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    path: PathBuf,
    place: Place,
    read_only: bool,
    direct: bool,
    create: bool,
    force: bool,
    lock: bool,
    claimed: bool,
    wait: Option<Duration>,
    interrupt: Option<Arc<AtomicBool>>,
}

/// Whether a file is an image or a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Regular,
    Disk,
}

impl OpenOptions {
    /// Opens a whole file or disk for reading and writing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        OpenOptions {
            path: path.into(),
            place: Place::Whole,
            read_only: false,
            direct: false,
            create: false,
            force: false,
            lock: true,
            claimed: false,
            wait: None,
            interrupt: None,
        }
    }

    /// Opens the raw image of a spec; see [`ImageSpec`]. Its format is not looked at.
    pub fn from_spec(spec: &ImageSpec) -> Self {
        OpenOptions { place: spec.place, ..OpenOptions::new(&spec.path) }
    }

    /// Opens for reading only.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Begins at an offset of the file in bytes. If the file has a partition table, the image ends
    /// with the partition of that offset, or at the next one.
    #[must_use]
    pub fn offset(mut self, bytes: u64) -> Self {
        self.place = Place::Offset(bytes);
        self
    }

    /// Opens a partition, from 1, of the MBR or GUID partition table in the file.
    #[must_use]
    pub fn partition(mut self, number: u32) -> Self {
        self.place = Place::Partition(number);
        self
    }

    /// Bypasses the operating system's page cache for aligned transfers.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Makes an empty file if there is none.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Reads an image even while the kernel has it mounted. The bytes read may be inconsistent. Has
    /// no effect on opening for writing.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets whether to lock the image and to refuse one in use. Without it, two writers are not
    /// excluded.
    #[must_use]
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Tells that the caller has had the kernel claim the disk, so that it cannot be opened
    /// exclusively, and this does not try.
    #[must_use]
    pub fn claimed(mut self, claimed: bool) -> Self {
        self.claimed = claimed;
        self
    }

    /// Waits up to this long for an image in use to become free; `None` does not wait.
    #[must_use]
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// Ends the wait of [`OpenOptions::wait`] once another thread sets the flag.
    #[must_use]
    pub fn interrupt(mut self, flag: Option<Arc<AtomicBool>>) -> Self {
        self.interrupt = flag;
        self
    }

    /// Opens the device. An image on a file system that is mounted read-only, or a write-protected
    /// disk, is opened for reading only.
    ///
    /// # Errors
    /// `Interrupted` if the wait was ended; `ResourceBusy` if the image is in use; `InvalidInput`
    /// if the path is neither a file nor a disk; `InvalidData` for a partition that the table does
    /// not have, or that ends beyond the file's end; the system's errors.
    pub fn open(&self) -> io::Result<FileDevice> {
        let begin = Instant::now();
        let mut told = false;
        loop {
            match self.try_open() {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && self.may_wait(begin) =>
                {
                    if self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire)) {
                        return Err(self.named(io::ErrorKind::Interrupted.into()));
                    }
                    if !std::mem::replace(&mut told, true) {
                        let limit = self.wait.unwrap_or_default().as_secs();
                        tracing::warn!("{error}; waiting for up to {limit} s");
                    }
                    sleep(RETRY);
                }
                result => return result,
            }
        }
    }

    /// Opens the device in a file that is open already. The path then serves for messages, and for
    /// the search for loop devices. The caller must have opened a disk that is written exclusively.
    ///
    /// # Errors
    /// As [`OpenOptions::open`], without a wait, and for reading only if that was asked for;
    /// `PermissionDenied` if the file cannot be used so, and `InvalidInput` for direct I/O.
    pub fn open_in(&self, file: File) -> io::Result<FileDevice> {
        let access = rustix::fs::fcntl_getfl(&file)?;
        let mode = access & OFlags::ACCMODE;
        let suffices = mode == OFlags::RDWR || mode == OFlags::RDONLY && self.read_only;
        if access.intersects(OFlags::PATH | OFlags::APPEND) || !suffices {
            let text = format!("{}: it is not open for that", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if self.direct {
            let text = format!("{}: direct I/O needs another descriptor", self.path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let kind = kind_of(&self.path, &file.metadata()?)?;
        self.device_in(file, kind)
    }

    /// As [`OpenOptions::open_in`], for a file that the device of another process shares
    /// ([`BlockDevice::share_file`]), with its lock. Direct I/O opens the file once more by its
    /// descriptor.
    ///
    /// # Errors
    /// As [`OpenOptions::open_in`].
    pub fn open_shared(&self, file: File) -> io::Result<FileDevice> {
        // The lock is there, and must neither be lost nor become another one.
        let options = OpenOptions { direct: false, lock: false, ..self.clone() };
        let mut device = options.open_in(file)?;
        // Also if this fails: the other process relies on the lock.
        *device.is_shared.get_mut() = true;
        if self.direct {
            device.direct = Some(self.reopen_direct(&device.file)?);
        }
        Ok(device)
    }

    fn may_wait(&self, begin: Instant) -> bool {
        self.wait.is_some_and(|wait| begin.elapsed() < wait)
    }

    fn try_open(&self) -> io::Result<FileDevice> {
        match self.open_as_told() {
            Err(error)
                if error.kind() == io::ErrorKind::ReadOnlyFilesystem && self.path.exists() =>
            {
                self.clone().read_only(true).open_as_told()
            }
            other => other,
        }
    }

    fn open_as_told(&self) -> io::Result<FileDevice> {
        let (file, kind, created) = self.open_file()?;
        let device = self.device_in(file, kind)?;
        if created {
            sync_parent(&self.path);
        }
        Ok(device)
    }

    fn device_in(&self, file: File, kind: Kind) -> io::Result<FileDevice> {
        let metadata = file.metadata()?;
        let extent = self.locate(&file, &metadata)?;
        self.claim(&file, kind, &metadata, extent)?;
        let len = length(&file, &self.path, extent)?;
        Ok(FileDevice {
            name: self.name(),
            direct: if self.direct { Some(self.reopen_direct(&file)?) } else { None },
            file,
            start: extent.start,
            len: AtomicU64::new(len),
            open_ended: extent.len.is_none(),
            resizable: kind == Kind::Regular && extent.len.is_none(),
            read_only: self.read_only || is_protected(&metadata),
            is_shared: shared::AtomicBool::new(false),
            deallocator: Deallocator::default(),
            tells_shared: OnceLock::new(),
        })
    }

    fn name(&self) -> String {
        ImageSpec::whole(&self.path).at(self.place).to_string()
    }

    /// Opens the file; a disk for writing is opened exclusively.
    fn open_file(&self) -> io::Result<(File, Kind, bool)> {
        let existing = match fs::metadata(&self.path) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.create && !self.read_only =>
            {
                None
            }
            result => Some(kind_of(&self.path, &result.map_err(|error| self.named(error))?)?),
        };
        let kind = existing.unwrap_or(Kind::Regular);
        let exclusive = kind == Kind::Disk && self.lock && !self.read_only && !self.claimed;
        let exclusively = if exclusive { OFlags::EXCL } else { OFlags::empty() };
        let file = fs::OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .create(existing.is_none())
            .truncate(false)
            .custom_flags((OFlags::NONBLOCK | exclusively).bits() as i32)
            .open(&self.path);
        let file = file.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => busy(&self.path, "mounted, or held by another program"),
            _ => self.named(error),
        })?;
        // The path may lead to another file by now.
        if kind_of(&self.path, &file.metadata()?)? != kind {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} changed", self.path.display()),
            ));
        }
        Ok((file, kind, existing.is_none()))
    }

    fn named(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), Named { path: self.path.clone(), error })
    }

    fn locate(&self, file: &File, metadata: &Metadata) -> io::Result<Extent> {
        match self.place {
            Place::Whole => Ok(Extent { start: 0, len: None }),
            Place::Offset(start) => {
                let whole = WholeFile::new(file, &self.path)?;
                let end = partition::end_of_space(&whole, start, sector_size(metadata));
                // Without a readable table nothing is known about others behind the offset.
                let len = end.ok().flatten().and_then(|end| end.checked_sub(start));
                Ok(Extent { start, len })
            }
            Place::Partition(number) => {
                let whole = WholeFile::new(file, &self.path)?;
                let range = partition::find(&whole, number, sector_size(metadata))?;
                Ok(Extent { start: range.start, len: Some(range.end - range.start) })
            }
        }
    }

    /// Excludes other users, and refuses if there are any.
    fn claim(
        &self,
        file: &File,
        kind: Kind,
        metadata: &Metadata,
        extent: Extent,
    ) -> io::Result<()> {
        if !self.lock {
            return Ok(());
        }
        claim::lock(file, &self.path, extent, !self.read_only)?;
        if self.read_only && self.force {
            return Ok(());
        }
        match kind {
            // A writer's own exclusive open has shown that the disk is free.
            Kind::Disk if self.read_only && !self.claimed && kernel_use::is_held(&self.path) => {
                Err(busy(&self.path, "mounted, or held by another program"))
            }
            Kind::Disk => Ok(()),
            Kind::Regular => kernel_use::find(&self.path, metadata, extent)
                .map_or(Ok(()), |by| Err(busy(&self.path, &by))),
        }
    }

    /// Opens the same file a second time, for transfers that bypass the page cache.
    fn reopen_direct(&self, file: &File) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let options = fs::OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path);
        options.map_err(|error| {
            let message = format!("{}: direct I/O is not possible: {error}", self.path.display());
            io::Error::new(error.kind(), message)
        })
    }
}

/// An error of opening, with the path.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    error: io::Error,
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for Named {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

fn kind_of(path: &Path, metadata: &Metadata) -> io::Result<Kind> {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Ok(Kind::Regular)
    } else if file_type.is_block_device() {
        Ok(Kind::Disk)
    } else {
        let message = format!("{}: neither a file nor a block device", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

/// Returns the device's length: that of its partition, or the file's length from its start.
fn length(file: &File, path: &Path, extent: Extent) -> io::Result<u64> {
    let mut file = file;
    let end = file.seek(SeekFrom::End(0))?;
    let len = match extent.len {
        Some(len) => {
            extent.start.checked_add(len).filter(|extent_end| *extent_end <= end).map(|_| len)
        }
        None => end.checked_sub(extent.start),
    };
    len.ok_or_else(|| {
        let message =
            format!("{} has only {end} bytes, the image begins or ends beyond", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Returns the size of a disk's sectors. Returns `None` for other files.
fn sector_size(metadata: &Metadata) -> Option<u64> {
    property(metadata, "queue/logical_block_size")
}

/// Returns whether it is a disk that can be opened for writing, but not written.
fn is_protected(metadata: &Metadata) -> bool {
    property(metadata, "ro") == Some(1)
}

/// Returns whether a path leads to a write-protected disk, or to a file on a file system that is
/// mounted read-only.
pub fn is_write_protected(path: &Path) -> bool {
    crate::is_in_store(path)
        || fs::metadata(path).is_ok_and(|metadata| is_protected(&metadata))
        || access(path, Access::WRITE_OK) == Err(Errno::ROFS)
}

/// Returns a number from the kernel's attributes of a disk. Returns `None` for other files.
fn property(metadata: &Metadata, name: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
    fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{name}")).ok()?.trim().parse().ok()
}

/// Makes the name of a new file durable, as far as the directory allows.
fn sync_parent(path: &Path) {
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Err(error) = File::open(parent).and_then(|directory| directory.sync_all()) {
        tracing::warn!(path = %parent.display(), %error, "the new file's name may not be durable");
    }
}

/// A file as a device for reading its partition table.
#[derive(Debug)]
struct WholeFile<'a> {
    file: &'a File,
    path: &'a Path,
    len: u64,
}

impl<'a> WholeFile<'a> {
    fn new(file: &'a File, path: &'a Path) -> io::Result<Self> {
        let mut seekable = file;
        Ok(WholeFile { file, path, len: seekable.seek(SeekFrom::End(0))? })
    }
}

impl BlockDevice for WholeFile<'_> {
    fn len(&self) -> u64 {
        self.len
    }
    fn name(&self) -> String {
        self.path.display().to_string()
    }
    fn read_only(&self) -> bool {
        true
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self.file, buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        Err(crate::error::read_only(crate::Op::Write, self.name(), offset, data.len() as u64))
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
