//! A thread that serves the requests of some processors.
//!
//! It takes all requests that wait, answers them one after the other, and sends all replies at
//! once: under load many requests cost one switch of threads. So what takes long would keep the
//! others waiting, and goes to other threads: what has to wait for requests of its own, always; the
//! rest by what requests of its kind took lately.
//!
//! # Invariants
//! A request keeps its slot until it is answered, and the kernel has no other place for the next
//! one. A request that makes requests (to look for data, the kernel first has to write what it
//! keeps) therefore may wait only while others have slots to come by:
//!
//! - Of each queue at least one slot is not kept by a request that waits for requests. The one that
//!   would take the last is told that the server does not know such requests; the kernel then takes
//!   all of a file for data, now and later.
//! - No other request waits for requests: not on the threads of the rings, not on those for what
//!   takes long.
//!
//! So whatever waits in a queue's line is taken as soon as that slot is free, and it becomes free.
//!
//! Direct writes are requests in the background, which the kernel bounds over all queues (`held`).
//! Where the bound is met, it sends the next one of a queue only when one of that queue ends. If
//! all of those wait for pages to be dropped, nothing ends; so each waits for [`PATIENCE`] at most.

use super::pace::{Pace, Watch};
use super::slot::{Event, Ring, Slot};
use crate::held::{HeldWrites, Hold};
use crate::pool::Pool;
use crate::reply::caught;
use crate::service::Service;
use crate::wire::structs::{InHeader, op};
use crate::wire::{Call, answer, is_written_first, write_back_for, writes_past_pages};
use fuser::{Errno, INodeNo};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Slots of each processor: more than usual programs keep requests under way, so that no search for
/// data is refused. The kernel takes the slot that was given back last, so those that are not
/// needed cost addresses only.
pub const DEPTH: usize = 64;

/// Threads for what takes long: as many callers of fsync share a commit.
const LONG_ONES: usize = 16;

/// Threads for what makes requests of its own.
const ASKING: usize = 2;

/// How long a direct write waits for pages to be dropped.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long slots are waited for once the mount has ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// How another thread has served a slot's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// It is answered.
    Here,
    /// It is answered, and has waited for requests.
    Asking,
    /// It is answered, and wrote past the kernel's pages of this inode.
    PastPages(INodeNo),
}

/// Slots that other threads have answered, and what tells of them.
#[derive(Debug)]
struct Inbox {
    done: Mutex<Vec<(Slot, Served)>>,
    /// The thread is to end.
    ends: AtomicBool,
    bell: EventFd,
}

impl Inbox {
    fn end(&self) {
        // Relaxed: who hears the bell sees it.
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.bell.write(1);
    }

    fn put(&self, slot: Slot, served: Served) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((slot, served));
        if let Err(e) = self.bell.write(1) {
            tracing::error!("a reply is late: {e}");
        }
    }

    fn take(&self) -> Vec<(Slot, Served)> {
        // Read first: a slot that comes after that rings again.
        let _ = self.bell.read();
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Threads beside those of the rings. Only the first may wait for requests: else those would wait
/// for threads that wait for them.
#[derive(Debug)]
pub struct Others {
    /// For what makes requests of its own.
    pub asking: Pool,
    /// For what takes long.
    pub long: Pool,
}

impl Others {
    /// Starts the threads.
    pub fn start() -> io::Result<Others> {
        Ok(Others { asking: Pool::start(ASKING, 0)?, long: Pool::start(LONG_ONES, 0)? })
    }

    /// Waits until nothing is left to be done.
    pub fn stop(&mut self) {
        self.asking.stop();
        self.long.stop();
    }
}

/// Who has to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The thread that took it.
    Here,
    /// One that may wait for requests.
    Asking,
    /// One of those for what takes long.
    Long,
}

/// What serves.
#[derive(Debug)]
pub struct Staff<S: Service> {
    /// The file system.
    pub service: Arc<S>,
    /// What takes long.
    pub pace: Pace,
    /// Writes whose answers wait.
    pub held: Arc<HeldWrites>,
}

impl<S: Service> Staff<S> {
    fn way(&self, head: &InHeader, arg: &[u8], payload: &[u8]) -> Way {
        match head.opcode {
            op::LSEEK | op::BMAP | op::IOCTL
                if is_written_first(&*self.service, head, arg, payload) =>
            {
                Way::Asking
            }
            op::DESTROY | op::SYNCFS => Way::Long,
            other if self.pace.is_long(other) => Way::Long,
            _ => Way::Here,
        }
    }

    /// What is said where no slot is left to wait with.
    fn refusal(head: &InHeader) -> i32 {
        match head.opcode {
            op::LSEEK => nix::libc::ENOSYS,
            // Of BMAP the kernel takes that for a hole; of the other it would remember that nothing
            // ever has a place. An ioctl can be repeated.
            _ => nix::libc::EBUSY,
        }
    }

    fn serve(&self, slot: &mut Slot) {
        let Some((head, arg, payload, len)) = slot.request() else { return };
        let watch = Watch::start();
        let result = caught(|| answer(&*self.service, Call { head, arg, payload, len }));
        self.pace.took(head.opcode, watch.time());
        match result.unwrap_or(Err(Errno::EIO)) {
            Ok(len) => slot.answer(head.unique, 0, len),
            Err(e) => slot.answer(head.unique, -e.code(), 0),
        }
    }
}

/// What a thread needs of the machine before it can serve.
pub struct Place {
    ring: Ring,
    inbox: Arc<Inbox>,
    queues: Vec<u16>,
}

impl Place {
    /// A ring for the requests of these processors.
    pub fn build(fuse: impl AsFd, queues: Vec<u16>) -> io::Result<Place> {
        let ring = Ring::new(fuse.as_fd(), queues.len() * DEPTH)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Place {
            ring,
            inbox: Arc::new(Inbox { done: Mutex::default(), ends: AtomicBool::new(false), bell }),
            queues,
        })
    }

    /// Ends the thread that serves here.
    pub fn end(&self) -> impl Fn() + Send + Sync + use<> {
        let inbox = self.inbox.clone();
        move || inbox.end()
    }
}

/// A direct write that waits for pages to be dropped. Empty once it is answered.
type Waiting = Arc<Mutex<Option<(Slot, Hold)>>>;

fn take(waiting: &Waiting) -> Option<(Slot, Hold)> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The thread's side.
pub struct Queue<S: Service> {
    ring: Ring,
    staff: Arc<Staff<S>>,
    others: Arc<Others>,
    inbox: Arc<Inbox>,
    slots: usize,
    asking: Asking,
    /// Direct writes in the order in which they began to wait, and when they are answered at the
    /// latest.
    waiting: VecDeque<(Instant, Waiting)>,
}

/// How many slots of each queue requests keep that wait for requests.
#[derive(Debug, Default)]
struct Asking(HashMap<u16, usize>);

impl Asking {
    /// One more, if a slot is left then.
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

impl<S: Service> Queue<S> {
    /// Registers slots of these processors. The connection has to live longer.
    pub fn new(
        place: Place,
        payload: usize,
        staff: Arc<Staff<S>>,
        others: Arc<Others>,
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
            staff,
            others,
            inbox,
            slots,
            asking: Asking::default(),
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
                let way = self.staff.way(&head, arg, payload.get(..len).unwrap_or_default());
                (Some(head), writes_past_pages(&head, arg), way)
            }
            None => (None, false, Way::Here),
        };
        match way {
            Way::Here => {
                self.staff.serve(&mut slot);
                if past_pages && let Some(head) = head {
                    return self.written_past_pages(slot, INodeNo(head.node));
                }
                return self.ring.give_back(slot);
            }
            Way::Long => self.hand_over(slot, false),
            Way::Asking if self.asking.begin(slot.queue()) => self.hand_over(slot, true),
            Way::Asking => {
                let (unique, error) = head.map_or((0, nix::libc::EBUSY), |head| {
                    (head.unique, Staff::<S>::refusal(&head))
                });
                slot.answer(unique, -error, 0);
                return self.ring.give_back(slot);
            }
        }
        Ok(())
    }

    /// What was written past the kernel's pages is answered when pages from before are dropped; or
    /// before, where it may not wait: no slot is left, or too few requests in the background.
    fn written_past_pages(&mut self, slot: Slot, node: INodeNo) -> io::Result<()> {
        if !self.staff.service.outdates_pages(node) {
            return self.ring.give_back(slot);
        }
        let hold = self.staff.held.hold().filter(|_| self.asking.begin(slot.queue()));
        let Some(hold) = hold else {
            self.staff.service.write_back_later(node);
            return self.ring.give_back(slot);
        };
        let (staff, inbox) = (self.staff.clone(), self.inbox.clone());
        let waiting: Waiting = Arc::new(Mutex::new(Some((slot, hold))));
        self.waiting.push_back((Instant::now() + PATIENCE, waiting.clone()));
        self.others.asking.run(move || {
            // What was written stays written if this fails.
            let _ = caught(|| staff.service.write_back(node));
            if let Some((slot, _hold)) = take(&waiting) {
                inbox.put(slot, Served::Asking);
            }
        });
        Ok(())
    }

    /// Answers direct writes that waited long enough; for how long the next one may still wait.
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
        let (staff, inbox) = (self.staff.clone(), self.inbox.clone());
        let pool = if asks { &self.others.asking } else { &self.others.long };
        pool.run(move || {
            let served = if asks { Served::Asking } else { Served::Here };
            let Some((head, arg, ..)) = slot.request() else { return inbox.put(slot, served) };
            let (node, past_pages) = (INodeNo(head.node), writes_past_pages(&head, arg));
            if asks {
                // A search then finds what was written before, and flags forbid later writes only.
                let _ = caught(|| write_back_for(&*staff.service, &head, arg));
            }
            staff.serve(&mut slot);
            // This thread may not wait for requests: that of the ring decides who does.
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

/// The connection's end is no error.
fn log_end(error: i32) {
    if error != -nix::libc::ENOTCONN && error != -nix::libc::ECANCELED {
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
