//! The kernel's own ext4 over a loop device: the strongest oracle.

use crate::tool::{PATIENCE, arg, need_root, run};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Enables FUSE over io_uring in the kernel; it is disabled by default.
#[track_caller]
pub fn enable_rings() {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    if let Err(e) = std::fs::write(SWITCH, "1") {
        panic!(
            "FUSE over io_uring cannot be tested here: {SWITCH}: {e} (Linux 6.14 with \
            CONFIG_FUSE_IO_URING, and root)"
        );
    }
}

/// A loop device over an image, detached when dropped.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
    attached: bool,
}

impl Loop {
    /// Attaches a free loop device to `image`.
    #[track_caller]
    pub fn attach(image: &Path, read_only: bool) -> Self {
        need_root("a loop device");
        let mut args: Vec<OsString> = vec!["--find".into(), "--show".into()];
        if read_only {
            args.push("--read-only".into());
        }
        args.push(arg(image));
        let printed = run("losetup", &args).must_succeed();
        Self { device: PathBuf::from(printed.text().trim()), attached: true }
    }

    /// Returns the block device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    fn detach(&mut self) {
        if std::mem::take(&mut self.attached) {
            // If another process has the device open at this moment, the kernel detaches and writes
            // its cache back later.
            let synced = File::open(&self.device).and_then(|device| device.sync_all());
            synced.unwrap_or_else(|e| eprintln!("{}: {e}", self.device.display()));
            let printed = run("losetup", &["--detach".into(), arg(&self.device)]);
            if printed.code != 0 {
                eprintln!("{printed}");
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.detach();
    }
}

/// An image mounted by the kernel; unmounted and detached when dropped.
#[derive(Debug)]
pub struct Mount {
    directory: TempDir,
    point: PathBuf,
    mounted: bool,
    device: Loop,
}

impl Mount {
    /// Mounts `image` as ext4. `options` has the form of `mount -o`; empty for none.
    ///
    /// # Panics
    /// If the caller is not root or the kernel refuses.
    #[track_caller]
    pub fn new(image: &Path, options: &str) -> Self {
        Self::try_new(image, options).unwrap_or_else(|e| panic!("{e}"))
    }

    /// As [`Mount::new`], with the kernel's refusal as an error.
    #[track_caller]
    pub fn try_new(image: &Path, options: &str) -> Result<Self, String> {
        Self::of_kind("ext4", image, options)
    }

    /// As [`Mount::try_new`], for a file system of another kind.
    #[track_caller]
    pub fn of_kind(kind: &str, image: &Path, options: &str) -> Result<Self, String> {
        need_root("mounting with the kernel");
        let read_only = options.split(',').any(|option| option == "ro");
        let device = Loop::attach(image, read_only);
        let directory = tempfile::Builder::new().prefix("extant-test-").tempdir();
        let directory = directory.map_err(|e| format!("no directory to mount on: {e}"))?;
        let point = directory.path().join("mnt");
        std::fs::create_dir(&point).map_err(|e| format!("{}: {e}", point.display()))?;
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        let of_kind: Vec<_> =
            options.split(',').filter(|option| !matches!(*option, "ro" | "rw" | "")).collect();
        let of_kind = CString::new(of_kind.join(",")).map_err(|e| e.to_string())?;
        // By the system call, since many tests mount many images.
        mount(device.device(), &point, kind, flags, &*of_kind).map_err(|e| {
            format!("the kernel refuses to mount {} with {options:?}: {e}", image.display())
        })?;
        Ok(Self { directory, point, mounted: true, device })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Returns the path of `name` below the mount point.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// Returns the loop device.
    pub fn device(&self) -> &Path {
        self.device.device()
    }

    /// Writes everything to the image.
    pub fn sync(&self) {
        run("sync", &["-f".into(), arg(&self.point)]).must_succeed();
    }

    /// Unmounts and detaches; afterwards the image file has everything.
    #[track_caller]
    pub fn unmount(mut self) {
        self.release().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Stops the file system as a crash would (`EXT4_IOC_SHUTDOWN`); everything afterwards fails
    /// with EIO.
    #[track_caller]
    pub fn shut_down(&self, how: Shutdown) {
        shut_down(&self.point, how);
    }

    /// Shuts down, unmounts and detaches: the image is left as after a crash.
    #[track_caller]
    pub fn crash(self, how: Shutdown) {
        self.shut_down(how);
        self.unmount();
    }

    fn release(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.mounted)
            && let Err(e) = unmount_patiently(&self.point)
        {
            let lazily = unmount(&self.point, UnmountFlags::DETACH);
            return Err(format!("umount {}: {e}, lazily: {lazily:?}", self.point.display()));
        }
        await_unused(self.device());
        self.device.detach();
        Ok(())
    }
}

/// Unmounts, within [`PATIENCE`].
pub(crate) fn unmount_patiently(point: &Path) -> rustix::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match unmount(point, UnmountFlags::empty()) {
            Err(Errno::BUSY) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            ended => return ended,
        }
    }
}

/// Waits until the kernel's file system has left a device, within [`PATIENCE`]: a process that has
/// begun in a mount namespace of its own has the mount until it ends.
fn await_unused(device: &Path) {
    let until = Instant::now() + PATIENCE;
    let claim = || open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
    while claim().err() == Some(Errno::BUSY) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            eprintln!("{error} (in {})", self.directory.path().display());
        }
    }
}

/// Mode of `EXT4_IOC_SHUTDOWN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Writes everything, then stops.
    Full = 0,
    /// Commits the journal, then stops: unwritten data is lost.
    FlushLog = 1,
    /// Stops at once: the running transaction is lost.
    NoFlushLog = 2,
}

/// Safe Rust has no ioctl with an argument; perl, which every Debian has, does.
const SHUTDOWN_SCRIPT: &str = r#"
use Fcntl;
sysopen(my $dir, $ARGV[0], O_RDONLY) or die "open: $!";
my $flags = pack("L", $ARGV[1]);
ioctl($dir, 0x8004587d, $flags) or die "ioctl: $!";
"#;

/// Shuts down the file system mounted at `point`, of the kernel or of a FUSE server.
#[track_caller]
pub fn shut_down(point: &Path, how: Shutdown) {
    let flags = (how as u32).to_string();
    run("perl", &["-e".into(), SHUTDOWN_SCRIPT.into(), arg(point), flags.into()]).must_succeed();
}
