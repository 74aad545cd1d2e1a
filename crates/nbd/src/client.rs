//! The client: sessions that follow each other, and the writes that a new one must repeat.
//!
//! # Ends of sessions
//! A lost connection ends its session. The next request makes a new one, and repeats all writes
//! that no answered flush covers, before anything else is sent: the server may have lost them.
//! Requests without an answer are then sent again by the threads that wait for them. A device ends
//! for good when no new connection is made in time, when the export has changed, when a write that
//! was answered cannot be repeated, or when the server breaks the protocol.
//!
//! A server that has lost one of several connections may still execute writes of all of them. For
//! example, write 1 of block 5 waits there. If it were repeated over a new connection, and write 2
//! of block 5 followed, then the first write 1 could be executed last. So all connections of a
//! session end before the next one is made, and with a write under way each of them must be ended
//! by the server, too: it executes nothing of it then. Without that the device ends for good.
//!
//! A flush that failed ends its session: the server may have dropped the writes before it.
//!
//! # Locking
//! `core` is never held during I/O. One thread at a time connects (`State::Connecting`), the others
//! wait for `changed`.

use crate::address::Address;
use crate::ahead::Ahead;
use crate::assembly::{Reply, Request, ServerError};
use crate::connection::{Events, MAX_LIMITS, Outcome, Receiver, tell_lost};
use crate::handshake::Export;
use crate::log::{Change, Entry, Log};
use crate::samples::{Samples, beginning};
use crate::session::{Opened, Session, Way};
use crate::trouble::Trouble;
use crate::wire::{READ_ONLY, SEND_FLUSH, SEND_FUA, command};
use extant_sync::{Arc, Condvar, Level, Mutex, MutexGuard, Weak};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of one request: large transfers are split, so that their parts are under way at once.
const PIECE: u32 = 256 << 10;

/// Writes under way, and their bytes, at most.
const MAX_SENT: usize = 256;
const MAX_SENT_BYTES: usize = 16 << 20;

/// Reads of one caller under way at most.
const MAX_READS: usize = 64;

/// Bytes of writes that no flush covers: with more, the client flushes by itself.
const MAX_LOG: usize = 64 << 20;

/// Times of the limit that the repetition of writes may take while their answers come.
const MAX_REPEAT_LIMITS: u32 = 16;

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The way to the server.
#[derive(Debug)]
enum State {
    Up(Arc<Session>),
    /// It was lost; the next request connects.
    Down(Trouble),
    /// A thread connects.
    Connecting,
    /// It ended for good.
    Failed(Trouble),
}

#[derive(Debug)]
pub struct Core {
    state: State,
    pub log: Log,
    /// The number of the newest session. Answers of others are too late.
    pub current: u64,
    /// The end of the newest session before it was up.
    ended: Option<Trouble>,
    /// Sessions that ended since the last answer to a write.
    short_sessions: u32,
    /// The first failed write since the last flush.
    write_error: Option<(Request, ServerError)>,
    /// The first failed flush that no caller has asked for.
    flush_error: Option<ServerError>,
    /// Ended sessions of which the server may still execute writes.
    lost: Vec<Arc<Session>>,
    /// When the last answer to a write came.
    heard: Instant,
    /// Connections that the last session had: a next one asks for no more.
    connections: usize,
    /// Content outside of the log.
    samples: Samples,
    pub ahead: Ahead,
}

/// The client of one export.
#[derive(Debug)]
pub struct Client {
    pub address: Address,
    pub export: Export,
    way: Way,
    pub core: Mutex<Core>,
    changed: Condvar,
    me: Weak<Client>,
}

/// A write that failed after the caller was told of its success, as a flush reports it.
#[derive(Debug)]
pub struct Failure {
    pub request: Option<Request>,
    pub cause: io::Error,
}

impl<E: Into<io::Error>> From<E> for Failure {
    fn from(cause: E) -> Failure {
        Failure { request: None, cause: cause.into() }
    }
}

impl Client {
    /// Connects.
    pub fn open(address: &Address, way: Way) -> Result<Arc<Client>, Trouble> {
        let deadline = Instant::now() + address.timeout;
        let opened = Opened::connect(address, &way, address.connections, deadline)?;
        let core = Core {
            state: State::Connecting,
            log: Log::default(),
            current: 0,
            ended: None,
            short_sessions: 0,
            write_error: None,
            flush_error: None,
            lost: Vec::new(),
            heard: Instant::now(),
            connections: address.connections,
            samples: Samples::default(),
            ahead: Ahead::default(),
        };
        let client = Arc::new_cyclic(|me| Client {
            address: address.clone(),
            export: opened.export.clone(),
            way,
            core: Mutex::new(Level::Device, core),
            changed: Condvar::new(),
            me: me.clone(),
        });
        let session = Arc::new(opened.start(0, &client.events(), address.timeout)?);
        let mut core = client.core.lock();
        core.connections = session.len();
        match core.ended.take() {
            Some(trouble) => Err(trouble),
            None => {
                core.state = State::Up(session);
                drop(core);
                Ok(client)
            }
        }
    }

    fn events(&self) -> Weak<dyn Events> {
        self.me.clone()
    }

    fn needs_flush(&self) -> bool {
        self.export.has(SEND_FLUSH)
    }

    fn limit(&self) -> Duration {
        self.address.timeout
    }

    fn silence(&self) -> Trouble {
        let seconds = self.limit().as_secs();
        Trouble::Lost(format!(
            "the server has not answered for {seconds} s; check it, or name a longer timeout="
        ))
    }

    /// Returns the session, with the lock. Connects if it was lost.
    pub fn up(&self, began: Instant) -> io::Result<(MutexGuard<'_, Core>, Arc<Session>)> {
        let mut core = self.core.lock();
        loop {
            match &core.state {
                State::Up(session) => {
                    let session = session.clone();
                    return Ok((core, session));
                }
                State::Failed(trouble) => return Err(trouble.clone().into()),
                State::Connecting => self.changed.wait(&mut core),
                State::Down(trouble) => {
                    let trouble = trouble.clone();
                    // A request must not wait for an endless number of sessions.
                    if began.elapsed() > 2 * self.limit() {
                        return Err(trouble.into());
                    }
                    core.state = State::Connecting;
                    drop(core);
                    self.reconnect(&trouble);
                    core = self.core.lock();
                }
            }
        }
    }

    /// Waits for an answer to a write, or for the end of the session, which the lack of an answer
    /// in time is. Answers to other writes show that a slow server is there.
    fn pause(&self, mut core: MutexGuard<'_, Core>, session: &Session) {
        let now = Instant::now();
        let oldest = core.log.oldest().unwrap_or(now);
        let last = oldest + MAX_LIMITS * self.limit();
        let until = last.min(oldest.max(core.heard) + self.limit());
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            drop(core);
            session.end(&self.silence());
        } else {
            self.changed.wait_for(&mut core, left);
        }
    }

    /// Returns the session when no write under way overlaps a range, and the number of the next
    /// write.
    fn ready(&self, range: &Range<u64>, began: Instant) -> io::Result<(Arc<Session>, u64)> {
        loop {
            let (core, session) = self.up(began)?;
            if !core.log.overlaps(range) {
                return Ok((session, core.log.next()));
            }
            self.pause(core, &session);
        }
    }

    /// Makes a request that may be repeated, and waits for its answer.
    fn ask(&self, request: &Request) -> Result<Result<Reply, ServerError>, io::Error> {
        let began = Instant::now();
        let range = request.offset..request.offset.saturating_add(request.len.into());
        loop {
            let (session, _) = self.ready(&range, began)?;
            match session.ask(request).wait(self.limit()) {
                Some(Outcome::Answer(answer)) => return Ok(answer),
                Some(Outcome::Lost) => {}
                None => session.end(&self.silence()),
            }
        }
    }

    /// Reads a range, and passes its parts to `put` with their places in it.
    pub fn read(
        &self,
        offset: u64,
        len: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let mut began = Instant::now();
        let mut waiting: VecDeque<_> = pieces(len as u64, self.piece()).collect();
        let mut sent = VecDeque::new();
        loop {
            while sent.len() < MAX_READS
                && let Some(piece) = waiting.pop_front()
            {
                let at = offset + piece.start;
                let part = (piece.end - piece.start) as u32;
                let (session, mark) = self.ready(&(at..at + u64::from(part)), began)?;
                let request = Request { command: command::READ, flags: 0, offset: at, len: part };
                sent.push_back((piece, session.ask(&request), session, mark));
            }
            let Some((piece, slot, session, mark)) = sent.pop_front() else { return Ok(()) };
            match slot.wait(self.limit()) {
                Some(Outcome::Answer(answer)) => {
                    let data = answer?.data;
                    // The parts of a long read have their own limits.
                    began = Instant::now();
                    self.sample(offset + piece.start, &data, mark);
                    put(piece.start as usize, &data);
                }
                Some(Outcome::Lost) => waiting.push_front(piece),
                None => {
                    session.end(&self.silence());
                    waiting.push_front(piece);
                }
            }
        }
    }

    /// Keeps a sample of data that were read when `mark` was the number of the next write.
    fn sample(&self, offset: u64, data: &[u8], mark: u64) {
        let Some(part) = beginning(data, self.export.min_block) else { return };
        let mut core = self.core.lock();
        let range = offset..offset + part.len() as u64;
        // A later write may be durable already, and be newer than the data.
        if core.samples.lack_reads() && core.log.next() == mark && !core.log.may_cover(&range) {
            core.samples.add(offset, part, self.export.min_block, true);
        }
    }

    /// Returns the bytes of one request.
    pub fn piece(&self) -> u32 {
        let least = self.export.min_block;
        PIECE.min(self.export.max_payload).max(least)
    }

    /// Sends a write, which fails later, if at all.
    pub fn write(&self, change: Change, offset: u64, len: u32) -> Result<(), Failure> {
        let began = Instant::now();
        let range = offset..offset + u64::from(len);
        let bytes = if let Change::Data(data) = &change { data.len() } else { 0 };
        let (entry, session) = loop {
            let (mut core, session) = self.up(began)?;
            let (count, under_way) = core.log.load();
            let is_full = count >= MAX_SENT || count > 0 && under_way + bytes > MAX_SENT_BYTES;
            if is_full || core.log.overlaps(&range) {
                self.pause(core, &session);
            } else if core.log.bytes() + bytes > MAX_LOG && self.needs_flush() {
                drop(core);
                self.sync(false)?;
            } else {
                core.samples.forget(&range);
                core.ahead.forget(&range);
                break (core.log.add(change, offset), session);
            }
        };
        self.dispatch(&entry, &session);
        Ok(())
    }

    fn dispatch(&self, entry: &Entry, session: &Session) {
        let durable = !self.needs_flush() && self.export.has(SEND_FUA);
        let receiver = Receiver::Write(entry.number);
        session.send(&entry.request(durable), entry.payload(), receiver);
    }

    /// Makes durable the writes that were sent before. With `report`, the failure of a write since
    /// the last report is returned, which leaves nothing known about it.
    pub fn sync(&self, report: bool) -> Result<(), Failure> {
        let began = Instant::now();
        let mark = self.core.lock().log.next();
        loop {
            let (mut core, session) = self.up(began)?;
            if core.log.is_under_way_before(mark) {
                self.pause(core, &session);
                continue;
            }
            if report && let Some((request, error)) = core.write_error.take() {
                return Err(Failure { request: Some(request), cause: error.into() });
            }
            if report && let Some(error) = core.flush_error.take() {
                return Err(error.into());
            }
            if core.log.is_empty() || !self.needs_flush() {
                return Ok(());
            }
            let epoch = core.log.begin_flush();
            drop(core);
            let request = Request { command: command::FLUSH, flags: 0, offset: 0, len: 0 };
            match session.ask(&request).wait(self.limit()) {
                Some(Outcome::Answer(Ok(_))) => {
                    let mut core = self.core.lock();
                    if let Some(last) = core.log.flushed(epoch) {
                        let block = self.export.min_block;
                        core.samples.add(last.offset, last.payload(), block, false);
                    }
                    drop(core);
                    self.changed.notify_all();
                    return Ok(());
                }
                Some(Outcome::Answer(Err(error))) => {
                    if !report {
                        self.core.lock().flush_error.get_or_insert(error.clone());
                    }
                    // The next session repeats the writes before another flush can succeed.
                    let cause = io::Error::from(error.clone());
                    session.end(&Trouble::Lost(format!("the server failed to flush: {cause}")));
                    return Err(error.into());
                }
                Some(Outcome::Lost) => {}
                None => session.end(&self.silence()),
            }
        }
    }

    /// Returns whether the device has ended for good.
    pub fn has_failed(&self) -> bool {
        matches!(self.core.lock().state, State::Failed(_))
    }

    /// Returns whether writes are under way or not durable.
    pub fn has_changes(&self) -> bool {
        let core = self.core.lock();
        !core.log.is_empty() || core.write_error.is_some() || core.flush_error.is_some()
    }

    /// Returns the extents from an offset on, at least one; none if the server does not tell them.
    pub fn extents(&self, offset: u64, len: u32) -> io::Result<Vec<(u32, u32)>> {
        let request = Request { command: command::BLOCK_STATUS, flags: 0, offset, len };
        Ok(self.ask(&request)?.map(|reply| reply.extents).unwrap_or_default())
    }

    /// Connects again, within the limit of time, and repeats writes.
    fn reconnect(&self, cause: &Trouble) {
        let begin = Instant::now();
        let deadline = begin + self.limit();
        tracing::warn!("{}: {cause}; connecting again", self.address);
        // A server that answers nothing before it ends is not asked without a pause.
        let shift = self.core.lock().short_sessions.min(8);
        let mut pause = if shift == 0 { Duration::ZERO } else { FIRST_PAUSE * (1 << shift) };
        let mut before = None;
        let connected = loop {
            sleep(pause.min(MAX_PAUSE));
            match self.attempt(deadline) {
                Err(trouble) if trouble.may_pass() && Instant::now() < deadline => {
                    pause = (2 * pause).clamp(FIRST_PAUSE, MAX_PAUSE);
                    tracing::debug!("{}: {trouble}", self.address);
                    before = Some(trouble);
                }
                // The deadline may have cut this attempt short, but not the one before.
                Err(trouble) if trouble.may_pass() => break Err(before.unwrap_or(trouble)),
                connected => break connected,
            }
        };
        let mut core = self.core.lock();
        let ended = core.ended.take();
        if let (Ok(session), Some(_)) = (&connected, &ended) {
            drop(core);
            self.leave(session);
            core = self.core.lock();
        }
        core.state = match (connected, ended) {
            (Ok(session), None) => {
                tracing::info!("{}: connected again", self.address);
                State::Up(session)
            }
            (Ok(_), Some(trouble)) if trouble.may_pass() => State::Down(trouble),
            (Ok(_), Some(trouble)) => State::Failed(trouble),
            (Err(Trouble::Broken(why)), _) => State::Failed(Trouble::Broken(why)),
            (Err(trouble), _) => State::Failed(Trouble::Lost(format!(
                "{cause}, and no new connection was made within {} s: {trouble}; writes since the \
                 last sync may be lost; open it again when the server runs",
                self.limit().as_secs()
            ))),
        };
        self.changed.notify_all();
    }

    /// Makes a session, and repeats writes in it.
    fn attempt(&self, deadline: Instant) -> Result<Arc<Session>, Trouble> {
        let number = {
            let mut core = self.core.lock();
            core.current += 1;
            core.short_sessions = core.short_sessions.saturating_add(1);
            core.ended = None;
            core.current
        };
        self.drain(deadline)?;
        let most = self.core.lock().connections;
        let opened = Opened::connect(&self.address, &self.way, most, deadline)?;
        self.check_same(&opened.export)?;
        let session = Arc::new(opened.start(number, &self.events(), self.limit())?);
        let same = self.check_samples(&session, deadline);
        if let Err(trouble) = same.and_then(|()| self.repeat(&session, deadline)) {
            self.leave(&session);
            return Err(trouble);
        }
        Ok(session)
    }

    /// Ends a session that is not up.
    fn leave(&self, session: &Arc<Session>) {
        session.stop().into_iter().for_each(tell_lost);
        let mut core = self.core.lock();
        if core.log.load().0 > 0 {
            core.lost.push(session.clone());
        }
    }

    /// Waits until the server executes no write of an earlier session.
    fn drain(&self, deadline: Instant) -> Result<(), Trouble> {
        let lost = std::mem::take(&mut self.core.lock().lost);
        if lost.iter().all(|session| session.drain(deadline)) {
            return Ok(());
        }
        Err(Trouble::Broken(format!(
            "a connection was lost, the server has not ended it for {} s, and may still execute \
             writes of it; open it again when that server has ended",
            self.limit().as_secs()
        )))
    }

    /// Refuses an export with other content than the one that was written.
    fn check_samples(&self, session: &Session, deadline: Instant) -> Result<(), Trouble> {
        let core = self.core.lock();
        if core.log.next() == 0 {
            return Ok(());
        }
        let samples = core.samples.all();
        drop(core);
        let ask =
            |offset, len| session.ask(&Request { command: command::READ, flags: 0, offset, len });
        let asked: Vec<_> = samples
            .into_iter()
            .map(|sample| (ask(sample.offset, sample.bytes.len() as u32), sample))
            .collect();
        for (asked, sample) in asked {
            let at = sample.offset;
            match asked.slot.wait_until(deadline) {
                Some(Outcome::Answer(Ok(reply))) if reply.data == sample.bytes => {}
                Some(Outcome::Answer(Ok(_))) => {
                    return Err(Trouble::Broken(format!(
                        "the export is another one: it has other content at {at} now; open it again"
                    )));
                }
                Some(Outcome::Answer(Err(error))) => {
                    let error = io::Error::from(error);
                    return Err(Trouble::Lost(format!("the block at {at} is not read: {error}")));
                }
                Some(Outcome::Lost) => {
                    let ended = self.core.lock().ended.clone();
                    return Err(ended.unwrap_or_else(|| self.silence()));
                }
                None => return Err(self.silence()),
            }
        }
        Ok(())
    }

    /// Ends a session. No thread can send over one of its connections any more when others see it.
    fn lose(&self, number: u64, trouble: Trouble) {
        let core = self.core.lock();
        let up = match &core.state {
            State::Up(session) if core.current == number => Some(session.clone()),
            _ => None,
        };
        drop(core);
        let requests = up.as_ref().map(|session| session.stop()).unwrap_or_default();
        let mut core = self.core.lock();
        let ended = if core.current == number { core.end(trouble) } else { None };
        self.changed.notify_all();
        drop(core);
        requests.into_iter().for_each(tell_lost);
        drop((up, ended));
    }

    /// Refuses an export that cannot be the same one.
    fn check_same(&self, now: &Export) -> Result<(), Trouble> {
        let then = &self.export;
        let lost = then.flags & !now.flags & !crate::wire::CAN_MULTI_CONN;
        let why = if now.size < then.size {
            format!("it has {} bytes now, and had {}", now.size, then.size)
        } else if now.min_block > then.min_block || now.max_payload < then.max_payload {
            "its limits of requests are others now".into()
        } else if lost != 0 || now.has(READ_ONLY) && !then.has(READ_ONLY) {
            "it lacks properties that it had".into()
        } else {
            return Ok(());
        };
        Err(Trouble::Broken(format!("the export is another one: {why}; open it again")))
    }

    /// Sends all writes again that no flush covers.
    fn repeat(&self, session: &Session, deadline: Instant) -> Result<(), Trouble> {
        let entries = self.core.lock().log.restart();
        let last = deadline + MAX_REPEAT_LIMITS * self.limit();
        for entry in entries {
            let range = entry.offset..entry.offset + u64::from(entry.request(false).len);
            let mut core = self.core.lock();
            loop {
                if let Some(trouble) = core.ended.clone() {
                    return Err(trouble);
                }
                let (count, bytes) = core.log.load();
                if count < MAX_SENT && bytes < MAX_SENT_BYTES && !core.log.overlaps(&range) {
                    break;
                }
                // A slow server that answers has more time.
                let until = last.min(deadline.max(core.heard + self.limit()));
                if self.changed.wait_until(&mut core, until).timed_out() {
                    return Err(self.silence());
                }
            }
            core.log.note_sent(&entry);
            drop(core);
            self.dispatch(&entry, session);
        }
        Ok(())
    }
}

impl Events for Client {
    fn written(&self, session: u64, write: u64, result: Result<(), ServerError>) {
        let mut core = self.core.lock();
        if core.current != session {
            return;
        }
        core.short_sessions = 0;
        core.heard = Instant::now();
        let mut ended = None;
        match result {
            Ok(()) => core.log.answered(write, self.needs_flush()),
            Err(error) => match core.log.failed(write) {
                // A server need not discard.
                Some((entry, _)) if matches!(entry.change, Change::Discard(_)) => {}
                Some((entry, false)) => {
                    core.write_error.get_or_insert((entry.request(false), error));
                }
                Some((entry, true)) => {
                    let error = io::Error::from(error);
                    let trouble = Trouble::Broken(format!(
                        "a write at {} that the server had taken before it was lost cannot be \
                         repeated: {error}; open it again",
                        entry.offset
                    ));
                    // At once: a flush must not see the log without the write.
                    ended = core.end(trouble);
                }
                None => {}
            },
        }
        self.changed.notify_all();
        drop(core);
        if let Some(session) = ended {
            session.stop().into_iter().for_each(tell_lost);
        }
    }

    fn ended(&self, session: u64, trouble: &Trouble) {
        self.lose(session, trouble.clone());
    }
}

impl Core {
    /// Ends the newest session, which is returned if it was up.
    fn end(&mut self, trouble: Trouble) -> Option<Arc<Session>> {
        self.ahead.clear();
        match &self.state {
            State::Up(session) => {
                if self.log.load().0 > 0 {
                    self.lost.push(session.clone());
                }
                let may_pass = trouble.may_pass();
                let state = if may_pass { State::Down(trouble) } else { State::Failed(trouble) };
                match std::mem::replace(&mut self.state, state) {
                    State::Up(session) => Some(session),
                    _ => None,
                }
            }
            State::Connecting => {
                self.ended.get_or_insert(trouble);
                None
            }
            State::Down(_) | State::Failed(_) => None,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let State::Up(session) = &self.core.get_mut().state {
            session.disconnect();
        }
    }
}

/// Returns the parts of a length, each of at most `piece` bytes.
pub fn pieces(len: u64, piece: u32) -> impl Iterator<Item = Range<u64>> {
    let piece = u64::from(piece.max(1));
    (0..len.div_ceil(piece)).map(move |part| part * piece..((part + 1) * piece).min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_cut_into_pieces() {
        let all: Vec<_> = pieces(10, 4).collect();
        assert_eq!(all, [0..4, 4..8, 8..10]);
        assert_eq!(pieces(0, 4).count(), 0);
    }
}
