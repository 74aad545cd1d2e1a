//! Many file systems share the threads of one [`Runtime`]: few threads, none of which wakes up for
//! idle file systems, and no file system suffers from another's device or panic.

use extant_blocks::forward_device;
use extant_engine::device::BlockDevice;
use extant_engine::{
    Clock, Follow, Fs, NodeKind, OpenFlags, OpenOptions, Runtime, RuntimeStats, Timestamp,
};
use extant_testkit::{FeatureSet, Memory};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(50);

/// For events that come at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn image() -> Vec<u8> {
    FeatureSet::named("default").make_sized(8 << 20).bytes()
}

fn options(runtime: &Runtime) -> OpenOptions {
    OpenOptions::new().runtime(runtime).commit_interval(INTERVAL)
}

fn write(fs: &Fs, name: &str, content: &[u8]) {
    let root = fs.root().unwrap();
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    assert_eq!(file.write_at(0, content).unwrap(), content.len());
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let node = fs.resolve(path, Follow::Yes).unwrap();
    let file = fs.open_file(&node, OpenFlags::default()).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let len = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// Waits until no job has run for a while, and gives the counts of then.
fn quiet(runtime: &Runtime) -> RuntimeStats {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = runtime.stats();
        std::thread::sleep(8 * INTERVAL);
        let after = runtime.stats();
        if after.runs == before.runs {
            return after;
        }
        assert!(Instant::now() < end, "jobs run without end: {before:?}, {after:?}");
    }
}

/// A device whose changes wait while it hangs.
#[derive(Debug)]
struct Hanging(Memory, Mutex<bool>, Condvar);

impl Hanging {
    fn new(bytes: &[u8]) -> Arc<Hanging> {
        Arc::new(Hanging(Memory::from_bytes(bytes), Mutex::new(false), Condvar::new()))
    }

    fn hang(&self, yes: bool) {
        *self.1.lock().unwrap() = yes;
        self.2.notify_all();
    }

    fn wait(&self) {
        drop(self.2.wait_while(self.1.lock().unwrap(), |hangs| *hangs).unwrap());
    }
}

impl BlockDevice for Hanging {
    forward_device!(self => self.0; len, name, read_exact_at, discard);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.wait();
        self.0.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.wait();
        self.0.flush()
    }
}

/// Lets devices work on when a test fails: its file systems could not be dropped.
struct Release(Vec<Arc<Hanging>>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.iter().for_each(|device| device.hang(false));
    }
}

/// A clock that panics on threads of the engine while the switch is on.
#[derive(Debug)]
struct Brittle(Arc<AtomicBool>);

impl Clock for Brittle {
    fn now(&self) -> Timestamp {
        if self.0.load(SeqCst) && std::thread::current().name() == Some("extant-work") {
            // Without the hook of panics, by which other tests find those of engine threads.
            std::panic::resume_unwind(Box::new("planted"));
        }
        Timestamp { sec: 1_700_000_000, nsec: 0 }
    }
}

/// Each is written to, and comes to rest with all of it durable: those that are cut off without an
/// unmount have the file, too.
#[test]
fn idle_file_systems_share_few_threads_that_do_not_wake_up() {
    const MANY: usize = 200;
    let (runtime, bytes) = (Runtime::builder().threads(7).build().unwrap(), image());
    let devices: Vec<_> = (0..MANY).map(|_| Arc::new(Memory::from_bytes(&bytes))).collect();
    let open = |device: &Arc<Memory>| Fs::open_device(device.clone(), &options(&runtime)).unwrap();
    let systems: Vec<Fs> = devices.iter().map(open).collect();
    for (n, fs) in systems.iter().enumerate() {
        write(fs, "file", format!("content {n}").as_bytes());
    }
    let rest = quiet(&runtime);
    std::thread::sleep(Duration::from_secs(1));
    let after = runtime.stats();
    assert_eq!(after.runs, rest.runs, "jobs of idle file systems run");
    // A thread that was idle for long enough ends.
    assert!(after.wakeups - rest.wakeups <= 7, "{rest:?}, {after:?}");
    assert!(after.most_threads <= 7, "{after:?}");
    for (n, fs) in systems.into_iter().enumerate() {
        if n % 20 == 0 { fs.crash() } else { fs.unmount().unwrap() }
    }
    for (n, device) in devices.iter().enumerate().step_by(10) {
        let fs = open(device);
        assert_eq!(content(&fs, "/file"), format!("content {n}").as_bytes());
        fs.unmount().unwrap();
    }
}

/// Threads that hang on devices are all that the runtime has. A caller that needs commits of
/// another file system makes them itself, also where the log is full.
#[test]
fn devices_that_hang_keep_no_other_file_system_from_work() {
    let (runtime, bytes) = (Runtime::builder().threads(4).build().unwrap(), image());
    let options = options(&runtime);
    let hanging: Vec<_> = (0..3).map(|_| Hanging::new(&bytes)).collect();
    let stuck: Vec<Fs> =
        hanging.iter().map(|dev| Fs::open_device(dev.clone(), &options).unwrap()).collect();
    let device = Arc::new(Memory::from_bytes(&bytes));
    let fs = Arc::new(Fs::open_device(device.clone(), &options).unwrap());
    let release = Release(hanging.clone());
    quiet(&runtime);
    for (dev, fs) in hanging.iter().zip(&stuck) {
        // Before the commit that the write asks for.
        write(fs, "file", b"late");
        dev.hang(true);
    }
    std::thread::sleep(4 * INTERVAL);
    let ((done, ended), own) = (channel(), fs.clone());
    std::thread::spawn(move || {
        let root = own.root().unwrap();
        for _ in 0..3000 {
            let made = own.create(&root, b"again", 0o644, NodeKind::File);
            drop(made.unwrap());
            own.unlink(&root, b"again").unwrap();
        }
        drop(root);
        own.sync().unwrap();
        drop(own);
        done.send(()).unwrap();
    });
    let worked = ended.recv_timeout(PATIENCE);
    // A spare thread sees to those that no caller waits for.
    let before = fs.stats().journal.commits;
    write(&fs, "unasked", b"content");
    let end = Instant::now() + PATIENCE;
    let is_done = || fs.stats().journal.commits > before && fs.stats().pages.dirty == 0;
    while !is_done() && Instant::now() < end {
        std::thread::sleep(INTERVAL);
    }
    let unasked = is_done();
    drop(release);
    worked.expect("a file system waits for the devices of others");
    assert!(unasked, "no thread commits unasked");
    Arc::into_inner(fs).unwrap().unmount().unwrap();
    for fs in stuck {
        fs.sync().unwrap();
        assert_eq!(content(&fs, "/file"), b"late");
        fs.unmount().unwrap();
    }
}

#[test]
fn a_panic_in_a_job_stops_its_own_file_system_only() {
    let (runtime, bytes) = (Runtime::builder().build().unwrap(), image());
    let (one, other) = (Memory::from_bytes(&bytes), Arc::new(Memory::from_bytes(&bytes)));
    one.leave_unjudged("its journal is aborted");
    let panics = Arc::new(AtomicBool::new(false));
    let brittle = options(&runtime).clock(Arc::new(Brittle(panics.clone())));
    let one = Fs::open_device(Arc::new(one), &brittle).unwrap();
    let fs = Fs::open_device(other.clone(), &options(&runtime)).unwrap();
    panics.store(true, SeqCst);
    write(&one, "file", b"content");
    let end = Instant::now() + PATIENCE;
    while !one.is_read_only() {
        assert!(Instant::now() < end, "no job has run");
        std::thread::sleep(INTERVAL);
    }
    panics.store(false, SeqCst);
    write(&fs, "file", b"content");
    quiet(&runtime);
    fs.crash();
    let fs = Fs::open_device(other, &options(&runtime)).unwrap();
    assert_eq!(content(&fs, "/file"), b"content");
    fs.unmount().unwrap();
    assert!(one.unmount().is_err());
}

/// The cost of idle file systems: threads, memory, processor time. Prints a line.
#[test]
#[ignore = "a measurement of the whole process: run it alone"]
fn cost_of_idle_file_systems() {
    const MANY: usize = 200;
    const SECONDS: u64 = 10;
    let bytes = image();
    let devices: Vec<_> = (0..MANY).map(|_| Arc::new(Memory::from_bytes(&bytes))).collect();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let words = |path: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
    };
    let (resident, ticks) = (
        || words("/proc/self/statm")[1] * 4096,
        || words("/proc/self/stat")[13..15].iter().sum::<u64>(),
    );
    let before = resident();
    let shared = std::env::var("EXTANT_PRIVATE").is_err();
    let runtime = Runtime::builder().threads(6).build().unwrap();
    let options = if shared { OpenOptions::new().runtime(&runtime) } else { OpenOptions::new() };
    let systems: Vec<Fs> =
        devices.iter().map(|device| Fs::open_device(device.clone(), &options).unwrap()).collect();
    std::thread::sleep(Duration::from_secs(12));
    let (start, woken) = (ticks(), runtime.stats().wakeups);
    std::thread::sleep(Duration::from_secs(SECONDS));
    println!(
        "{MANY} file systems, shared {shared}: {} threads, {} KiB each, {} ticks and {} wakeups \
         in {SECONDS} s",
        threads(),
        (resident() - before) / MANY as u64 / 1024,
        ticks() - start,
        runtime.stats().wakeups - woken,
    );
    systems.into_iter().for_each(|fs| fs.unmount().unwrap());
}
