//! Connections to the same server at the same time. The end of one is the end of all, since writes
//! that one of them has acknowledged may be lost with the server.

use crate::address::{Address, Place};
use crate::assembly::Request;
use crate::channel::{Channel, TlsClient};
use crate::connect::{Connect, Socket};
use crate::connection::{Asked, Connection, Events, Receiver, tell_lost};
use crate::handshake::{Export, negotiate};
use crate::trouble::Trouble;
use crate::wire::CAN_MULTI_CONN;
use extant_sync::{Arc, Condvar, Level, Mutex, Weak};
use std::io;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long each further connection may take: a server of one connection at a time may leave the
/// others without a greeting.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connections of a session.
#[derive(Debug)]
pub struct Session {
    connections: Vec<Arc<Connection>>,
}

/// Connections whose handshake is done.
#[derive(Debug)]
pub struct Opened {
    pub export: Export,
    channels: Vec<Channel>,
}

/// The way to a server.
#[derive(Clone, Debug)]
pub struct Way {
    pub connect: Arc<dyn Connect>,
    /// Connections are encrypted.
    pub tls: Option<TlsClient>,
}

impl Way {
    /// Returns the way to an address, by connections that `connect` makes. With TLS the
    /// certificates are read from their files now.
    ///
    /// # Errors
    /// Those of the certificates.
    pub fn new(address: &Address, connect: Arc<dyn Connect>) -> io::Result<Way> {
        let Some(tls) = &address.tls else { return Ok(Way { connect, tls: None }) };
        let host = match (&tls.host, &address.place) {
            (Some(host), _) | (None, Place::Tcp(host, _)) => host,
            (None, Place::Unix(_)) => "localhost",
        };
        if !tls.verifies {
            tracing::warn!("{address}: the server is not verified (tls-verify-peer=false)");
        }
        let loaded = TlsClient::load(tls.certificates.as_deref(), host, tls.verifies);
        let tls = loaded
            .map_err(|error| io::Error::new(error.kind(), format!("{address}: no TLS: {error}")))?;
        Ok(Way { connect, tls: Some(tls) })
    }
}

impl Opened {
    /// Connects, with `most` connections, until `deadline` at the latest.
    pub fn connect(
        address: &Address,
        way: &Way,
        most: usize,
        deadline: Instant,
    ) -> Result<Opened, Trouble> {
        let (channel, export) = open_one(address, way, deadline)?;
        let most = if export.has(CAN_MULTI_CONN) { most } else { 1 };
        let mut channels = vec![channel];
        while channels.len() < most {
            // One is enough: a server may have a limit.
            let soon = deadline.min(Instant::now() + PATIENCE);
            match open_one(address, way, soon) {
                Ok((channel, other)) if other == export => channels.push(channel),
                Ok(_) => {
                    let why = "the server describes the export differently each time";
                    return Err(Trouble::Broken(why.into()));
                }
                Err(trouble) => {
                    tracing::debug!("{address}: {} connections: {trouble}", channels.len());
                    break;
                }
            }
        }
        Ok(Opened { export, channels })
    }

    /// Starts the transmission. Events of the session may come at once.
    pub fn start(
        self,
        number: u64,
        events: &Weak<dyn Events>,
        limit: Duration,
    ) -> Result<Session, Trouble> {
        let Opened { export, channels } = self;
        let mut session = Session { connections: Vec::new() };
        for channel in channels {
            let export = export.clone();
            let started = Connection::start(number, channel, export, events.clone(), limit)?;
            session.connections.push(started);
        }
        Ok(session)
    }
}

impl Session {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Sends a request over the connection with the least requests under way.
    pub fn send(&self, request: &Request, payload: &[u8], receiver: Receiver) {
        if let Some(connection) = self.idlest() {
            connection.send(request, payload, receiver);
        }
    }

    fn idlest(&self) -> Option<&Arc<Connection>> {
        self.connections.iter().min_by_key(|other| other.load())
    }

    /// Sends a request whose answer a thread waits for.
    pub fn ask(&self, request: &Request) -> Asked {
        let (slot, receiver) = Receiver::slot();
        let connection = self.idlest().cloned();
        match &connection {
            Some(connection) => connection.send(request, &[], receiver),
            None => tell_lost(receiver),
        }
        Asked { slot, connection }
    }

    /// Ends all connections.
    pub fn end(&self, trouble: &Trouble) {
        self.connections.iter().for_each(|connection| connection.end(trouble));
    }

    /// Ends all connections without a word to the owner. Returns the receivers of the requests
    /// under way, which must be told.
    pub fn stop(&self) -> Vec<Receiver> {
        self.connections.iter().filter_map(|connection| connection.stop()).flatten().collect()
    }

    /// Waits until the server executes no request of the session, which has ended. Returns `false`
    /// if it still may at `deadline`.
    pub fn drain(&self, deadline: Instant) -> bool {
        self.connections.iter().all(|connection| connection.drain(deadline))
    }

    /// Ends all connections in order.
    pub fn disconnect(&self) {
        self.connections.iter().for_each(|connection| connection.disconnect());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.close());
    }
}

/// Makes a connection and opens the export.
fn open_one(address: &Address, way: &Way, deadline: Instant) -> Result<(Channel, Export), Trouble> {
    let socket = way.connect.connect().map_err(|error| {
        Trouble::Lost(format!("no connection: {error}; check that the server runs"))
    })?;
    let channel = Channel::new(socket);
    let alarm = Alarm::set(deadline);
    let negotiated = std::thread::scope(|scope| {
        let watch = || alarm.watch(channel.socket());
        // Without it a server that does not answer would be waited for without an end.
        let watcher = Builder::new().name("extant-nbd-alarm".into()).spawn_scoped(scope, watch);
        let negotiated = match watcher {
            Ok(_) => negotiate(&channel, &address.export, way.tls.as_ref(), deadline),
            Err(error) => Err(Trouble::Lost(format!("no thread can be started: {error}"))),
        };
        alarm.stop();
        negotiated
    });
    match negotiated {
        Err(Trouble::Lost(_)) if Instant::now() >= deadline => Err(Trouble::Lost(format!(
            "the handshake took longer than {} s; check the server, or name a longer timeout=",
            address.timeout.as_secs()
        ))),
        negotiated => Ok((channel, negotiated?)),
    }
}

/// Ends a socket at a time, unless it is stopped before. Timeouts of sockets would not do: they
/// begin again with each byte, and a process in a sandbox cannot set them.
struct Alarm {
    deadline: Instant,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    fn set(deadline: Instant) -> Alarm {
        Alarm { deadline, stopped: Mutex::new(Level::Leaf, false), changed: Condvar::new() }
    }

    fn watch(&self, socket: &Socket) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                socket.hang_up();
                return;
            }
            self.changed.wait_for(&mut stopped, left);
        }
    }

    fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}
