//! Power cuts of servers: writes are there after a flush, over any number of connections.

use crate::servers::{Own, Program, Relay, address, args, open};
use extant_blocks::{BlockDevice, MemDevice};
use extant_testkit::Scratch;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: usize = 8 << 20;

/// A disk with a cache, which a power cut empties.
#[derive(Debug)]
struct Volatile {
    /// Content with the cache, and without it.
    bytes: Mutex<(Vec<u8>, Vec<u8>)>,
    /// The power is off: nothing becomes durable.
    off: AtomicBool,
    flushes: AtomicUsize,
}

impl Volatile {
    fn new() -> Arc<Volatile> {
        let bytes = Mutex::new((vec![0; SIZE], vec![0; SIZE]));
        let (off, flushes) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Volatile { bytes, off, flushes })
    }

    fn lose_cache(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        let (cached, durable) = &mut *bytes;
        cached.copy_from_slice(durable);
    }

    fn durable(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().1.clone()
    }
}

impl BlockDevice for Volatile {
    fn len(&self) -> u64 {
        SIZE as u64
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap();
        buf.copy_from_slice(&bytes.0[offset as usize..][..buf.len()]);
        Ok(())
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().0[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let mut bytes = self.bytes.lock().unwrap();
        if !self.off.load(Ordering::SeqCst) {
            let (cached, durable) = &mut *bytes;
            durable.copy_from_slice(cached);
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// A server whose power can be cut.
struct Stage {
    scratch: Scratch,
    disk: Arc<Volatile>,
    relay: Relay,
    server: Option<Own>,
}

impl Stage {
    fn new() -> Stage {
        let scratch = Scratch::new();
        let relay = Relay::start(scratch.join("relay"));
        let mut stage = Stage { disk: Volatile::new(), relay, server: None, scratch };
        stage.start();
        stage
    }

    fn start(&mut self) {
        let server = Own::start(self.disk.clone(), self.scratch.join("server"), |server| server);
        self.relay.join(&server.socket);
        self.server = Some(server);
    }

    /// The client learns nothing from the moment of the cut on.
    fn cut(&mut self) {
        self.relay.cut();
        self.disk.off.store(true, Ordering::SeqCst);
        self.server.take().unwrap().stop();
        self.disk.lose_cache();
        self.disk.off.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_write_before_a_cut_is_there_after_the_next_flush() {
    let mut stage = Stage::new();
    let device = open(&address("", stage.relay.socket(), ""));
    device.write_all_at(&[1; 4096], 0).unwrap();
    device.flush().unwrap();
    device.write_all_at(&[2; 4096], 4096).unwrap();
    device.write_zeroes(0, 512).unwrap();
    // The read makes sure that the server has answered both.
    let mut found = [0; 8192];
    device.read_exact_at(&mut found, 0).unwrap();
    stage.cut();
    assert_eq!(stage.disk.durable()[..8192], [[1; 4096], [0; 4096]].concat());
    stage.start();
    let mut again = [0; 8192];
    device.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(found, again);
    device.flush().unwrap();
    assert_eq!(stage.disk.durable()[..8192], again);
    assert_eq!((again[0], again[511], again[512], again[4096]), (0, 0, 1, 2));
}

#[test]
fn writes_and_flushes_survive_many_cuts() {
    const THREADS: usize = 4;
    const SHARE: usize = SIZE / THREADS;
    let mut stage = Stage::new();
    // No request may wait for its timeout.
    let device = Arc::new(open(&address("", stage.relay.socket(), "&timeout=7200")));
    let done = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (device, done, disk) = (device.clone(), done.clone(), stage.disk.clone());
            std::thread::spawn(move || {
                let base = thread * SHARE;
                let mut model = vec![0; SHARE];
                let mut random = extant_testkit::rng::Rng::new(thread as u64);
                while !done.load(Ordering::SeqCst) {
                    for _ in 0..20 {
                        let at = random.below(SHARE as u64 - 9000) as usize;
                        let len = 1 + random.below(9000) as usize;
                        let byte = random.below(256) as u8;
                        model[at..at + len].fill(byte);
                        device.write_all_at(&vec![byte; len], (base + at) as u64).unwrap();
                    }
                    if random.below(2) == 0 {
                        let mut found = vec![0; SHARE];
                        device.read_exact_at(&mut found, base as u64).unwrap();
                        assert!(found == model, "thread {thread} reads other bytes");
                    }
                    device.flush().unwrap();
                    // A cut keeps the writes that a flush has made durable.
                    assert!(disk.durable()[base..base + SHARE] == model, "thread {thread}");
                }
            })
        })
        .collect();
    for pause in 0..12 {
        std::thread::sleep(Duration::from_millis(20 + 17 * pause));
        stage.cut();
        std::thread::sleep(Duration::from_millis(5 * pause));
        stage.start();
    }
    done.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn writes_without_a_flush_are_bounded() {
    let mut stage = Stage::new();
    let device = open(&address("", stage.relay.socket(), ""));
    let chunk = vec![7; 1 << 20];
    for round in 0..100 {
        device.write_all_at(&chunk, (round % 8) << 20).unwrap();
    }
    assert!(stage.disk.flushes.load(Ordering::SeqCst) > 0, "the client flushes by itself");
    stage.cut();
    stage.start();
    device.write_all_at(&[8; 512], 0).unwrap();
    device.flush().unwrap();
    assert!(stage.disk.durable()[512..].iter().all(|byte| *byte == 7));
    assert_eq!(stage.disk.durable()[..512], [8; 512]);
}

#[test]
fn a_server_that_stays_away_ends_the_device() {
    let mut stage = Stage::new();
    let device = open(&address("", stage.relay.socket(), "&timeout=1"));
    device.write_all_at(&[1; 512], 0).unwrap();
    stage.cut();
    let error = device.flush().unwrap_err().to_string();
    assert!(error.contains("no new connection was made within 1 s"), "{error}");
    stage.start();
    // The write may be lost by now: the device does not come back.
    assert!(device.read_exact_at(&mut [0; 512], 0).is_err());
    let another = open(&address("", stage.relay.socket(), "&timeout=1"));
    another.read_exact_at(&mut [0; 512], 0).unwrap();
}

#[test]
fn another_export_is_not_taken_for_the_first() {
    for smaller in [true, false] {
        let scratch = Scratch::new();
        let relay = Relay::start(scratch.join("relay"));
        let serve = |disk: MemDevice, read_only| {
            let set = |server: extant_nbd::NbdServer| server.read_only(read_only);
            let server = Own::start(Arc::new(disk), scratch.join("server"), set);
            relay.join(&server.socket);
            server
        };
        let server = serve(MemDevice::new(1 << 20), false);
        let device = open(&address("", relay.socket(), ""));
        device.write_all_at(&[1; 512], 0).unwrap();
        relay.cut();
        server.stop();
        let size = if smaller { 1 << 19 } else { 1 << 20 };
        let _server = serve(MemDevice::new(size), !smaller);
        let error = device.flush().unwrap_err().to_string();
        assert!(error.contains("the export is another one"), "{error}");
    }
}

/// Programs that are killed while files are written, and started again.
#[test]
fn killed_programs_come_back() {
    type Start = fn(&Scratch) -> Program;
    let nbdkit: Start =
        |scratch| Program::nbdkit(scratch, &args!["file", scratch.join("disk").as_os_str()]);
    let qemu: Start =
        |scratch| Program::qemu_nbd(scratch, &args!["-e", "8", "-f", "raw", scratch.join("disk")]);
    for start in [nbdkit, qemu] {
        let scratch = Scratch::new();
        scratch.file("disk", SIZE as u64);
        let mut program = start(&scratch);
        let device = open(&address("", &program.socket, ""));
        let mut model = vec![0; SIZE];
        let mut random = extant_testkit::rng::Rng::new(3);
        for round in 0..60 {
            for _ in 0..20 {
                let at = random.below(SIZE as u64 - (64 << 10)) as usize;
                let len = 1 + random.below(64 << 10) as usize;
                model[at..at + len].fill(round);
                device.write_all_at(&vec![round; len], at as u64).unwrap();
            }
            if round % 10 == 5 {
                program.kill();
                program = start(&scratch);
            }
            if round % 7 == 0 {
                device.flush().unwrap();
            }
        }
        device.flush().unwrap();
        assert!(std::fs::read(scratch.join("disk")).unwrap() == model);
    }
}
