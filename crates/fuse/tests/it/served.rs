//! An image that is mounted through FUSE in this process.

use crate::watchdog::{Watchdog, unmount_unused};
use extant_engine::{Fs, OpenOptions};
use extant_fuse::{MountOptions, Mounted, Transport, mount};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::enable_rings;
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Size of the images that [`make`] makes.
pub const BYTES: u64 = 512 << 20;

thread_local! {
    /// Transport of the mounts of this thread's test.
    static TRANSPORT: Cell<Transport> = Cell::new(everywhere());
    /// Whether these mounts allow mapped ids.
    static ID_MAPS: Cell<bool> = const { Cell::new(false) };
    /// Whether the kernel opens files of these mounts without a request.
    static FAST_OPENS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Returns the default transport of all tests: `EXTANT_TRANSPORT=uring` selects rings (`make
/// rings`).
fn everywhere() -> Transport {
    let name = std::env::var("EXTANT_TRANSPORT").unwrap_or("dev".into());
    let transport = name.parse().expect("EXTANT_TRANSPORT is dev, uring or auto");
    if transport == Transport::IoUring {
        enable_rings();
    }
    transport
}

/// Runs a test with mounts that allow mapped ids.
pub fn allowing_id_maps(test: impl FnOnce()) {
    ID_MAPS.set(true);
    test();
    ID_MAPS.set(false);
}

/// Runs a test with mounts on which the kernel opens files without a request.
pub fn opening_fast(test: impl FnOnce()) {
    FAST_OPENS.set(Some(true));
    test();
    FAST_OPENS.set(None);
}

/// Returns whether the kernel opens files of this thread's test without a request.
pub fn fast_opens() -> Option<bool> {
    FAST_OPENS.get()
}

/// Returns the transport of this thread's test.
pub fn transport() -> Transport {
    TRANSPORT.get()
}

/// Runs a test with mounts that are served through io_uring.
pub fn over_rings(test: impl FnOnce()) {
    enable_rings();
    TRANSPORT.set(Transport::IoUring);
    test();
    TRANSPORT.set(everywhere());
}

pub struct Served {
    image: Image,
    dir: PathBuf,
    mounted: Option<(Mounted, Watchdog)>,
    /// Options of the next mount.
    pub options: MountOptions,
}

impl Served {
    /// Makes an image of the feature set `set` and mounts it.
    pub fn new(set: &str) -> Served {
        Served::of(make(set))
    }

    /// Mounts an image.
    pub fn of(image: Image) -> Served {
        let mut served = Served::unmounted(image);
        served.mount();
        served
    }

    /// Prepares an image without mounting it.
    pub fn unmounted(image: Image) -> Served {
        let dir = image.scratch().dir("mnt");
        Served { image, dir, mounted: None, options: MountOptions::default() }
    }

    pub fn mount(&mut self) {
        let fs =
            Fs::open(self.image.path(), &OpenOptions::new().remember_names(false).look_ahead(true))
                .expect("the image opens");
        let id_maps = self.options.id_maps || ID_MAPS.get();
        let options = MountOptions {
            transport: TRANSPORT.get(),
            id_maps,
            fast_opens: self.options.fast_opens.or(FAST_OPENS.get()),
            ..self.options.clone()
        };
        let mounted = mount(fs, &self.dir, &options).expect("mount");
        assert_eq!(mounted.instead(), None, "the transport that is tested can be had");
        self.mounted = Some((mounted, Watchdog::over(&self.dir)));
    }

    /// Unmounts; e2fsck must find no problem.
    pub fn unmount(&mut self) {
        self.let_go();
        self.image.assert_clean();
    }

    /// Unmounts.
    pub fn let_go(&mut self) {
        let (mounted, watchdog) = self.mounted.take().expect("mounted");
        let unmounter = mounted.unmounter();
        unmount_unused(|| unmounter.unmount());
        let ended = mounted.wait();
        watchdog.rest();
        ended.expect("everything is written");
    }

    /// Detaches the mount while it is in use, then ends its last use.
    pub fn end_with(&mut self, last: impl FnOnce()) {
        let (mounted, watchdog) = self.mounted.take().expect("mounted");
        nix::mount::umount2(&self.dir, nix::mount::MntFlags::MNT_DETACH).expect("detach");
        last();
        let ended = mounted.wait();
        watchdog.rest();
        ended.expect("everything is written");
    }

    /// See [`Image::leave_unjudged`].
    pub fn leave_unjudged(&self, why: &str) {
        self.image.leave_unjudged(why);
    }

    pub fn image(&self) -> &Path {
        self.image.path()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Served {
    /// Detaches a mount that a failed test leaves: it would outlive the program, without a server.
    fn drop(&mut self) {
        if self.mounted.take().is_some() {
            let _ = nix::mount::umount2(&self.dir, nix::mount::MntFlags::MNT_DETACH);
            assert!(std::thread::panicking(), "the test leaves its mount");
        }
    }
}

/// Makes an image of the size that all mounts of these tests have.
pub fn make(set: &str) -> Image {
    FeatureSet::named(set).make_sized(BYTES)
}
