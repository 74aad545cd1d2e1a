//! Connections to the same server at the same time. The end of one is the end of all, since writes
//! that one of them has acknowledged may be lost with the server.

use crate::address::Address;
use crate::assembly::Request;
use crate::connect::{Connect, Socket};
use crate::connection::{Asked, Connection, Events, Receiver, tell_lost};
use crate::handshake::{Export, negotiate};
use crate::trouble::Trouble;
use crate::wire::CAN_MULTI_CONN;
use extant_sync::{Arc, Condvar, Level, Mutex, Weak};
use std::io::{Read, Write};
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

/// Sockets whose handshake is done.
#[derive(Debug)]
pub struct Opened {
    pub export: Export,
    sockets: Vec<Socket>,
}

impl Opened {
    /// Connects, with `most` connections, until `deadline` at the latest.
    pub fn connect(
        address: &Address,
        connect: &dyn Connect,
        most: usize,
        deadline: Instant,
    ) -> Result<Opened, Trouble> {
        let (socket, export) = open_one(address, connect, deadline)?;
        let most = if export.has(CAN_MULTI_CONN) { most } else { 1 };
        let mut sockets = vec![socket];
        while sockets.len() < most {
            // One is enough: a server may have a limit.
            let soon = deadline.min(Instant::now() + PATIENCE);
            match open_one(address, connect, soon) {
                Ok((socket, other)) if other == export => sockets.push(socket),
                Ok(_) => {
                    let why = "the server describes the export differently each time";
                    return Err(Trouble::Broken(why.into()));
                }
                Err(trouble) => {
                    tracing::debug!("{address}: {} connections: {trouble}", sockets.len());
                    break;
                }
            }
        }
        Ok(Opened { export, sockets })
    }

    /// Starts the transmission. Events of the session may come at once.
    pub fn start(
        self,
        number: u64,
        events: &Weak<dyn Events>,
        limit: Duration,
    ) -> Result<Session, Trouble> {
        let Opened { export, sockets } = self;
        let mut session = Session { connections: Vec::new() };
        for socket in sockets {
            let export = export.clone();
            let started = Connection::start(number, socket, export, events.clone(), limit)?;
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
fn open_one(
    address: &Address,
    connect: &dyn Connect,
    deadline: Instant,
) -> Result<(Socket, Export), Trouble> {
    let socket = connect.connect().map_err(|error| {
        Trouble::Lost(format!("no connection: {error}; check that the server runs"))
    })?;
    let alarm = Alarm::set(deadline);
    let negotiated = std::thread::scope(|scope| {
        let watch = || alarm.watch(&socket);
        // Without it a server that does not answer would be waited for without an end.
        let watcher = Builder::new().name("extant-nbd-alarm".into()).spawn_scoped(scope, watch);
        let negotiated = match watcher {
            Ok(_) => negotiate(&mut Stream(&socket), &address.export),
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
        negotiated => Ok((socket, negotiated?)),
    }
}

/// A socket as a stream for both directions.
struct Stream<'s>(&'s Socket);

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
