//! Servers of tests: this crate's, in a thread, and programs.

use extant_blocks::BlockDevice;
use extant_nbd::{Address, Listener, NbdDevice, NbdServer};
use extant_testkit::Scratch;
use extant_testkit::tool::need;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long something may take that does not depend on its amount of work.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of different kinds as one list.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(std::ffi::OsString::from($arg)),*] };
}
pub(crate) use args;

/// Returns the address of an export at a socket, with further parameters.
pub fn address(export: &str, socket: &Path, more: &str) -> Address {
    format!("nbd+unix:///{export}?socket={}{more}", socket.display()).parse().unwrap()
}

/// This crate's server in a thread.
pub struct Own {
    server: Arc<NbdServer>,
    thread: Option<JoinHandle<io::Result<()>>>,
    pub socket: PathBuf,
}

impl Own {
    /// Serves a device at a socket, which is made.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        socket: PathBuf,
        set: impl Fn(NbdServer) -> NbdServer,
    ) -> Own {
        let _ = std::fs::remove_file(&socket);
        let listener = Listener::Unix(UnixListener::bind(&socket).unwrap());
        let server = Arc::new(set(NbdServer::new(device, listener)));
        let of_thread = server.clone();
        let thread = Some(std::thread::spawn(move || of_thread.serve()));
        Own { server, thread, socket }
    }

    /// Ends it, and its connections.
    pub fn stop(mut self) {
        self.server.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.server.stop();
    }
}

/// A program that serves at a socket.
pub struct Program {
    child: Child,
    pub socket: PathBuf,
}

impl Program {
    /// Starts a program, and waits until it listens at the socket.
    pub fn start(tool: &str, args: &[OsString], socket: PathBuf) -> Program {
        let _ = std::fs::remove_file(&socket);
        let child = Command::new(need(tool)).args(args).stdin(Stdio::null()).spawn().unwrap();
        let mut program = Program { child, socket };
        let begin = Instant::now();
        // A connection may be one of few that the server takes.
        while !program.socket.exists() {
            assert!(program.child.try_wait().unwrap().is_none(), "{tool} has ended");
            assert!(begin.elapsed() < PATIENCE, "{tool} does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        program
    }

    /// Serves by nbdkit.
    pub fn nbdkit(scratch: &Scratch, args: &[OsString]) -> Program {
        let socket = scratch.join("nbdkit.socket");
        let own = args!["--foreground", "--newstyle", "--unix", &socket];
        Program::start("nbdkit", &[&own[..], args].concat(), socket)
    }

    /// Serves an image by qemu-nbd.
    pub fn qemu_nbd(scratch: &Scratch, args: &[OsString]) -> Program {
        let socket = scratch.join("qemu.socket");
        let own = args!["--persistent", "--socket", &socket];
        Program::start("qemu-nbd", &[&own[..], args].concat(), socket)
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A relay between clients and a server, which can be cut like a cable.
pub struct Relay {
    socket: PathBuf,
    streams: Arc<std::sync::Mutex<Vec<UnixStream>>>,
    target: Arc<std::sync::Mutex<Option<PathBuf>>>,
}

impl Relay {
    pub fn start(socket: PathBuf) -> Relay {
        let listener = UnixListener::bind(&socket).unwrap();
        let streams = Arc::new(std::sync::Mutex::new(Vec::new()));
        let target = Arc::new(std::sync::Mutex::new(None));
        let relay = Relay { socket, streams: streams.clone(), target: target.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let held: std::sync::MutexGuard<'_, Option<PathBuf>> = target.lock().unwrap();
                let Some(server) = held.as_ref().and_then(|at| UnixStream::connect(at).ok()) else {
                    continue;
                };
                let mut all = streams.lock().unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                        let _ = from.shutdown(std::net::Shutdown::Both);
                    });
                }
                all.extend([client, server]);
            }
        });
        relay
    }

    /// Lets connections through to a server.
    pub fn join(&self, server: &Path) {
        *self.target.lock().unwrap() = Some(server.into());
    }

    /// Ends all connections, and lets none through.
    pub fn cut(&self) {
        let mut target = self.target.lock().unwrap();
        *target = None;
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// Opens an export.
#[track_caller]
pub fn open(address: &Address) -> NbdDevice {
    NbdDevice::open(address, false).unwrap()
}
