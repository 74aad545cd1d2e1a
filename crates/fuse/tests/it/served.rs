//! An image that is mounted through FUSE in this process.

use crate::watchdog::{Watchdog, unmount_unused};
use extant_engine::device::{BlockDevice, FileOptions};
use extant_engine::{Error, Fs, HeldInodes, OpenOptions};
use extant_fuse::{
    HandedOver, Handover, Keep, Keeper, MountIdentity, MountOptions, Mounted, SharedMount,
    Transport, adopt, mount,
};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::enable_rings;
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// As [`Served::new`], by the one transport whose mounts can be handed over. The mounts of this
    /// thread's test stay with it.
    pub fn by_device(set: &str) -> Served {
        TRANSPORT.set(Transport::Device);
        Served::new(set)
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

    fn options(&self) -> MountOptions {
        MountOptions {
            transport: TRANSPORT.get(),
            id_maps: self.options.id_maps || ID_MAPS.get(),
            fast_opens: self.options.fast_opens.or(FAST_OPENS.get()),
            ..self.options.clone()
        }
    }

    pub fn mount(&mut self) {
        let fs =
            Fs::open(self.image.path(), &OpenOptions::new().remember_names(false).look_ahead(true))
                .expect("the image opens");
        let mounted = mount(fs, &self.dir, &self.options()).expect("mount");
        assert_eq!(mounted.instead(), None, "the transport that is tested can be had");
        self.mounted = Some((mounted, Watchdog::over(&self.dir)));
    }

    /// Hands the mount over to a server that opens the image anew.
    pub fn hand_over(&mut self) {
        self.try_hand_over(|| Ok(())).expect("a handover");
    }

    /// As [`Served::hand_over`]; the other server fails with the error of `end` when it is ready.
    pub fn try_hand_over(&mut self, end: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.hand_over_or(end, |device, held| Fs::open_device(device, &adopting(held)))
    }

    /// As [`Served::try_hand_over`], with a function that opens the image again if that fails.
    pub fn hand_over_or(
        &mut self,
        end: impl FnOnce() -> io::Result<()>,
        reopen: impl Fn(Arc<dyn BlockDevice>, Arc<HeldInodes>) -> Result<Fs, Error>,
    ) -> io::Result<()> {
        let (mounted, watchdog) = self.mounted.take().expect("mounted");
        let handover = mounted.handover();
        let mut next = None;
        let handed = handover.share().and_then(|SharedMount { image, connection }| {
            let give = |bytes: &[u8]| {
                let state = HandedOver::from_bytes(bytes)?;
                let device = FileOptions::new(self.image.path()).open_shared(image)?;
                let fs = Fs::open_device(Arc::new(device), &adopting(state.held()));
                let fs = fs.map_err(io::Error::other)?;
                let ready =
                    adopt(fs, &state, connection, &self.adopting_keeper(), &self.options())?;
                match end() {
                    Ok(()) => next = Some(ready),
                    Err(error) => {
                        ready.leave();
                        return Err(error);
                    }
                }
                Ok(())
            };
            handover.run(give, reopen)
        });
        let mounted = match next {
            Some(next) => {
                let next = next.start();
                mounted.wait().expect("the end of the first server");
                next
            }
            None => mounted,
        };
        self.mounted = Some((mounted, watchdog));
        handed
    }

    /// Waits for the end of a mount whose server is lost, and detaches it. Returns its error.
    pub fn lose(&mut self) -> io::Error {
        let (mounted, watchdog) = self.mounted.take().expect("mounted");
        assert!(mounted.handover().is_lost());
        let lost = mounted.wait().expect_err("it is lost");
        nix::mount::umount2(&self.dir, nix::mount::MntFlags::MNT_DETACH).expect("detach");
        watchdog.rest();
        lost
    }

    pub fn handover(&self) -> Handover {
        self.mounted.as_ref().expect("mounted").0.handover()
    }

    fn adopting_keeper(&self) -> Keeper {
        Keeper::own(Keep {
            dir: self.dir.clone(),
            read_only: false,
            options: self.options(),
            disk: None,
            claim: None,
            replaces: None,
            adopts: Some(MountIdentity::at(&self.dir).expect("a mount")),
            set_flags: Box::new(|| Ok(())),
        })
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

fn adopting(held: Arc<HeldInodes>) -> OpenOptions {
    OpenOptions::new().remember_names(false).look_ahead(true).adopt(held)
}

/// Makes an image of the size that all mounts of these tests have.
pub fn make(set: &str) -> Image {
    FeatureSet::named(set).make_sized(BYTES)
}
