//! Code that panics below or beside the engine: nothing hangs, the process lives, nothing half-done becomes durable.

use extant::{Caller, Clock, Fs, New, OpenFlags, OpenOptions, Timestamp};
use extant_blocks::{BlockDevice, forward_device};
use extant_testkit::e2fsck;
use extant_testkit::image::{FeatureSet, Image};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const WHO: Caller = Caller { uid: 0, gid: 0, umask: 0 };

fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).commit_interval(Duration::from_secs(3600)).seed(1)
}

/// Panics from a request on.
#[derive(Debug)]
struct Panicking {
    inner: Arc<dyn BlockDevice>,
    left: AtomicU64,
}

impl Panicking {
    fn count(&self) {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_ok(), "planted");
    }
}

impl BlockDevice for Panicking {
    forward_device!(self => self.inner; len, name, read_only, discard, write_zeroes, set_len, next_data);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.count();
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        self.count();
        self.inner.write_at(data, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.count();
        self.inner.flush()
    }
}

/// Runs something that must come to an end.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    assert!(
        !matches!(ended.recv_timeout(Duration::from_secs(120)), Err(std::sync::mpsc::RecvTimeoutError::Timeout)),
        "it hangs"
    );
    thread.join().expect("no panic comes through");
}

/// Files, directories, and syncs between them; errors are no matter.
fn use_it(fs: &Fs) -> extant::Result<()> {
    let root = fs.root()?;
    for n in 0..6 {
        let dir = fs.create(&WHO, &root, format!("dir{n}").as_bytes(), 0o755, New::Dir)?;
        let node = fs.create(&WHO, &dir, b"file", 0o644, New::File)?;
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
        file.write_at(0, &vec![n as u8; 300_000])?;
        file.sync()?;
        fs.sync()?;
    }
    Ok(())
}

/// The image after a device panicked from its n-th request on; whether it did before all was done.
fn after(requests: u64, image: &Image) -> bool {
    let inner = options().device(image.path()).expect("a device");
    let device = Arc::new(Panicking { inner, left: AtomicU64::new(u64::MAX) });
    let fs = Fs::open_device(device.clone(), &options()).expect("open");
    device.left.store(requests, Ordering::Relaxed);
    let failed = use_it(&fs).is_err();
    if failed {
        assert!(fs.sync().is_err() || fs.sync().is_ok(), "a later sync returns");
    }
    let closed = fs.unmount();
    assert!(!failed || closed.is_err(), "a failure is told");
    failed || closed.is_err()
}

#[test]
fn a_device_that_panics_is_a_device_that_fails() {
    in_time(|| {
        let original = FeatureSet::named("default").make_sized(32 << 20);
        let mut requests = 0;
        loop {
            let image = original.copy();
            let failed = after(requests, &image);
            e2fsck::recover(image.path()).assert_clean();
            if !failed {
                assert!(requests > 20, "the device panicked at {requests} places");
                return;
            }
            // Every request at first, then with gaps.
            requests += 1 + requests / 8;
        }
    });
}

/// A clock that panics: it is asked in the middle of changes.
#[derive(Debug, Default)]
struct Clockwork(AtomicBool, AtomicU64);

impl Clock for Clockwork {
    fn now(&self) -> Timestamp {
        if self.0.load(Ordering::Relaxed) {
            let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            assert!(left.is_ok(), "planted");
        }
        Timestamp { sec: 1_700_000_000, nsec: 0 }
    }
}

/// Wherever the engine asks for the time, the panic ends all changes, and the image recovers to a state from before or after.
#[test]
fn a_panic_inside_a_change_makes_nothing_durable() {
    in_time(|| {
        let original = FeatureSet::named("default").make_sized(32 << 20);
        let (mut stopped, mut times) = (0, 0);
        loop {
            let image = original.copy();
            let clock = Arc::new(Clockwork::default());
            let fs = Fs::open(image.path(), &options().clock(clock.clone())).expect("open");
            clock.1.store(times, Ordering::Relaxed);
            clock.0.store(true, Ordering::Relaxed);
            let done = catch_unwind(AssertUnwindSafe(|| use_it(&fs)));
            clock.0.store(false, Ordering::Relaxed);
            let ended = done.is_ok_and(|used| used.is_ok());
            assert_eq!(fs.sync().is_ok(), ended || !fs.is_read_only(), "a later sync returns, and tells of the end");
            let closed = fs.unmount();
            stopped += u64::from(!ended && closed.is_err());
            e2fsck::recover(image.path()).assert_clean();
            if ended {
                break;
            }
            times += 1;
        }
        assert!(stopped > 10, "{stopped} of {times} panics were inside of changes");
    });
}
