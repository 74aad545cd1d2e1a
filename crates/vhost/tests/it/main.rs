//! The server beside a front-end of the tests.

mod hostile;
mod serving;
mod sharing;

use extant_blocks::BlockDevice;
use extant_testkit::Scratch;
use extant_vhost::VhostServer;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The server in a thread.
struct Own {
    server: Arc<VhostServer>,
    thread: Option<JoinHandle<io::Result<()>>>,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Own {
    fn start(device: Arc<dyn BlockDevice>, set: impl Fn(VhostServer) -> VhostServer) -> Own {
        let scratch = Scratch::new();
        let socket = scratch.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = Arc::new(set(VhostServer::new(device, listener)));
        let of_thread = server.clone();
        let thread = Some(std::thread::spawn(move || of_thread.serve()));
        Own { server, thread, socket, _scratch: scratch }
    }

    /// Ends it, and its connection.
    fn stop(mut self) -> io::Result<()> {
        self.server.stop();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits until it has ended by itself.
    fn join(mut self) -> io::Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the server fails the test.
            assert!(thread.join().is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}
