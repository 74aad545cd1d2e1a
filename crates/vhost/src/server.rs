//! The server: one front-end after the other.

use crate::disk::{Disk, SERIAL_LEN};
use crate::session::Session;
use crate::settings::{Offer, SECTOR};
use extant_blocks::{AlignedDevice, BlockDevice};
use extant_sync::{Level, Mutex};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// Queues of a disk at most.
const MAX_QUEUES: u16 = 64;

/// Pause after a connection that could not be taken, as without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    current: Option<Arc<UnixStream>>,
}

/// A server of one device, for one virtual machine at a time.
///
/// When a front-end ends, as with its machine, the next one is served; one that comes earlier waits
/// until then. A length that is no multiple of 512 is rounded down.
///
/// # Bounds
/// A guest has at most one thread for each queue and 16 more, each with at most 4 MiB for data on
/// their way, 32 regions of memory, and 64 KiB for the descriptors of each request.
#[derive(Debug)]
pub struct VhostServer {
    disk: Disk,
    listener: UnixListener,
    once: bool,
    state: Mutex<State>,
}

impl VhostServer {
    /// Makes a server of a device, with one queue.
    pub fn new(device: Arc<dyn BlockDevice>, listener: UnixListener) -> VhostServer {
        let read_only = device.read_only();
        let offer = Offer { sectors: device.len() / SECTOR, read_only, queues: 1 };
        let device = AlignedDevice::over(device);
        VhostServer {
            disk: Disk { device, offer, serial: [0; SERIAL_LEN] },
            listener,
            once: false,
            state: Mutex::new(Level::Leaf, State::default()),
        }
    }

    /// Refuses writes.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> VhostServer {
        self.disk.offer.read_only |= yes;
        self
    }

    /// Sets the number of queues, from 1 to 64. A guest may use fewer.
    #[must_use]
    pub fn queues(mut self, count: u16) -> VhostServer {
        self.disk.offer.queues = count.clamp(1, MAX_QUEUES);
        self
    }

    /// Sets the serial number, of which 20 bytes are used.
    #[must_use]
    pub fn serial(mut self, serial: &[u8]) -> VhostServer {
        let len = serial.len().min(SERIAL_LEN);
        self.disk.serial = [0; SERIAL_LEN];
        self.disk.serial[..len].copy_from_slice(&serial[..len]);
        self
    }

    /// Ends the server when the first machine that has used the disk has gone.
    #[must_use]
    pub fn once(mut self, yes: bool) -> VhostServer {
        self.once = yes;
        self
    }

    /// Serves until [`VhostServer::stop`], then flushes the device.
    ///
    /// # Errors
    /// Those of the flush.
    pub fn serve(&self) -> io::Result<()> {
        let disk = Arc::new(Disk { device: self.disk.device.clone(), ..self.disk });
        while !self.state.lock().stopped {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => Arc::new(socket),
                Err(error) => {
                    if !self.state.lock().stopped {
                        tracing::warn!("a connection cannot be taken: {error}");
                        sleep(PAUSE);
                    }
                    continue;
                }
            };
            if !self.admit(&socket) {
                break;
            }
            let (served, done) = Session::run(&socket, &disk);
            self.state.lock().current = None;
            if let Err(error) = done {
                tracing::warn!("a front-end ends: {error}");
            }
            if self.once && served {
                break;
            }
        }
        self.disk.device.flush()
    }

    /// Takes a front-end, unless the server is stopped.
    fn admit(&self, socket: &Arc<UnixStream>) -> bool {
        let mut state = self.state.lock();
        if !state.stopped {
            state.current = Some(socket.clone());
        }
        !state.stopped
    }

    /// Ends the server: its connection ends when the requests that were taken are answered, and
    /// [`VhostServer::serve`] returns.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        // An error says that the other end has gone.
        if let Some(socket) = &state.current {
            let _ = shutdown(socket, Shutdown::Both);
        }
        drop(state);
        // It wakes the thread that accepts.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}
