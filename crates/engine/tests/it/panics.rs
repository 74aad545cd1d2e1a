//! Panics below the engine or in its callers: nothing hangs, the process lives, and no partial
//! change becomes durable.

use extant_blocks::{BlockDevice, Fault, FaultDevice, Op, forward_device};
use extant_engine::{Clock, Follow, Fs, NodeKind, OpenFlags, OpenOptions, Timestamp};
use extant_testkit::e2fsck;
use extant_testkit::image::{FeatureSet, Image};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

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
        let left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_ok(), "planted");
    }
}

impl BlockDevice for Panicking {
    forward_device!(self => self.inner;
        len, name, read_only, discard, write_zeroes, set_len, next_data);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.count();
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        self.count();
        self.inner.write_all_at(data, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.count();
        self.inner.flush()
    }
}

/// Runs work with a time limit.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    assert!(
        !matches!(
            ended.recv_timeout(Duration::from_secs(600)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        ),
        "it hangs"
    );
    thread.join().expect("no panic comes through");
}

/// Uses files and directories with syncs in between, and ignores errors.
fn use_it(fs: &Fs) -> extant_engine::Result<()> {
    let root = fs.root()?;
    for n in 0..6 {
        let dir = fs.create(&root, format!("dir{n}").as_bytes(), 0o755, NodeKind::Dir)?;
        let node = fs.create(&dir, b"file", 0o644, NodeKind::File)?;
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
        file.write_at(0, &vec![n as u8; 300_000])?;
        file.sync()?;
        fs.sync()?;
    }
    Ok(())
}

/// Recovers the image after a device panicked from its n-th request on. Returns whether it panicked
/// before the work was done.
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

/// A clock that panics, in the middle of changes.
#[derive(Debug, Default)]
struct Clockwork(AtomicBool, AtomicU64);

impl Clock for Clockwork {
    fn now(&self) -> Timestamp {
        if self.0.load(Ordering::Relaxed) {
            let left = self
                .1
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            assert!(left.is_ok(), "planted");
        }
        Timestamp { sec: 1_700_000_000, nsec: 0 }
    }
}

/// A panic at each place where the engine asks for the time ends all changes, and the image
/// recovers to a state from before or after the change.
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
            assert_eq!(
                fs.sync().is_ok(),
                ended || !fs.is_read_only(),
                "a later sync returns, and tells of the end"
            );
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

/// A subscriber of the engine's traces on all threads that panics in the middle of the module that
/// traces.
struct Tripwire;

/// The number of traces until the panic; none comes at 0.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// The modules that panicked so far.
static MODULES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Tripwire {
    fn touch(&self, place: &Metadata<'_>) {
        let left =
            LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left == Ok(1) {
            let modules = [
                "file", "alloc", "extent", "ops", "dir", "inode", "volume", "fs", "journal",
                "xattr", "orphan",
            ];
            let path = place.module_path().unwrap_or_default();
            let module = modules
                .into_iter()
                .find(|module| path.split("::").any(|part| part.ends_with(module)));
            MODULES
                .lock()
                .expect("no panic while it is locked")
                .insert(module.unwrap_or("another"));
            panic!("planted in {path}");
        }
    }
}

impl Subscriber for Tripwire {
    fn enabled(&self, place: &Metadata<'_>) -> bool {
        place.target().starts_with("extant")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.touch(span.metadata());
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.touch(event.metadata());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Uses a file system while the `nth` trace panics, and, if requested, its device fails from a
/// write on. Returns whether it panicked.
fn trip(image: &Image, nth: u64, failing: Option<u64>) -> bool {
    let place = format!("trace {nth}, writes fail from {failing:?} on");
    let inner = options().device(image.path()).expect("a device");
    let device = Arc::new(FaultDevice::new(inner));
    let fs = Fs::open_device(device.clone(), &options()).expect("open");
    if let Some(from) = failing {
        device.inject(Fault::new(Op::Write, from).from_then_on());
    }
    LEFT.store(nth, Ordering::Relaxed);
    let synced = catch_unwind(AssertUnwindSafe(|| use_all(&fs)));
    let panicked = LEFT.swap(0, Ordering::Relaxed) == 0;
    assert!(panicked || synced.is_ok(), "{place}: a panic that was not planted");
    device.heal();
    // Waiting operations and lost changes: none of these hangs.
    let accepted = [fs.sync().is_ok(), fs.sync().is_ok(), fs.unmount().is_ok()];
    e2fsck::recover(image.path()).assert_clean();
    let synced = matches!(synced, Ok(Ok(())));
    // Without a panic in the caller and without an error, nothing is lost.
    drop(device);
    if synced {
        read_all(image, &place);
    }
    assert!(synced || panicked || accepted.contains(&false), "{place}: a loss is told");
    panicked
}

/// The contents of a file that [`use_all`] makes.
fn pieces(n: u8) -> impl Iterator<Item = (u64, Vec<u8>)> {
    (0..4).map(move |piece| (piece * 100_000, vec![n; 9000]))
}

/// Everything is in memory until it is synced.
fn use_all(fs: &Fs) -> extant_engine::Result<()> {
    let root = fs.root()?;
    for n in 0..4 {
        let node = fs.create(&root, format!("file{n}").as_bytes(), 0o644, NodeKind::File)?;
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
        for (offset, data) in pieces(n) {
            file.write_at(offset, &data)?;
        }
    }
    fs.sync()
}

/// Asserts that the image has all that [`use_all`] writes.
fn read_all(image: &Image, place: &str) {
    let fs = Fs::open(image.path(), &options().read_only(true)).expect("open");
    for n in 0..4 {
        let node = fs.resolve(format!("/file{n}"), Follow::Yes).expect("a file that was synced");
        let file = fs.open_file(&node, OpenFlags::default()).expect("open");
        for (offset, data) in pieces(n) {
            let mut read = vec![0; data.len()];
            let length = file.read_at(offset, &mut read).expect("read");
            assert!(length == data.len() && read == data, "{place}: file{n} at {offset}");
        }
    }
}

/// Panics of the engine itself, while pages are being written and wherever else something is
/// traced, on a device that works and on one that fails. The traces of all threads of a process
/// count, so it has a process to itself.
#[test]
fn a_panic_of_the_engine_hangs_no_caller() {
    const ALONE: &str = "EXTANT_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return in_time(trip_everywhere);
    }
    let name = "panics::a_panic_of_the_engine_hangs_no_caller";
    let output = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args([name, "--exact", "--nocapture"])
        .env(ALONE, "")
        .output()
        .expect("start");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn trip_everywhere() {
    tracing::subscriber::set_global_default(Tripwire).expect("the first subscriber");
    let original = FeatureSet::named("default").make_sized(32 << 20);
    let mut nth = 1;
    while trip(&original.copy(), nth, None) {
        // Each at first, then with gaps.
        nth += 1 + nth / 8;
    }
    assert!(nth > 10, "{nth} places");
    for failing in [0, 3] {
        let mut nth = 1;
        while trip(&original.copy(), nth, Some(failing)) {
            nth += 1;
        }
    }
    let modules = MODULES.lock().expect("no panic while it was locked");
    assert!(
        ["alloc", "file", "journal"].iter().all(|module| modules.contains(module)),
        "{modules:?}"
    );
}
