//! A thread that serves the requests of some processors.
//!
//! The thread takes all waiting requests, answers them in turn, and sends all replies by one system
//! call: under load many requests cost one switch of threads. A long request would delay the
//! others, so other threads serve it: requests that cause requests always, the rest by the recent
//! latency of their kind.
//!
//! # Invariants
//! A request keeps its slot until it is answered, and the kernel needs a free slot for the next
//! one. A request that causes requests (before a search for data the kernel must write its cache)
//! may therefore wait only while the queue has slots for those:
//!
//! - In each queue at least one slot is not held by a request that waits for requests. The request
//!   that would take the last one gets `ENOSYS`; the kernel then treats all of the file as data,
//!   now and later.
//! - No other request waits for requests: neither on the threads of the rings nor on those for long
//!   requests.
//!
//! Each request that waits in the line of a queue is therefore taken as soon as that slot is free,
//! and the slot becomes free.
//!
//! Direct writes are background requests, which the kernel bounds over all queues
//! ([`held_writes`](crate::transport::held_writes)). When the bound is met, the kernel sends the
//! next one of a queue only when one of that queue ends. If all of those wait for pages to be
//! dropped, none ends; so each waits for [`PATIENCE`] at most.

use super::latency::{Pace, Watch};
use super::slot::{Event, Ring, Slot};
use crate::connection::bell::Bell;
use crate::guard::caught;
use crate::handler::Handler;
use crate::protocol::abi::{InHeader, op};
use crate::protocol::{
    Call, answer, content_len, is_written_first, write_back_for, writes_past_pages,
};
use crate::transport::held_writes::{HeldWrites, Hold};
use crate::transport::workers::Pool;
use crate::types::{ErrorCode, NodeId};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Slots of each processor. Programs rarely have as many requests under way, so that no search for
/// data is refused. The kernel takes the slot that was returned last, so unused slots cost address
/// space only.
pub const DEPTH: usize = 64;

/// Threads for long requests: as many callers of fsync share a commit.
const LONG_ONES: usize = 16;

/// Bytes from which on a read or write is a long request: the caller's processor, on which the
/// thread of the ring is, then goes on with the next one.
const BULK: u32 = 256 << 10;

/// Threads for requests that cause requests.
const ASKING: usize = 2;

/// Longest wait of a direct write for pages to be dropped.
const PATIENCE: Duration = Duration::from_millis(100);

/// Longest wait for slots after the mount has ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// Result of another thread that served a slot's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// It is answered.
    Here,
    /// It is answered, and has waited for requests of the kernel.
    Asking,
    /// It is answered, and wrote past the kernel's page cache of this inode.
    PastPages(NodeId),
}

/// Slots that other threads have answered, and the bell that announces them.
#[derive(Debug)]
struct Inbox {
    done: Mutex<Vec<(Slot, Served)>>,
    /// The thread is to end.
    ends: AtomicBool,
    bell: Bell,
}

impl Inbox {
    fn end(&self) {
        // Relaxed: the ring of the bell orders it before the wakeup.
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.bell.ring();
    }

    fn put(&self, slot: Slot, served: Served) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((slot, served));
        if let Err(e) = self.bell.ring() {
            tracing::error!("a reply is late: {e}");
        }
    }

    fn take(&self) -> Vec<(Slot, Served)> {
        // Read first: a slot that comes after that rings again.
        self.bell.silence();
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Threads beside those of the rings. Only `asking` may wait for requests of the kernel. If `long`
/// did so, too, the requests could wait for the threads that wait for them.
#[derive(Debug)]
pub struct WorkerPools {
    /// Threads for requests that cause requests.
    pub asking: Pool,
    /// Threads for long requests.
    pub long: Pool,
}

impl WorkerPools {
    /// Starts the threads.
    pub fn start() -> io::Result<WorkerPools> {
        Ok(WorkerPools { asking: Pool::start(ASKING, 0)?, long: Pool::start(LONG_ONES, 0)? })
    }

    /// Waits until all jobs are done, and ends the threads.
    pub fn stop(&mut self) {
        self.asking.stop();
        self.long.stop();
    }
}

/// The thread that must serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The thread that took it.
    Here,
    /// A thread that may wait for requests.
    Asking,
    /// A thread for long requests.
    Long,
}

/// Shared state of the threads that serve a connection; chooses the thread for each request.
#[derive(Debug)]
pub struct Dispatcher<S: Handler> {
    /// File system.
    pub handler: Arc<S>,
    /// Recent latencies by kind of request.
    pub pace: Pace,
    /// Limit of direct writes whose replies wait.
    pub held: Arc<HeldWrites>,
}

impl<S: Handler> Dispatcher<S> {
    fn way(&self, head: &InHeader, arg: &[u8], payload: &[u8]) -> Way {
        match head.opcode {
            op::LSEEK | op::BMAP | op::IOCTL
                if is_written_first(&*self.handler, head, arg, payload) =>
            {
                Way::Asking
            }
            op::DESTROY | op::SYNCFS => Way::Long,
            _ if content_len(head, arg) >= BULK => Way::Long,
            other if self.pace.is_long(other) => Way::Long,
            _ => Way::Here,
        }
    }

    /// Returns the error of a request for which no slot is left to wait with.
    fn refusal(head: &InHeader) -> ErrorCode {
        match head.opcode {
            op::LSEEK => ErrorCode::ENOSYS,
            // For BMAP the kernel treats `EBUSY` as a hole, whereas it would remember `ENOSYS` for
            // all files. An ioctl can be repeated.
            _ => ErrorCode::EBUSY,
        }
    }

    fn serve(&self, slot: &mut Slot) {
        let Some((head, arg, payload, len)) = slot.request() else { return };
        let watch = Watch::start();
        let result = caught(|| answer(&*self.handler, Call { head, arg, payload, len }));
        self.pace.took(head.opcode, watch.time());
        match result.unwrap_or(Err(ErrorCode::EIO)) {
            Ok(len) => slot.answer(head.unique, 0, len),
            Err(e) => slot.answer(head.unique, -e.code(), 0),
        }
    }
}

/// Resources of a thread that are acquired before it serves.
pub struct Place {
    ring: Ring,
    inbox: Arc<Inbox>,
    queues: Vec<u16>,
}

impl Place {
    /// Builds a disabled ring for the requests of these processors.
    pub fn build(queues: Vec<u16>) -> io::Result<Place> {
        let ring = Ring::new(queues.len() * DEPTH)?;
        let bell = Bell::new()?;
        Ok(Place {
            ring,
            inbox: Arc::new(Inbox { done: Mutex::default(), ends: AtomicBool::new(false), bell }),
            queues,
        })
    }

    /// Sets the connection, which must outlive the queue.
    pub fn connect(&mut self, fuse: impl AsFd) {
        self.ring.connect(fuse.as_fd());
    }

    /// Returns a function that ends the thread of this place.
    pub fn end(&self) -> impl Fn() + Send + Sync + use<> {
        let inbox = self.inbox.clone();
        move || inbox.end()
    }
}

/// A direct write that waits for pages to be dropped; empty after the reply.
type Waiting = Arc<Mutex<Option<(Slot, Hold)>>>;

fn take(waiting: &Waiting) -> Option<(Slot, Hold)> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// State of the thread.
pub struct Queue<S: Handler> {
    ring: Ring,
    dispatcher: Arc<Dispatcher<S>>,
    pools: Arc<WorkerPools>,
    inbox: Arc<Inbox>,
    slots: usize,
    asking: Asking,
    /// A search for data was refused, which was told.
    refused: bool,
    /// Waiting direct writes with the deadlines of their replies, oldest first.
    waiting: VecDeque<(Instant, Waiting)>,
}

/// Number of slots of each queue that are held by requests that wait for requests.
#[derive(Debug, Default)]
struct Asking(HashMap<u16, usize>);

impl Asking {
    /// Counts one more, if a slot is left then. Returns whether it did.
    fn begin(&mut self, queue: u16) -> bool {
        let kept = self.0.entry(queue).or_default();
        let may = *kept + 1 < DEPTH;
        *kept += usize::from(may);
        may
    }

    fn end(&mut self, queue: u16) {
        if let Some(kept) = self.0.get_mut(&queue) {
            *kept = kept.saturating_sub(1);
        }
    }
}

impl<S: Handler> Queue<S> {
    /// Starts the ring, for this thread, and registers the slots.
    pub fn new(
        place: Place,
        payload: usize,
        dispatcher: Arc<Dispatcher<S>>,
        pools: Arc<WorkerPools>,
    ) -> io::Result<Queue<S>> {
        let Place { mut ring, inbox, queues } = place;
        let slots = queues.len() * DEPTH;
        ring.enable()?;
        for (number, queue) in queues.iter().flat_map(|queue| [*queue; DEPTH]).enumerate() {
            ring.lend(number, queue, payload)?;
        }
        ring.listen(inbox.bell.as_fd())?;
        Ok(Queue {
            ring,
            dispatcher,
            pools,
            inbox,
            slots,
            asking: Asking::default(),
            refused: false,
            waiting: VecDeque::new(),
        })
    }

    /// Serves until the mount ends.
    pub fn run(mut self) -> io::Result<()> {
        let (mut gone, mut events) = (0, Vec::new());
        while gone < self.slots {
            let ending = gone > 0;
            let patience = self.answer_late()?;
            self.ring.wait(ending.then_some(FAREWELL).or(patience))?;
            self.ring.taken(&mut events);
            if events.is_empty() && ending {
                tracing::warn!("the kernel keeps {} of {} slots", self.slots - gone, self.slots);
                return Ok(());
            }
            if self.inbox.ends.load(Ordering::Relaxed) {
                return Ok(());
            }
            for event in events.drain(..) {
                match event {
                    Event::Request(slot) => self.request(slot)?,
                    Event::Gone(error) => {
                        log_end(error);
                        gone += 1;
                    }
                    Event::Wake => self.woken()?,
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, mut slot: Slot) -> io::Result<()> {
        let (head, past_pages, way) = match slot.request() {
            Some((head, arg, payload, len)) => {
                let way = self.dispatcher.way(&head, arg, payload.get(..len).unwrap_or_default());
                (Some(head), writes_past_pages(&head, arg), way)
            }
            None => (None, false, Way::Here),
        };
        match way {
            Way::Here => {
                self.dispatcher.serve(&mut slot);
                if past_pages && let Some(head) = head {
                    return self.written_past_pages(slot, NodeId(head.node));
                }
                return self.ring.give_back(slot);
            }
            Way::Long => self.hand_over(slot, false),
            Way::Asking if self.asking.begin(slot.queue()) => self.hand_over(slot, true),
            Way::Asking => {
                let (unique, error) = head.map_or((0, ErrorCode::EBUSY), |head| {
                    (head.unique, Dispatcher::<S>::refusal(&head))
                });
                if error == ErrorCode::ENOSYS && !std::mem::replace(&mut self.refused, true) {
                    tracing::warn!(
                        "{DEPTH} searches for data or holes came at once from one processor: \
                         until it is mounted anew, all files show as data without holes; \
                         transport=dev has no such limit"
                    );
                }
                slot.answer(unique, -error.code(), 0);
                return self.ring.give_back(slot);
            }
        }
        Ok(())
    }

    /// Answers a direct write after the kernel has dropped older pages. Where the write must not
    /// wait (no slot is left, or too few background requests), the reply comes first.
    fn written_past_pages(&mut self, slot: Slot, node: NodeId) -> io::Result<()> {
        if !self.dispatcher.handler.outdates_pages(node) {
            return self.ring.give_back(slot);
        }
        let hold = self.dispatcher.held.hold().filter(|_| self.asking.begin(slot.queue()));
        let Some(hold) = hold else {
            self.dispatcher.handler.write_back_later(node);
            return self.ring.give_back(slot);
        };
        let (dispatcher, inbox) = (self.dispatcher.clone(), self.inbox.clone());
        let waiting: Waiting = Arc::new(Mutex::new(Some((slot, hold))));
        self.waiting.push_back((Instant::now() + PATIENCE, waiting.clone()));
        self.pools.asking.run(move || {
            // The write stays valid if this fails.
            let _ = caught(|| dispatcher.handler.write_back(node));
            if let Some((slot, _hold)) = take(&waiting) {
                inbox.put(slot, Served::Asking);
            }
        });
        Ok(())
    }

    /// Answers direct writes whose deadline has passed. Returns the time until the next deadline.
    fn answer_late(&mut self) -> io::Result<Option<Duration>> {
        let now = Instant::now();
        while let Some((until, waiting)) = self.waiting.front() {
            let left = until.saturating_duration_since(now);
            let is_answered = waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none();
            if !left.is_zero() && !is_answered {
                return Ok(Some(left));
            }
            let late = take(waiting);
            self.waiting.pop_front();
            if let Some((slot, _hold)) = late {
                self.asking.end(slot.queue());
                self.ring.give_back(slot)?;
            }
        }
        Ok(None)
    }

    fn hand_over(&self, mut slot: Slot, asks: bool) {
        let (dispatcher, inbox) = (self.dispatcher.clone(), self.inbox.clone());
        let pool = if asks { &self.pools.asking } else { &self.pools.long };
        pool.run(move || {
            let served = if asks { Served::Asking } else { Served::Here };
            let Some((head, arg, ..)) = slot.request() else { return inbox.put(slot, served) };
            let (node, past_pages) = (NodeId(head.node), writes_past_pages(&head, arg));
            if asks {
                // A search then finds earlier writes, and new flags forbid later writes only.
                let _ = caught(|| write_back_for(&*dispatcher.handler, &head, arg));
            }
            dispatcher.serve(&mut slot);
            // This thread must not wait for requests: the thread of the ring selects one that may.
            inbox.put(slot, if past_pages { Served::PastPages(node) } else { served });
        });
    }

    fn woken(&mut self) -> io::Result<()> {
        for (slot, served) in self.inbox.take() {
            match served {
                Served::Here => self.ring.give_back(slot)?,
                Served::Asking => {
                    self.asking.end(slot.queue());
                    self.ring.give_back(slot)?;
                }
                Served::PastPages(node) => self.written_past_pages(slot, node)?,
            }
        }
        self.ring.listen(self.inbox.bell.as_fd())
    }
}

/// Logs the end of a slot; the end of the connection is no error.
fn log_end(error: i32) {
    if ![Errno::NOTCONN, Errno::CANCELED].contains(&Errno::from_raw_os_error(-error)) {
        tracing::error!("a slot is served no more: {}", io::Error::from_raw_os_error(-error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_left_to_requests_that_others_wait_for() {
        let mut asking = Asking::default();
        assert!((1..DEPTH).all(|_| asking.begin(0)));
        assert!(!asking.begin(0));
        assert!(asking.begin(1), "each queue has its own");
        asking.end(0);
        assert!(asking.begin(0));
        assert!(!asking.begin(0));
    }
}
