//! Long requests end when their client is killed, and when the mount ends.

use crate::served::{over_rings, transport};
use crate::watchdog::{Watchdog, unmount_unused};
use extant_engine::device::{BlockDevice, FileDevice, FileOptions};
use extant_engine::{Fs, NodeKind, OpenOptions};
use extant_fuse::{MountOptions, Mounted, mount};
use extant_testkit::image::Image;
use extant_testkit::tool::run;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A disk that becomes slow.
#[derive(Debug)]
struct Slow {
    disk: FileDevice,
    is_slow: AtomicBool,
    reads: AtomicU64,
}

impl BlockDevice for Slow {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn name(&self) -> String {
        self.disk.name()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.is_slow.load(Ordering::Relaxed) {
            self.reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        self.disk.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.disk.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }
}

/// Minimum number of reads of a scan of the whole directory, which has more blocks, scattered on
/// the disk.
const ALL: u64 = 10_000;

/// A mount with a directory without an index, whose scan takes minutes.
struct Scene {
    _image: Image,
    disk: Arc<Slow>,
    dir: PathBuf,
    mounted: Mounted,
    watchdog: Watchdog,
}

fn large_directory(fs: &Fs) {
    let root = fs.root().expect("root");
    let large = fs.create(&root, b"large", 0o755, NodeKind::Dir).expect("mkdir");
    let file = fs.create(&root, b"file", 0o644, NodeKind::File).expect("create");
    for n in 0..42_000 {
        fs.link(&file, &large, format!("{n:0>250}").as_bytes()).expect("link");
    }
}

impl Scene {
    fn new() -> Scene {
        let image = Image::mke2fs(
            64 << 20,
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,large_dir"],
        );
        let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image opens");
        large_directory(&fs);
        fs.unmount().expect("unmount");
        // The directory has an index while it is filled. Afterwards tune2fs removes the feature, so
        // that lookups scan the blocks.
        let path = || OsString::from(image.path());
        run("tune2fs", &["-O".into(), "^dir_index".into(), path()]).must_succeed();
        image.leave_unjudged(
            "the directory keeps the index that the file system has no feature for",
        );
        let disk = FileOptions::new(image.path()).open().expect("a device");
        let disk =
            Arc::new(Slow { disk, is_slow: AtomicBool::new(false), reads: AtomicU64::new(0) });
        let fs = Fs::open_device(disk.clone(), &OpenOptions::new().remember_names(false))
            .expect("the image opens");
        let dir = image.scratch().dir("mnt");
        let options = MountOptions { transport: transport(), ..MountOptions::default() };
        let mounted = mount(fs, &dir, &options).expect("mount");
        assert_eq!(mounted.instead(), None);
        let watchdog = Watchdog::over(&dir);
        Scene { _image: image, disk, dir, mounted, watchdog }
    }

    /// Starts a program that looks up a name in the large directory, and waits until the lookup has
    /// begun.
    fn searcher(&self) -> Child {
        self.disk.is_slow.store(true, Ordering::Relaxed);
        let child = Command::new("stat")
            .arg(self.dir.join("large/absent"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stat");
        // More reads than the path to the directory needs.
        while self.reads() < 10 {
            std::thread::yield_now();
        }
        child
    }

    fn reads(&self) -> u64 {
        self.disk.reads.load(Ordering::Relaxed)
    }

    /// Checks that the search was interrupted, unmounts if `unmount` is set, and waits for the end
    /// of the mount.
    fn end(self, unmount: bool) {
        assert!(self.reads() < ALL / 10, "{} reads", self.reads());
        self.disk.is_slow.store(false, Ordering::Relaxed);
        if unmount {
            unmount_unused(|| self.mounted.unmounter().unmount());
        }
        let ended = self.mounted.wait();
        self.watchdog.rest();
        ended.expect("a clean end");
    }
}

fn kill_ends_it() {
    let scene = Scene::new();
    let mut child = scene.searcher();
    child.kill().expect("kill");
    // A killed client still waits for the reply: it ends when the server has ended the search.
    assert!(!child.wait().expect("wait").success());
    scene.end(true);
}

#[test]
fn a_killed_client_ends_its_request() {
    kill_ends_it();
}

#[test]
fn a_killed_client_ends_its_request_over_rings() {
    over_rings(kill_ends_it);
}

fn detaching_ends_it() {
    let scene = Scene::new();
    let mut child = scene.searcher();
    scene.mounted.unmounter().detach().expect("detach");
    assert!(!child.wait().expect("wait").success());
    scene.end(false);
}

#[test]
fn detaching_ends_requests_that_take_long() {
    detaching_ends_it();
}

#[test]
fn detaching_ends_requests_that_take_long_over_rings() {
    over_rings(detaching_ends_it);
}

#[test]
fn a_forced_unmount_ends_requests_that_take_long() {
    let scene = Scene::new();
    let mut child = scene.searcher();
    let flags = nix::mount::MntFlags::MNT_FORCE | nix::mount::MntFlags::MNT_DETACH;
    nix::mount::umount2(&scene.dir, flags).expect("umount -f");
    assert!(!child.wait().expect("wait").success());
    scene.end(false);
}
