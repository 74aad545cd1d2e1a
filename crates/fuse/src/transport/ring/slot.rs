//! Memory that is lent to the kernel, and the ring entries that lend it: the unsafe code of the
//! transport.
//!
//! # Invariants
//! A [`Slot`] that Rust code owns is not the kernel's. Lending takes ownership of it
//! ([`Ring::lend`], [`Ring::give_back`]). [`Ring::taken`] returns it after the kernel has completed
//! the entry, and not before. A slot that never comes back is never freed.
#![expect(unsafe_code, reason = "the kernel reads and writes memory that is lent to it")]

use crate::protocol::abi::{InHeader, OutHeader};
use io_uring::register::Restriction;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Commands of an entry.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Number of memory segments of a registration: headers, payload.
const SEGMENTS: usize = 2;

/// Offset of the field `len` in `struct io_uring_sqe`.
const SQE_LEN: usize = 24;

/// Descriptor of a ring before its connection; the kernel refuses it.
const NOT_CONNECTED: RawFd = -1;

/// User data of the entry for the bell; no slot has this number.
const WAKE: u64 = u64::MAX;

/// The kernel's description of the request in a slot: `struct fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntryInOut {
    flags: u64,
    commit_id: u64,
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

/// `struct fuse_uring_req_header`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Headers {
    in_out: [u8; 128],
    arg: [u8; 128],
    entry: EntryInOut,
    rest: [u8; 32],
}

const _: () = assert!(size_of::<Headers>() == 320);

/// The command-specific part of an entry.
#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
    rest: [u8; 56],
}

impl Command {
    fn new(queue: u16, commit_id: u64) -> Command {
        Command { flags: 0, commit_id, queue, padding: [0; 6], rest: [0; 56] }
    }
}

/// A memory segment of a registration: `struct iovec`.
#[derive(Debug)]
#[repr(C)]
struct Segment {
    address: *mut u8,
    bytes: usize,
}

/// Memory for one request and its reply.
#[derive(Debug)]
pub struct Slot {
    number: usize,
    queue: u16,
    /// Pointers, since the kernel writes here while the slot is lent: a `Box` would assert
    /// exclusive access.
    headers: NonNull<Headers>,
    payload: NonNull<[u8]>,
    /// The addresses of both. The registration entry points here, and the kernel reads it whenever
    /// it takes that entry.
    segments: Box<[Segment; SEGMENTS]>,
}

// SAFETY: the slot owns the memory, independent of the thread; the segments point to the same
// memory.
unsafe impl Send for Slot {}

impl Slot {
    fn new(number: usize, queue: u16, payload: usize) -> Slot {
        let headers = NonNull::from(Box::leak(Box::new(Headers::new_zeroed())));
        let payload = NonNull::from(Box::leak(vec![0; payload].into_boxed_slice()));
        let segments = Box::new([
            Segment { address: headers.as_ptr().cast(), bytes: size_of::<Headers>() },
            Segment { address: payload.as_ptr().cast(), bytes: payload.len() },
        ]);
        Slot { number, queue, headers, payload, segments }
    }

    fn parts(&mut self) -> (&mut Headers, &mut [u8]) {
        // SAFETY: both came from boxes that are freed when the slot is dropped. The owner of the
        // slot has exclusive access to them: the slot is not lent.
        unsafe { (self.headers.as_mut(), self.payload.as_mut()) }
    }

    /// Returns the queue (processor) whose requests the slot takes.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the header of the request, its structure, the payload buffer, and the number of
    /// bytes of that buffer that belong to the request; `None` if the header is incomplete.
    pub fn request(&mut self) -> Option<(InHeader, &[u8], &mut [u8], usize)> {
        let (headers, payload) = self.parts();
        let (head, _) = InHeader::read_from_prefix(&headers.in_out).ok()?;
        Some((head, &headers.arg, payload, headers.entry.payload_len as usize))
    }

    /// Stores the reply to the request: `len` bytes of the payload, or a negative error.
    pub fn answer(&mut self, unique: u64, error: i32, len: usize) {
        let head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        let (headers, _) = self.parts();
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        headers.entry.payload_len = len as u32;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: both came from boxes, and no reference to them exists: a lent slot is not dropped
        // before the kernel has returned it.
        unsafe {
            drop(Box::from_raw(self.headers.as_ptr()));
            drop(Box::from_raw(self.payload.as_ptr()));
        }
    }
}

/// An event of the ring.
#[derive(Debug)]
pub enum Event {
    /// A request has arrived in the slot.
    Request(Slot),
    /// A slot has ended, with this error.
    Gone(i32),
    /// The bell was rung.
    Wake,
}

/// A ring, and the slots that are lent to the kernel.
pub struct Ring {
    /// Not freed while the kernel has any of the slots.
    lent: ManuallyDrop<Vec<Option<Slot>>>,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    fuse: RawFd,
}

impl Ring {
    /// Builds a disabled ring for this number of slots; [`Ring::enable`] starts it. It takes the
    /// commands of a connection and polls only, always: operations of a ring escape filters of
    /// system calls, so it is built and restricted before a process filters its own.
    pub fn new(slots: usize) -> io::Result<Ring> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        builder.setup_single_issuer().setup_coop_taskrun().setup_r_disabled();
        let room = u32::try_from(slots + 1).map_err(io::Error::other)?.next_power_of_two();
        let ring = builder.build(room)?;
        // Only a disabled ring takes restrictions, and only once. They hold from its start on.
        ring.submitter().register_restrictions(&mut [
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_op(opcode::PollAdd::CODE),
        ])?;
        let lent = ManuallyDrop::new((0..slots).map(|_| None).collect());
        Ok(Ring { lent, ring, fuse: NOT_CONNECTED })
    }

    /// Sets the connection of the slots, which must outlive the ring.
    pub fn connect(&mut self, fuse: BorrowedFd<'_>) {
        self.fuse = fuse.as_raw_fd();
    }

    /// Starts the ring. From then on only this thread may use it.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the entry points to the memory of a slot or to none. The slot is in `lent`, so no
        // code accesses its memory before the entry completes.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(io::Error::other)
    }

    /// Registers a new slot of a queue with `payload` bytes of payload.
    pub fn lend(&mut self, number: usize, queue: u16, payload: usize) -> io::Result<()> {
        let slot = Slot::new(number, queue, payload);
        let segments = slot.segments.as_ptr() as u64;
        let mut entry = self.entry(REGISTER, &Command::new(queue, 0), number, Some(segments));
        // SAFETY: the entry has 128 bytes and begins with a `struct io_uring_sqe`. The crate sets
        // all of its fields except this one, which is a plain number.
        unsafe {
            (&raw mut entry)
                .cast::<u8>()
                .add(SQE_LEN)
                .cast::<u32>()
                .write_unaligned(SEGMENTS as u32)
        };
        if let Some(place) = self.lent.get_mut(number) {
            *place = Some(slot);
        }
        self.push(&entry)
    }

    /// Builds an entry for the slot of this number.
    fn entry(
        &self,
        operation: u32,
        command: &Command,
        number: usize,
        address: Option<u64>,
    ) -> squeue::Entry128 {
        let mut bytes = [0; 80];
        bytes.copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(Fd(self.fuse), operation)
            .cmd(bytes)
            .addr(address)
            .build()
            .user_data(number as u64)
    }

    /// Queues a slot's reply, which the next [`Ring::wait`] sends, and lends the slot for its next
    /// request.
    pub fn give_back(&mut self, mut slot: Slot) -> io::Result<()> {
        let commit_id = slot.parts().0.entry.commit_id;
        let number = slot.number;
        let command = Command::new(slot.queue, commit_id);
        let entry = self.entry(COMMIT_AND_FETCH, &command, number, None);
        if let Some(place) = self.lent.get_mut(number) {
            *place = Some(slot);
        }
        self.push(&entry)
    }

    /// Requests one event for the time when `bell` becomes readable.
    pub fn listen(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(bell.as_raw_fd()), PollFlags::IN.bits().into())
            .build()
            .user_data(WAKE);
        self.push(&entry.into())
    }

    /// Submits queued entries and waits for an event, or for `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let waited = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        match waited.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
            Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Moves completed entries to `events`.
    pub fn taken(&mut self, events: &mut Vec<Event>) {
        let lent = &mut self.lent;
        events.extend(self.ring.completion().filter_map(|done| {
            if done.user_data() == WAKE {
                return Some(Event::Wake);
            }
            let slot = lent.get_mut(done.user_data() as usize)?.take()?;
            Some(if done.result() < 0 { Event::Gone(done.result()) } else { Event::Request(slot) })
        }));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.lent.iter().all(Option::is_none) {
            // SAFETY: the list is not used afterwards, and this is the only drop.
            unsafe { ManuallyDrop::drop(&mut self.lent) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use rustix::net::{AddressFamily, SocketType};
    use std::os::fd::AsFd;

    /// Result of an entry that a ring was given.
    fn result_of(entry: squeue::Entry, ring: &mut Ring) -> i32 {
        ring.push(&entry.user_data(0).into()).expect("a place");
        ring.wait(None).expect("a wait");
        ring.ring.completion().next().expect("a completion").result()
    }

    /// A process that is taken over has the rings that it was given.
    #[test]
    fn a_ring_takes_the_operations_of_its_transport_only() {
        let mut ring = Ring::new(1).expect("a ring");
        let again = ring
            .ring
            .submitter()
            .register_restrictions(&mut [Restriction::sqe_op(opcode::Socket::CODE)]);
        assert!(again.is_err(), "restrictions stay as they are");
        ring.enable().expect("its start");
        let refused = -Errno::ACCESS.raw_os_error();
        let (domain, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = opcode::Socket::new(domain.as_raw().into(), kind.as_raw() as i32, 0);
        assert_eq!(result_of(socket.build(), &mut ring), refused);
        let path = c"/etc/passwd";
        let open = opcode::OpenAt::new(Fd(CWD.as_raw_fd()), path.as_ptr());
        assert_eq!(result_of(open.build(), &mut ring), refused);
        assert_eq!(result_of(opcode::Nop::new().build(), &mut ring), refused);
        let by_number = opcode::PollAdd::new(io_uring::types::Fixed(0), 1);
        assert_eq!(result_of(by_number.build(), &mut ring), refused, "no registered files");
        let mut probe = io_uring::Probe::new();
        assert!(ring.ring.submitter().register_probe(&mut probe).is_err());
        let bell = crate::connection::bell::Bell::new().expect("a bell");
        bell.ring().expect("a ring");
        ring.listen(bell.as_fd()).expect("a place");
        ring.wait(None).expect("a wait");
        let mut events = Vec::new();
        ring.taken(&mut events);
        assert!(matches!(events.as_slice(), [Event::Wake]), "{events:?}");
    }

    #[test]
    fn a_reply_stands_where_the_request_stood() {
        let mut slot = Slot::new(0, 0, 16);
        slot.answer(77, -2, 0);
        let (head, _) =
            OutHeader::read_from_prefix(&slot.parts().0.in_out).expect("it is long enough");
        assert_eq!((head.len, head.error, head.unique), (16, -2, 77));
        slot.answer(78, 0, 12);
        assert_eq!(slot.parts().0.entry.payload_len, 12);
        let (head, arg, payload, len) = slot.request().expect("a header");
        assert_eq!((head.len, arg.len(), payload.len(), len), (28, 128, 16, 12));
    }
}
