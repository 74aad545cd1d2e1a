//! One connection: requests of many threads, and a thread that takes the replies.
//!
//! # Locking
//! `sending` is held while a request is written, so that requests do not mix. `pending` is taken
//! alone, or within `sending`; no I/O is done under it. Events are told without a lock.
//!
//! # Ends
//! After the end of a connection the server may still execute requests of it. So this side ends its
//! direction only, and reads until the server ends the other one, when it executes none any more.

use crate::assembly::{Assembly, Chunk, Reply, Request, ServerError};
use crate::channel::Channel;
use crate::handshake::Export;
use crate::trouble::Trouble;
use crate::wire::{self, Fields, chunk, command, errno};
use extant_sync::{Arc, Condvar, Level, Mutex, Weak};
use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Bytes that are read from a socket at once, while they are no large data.
const READ_BUFFER: usize = 64 << 10;

/// The end of a request.
#[derive(Debug)]
pub enum Outcome {
    /// The server's answer.
    Answer(Result<Reply, ServerError>),
    /// The connection ended before.
    Lost,
}

/// A request that a thread waits for.
#[derive(Debug)]
pub struct Slot {
    outcome: Mutex<Option<Outcome>>,
    filled: Condvar,
}

impl Slot {
    fn new() -> Slot {
        Slot { outcome: Mutex::new(Level::Leaf, None), filled: Condvar::new() }
    }

    fn fill(&self, outcome: Outcome) {
        *self.outcome.lock() = Some(outcome);
        self.filled.notify_all();
    }

    /// Waits for the end of the request; `None` if that does not come in time.
    pub fn wait_until(&self, deadline: Instant) -> Option<Outcome> {
        let mut outcome = self.outcome.lock();
        while outcome.is_none() {
            if self.filled.wait_until(&mut outcome, deadline).timed_out() {
                break;
            }
        }
        outcome.take()
    }
}

/// The receiver of an answer.
#[derive(Clone, Debug)]
pub enum Receiver {
    /// A waiting thread.
    Slot(Arc<Slot>),
    /// The write of this number, which no thread waits for.
    Write(u64),
}

impl Receiver {
    /// Makes a slot, and its receiver.
    pub fn slot() -> (Arc<Slot>, Receiver) {
        let slot = Arc::new(Slot::new());
        (slot.clone(), Receiver::Slot(slot))
    }
}

/// Times of the limit that one answer may take while others come.
pub const MAX_LIMITS: u32 = 4;

/// A request under way.
#[derive(Debug)]
pub struct Asked {
    pub slot: Arc<Slot>,
    pub connection: Option<Arc<Connection>>,
}

impl Asked {
    /// Waits for the end of the request; `None` if its connection brings no reply for `limit`, or
    /// others for several times that: a slow connection is no lost one.
    pub fn wait(&self, limit: Duration) -> Option<Outcome> {
        let begin = Instant::now();
        let last = begin + MAX_LIMITS * limit;
        let mut deadline = begin + limit;
        loop {
            let outcome = self.slot.wait_until(deadline);
            let heard = self.connection.as_ref().map_or(begin, |connection| connection.heard());
            let next = last.min(heard + limit);
            if outcome.is_some() || next <= deadline {
                return outcome;
            }
            deadline = next;
        }
    }
}

/// The owner of connections, which learns of writes and of ends.
pub trait Events: Send + Sync {
    /// A write of the session `session` was answered.
    fn written(&self, session: u64, write: u64, result: Result<(), ServerError>);
    /// A connection of the session `session` has ended.
    fn ended(&self, session: u64, trouble: &Trouble);
}

#[derive(Debug)]
struct Pending {
    /// By cookies.
    requests: HashMap<u64, (Assembly, Receiver)>,
    next: u64,
    /// The connection has ended: no request is taken.
    ended: bool,
    /// The server has ended its direction, too.
    drained: bool,
    /// When the last reply began.
    heard: Instant,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Connection {
    session: u64,
    channel: Channel,
    export: Export,
    sending: Mutex<()>,
    pending: Mutex<Pending>,
    /// `drained` is set.
    changed: Condvar,
    events: Weak<dyn Events>,
    /// How long the server may take to receive a request.
    limit: Duration,
}

impl std::fmt::Debug for dyn Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Connection {
    /// Starts the transmission over a connection whose handshake is done.
    pub fn start(
        session: u64,
        channel: Channel,
        export: Export,
        events: Weak<dyn Events>,
        limit: Duration,
    ) -> Result<Arc<Connection>, Trouble> {
        let (requests, heard) = (HashMap::new(), Instant::now());
        let pending = Pending { requests, next: 1, ended: false, drained: false, heard };
        let (sending, pending) = (Mutex::new(Level::Device, ()), Mutex::new(Level::Leaf, pending));
        let changed = Condvar::new();
        let connection =
            Connection { session, channel, export, sending, pending, changed, events, limit };
        let connection = Arc::new(connection);
        let reader = connection.clone();
        let started = Builder::new().name("extant-nbd".into()).spawn(move || reader.receive());
        started.map_err(|error| {
            Trouble::Lost(format!("no thread for the replies can be started: {error}"))
        })?;
        Ok(connection)
    }

    /// Sends a request; its answer goes to the receiver. After the end of the connection nothing is
    /// sent: a slot is told so, and a write is left to the next session.
    pub fn send(&self, request: &Request, payload: &[u8], receiver: Receiver) {
        let sending = self.sending.lock();
        let assembly = Assembly::new(*request, self.export.allocation);
        let cookie = {
            let mut pending = self.pending.lock();
            if pending.ended {
                drop(pending);
                tell_lost(receiver);
                return;
            }
            let cookie = pending.next;
            pending.next += 1;
            pending.requests.insert(cookie, (assembly, receiver));
            cookie
        };
        let deadline = Instant::now() + self.limit;
        let sent = self.channel.write_all_parts(&[&request.header(cookie), payload], deadline);
        if sent.is_err() {
            // Before another thread may send: its bytes would become the rest of this payload.
            self.channel.socket().end_sending();
        }
        drop(sending);
        if let Err(error) = sent {
            self.end(&Trouble::of(&error));
        }
    }

    /// Returns when the last reply began, or the connection.
    fn heard(&self) -> Instant {
        self.pending.lock().heard
    }

    /// Returns the number of requests without an answer.
    pub fn load(&self) -> usize {
        self.pending.lock().requests.len()
    }

    /// Ends the connection. The first reason is told to the owner, before threads that wait learn
    /// that their requests are lost: they ask the owner for another session.
    pub fn end(&self, trouble: &Trouble) {
        if let Some(requests) = self.stop() {
            if let Some(events) = self.events.upgrade() {
                events.ended(self.session, trouble);
            }
            requests.into_iter().for_each(tell_lost);
        }
    }

    /// Ends the connection in both directions, without a word to the owner.
    pub fn close(&self) {
        let requests = self.stop();
        self.channel.socket().hang_up();
        requests.into_iter().flatten().for_each(tell_lost);
    }

    /// Waits until the server has ended its direction after the end of the connection. Returns
    /// `false` if it has not until `deadline`.
    pub fn drain(&self, deadline: Instant) -> bool {
        let mut pending = self.pending.lock();
        while !pending.drained {
            if self.changed.wait_until(&mut pending, deadline).timed_out() {
                break;
            }
        }
        pending.drained
    }

    /// Takes no more requests, and ends the direction to the server. Returns the receivers of those
    /// under way; `None` after the end.
    pub fn stop(&self) -> Option<Vec<Receiver>> {
        let mut pending = self.pending.lock();
        if std::mem::replace(&mut pending.ended, true) {
            return None;
        }
        let requests = std::mem::take(&mut pending.requests);
        drop(pending);
        self.channel.socket().end_sending();
        Some(requests.into_values().map(|(_, receiver)| receiver).collect())
    }

    /// Tells the server that no more requests come, and ends the connection.
    pub fn disconnect(&self) {
        let request = Request { command: command::DISC, flags: 0, offset: 0, len: 0 };
        let sending = self.sending.lock();
        // A server that does not take it sees the end of the connection.
        let deadline = Instant::now() + self.limit;
        let sent = self.channel.write_all_parts(&[&request.header(0)], deadline);
        let _ = sent.and_then(|()| self.channel.say_end(deadline));
        drop(sending);
        self.close();
    }

    /// Takes replies until the connection ends.
    fn receive(&self) {
        let mut stream = BufReader::with_capacity(READ_BUFFER, &self.channel);
        loop {
            if let Err(trouble) = self.receive_one(&mut stream) {
                self.end(&trouble);
                break;
            }
        }
        // The owner hangs up where it waits no longer.
        self.channel.await_end();
        self.pending.lock().drained = true;
        self.changed.notify_all();
    }

    fn receive_one(&self, stream: &mut impl Read) -> Result<(), Trouble> {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let mut fields = Fields(&head);
        match fields.u32() {
            Some(wire::SIMPLE_MAGIC) => {
                let error = fields.u32().unwrap_or_default();
                let (assembly, receiver) = self.take(fields.u64())?;
                match assembly.simple(stream, error, self.export.structured) {
                    Ok(done) => self.finish(receiver, done),
                    Err(trouble) => self.abandon(receiver, &trouble),
                }
                Ok(())
            }
            Some(wire::STRUCTURED_MAGIC) if self.export.structured => {
                let (flags, kind) = (fields.u16(), fields.u16());
                let cookie = fields.u64();
                let mut len = [0; 4];
                stream.read_exact(&mut len)?;
                let (Some(flags), Some(kind), Some(len)) = (flags, kind, Fields(&len).u32()) else {
                    return Err(Trouble::Broken("a chunk is short".into()));
                };
                let (mut assembly, receiver) = self.take(cookie)?;
                let taken = assembly.chunk(stream, Chunk { flags, kind, len });
                if flags & chunk::DONE == 0 && taken.is_ok() {
                    self.put_back(cookie, assembly, receiver);
                    return Ok(());
                }
                match taken.and_then(|()| assembly.finish()) {
                    Ok(done) => self.finish(receiver, done),
                    Err(trouble) => self.abandon(receiver, &trouble),
                }
                Ok(())
            }
            _ => Err(Trouble::Broken("the server broke the protocol: a reply is unknown".into())),
        }
    }

    /// Takes the request that an answer names.
    fn take(&self, cookie: Option<u64>) -> Result<(Assembly, Receiver), Trouble> {
        let found = cookie.and_then(|cookie| {
            let mut pending = self.pending.lock();
            pending.heard = Instant::now();
            pending.requests.remove(&cookie)
        });
        found.ok_or_else(|| {
            Trouble::Broken(
                "the server broke the protocol: it answers a request that was not made, or twice"
                    .into(),
            )
        })
    }

    /// Ends the connection within the answer to a request, which no other place knows.
    fn abandon(&self, receiver: Receiver, trouble: &Trouble) {
        self.end(trouble);
        tell_lost(receiver);
    }

    /// Keeps a request of which more chunks come.
    fn put_back(&self, cookie: Option<u64>, assembly: Assembly, receiver: Receiver) {
        let mut pending = self.pending.lock();
        match cookie {
            Some(cookie) if !pending.ended => {
                pending.requests.insert(cookie, (assembly, receiver));
            }
            _ => {
                drop(pending);
                tell_lost(receiver);
            }
        }
    }

    fn finish(&self, receiver: Receiver, answer: Result<Reply, ServerError>) {
        if answer.as_ref().is_err_and(|error| error.number == errno::SHUTDOWN) {
            let trouble = Trouble::Lost("the server is shutting down".into());
            return self.abandon(receiver, &trouble);
        }
        match receiver {
            Receiver::Slot(slot) => slot.fill(Outcome::Answer(answer)),
            Receiver::Write(write) => {
                if let Some(events) = self.events.upgrade() {
                    events.written(self.session, write, answer.map(|_| ()));
                }
            }
        }
    }
}

/// Tells that a request got no answer. A write is left to the next session.
pub fn tell_lost(receiver: Receiver) {
    if let Receiver::Slot(slot) = receiver {
        slot.fill(Outcome::Lost);
    }
}
