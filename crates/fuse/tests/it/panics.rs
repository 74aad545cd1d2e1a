//! A panic of the engine under a mount: the request gets a reply, no unfinished change becomes
//! durable, and reads continue.

use crate::served::{make, transport};
use crate::watchdog::{Watchdog, unmount_unused};
use extant_engine::{AccessTimes, Clock, Fs, OpenOptions, Timestamp};
use extant_fuse::{MountOptions, mount};
use extant_testkit::e2fsck;
use nix::libc::{EIO, EROFS};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A clock that panics while the flag is set. The engine reads it before and during changes.
#[derive(Debug, Default)]
struct Brittle(AtomicBool);

impl Clock for Brittle {
    fn now(&self) -> Timestamp {
        assert!(!self.0.load(Ordering::Relaxed), "planted");
        Timestamp { sec: 1_700_000_000, nsec: 0 }
    }
}

fn errno(done: io::Result<()>) -> Option<i32> {
    done.expect_err("it cannot be done").raw_os_error()
}

#[test]
pub fn a_panic_of_a_handler_ends_all_changes() {
    // The creation panics inside of a change; reading a symlink notes the time before any change
    // begins.
    for inside in [true, false] {
        let image = make("default");
        image.leave_unjudged("it is judged after its recovery");
        let dir = image.scratch().dir("mnt");
        let clock = Arc::new(Brittle::default());
        let fs = Fs::open(image.path(), &OpenOptions::new().clock(clock.clone())).expect("open");
        let access_times = Some(AccessTimes::Relative);
        let options =
            MountOptions { transport: transport(), access_times, ..MountOptions::default() };
        let mounted = mount(fs, &dir, &options).expect("mount");
        let watchdog = Watchdog::over(&dir);
        fs::create_dir(dir.join("before")).expect("mkdir");
        std::os::unix::fs::symlink("target", dir.join("link")).expect("symlink");
        fs::File::open(&dir).and_then(|dir| dir.sync_all()).expect("sync");

        clock.0.store(true, Ordering::Relaxed);
        let failed = if inside {
            fs::create_dir(dir.join("panics"))
        } else {
            fs::read_link(dir.join("link")).map(drop)
        };
        clock.0.store(false, Ordering::Relaxed);
        assert_eq!(errno(failed), Some(EIO), "inside of a change: {inside}");
        assert_eq!(
            errno(fs::create_dir(dir.join("after"))),
            Some(EROFS),
            "inside of a change: {inside}"
        );
        assert!(fs::metadata(dir.join("before")).expect("reading goes on").is_dir());

        unmount_unused(|| mounted.unmounter().unmount());
        let told = mounted.wait().expect_err("changes were stopped").to_string();
        watchdog.rest();
        assert!(told.contains("panicked"), "{told}");
        e2fsck::recover(image.path()).assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).expect("open");
        assert!(fs.resolve("/before", extant_engine::Follow::No).is_ok());
        assert!(fs.resolve("/panics", extant_engine::Follow::No).is_err());
    }
}
