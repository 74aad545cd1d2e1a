//! The default transport: threads read requests from `/dev/fuse`, each through its own descriptor.
//!
//! A thread serves the requests that it reads. Requests that wait for a commit or cause requests go
//! to worker threads, so that some threads always read. The reply goes to the descriptor of the
//! request.

use super::clone::another;
use super::halt::Halt;
use super::held_writes::HeldWrites;
use super::workers::Pool;
use crate::connection::{BUFFER, ForcedEnd, forget, join, needed, next};
use crate::guard::caught;
use crate::handler::{Answer, Handler};
use crate::protocol::abi::{InHeader, OutHeader, argument, op};
use crate::protocol::{Call, answer, is_written_first, write_back_for, writes_past_pages};
use crate::types::{ErrorCode, NodeId};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use zerocopy::{FromBytes, IntoBytes};

/// Threads for requests that wait.
const WAITERS: usize = 16;

/// Bytes for the reply to a request that other threads serve: these replies are short.
const SHORT: usize = 64;

/// Starts the threads that serve the connection, whose mount `forced` ends. Joining them gives the
/// result of serving. By `halt` they are halted.
pub fn start(
    handler: Arc<impl Handler>,
    fuse: Arc<File>,
    forced: &ForcedEnd,
    threads: usize,
    halt: Arc<Halt>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let forced = forced.clone();
    Builder::new()
        .name("extant-fuse".into())
        .spawn(move || serve(&handler, fuse, &forced, (threads, &halt)))
}

fn serve(
    handler: &Arc<impl Handler>,
    fuse: Arc<File>,
    forced: &ForcedEnd,
    (threads, halt): (usize, &Halt),
) -> io::Result<()> {
    let served = read(handler, fuse, forced, (threads, halt));
    // Others have its file system, or nothing was served.
    if halt.is_serving() {
        handler.end();
    }
    served
}

/// Reads by several threads. If one cannot be started, the mount ends: its requests would wait
/// forever.
fn read(
    handler: &Arc<impl Handler>,
    fuse: Arc<File>,
    forced: &ForcedEnd,
    (threads, halt): (usize, &Halt),
) -> io::Result<()> {
    let pool = Arc::new(needed(forced, &|| (), || Pool::start(WAITERS, threads / 2))?);
    halt.watch(Arc::downgrade(&pool));
    let held = HeldWrites::new();
    let served = std::thread::scope(|scope| {
        let spawn = |number: usize| {
            // A server that may not open the device has one queue for all readers.
            let other = (number > 0).then(|| another(&fuse).ok()).flatten();
            let fuse = other.map_or_else(|| fuse.clone(), Arc::new);
            let (pool, held) = (pool.clone(), held.clone());
            let reader =
                Reader { fuse, handler: handler.clone(), pool, held, buf: vec![0; BUFFER] };
            let name = format!("extant-fuse-{number}");
            Builder::new()
                .name(name)
                .spawn_scoped(scope, move || needed(forced, &|| (), || reader.run(halt)))
        };
        let running = needed(forced, &|| (), || {
            (0..threads.max(1)).map(spawn).collect::<io::Result<Vec<_>>>()
        })?;
        running.into_iter().map(join).fold(Ok(()), io::Result::and)
    });
    if let Some(mut pool) = Arc::into_inner(pool) {
        pool.stop();
    }
    served
}

/// A thread that reads.
struct Reader<S: Handler> {
    fuse: Arc<File>,
    handler: Arc<S>,
    pool: Arc<Pool>,
    held: Arc<HeldWrites>,
    buf: Vec<u8>,
}

impl<S: Handler> Reader<S> {
    /// Serves until the mount ends, or others serve it.
    fn run(mut self, halt: &Halt) -> io::Result<()> {
        let mark = halt.reader();
        loop {
            if !halt.pass(&mark) {
                return Ok(());
            }
            let Some(len) = next(&self.fuse, &mut self.buf)? else { break };
            let request = self.buf.get(..len).unwrap_or_default();
            let Ok((head, _)) = InHeader::read_from_prefix(request) else { continue };
            if caught(|| self.request(head, len)).is_none() {
                fail(&self.fuse, &head);
            }
        }
        forget::end_requests(&*self.handler);
        Ok(())
    }

    fn request(&mut self, head: InHeader, len: usize) {
        let request = self.buf.get(..len).unwrap_or_default();
        match head.opcode {
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {
                if let Err(e) = forget::handle(&self.fuse, &*self.handler, request) {
                    tracing::debug!("the kernel did not take a reply: {e}");
                }
            }
            op::LSEEK | op::BMAP | op::IOCTL if self.is_written_first(&head, len) => {
                self.pool.run(self.later(len, true))
            }
            op::FSYNC | op::FSYNCDIR | op::SYNCFS if self.handler.fsync_waits() => {
                self.pool.run_waiting(self.later(len, false));
            }
            op::WRITE => self.write(head, len),
            _ => respond(&self.fuse, &*self.handler, head, &mut self.buf, len),
        }
    }

    fn is_written_first(&self, head: &InHeader, len: usize) -> bool {
        let arg = self.buf.get(size_of::<InHeader>()..len).unwrap_or_default();
        let payload = arg.get(argument(head.opcode)..).unwrap_or_default();
        is_written_first(&*self.handler, head, arg, payload)
    }

    /// Answers a write. The reply to a direct write waits until the kernel has dropped older pages,
    /// if it may wait for that.
    fn write(&mut self, head: InHeader, len: usize) {
        let node = NodeId(head.node);
        let arg = self.buf.get(size_of::<InHeader>()..len).unwrap_or_default();
        let past_pages = writes_past_pages(&head, arg);
        let Some(reply) = prepare(&*self.handler, head, &mut self.buf, len) else { return };
        if !past_pages || !self.handler.outdates_pages(node) {
            return send(&self.fuse, reply);
        }
        let Some(hold) = self.held.hold() else {
            self.handler.write_back_later(node);
            return send(&self.fuse, reply);
        };
        let (fuse, handler, reply) = (self.fuse.clone(), self.handler.clone(), reply.to_vec());
        self.pool.run(move || {
            // The write stays valid if this fails.
            let _ = caught(|| handler.write_back(node));
            send(&fuse, &reply);
            drop(hold);
        });
    }

    /// Returns a job that serves a short request from a copy.
    fn later(&self, len: usize, written_first: bool) -> impl FnOnce() + Send + use<S> {
        let (fuse, handler) = (self.fuse.clone(), self.handler.clone());
        let mut buf = self.buf.get(..len).unwrap_or_default().to_vec();
        buf.resize(len + SHORT, 0);
        move || {
            let Ok((head, _)) = InHeader::read_from_prefix(&buf) else { return };
            let done = caught(|| {
                if written_first {
                    write_back_for(
                        &*handler,
                        &head,
                        buf.get(size_of::<InHeader>()..len).unwrap_or_default(),
                    );
                }
                respond(&fuse, &*handler, head, &mut buf, len);
            });
            if done.is_none() {
                fail(&fuse, &head);
            }
        }
    }
}

/// Answers the request of `len` bytes that `buf` begins with. The reply takes the request's place,
/// its header right before its payload.
fn respond(fuse: &File, handler: &impl Handler, head: InHeader, buf: &mut [u8], len: usize) {
    if let Some(reply) = prepare(handler, head, buf, len) {
        send(fuse, reply);
    }
}

fn prepare<'a>(
    handler: &impl Handler,
    head: InHeader,
    buf: &'a mut [u8],
    len: usize,
) -> Option<&'a [u8]> {
    let start = size_of::<InHeader>() + argument(head.opcode);
    let (error, size) = match served(handler, head, buf, start, len) {
        Ok(size) => (0, size),
        Err(e) => (-e.code(), 0),
    };
    let out = OutHeader { len: (size_of::<OutHeader>() + size) as u32, error, unique: head.unique };
    let reply = buf.get_mut(start - size_of::<OutHeader>()..start + size)?;
    reply[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
    Some(reply)
}

/// Answers a request whose handler panicked. The kernel refuses the answer if there was one before.
fn fail(fuse: &File, head: &InHeader) {
    let reply = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: -ErrorCode::EIO.code(),
        unique: head.unique,
    };
    send(fuse, reply.as_bytes());
}

fn send(mut fuse: &File, reply: &[u8]) {
    if let Err(e) = fuse.write_all(reply) {
        // The caller was killed meanwhile.
        tracing::debug!("the kernel did not take a reply: {e}");
    }
}

fn served(
    handler: &impl Handler,
    head: InHeader,
    buf: &mut [u8],
    start: usize,
    len: usize,
) -> Answer<usize> {
    let rest = len.checked_sub(start).ok_or(ErrorCode::EINVAL)?;
    let (before, payload) = buf.split_at_mut_checked(start).ok_or(ErrorCode::EINVAL)?;
    let arg = before.get(size_of::<InHeader>()..).ok_or(ErrorCode::EINVAL)?;
    answer(handler, Call { head, arg, payload, len: rest })
}
