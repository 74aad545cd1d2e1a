//! The server: any device for clients of NBD, each with threads of its own.

mod negotiate;
mod transmit;

use crate::channel::{Channel, TlsServer};
use crate::connect::Socket;
use crate::wire;
use extant_blocks::{AlignedDevice, BlockDevice};
use extant_sync::{Arc, Level, Mutex};
use rustix::net::{Shutdown, shutdown, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Connections at the same time at most.
const MAX_CONNECTIONS: usize = 64;

/// How long a client may take for the handshake, and to take data.
const PATIENCE: Duration = Duration::from_secs(30);

/// The system asks a silent client for a sign of life after the first time, then after each second
/// one, this often. So one whose host is gone is not kept for ever.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 8);

/// Pause after a connection that could not be taken, as without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that waits for clients.
#[derive(Debug)]
#[non_exhaustive]
pub enum Listener {
    /// At an address of TCP.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE.0)?;
                sockopt::set_tcp_keepintvl(&stream, KEEPALIVE.1)?;
                sockopt::set_tcp_keepcnt(&stream, KEEPALIVE.2)?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Socket::Tcp(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Socket::Unix(stream)
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

#[derive(Debug, Default)]
struct Clients {
    stopped: bool,
    next: u64,
    connected: HashMap<u64, Arc<Channel>>,
    /// A client has opened the export.
    served: bool,
}

/// A server of one device, which is its only export.
///
/// Writes are durable after a flush of any client, or by their own flag (FUA).
#[derive(Debug)]
pub struct NbdServer {
    device: Arc<dyn BlockDevice>,
    listener: Listener,
    export: String,
    read_only: bool,
    once: bool,
    tls: Option<TlsServer>,
    clients: Mutex<Clients>,
}

impl NbdServer {
    /// Makes a server of a device.
    pub fn new(device: Arc<dyn BlockDevice>, listener: Listener) -> NbdServer {
        NbdServer {
            read_only: device.read_only(),
            device: AlignedDevice::over(device),
            listener,
            export: String::new(),
            once: false,
            tls: None,
            clients: Mutex::new(Level::Leaf, Clients::default()),
        }
    }

    /// Gives the export a name. The empty name, that of the default export, opens it, too.
    #[must_use]
    pub fn export(self, name: impl Into<String>) -> NbdServer {
        let mut export = name.into();
        export.truncate(export.floor_char_boundary(wire::MAX_STRING));
        NbdServer { export, ..self }
    }

    /// Refuses writes.
    #[must_use]
    pub fn read_only(self, yes: bool) -> NbdServer {
        NbdServer { read_only: self.read_only || yes, ..self }
    }

    /// Encrypts each connection: a client without TLS is refused.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn secured(self, tls: TlsServer) -> NbdServer {
        NbdServer { tls: Some(tls), ..self }
    }

    /// Ends the server when its last client has gone.
    #[must_use]
    pub fn once(self, yes: bool) -> NbdServer {
        NbdServer { once: yes, ..self }
    }

    /// Serves until [`NbdServer::stop`], then flushes the device.
    ///
    /// # Errors
    /// Those of the flush.
    pub fn serve(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            while !self.clients.lock().stopped {
                let channel = match self.listener.accept() {
                    Ok(socket) => Arc::new(Channel::new(socket)),
                    Err(error) => {
                        if !self.clients.lock().stopped {
                            tracing::warn!("a connection cannot be taken: {error}");
                            sleep(PAUSE);
                        }
                        continue;
                    }
                };
                let Some(number) = self.admit(&channel) else { continue };
                let serve = move || {
                    self.serve_client(&channel);
                    self.dismiss(number);
                };
                let started = Builder::new().name("extant-nbd-client".into());
                if let Err(error) = started.spawn_scoped(scope, serve) {
                    tracing::warn!("a client cannot be served: {error}");
                    self.dismiss(number);
                }
            }
        });
        self.device.flush()
    }

    /// Ends the server: its connections end, and [`NbdServer::serve`] returns.
    pub fn stop(&self) {
        let mut clients = self.clients.lock();
        clients.stopped = true;
        clients.connected.values().for_each(|channel| channel.socket().hang_up());
        drop(clients);
        // It wakes the thread that accepts; it fails where none listens any more.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Takes a connection; `None` if there are too many.
    fn admit(&self, channel: &Arc<Channel>) -> Option<u64> {
        let mut clients = self.clients.lock();
        if clients.stopped {
            return None;
        }
        if clients.connected.len() >= MAX_CONNECTIONS {
            drop(clients);
            tracing::warn!("a client is refused: {MAX_CONNECTIONS} are connected");
            return None;
        }
        clients.next += 1;
        let number = clients.next;
        clients.connected.insert(number, channel.clone());
        Some(number)
    }

    fn dismiss(&self, number: u64) {
        let mut clients = self.clients.lock();
        let channel = clients.connected.remove(&number);
        let is_last = self.once && clients.served && clients.connected.is_empty();
        drop(clients);
        if let Some(channel) = channel {
            channel.socket().hang_up();
        }
        if is_last {
            self.stop();
        }
    }

    fn serve_client(&self, channel: &Channel) {
        let agreed = negotiate::negotiate(channel, &self.offer(), Instant::now() + PATIENCE);
        let agreed = match agreed {
            Ok(Some(agreed)) => agreed,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!("a client ended in the handshake: {error}");
                return;
            }
        };
        self.clients.lock().served = true;
        // From here on it may be idle for any time.
        if let Err(error) = channel.socket().set_read_timeout(None) {
            tracing::warn!("a client cannot be served: {error}");
            return;
        }
        if let Err(error) = transmit::transmit(channel, &*self.device, self.read_only, agreed) {
            tracing::debug!("a client ended: {error}");
        }
    }

    fn offer(&self) -> negotiate::Offer<'_> {
        let own = wire::HAS_FLAGS | wire::SEND_FLUSH | wire::CAN_MULTI_CONN;
        let writable = wire::SEND_FUA | wire::SEND_TRIM | wire::SEND_WRITE_ZEROES;
        let flags = own | if self.read_only { wire::READ_ONLY } else { writable };
        let (name, size, tls) = (&*self.export, self.device.len(), self.tls.as_ref());
        negotiate::Offer { name, size, flags, tls }
    }
}
