//! Requests of one connection: a thread reads them, a few threads execute and answer them.
//!
//! # Ends
//! A client says that it ends (`NBD_CMD_DISC`), after which its requests are still executed. If the
//! connection ends without that, the client repeats its writes over another one, perhaps with newer
//! ones of the same place after them. So requests that wait are forgotten, and the connection is
//! closed, which the client may wait for, when no request is executed any more.

use super::negotiate::{Agreed, CONTEXT};
use crate::channel::Channel;
use crate::wire::{self, Fields, Message, chunk, command, errno};
use extant_blocks::{BlockDevice, raw_os_error};
use extant_sync::{Condvar, Level, Mutex};
use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Threads of a connection that execute requests.
const WORKERS: usize = 4;

/// Bytes of requests of a connection that wait or are executed: one more is read only below that.
const MAX_BYTES: usize = 64 << 20;
const MAX_REQUESTS: usize = 256;

/// Extents of one answer to a request for the status of blocks.
const MAX_EXTENTS: usize = 4096;

/// How long a client may take to receive an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are read at once, while they are no large data.
const READ_BUFFER: usize = 64 << 10;

/// A request, with the data of a write.
#[derive(Debug)]
struct Job {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
    payload: Vec<u8>,
}

impl Job {
    fn cost(&self) -> usize {
        match self.command {
            command::READ => self.len as usize,
            _ => self.payload.len(),
        }
    }
}

/// Requests that wait.
#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Requests that wait or are executed, and their bytes.
    count: usize,
    bytes: usize,
    /// No more come.
    closed: bool,
    /// The connection was lost: requests that wait, and those to come, are not executed.
    lost: bool,
}

struct Connection<'c> {
    channel: &'c Channel,
    device: &'c dyn BlockDevice,
    read_only: bool,
    agreed: Agreed,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Whether a part of an answer was sent, after which no other one makes sense.
    sending: Mutex<bool>,
}

/// Serves requests until the client ends.
pub fn transmit(
    channel: &Channel,
    device: &dyn BlockDevice,
    read_only: bool,
    agreed: Agreed,
) -> io::Result<()> {
    let (queue, sending) = (Queue::default(), false);
    let connection = Connection {
        channel,
        device,
        read_only,
        agreed,
        queue: Mutex::new(Level::Leaf, queue),
        changed: Condvar::new(),
        sending: Mutex::new(Level::Device, sending),
    };
    std::thread::scope(|scope| {
        let mut workers = 0;
        for _ in 0..WORKERS {
            let worker = Builder::new().name("extant-nbd-work".into());
            workers += usize::from(worker.spawn_scoped(scope, || connection.work()).is_ok());
        }
        let done =
            if workers > 0 { connection.receive() } else { Err(io::ErrorKind::OutOfMemory.into()) };
        if done.is_err() {
            connection.lose();
        }
        connection.queue.lock().closed = true;
        connection.changed.notify_all();
        done
    })?;
    // The threads that answer have ended.
    channel.say_end(Instant::now() + PATIENCE)
}

impl Connection<'_> {
    /// Reads requests until the client says that it ends, or has ended.
    fn receive(&self) -> io::Result<()> {
        let mut stream = BufReader::with_capacity(READ_BUFFER, self.channel);
        loop {
            let mut head = [0; wire::REQUEST_LEN];
            stream.read_exact(&mut head)?;
            let job = parse(&head).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            match job.command {
                command::DISC => return Ok(()),
                // Nothing tells where the next request begins, but the data of this one.
                command::WRITE if job.len > wire::MAX_PAYLOAD => {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                _ => {}
            }
            let len = if job.command == command::WRITE { job.len as usize } else { 0 };
            self.admit(if job.command == command::READ { 0 } else { len });
            let mut payload = vec![0; len];
            stream.read_exact(&mut payload)?;
            self.push(Job { payload, ..job })?;
        }
    }

    /// Waits until there is space for a request.
    fn admit(&self, bytes: usize) {
        let mut queue = self.queue.lock();
        while queue.count >= MAX_REQUESTS || queue.count > 0 && queue.bytes + bytes > MAX_BYTES {
            self.changed.wait(&mut queue);
        }
    }

    /// Lets a request wait for a thread.
    fn push(&self, job: Job) -> io::Result<()> {
        let mut queue = self.queue.lock();
        if queue.lost {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        queue.count += 1;
        queue.bytes += job.cost();
        queue.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    /// Forgets the requests that wait, and takes no others.
    fn lose(&self) {
        let mut queue = self.queue.lock();
        queue.lost = true;
        let jobs = std::mem::take(&mut queue.jobs);
        queue.count -= jobs.len();
        queue.bytes -= jobs.iter().map(Job::cost).sum::<usize>();
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.closed => return,
                    None => self.changed.wait(&mut queue),
                }
            };
            drop(queue);
            let cost = job.cost();
            if let Err(error) = self.answer(&job) {
                tracing::debug!("a client takes no answer: {error}");
                self.lose();
                // The client must not see an end of the connection while others are executed.
                self.channel.socket().end_receiving();
            }
            let mut queue = self.queue.lock();
            queue.count -= 1;
            queue.bytes -= cost;
            self.changed.notify_all();
        }
    }

    fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut broken = self.sending.lock();
        if *broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = self.channel.write_all_parts(parts, Instant::now() + PATIENCE);
        *broken = sent.is_err();
        sent
    }

    /// Executes a request, and sends its answer.
    fn answer(&self, job: &Job) -> io::Result<()> {
        let structured = self.agreed.structured;
        match job.command {
            command::READ => match self.read(job) {
                Ok(data) if structured => {
                    let head = chunk_head(job, chunk::OFFSET_DATA, 8 + data.len());
                    self.send(&[&head.u64(job.offset).into_bytes(), &data])
                }
                Ok(data) => self.send(&[&simple(job, 0), &data]),
                Err(error) => self.send_error(job, &error),
            },
            command::BLOCK_STATUS if self.agreed.allocation => match self.status(job) {
                Ok(extents) => {
                    let head = chunk_head(job, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
                    let add =
                        |message: Message, (len, flags): (u32, u32)| message.u32(len).u32(flags);
                    let message = extents.into_iter().fold(head.u32(CONTEXT), add);
                    self.send(&[&message.into_bytes()])
                }
                Err(error) => self.send_error(job, &error),
            },
            _ => match self.change(job) {
                Ok(()) => self.send(&[&simple(job, 0)]),
                Err(error) => self.send_error(job, &error),
            },
        }
    }

    fn send_error(&self, job: &Job, error: &io::Error) -> io::Result<()> {
        let number = number_of(error);
        if !self.agreed.structured {
            return self.send(&[&simple(job, number)]);
        }
        let text = error.to_string();
        let text = &text[..text.floor_char_boundary(wire::MAX_STRING)];
        let head = chunk_head(job, chunk::PLAIN_ERROR, 6 + text.len());
        let message = head.u32(number).u16(text.len() as u16).bytes(text.as_bytes());
        self.send(&[&message.into_bytes()])
    }

    fn read(&self, job: &Job) -> io::Result<Vec<u8>> {
        if job.len > wire::MAX_PAYLOAD {
            return Err(io::Error::from_raw_os_error(errno::OVERFLOW as i32));
        }
        self.check_range(job)?;
        let mut data = vec![0; job.len as usize];
        self.device.read_exact_at(&mut data, job.offset)?;
        Ok(data)
    }

    fn check_range(&self, job: &Job) -> io::Result<()> {
        let end = job.offset.checked_add(job.len.into());
        if job.len > 0 && end.is_some_and(|end| end <= self.device.len()) {
            return Ok(());
        }
        let beyond = matches!(job.command, command::WRITE | command::WRITE_ZEROES) && job.len > 0;
        let number = if beyond { errno::NOSPC } else { errno::INVAL };
        Err(io::Error::from_raw_os_error(number as i32))
    }

    fn change(&self, job: &Job) -> io::Result<()> {
        match job.command {
            command::FLUSH => return self.device.flush(),
            command::WRITE | command::WRITE_ZEROES | command::TRIM if self.read_only => {
                return Err(io::Error::from_raw_os_error(errno::PERM as i32));
            }
            command::WRITE | command::WRITE_ZEROES | command::TRIM => {}
            _ => return Err(io::Error::from_raw_os_error(errno::INVAL as i32)),
        }
        self.check_range(job)?;
        match job.command {
            command::WRITE => self.device.write_all_at(&job.payload, job.offset)?,
            command::WRITE_ZEROES => self.device.write_zeroes(job.offset, job.len.into())?,
            _ => match self.device.discard(job.offset, job.len.into()) {
                // A server need not discard.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                done => done?,
            },
        }
        if job.flags & command::FUA != 0 {
            self.device.flush()?;
        }
        Ok(())
    }

    /// Returns the extents of a range: data, and holes that read as zeroes.
    fn status(&self, job: &Job) -> io::Result<Vec<(u32, u32)>> {
        self.check_range(job)?;
        let most = if job.flags & command::REQ_ONE != 0 { 1 } else { MAX_EXTENTS };
        let (mut at, end) = (job.offset, job.offset + u64::from(job.len));
        let mut extents = Vec::new();
        while at < end && extents.len() < most {
            let hole = wire::STATE_HOLE | wire::STATE_ZERO;
            let (next, flags) = match self.device.next_data(at)? {
                None => (end, hole),
                Some(data) if data.start > at => (data.start.min(end), hole),
                Some(data) if data.end > at => (data.end.min(end), 0),
                Some(_) => (end, 0),
            };
            extents.push(((next - at) as u32, flags));
            at = next;
        }
        Ok(extents)
    }
}

fn parse(head: &[u8]) -> Option<Job> {
    let mut fields = Fields(head);
    let magic = fields.u32()?;
    let (flags, command, cookie) = (fields.u16()?, fields.u16()?, fields.u64()?);
    let (offset, len, payload) = (fields.u64()?, fields.u32()?, Vec::new());
    (magic == wire::REQUEST_MAGIC).then_some(Job { flags, command, cookie, offset, len, payload })
}

/// Returns a simple reply without data.
fn simple(job: &Job, error: u32) -> Vec<u8> {
    Message::new().u32(wire::SIMPLE_MAGIC).u32(error).u64(job.cookie).into_bytes()
}

/// Returns the beginning of a chunk, the only one of its reply.
fn chunk_head(job: &Job, kind: u16, len: usize) -> Message {
    let head = Message::new().u32(wire::STRUCTURED_MAGIC).u16(chunk::DONE).u16(kind);
    head.u64(job.cookie).u32(len as u32)
}

/// Returns the number of an error on the wire.
fn number_of(error: &io::Error) -> u32 {
    use errno::{INVAL, IO, NOMEM, NOSPC, NOTSUP, OVERFLOW, PERM};
    let number = raw_os_error(error).and_then(|number| u32::try_from(number).ok());
    match (number, error.kind()) {
        (Some(number), _) if [PERM, NOMEM, INVAL, NOSPC, OVERFLOW, NOTSUP].contains(&number) => {
            number
        }
        (_, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => NOSPC,
        (_, io::ErrorKind::ReadOnlyFilesystem) => PERM,
        _ => IO,
    }
}
