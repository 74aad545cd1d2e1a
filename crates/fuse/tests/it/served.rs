//! An image that is mounted through FUSE in this process.

use extant::{Fs, OpenOptions};
use extant_fuse::{MountOptions, Mounted, mount};
use extant_testkit::image::{FeatureSet, Image};
use std::path::{Path, PathBuf};

const BYTES: u64 = 512 << 20;

pub struct Served {
    image: Image,
    dir: PathBuf,
    mounted: Option<Mounted>,
    /// How it is mounted the next time.
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

    /// An image to be mounted later.
    pub fn unmounted(image: Image) -> Served {
        let dir = image.scratch().dir("mnt");
        Served { image, dir, mounted: None, options: MountOptions::default() }
    }

    pub fn mount(&mut self) {
        let fs = Fs::open(self.image.path(), &OpenOptions::new()).expect("the image opens");
        self.mounted = Some(mount(fs, &self.dir, &self.options).expect("mount"));
    }

    /// Unmounts; e2fsck has to find nothing.
    pub fn unmount(&mut self) {
        self.let_go();
        self.image.assert_clean();
    }

    /// Unmounts.
    pub fn let_go(&mut self) {
        let mounted = self.mounted.take().expect("mounted");
        let unmounter = mounted.unmounter();
        // Programs that other tests start hold our descriptors between fork and exec.
        let mut tries = 200;
        while let Err(e) = unmounter.unmount() {
            tries -= 1;
            assert!(tries > 0 && e.raw_os_error() == Some(nix::libc::EBUSY), "unmount: {e}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        mounted.wait().expect("everything is written");
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

/// An image of the size that all mounts of these tests have.
pub fn make(set: &str) -> Image {
    FeatureSet::named(set).make_sized(BYTES)
}
