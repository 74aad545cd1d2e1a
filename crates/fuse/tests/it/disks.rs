//! Mounts of block devices that the kernel claims for the mount.

use crate::served::{make, transport};
use crate::watchdog::{Watchdog, await_that, unmount_unused};
use extant_engine::{Fs, OpenOptions};
use extant_fuse::{Claim, MountOptions, Mounted, mount_claimed};
use extant_testkit::image::Image;
use extant_testkit::kernel::Loop;
use extant_testkit::tool::{Printed, run};
use rustix::fs::{IFlags, ioctl_getflags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// An image that is mounted as a disk.
struct Disk {
    // Fields are dropped in this order.
    mounted: Option<(Mounted, Watchdog)>,
    device: Loop,
    image: Image,
    dir: PathBuf,
}

fn claim(device: &Path) -> io::Result<Option<Claim>> {
    Claim::of(device, &MountOptions::default(), false)
}

/// Claims a device that no file system of this test uses. Children that other tests have started
/// hold the descriptors of this process, exclusive ones too, until they run their program.
fn claim_free(device: &Path) -> Claim {
    let mut claimed = None;
    await_that("the device is free", || match claim(device) {
        Err(e) if e.kind() == ErrorKind::ResourceBusy => false,
        other => {
            claimed = Some(other);
            true
        }
    });
    let claimed = claimed.expect("the wait ended");
    claimed.expect("the device is free").expect("the kernel can hold it")
}

impl Disk {
    fn new() -> Disk {
        Disk::of(make("default"))
    }

    fn of(image: Image) -> Disk {
        let device = Loop::attach(image.path(), false);
        let dir = image.scratch().dir("mnt");
        let mut disk = Disk { mounted: None, device, image, dir };
        disk.mount();
        disk
    }

    fn mount(&mut self) {
        let claim = claim_free(self.device.device());
        let fs = Fs::open(self.device.device(), &OpenOptions::new().claimed(true))
            .expect("the image opens");
        let source = self.device.device().to_string_lossy().into_owned();
        let options = MountOptions {
            source: source.into(),
            transport: transport(),
            ..MountOptions::default()
        };
        let mounted = mount_claimed(fs, &self.dir, &options, Some(claim)).expect("mount");
        self.mounted = Some((mounted, Watchdog::over(&self.dir)));
    }

    /// Unmounts by the system call alone; the image is clean when that returns.
    fn unmount(&mut self) {
        unmount_unused(|| Ok(nix::mount::umount(&self.dir)?));
        self.image.assert_clean();
        let (mounted, watchdog) = self.mounted.take().expect("mounted");
        watchdog.rest();
        mounted.wait().expect("everything is written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

#[test]
pub fn an_unmount_returns_when_everything_is_written() {
    let mut disk = Disk::new();
    for round in 0..3u8 {
        for file in 0..20 {
            fs::write(disk.path(&format!("f{file}")), vec![round; 300_000]).expect("write");
        }
        disk.unmount();
        disk.mount();
        assert_eq!(fs::read(disk.path("f7")).expect("read"), vec![round; 300_000]);
    }
    disk.unmount();
}

/// A mount shows the device's number, and no other program can open the device exclusively.
#[test]
pub fn the_kernel_holds_the_device() {
    let mut disk = Disk::new();
    let device = disk.device.device().to_path_buf();
    let number = fs::metadata(&device).expect("stat").rdev();
    assert_eq!(fs::metadata(&disk.dir).expect("stat").dev(), number);
    let kind = |refused: io::Result<Option<Claim>>| refused.err().map(|e| e.kind());
    assert_eq!(kind(claim(&device)), Some(ErrorKind::ResourceBusy));
    for options in [OpenOptions::new(), OpenOptions::new().read_only(true)] {
        assert!(Fs::open(&device, &options).is_err(), "another engine has it");
    }
    let made = run("mke2fs", &[OsStr::new("-F"), device.as_os_str()]);
    assert_ne!(made.code, 0, "{made}");
    let other = disk.image.scratch().dir("other");
    let mounted = run(
        "mount",
        &[OsStr::new("-t"), OsStr::new("ext4"), device.as_os_str(), other.as_os_str()],
    );
    assert_ne!(mounted.code, 0, "{mounted}");
    disk.unmount();
    // A claim that is dropped without a mount releases the device.
    drop(claim_free(&device));
    let free = Fs::open(&device, &OpenOptions::new().wait(true)).expect("the device is free");
    free.unmount().expect("unmount");
    assert!(claim(disk.image.path()).expect("a file").is_none());
}

fn swap(program: &str, file: &Path) -> Printed {
    run(program, &[file])
}

/// Enables swapping to a file and disables it again.
fn swap_to(file: &Path) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("chmod");
    swap("mkswap", file).must_succeed();
    swap("swapon", file).must_succeed();
    let busy =
        fs::OpenOptions::new().write(true).open(file).and_then(|file| file.write_at(b"x", 1 << 20));
    let off = swap("swapoff", file);
    off.must_succeed();
    assert_eq!(busy.map_err(|e| e.raw_os_error()), Err(Some(nix::libc::ETXTBSY)));
}

/// The kernel requests the locations of a swap file's blocks, and then accesses them itself.
#[test]
pub fn files_can_be_swap_files() {
    const BYTES: usize = 4 << 20;
    let mut disk = Disk::of(make("default").copy_on_disk());
    let (written, kept, sparse) = (disk.path("written"), disk.path("kept"), disk.path("sparse"));
    fs::write(&written, vec![7; BYTES]).expect("write");
    swap_to(&written);
    let file = File::create(&kept).expect("create");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)
        .expect("fallocate");
    drop(file);
    swap_to(&kept);
    File::create(&sparse).and_then(|file| file.set_len(BYTES as u64)).expect("a hole");
    fs::set_permissions(&sparse, fs::Permissions::from_mode(0o600)).expect("chmod");
    swap("mkswap", &sparse).must_succeed();
    let refused = swap("swapon", &sparse);
    assert_ne!(refused.code, 0, "it has holes: {refused}");
    disk.unmount();
}

mod call {
    nix::ioctl_readwrite_bad!(place, 1, u32);
}

/// FIBMAP: returns the device block of a file's block; 0 for a hole.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn place(file: &File, block: u32) -> u32 {
    let mut place = block;
    // SAFETY: the kernel reads and writes no more than this number.
    unsafe { call::place(file.as_raw_fd(), &raw mut place) }.expect("FIBMAP");
    place
}

/// Returns the three blocks of the file `f`, as debugfs prints them.
fn blocks_of(image: &Image) -> Vec<u32> {
    let printed =
        run("debugfs", &[OsStr::new("-R"), OsStr::new("blocks /f"), image.path().as_os_str()]);
    let printed = printed.must_succeed();
    let blocks: Vec<u32> =
        printed.text().split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert_eq!(blocks.len(), 3, "{printed}");
    blocks
}

/// FIBMAP allocates data that is so far in the kernel's pages only, before it returns a location.
#[test]
pub fn blocks_have_their_places_when_they_are_asked_for() {
    let mut disk = Disk::new();
    let file = File::create(disk.path("f")).expect("create");
    file.write_all_at(&[3; 10_000], 5 * 4096).expect("write");
    let asked = [4, 5, 6, 7, 8].map(|block| place(&file, block));
    drop(file);
    disk.unmount();
    let blocks = blocks_of(&disk.image);
    assert_eq!(asked, [0, blocks[0], blocks[1], blocks[2], 0]);
}

/// FIBMAP returns the same blocks as debugfs; they are contiguous.
#[test]
pub fn blocks_lie_where_debugfs_says() {
    let mut disk = Disk::new();
    let path = disk.path("f");
    let file = File::create(&path).expect("create");
    file.write_all_at(&[3; 10_000], 5 * 4096).expect("write");
    let shown = run("filefrag", &[OsStr::new("-Bve"), path.as_os_str()]).must_succeed();
    drop(file);
    disk.unmount();
    let blocks = blocks_of(&disk.image);
    let text = shown.text();
    let extent = text.lines().find(|line| line.trim_start().starts_with("0:")).expect("an extent");
    let words = extent.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    assert_eq!(words.take(6).collect::<Vec<u32>>(), [0, 5, 7, blocks[0], blocks[2], 3], "{shown}");
}

/// FIBMAP returns 0 for journaled content: an older copy may be written home later.
#[test]
pub fn logged_content_lies_nowhere() {
    // The library sets the flag: chattr(1) on a mount needs CAP_SYS_RESOURCE, which root may lack.
    let image = make("default");
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let (root, flag) = (fs.root().expect("root"), IFlags::JOURNALING.bits());
    fs.set_flags(&root, root.attr().flags | flag).expect("its files inherit the flag");
    fs.unmount().expect("unmount");
    let mut disk = Disk::of(image);
    let file = File::create(disk.path("f")).expect("create");
    assert!(ioctl_getflags(&file).expect("flags").contains(IFlags::JOURNALING));
    file.write_all_at(&[3; 10_000], 0).expect("write");
    file.sync_all().expect("fsync");
    let asked = [0, 1, 2].map(|block| place(&file, block));
    drop(file);
    disk.unmount();
    assert_eq!(asked, [0; 3]);
}

/// The version of the machine's kernel.
fn release() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// syncfs(2) makes everything durable: a copy of the disk contains earlier writes. Kernels before
/// 6.18 do not pass it to servers.
#[test]
pub fn a_sync_of_the_mount_reaches_the_device() {
    let mut disk = Disk::new();
    fs::write(disk.path("f"), b"content").expect("write");
    nix::unistd::syncfs(File::open(&disk.dir).expect("open")).expect("syncfs");
    let copy = Image::copy_of(disk.device.device());
    disk.unmount();
    let fs = Fs::open(copy.path(), &OpenOptions::new()).expect("it is recovered");
    let found = fs.resolve("/f", extant_engine::Follow::Yes).map(|node| node.attr().size);
    assert_eq!(found.ok(), (release() >= (6, 18)).then_some(7));
    fs.unmount().expect("unmount");
    copy.assert_clean();
}
