//! A running ring, and the threads that execute its requests.
//!
//! # Threads
//! All threads of a ring do the same: they execute requests until no more are available, and then
//! wait for a kick at the same epoll. While requests are quick, as from the page cache, the first
//! thread alone does all of them, since a wakeup costs more than such a request. Before a thread
//! begins a request that is slow by its kind, or after slow ones, it makes sure that another thread
//! waits for kicks, and wakes it if more requests are available. So a flush delays no read, and
//! reads of a disk run beside each other.
//!
//! # Invariants
//! - Before a thread waits, or begins a slow request, it has turned kicks on and has looked for
//!   requests after that: none is overlooked.
//! - The queue is touched under its lock only, and no request is executed under it.
//! - [`Ring::stop`] returns when all requests that were taken are answered: nothing touches the
//!   memory of the guest after that.
//! - Kicks are awaited by their edges and never read. A kick that comes while no thread waits stays
//!   pending in epoll(7).

use crate::disk::{Buffer, Disk, Failure};
use crate::request::{Malformed, Request};
use crate::settings::Choices;
use crate::wire::{asks_for_no_calls, invalid};
use extant_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use extant_sync::{Level, Mutex};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The mean time of requests from which on they count as slow, in nanoseconds.
const SLOW: u64 = 40_000;

/// The weight of the last request in this mean is 1 to 2 to this power.
const WEIGHT: u32 = 3;

/// Descriptors of a ring at most.
const MAX_SIZE: u16 = 1 << 15;

/// Threads of all rings of a guest at most, beside one of each ring.
pub const MAX_MORE_THREADS: usize = 16;

/// The places of the three parts of a ring in the guest.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
}

/// A ring before it runs.
#[derive(Debug)]
pub struct Setup {
    pub disk: Arc<Disk>,
    pub choices: Arc<Choices>,
    /// Threads that all rings of the guest may still start. Relaxed: a number that orders nothing.
    pub threads: Arc<AtomicUsize>,
    pub memory: GuestMemoryMmap,
    pub parts: Parts,
    pub size: u16,
    /// The next available chain.
    pub base: u16,
    /// Calls and kicks are announced by indexes.
    pub event_idx: bool,
    pub kick: Arc<OwnedFd>,
    pub call: Option<Arc<OwnedFd>>,
}

/// A running ring.
#[derive(Debug)]
pub struct Ring {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    setup: Setup,
    queue: Mutex<Queue>,
    call: Mutex<Option<Arc<OwnedFd>>>,
    epoll: OwnedFd,
    /// Wakes one thread.
    wakeup: OwnedFd,
    /// Wakes all threads, for their end.
    end: OwnedFd,
    /// No more chains are taken.
    ended: AtomicBool,
    /// Threads that wait.
    waiting: AtomicUsize,
    /// The mean time of the last requests that are quick by their kind, in nanoseconds. Relaxed: a
    /// hint.
    pace: AtomicU64,
    running: Mutex<Vec<JoinHandle<()>>>,
}

/// An answered request: its head, and the bytes that the guest got.
struct Answer {
    head: u16,
    len: u32,
}

impl Ring {
    /// Starts a ring.
    ///
    /// # Errors
    /// `InvalidData` if its parts are not in memory, or not aligned; those of epoll(7), as for a
    /// kick that is a file; those of a new thread.
    pub fn start(setup: Setup) -> io::Result<Ring> {
        let queue = queue_of(&setup)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (wakeup, end) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &*setup.kick, EventData::new_u64(0), edge)?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(1), edge)?;
        epoll::add(&epoll, &end, EventData::new_u64(2), EventFlags::IN)?;
        let shared = Arc::new(Shared {
            queue: Mutex::new(Level::Leaf, queue),
            call: Mutex::new(Level::Leaf, setup.call.clone()),
            setup,
            epoll,
            wakeup,
            end,
            ended: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            pace: AtomicU64::new(0),
            running: Mutex::new(Level::Leaf, Vec::new()),
        });
        shared.spawn(false)?;
        Ok(Ring { shared })
    }

    /// Changes the event that announces results.
    pub fn set_call(&self, call: Option<Arc<OwnedFd>>) {
        *self.shared.call.lock() = call;
        // A result of the time between is announced to the new one.
        self.shared.call();
    }

    /// Stops the ring when all requests that it has taken are answered. Returns the next available
    /// chain.
    pub fn stop(&self) -> u16 {
        let shared = &self.shared;
        shared.ended.store(true, Ordering::Release);
        signal(&shared.end);
        // A thread starts others before its own end.
        loop {
            let thread = shared.running.lock().pop();
            let Some(thread) = thread else { break };
            if thread.join().is_err() {
                tracing::error!("a thread of a ring has panicked");
            }
        }
        shared.queue.lock().next_avail()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a queue whose parts lie in memory.
fn queue_of(setup: &Setup) -> io::Result<Queue> {
    let wrong = |error: Error| invalid(format!("a ring of {} chains: {error}", setup.size));
    let Setup { parts, memory, .. } = setup;
    let mut queue = Queue::new(MAX_SIZE).map_err(wrong)?;
    queue.try_set_size(setup.size).map_err(wrong)?;
    queue.try_set_desc_table_address(parts.descriptors).map_err(wrong)?;
    queue.try_set_avail_ring_address(parts.available).map_err(wrong)?;
    queue.try_set_used_ring_address(parts.used).map_err(wrong)?;
    queue.set_event_idx(setup.event_idx);
    queue.set_ready(true);
    if !queue.is_valid(memory) {
        return Err(invalid("a ring outside of memory"));
    }
    queue.set_next_avail(setup.base);
    let used = queue.used_idx(memory, Ordering::Acquire).map_err(wrong)?;
    queue.set_next_used(used.0);
    Ok(queue)
}

/// Adds one to an event. A full one is one that announces.
fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

impl Shared {
    /// Starts a thread, which counts as one of those beyond the first if `more` is set.
    fn spawn(self: &Arc<Shared>, more: bool) -> io::Result<()> {
        let shared = self.clone();
        let work = move || {
            shared.work();
            if more {
                shared.setup.threads.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut running = self.running.lock();
        running.push(Builder::new().name("extant-vhost".into()).spawn(work)?);
        Ok(())
    }

    fn work(self: &Arc<Shared>) {
        let mut buffer = Buffer::default();
        loop {
            if let Err(error) = self.drain(&mut buffer) {
                tracing::warn!("a ring of a guest is wrong and stops: {error}");
                self.ended.store(true, Ordering::Release);
                signal(&self.end);
            }
            buffer.shrink();
            if !self.wait() {
                return;
            }
        }
    }

    /// Waits for a kick or a wakeup. Returns whether the ring goes on.
    fn wait(&self) -> bool {
        let mut event = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waited = loop {
            match epoll::wait(&self.epoll, &mut event, None) {
                Err(rustix::io::Errno::INTR) => {}
                waited => break waited,
            }
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        waited.is_ok() && !self.ended.load(Ordering::Acquire)
    }

    /// Executes requests until no more are available.
    fn drain(self: &Arc<Shared>, buffer: &mut Buffer) -> Result<(), Error> {
        let mut answered = None;
        while let Some(chain) = self.turn(answered)? {
            answered = Some(self.execute(chain, buffer));
        }
        Ok(())
    }

    /// Gives an answer to the guest, and takes the next chain. Without one, kicks are on.
    fn turn(
        &self,
        answered: Option<Answer>,
    ) -> Result<Option<DescriptorChain<&GuestMemoryMmap>>, Error> {
        let memory = &self.setup.memory;
        let mut queue = self.queue.lock();
        let mut calls = false;
        if let Some(Answer { head, len }) = answered {
            queue.add_used(memory, head, len)?;
            calls = queue.needs_notification(memory)? && !self.wants_no_calls(&queue)?;
        }
        let taken = self.take(&mut queue);
        drop(queue);
        if calls {
            self.call();
        }
        taken
    }

    fn take<'s>(
        &'s self,
        queue: &mut Queue,
    ) -> Result<Option<DescriptorChain<&'s GuestMemoryMmap>>, Error> {
        let memory = &self.setup.memory;
        if self.ended.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(chain) = queue.iter(memory)?.next() {
            if !self.setup.event_idx {
                queue.disable_notification(memory)?;
            }
            return Ok(Some(chain));
        }
        if !queue.enable_notification(memory)? {
            return Ok(None);
        }
        // Another one came in between. A guest may have taken it back, which none does by right.
        queue.iter(memory)?.next().map(Some).ok_or(Error::InvalidAvailRingIndex)
    }

    /// Returns whether the guest wants no calls, which a guest without indexes says by a flag.
    fn wants_no_calls(&self, queue: &Queue) -> Result<bool, Error> {
        if self.setup.event_idx {
            return Ok(false);
        }
        let place = GuestAddress(queue.avail_ring());
        // Relaxed: the fence of `needs_notification` orders it behind the answer.
        let flags = self.setup.memory.load::<u16>(place, Ordering::Relaxed);
        flags.map(asks_for_no_calls).map_err(Error::GuestMemory)
    }

    fn call(&self) {
        if let Some(call) = &*self.call.lock() {
            signal(call);
        }
    }

    fn execute(
        self: &Arc<Shared>,
        chain: DescriptorChain<&GuestMemoryMmap>,
        buffer: &mut Buffer,
    ) -> Answer {
        let Setup { disk, memory, choices, .. } = &self.setup;
        let head = chain.head_index();
        let (status, got) = match Request::parse(chain, memory) {
            Ok(request) => {
                let status = request.status;
                let is_slow = Disk::is_slow(&request);
                if is_slow || self.pace.load(Ordering::Relaxed) > SLOW {
                    self.share();
                }
                let begin = Instant::now();
                let done = disk.execute(request, memory, choices, buffer);
                if !is_slow {
                    self.keep_pace(begin);
                }
                (Some(status), done)
            }
            Err(Malformed { why, status }) => (status, Err(Failure::Invalid(why))),
        };
        let (code, got) = match got {
            Ok(got) => (0, got),
            Err(failure) => {
                match &failure {
                    Failure::Device(error) => tracing::warn!("a guest gets an error: {error}"),
                    _ => tracing::debug!("a request of a guest fails: {failure}"),
                }
                (failure.status(), 0)
            }
        };
        let Some(status) = status else { return Answer { head, len: 0 } };
        let written = memory.write_obj(code, status);
        let len = if written.is_ok() { got + 1 } else { 0 };
        Answer { head, len: u32::try_from(len).unwrap_or(u32::MAX) }
    }

    /// Updates the mean time of requests.
    fn keep_pace(&self, begin: Instant) {
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let pace = self.pace.load(Ordering::Relaxed);
        // Several threads may lose a request of each other, which changes little.
        self.pace.store(pace - (pace >> WEIGHT) + (took >> WEIGHT), Ordering::Relaxed);
    }

    /// Lets another thread take requests while this one is busy.
    fn share(self: &Arc<Shared>) {
        let more = match self.queue.lock().enable_notification(&self.setup.memory) {
            Ok(more) => more,
            // This thread meets it again.
            Err(_) => return,
        };
        if self.waiting.load(Ordering::Acquire) > 0 {
            if more {
                signal(&self.wakeup);
            }
            return;
        }
        let threads = &self.setup.threads;
        let take = |left: usize| left.checked_sub(1);
        if threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return;
        }
        if let Err(error) = self.spawn(true) {
            tracing::debug!("a ring gets no other thread: {error}");
            threads.fetch_add(1, Ordering::Relaxed);
        }
    }
}
