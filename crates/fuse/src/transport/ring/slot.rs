//! Memory that is lent to the kernel, and the entries that lend it: the unsafe code of the
//! transport.
//!
//! # Invariants
//! A [`Slot`] that Rust code owns is not the kernel's. Lending takes ownership of it
//! ([`Ring::lend`], [`Ring::give_back`]). [`Ring::taken`] returns it after the kernel has completed
//! the entry, and not before. A slot that never comes back is never freed.
#![expect(unsafe_code, reason = "the kernel reads and writes memory that is lent to it")]

use crate::protocol::abi::{InHeader, OutHeader};
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

/// Segments that a registration names: headers, payload.
const SEGMENTS: usize = 2;

/// Where `struct io_uring_sqe` has its field `len`.
const SQE_LEN: usize = 24;

/// What no slot has as its number.
const WAKE: u64 = u64::MAX;

/// What the kernel tells of an entry.
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

/// A command's own part of an entry.
#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
    rest: [u8; 56],
}

/// Memory that a registration names: `struct iovec`.
#[derive(Debug)]
#[repr(C)]
struct Segment {
    address: *mut u8,
    bytes: usize,
}

/// A place for one request and its reply.
#[derive(Debug)]
pub struct Slot {
    number: usize,
    queue: u16,
    /// Pointers, since the kernel writes here while the slot is lent: a `Box` promises that nobody
    /// else does.
    headers: NonNull<Headers>,
    payload: NonNull<[u8]>,
    /// Where both are. A registration points here, and the kernel reads it whenever it takes that
    /// entry.
    segments: Box<[Segment; SEGMENTS]>,
}

// SAFETY: the memory is the slot's own, wherever the slot is; what the segments point to is the
// same memory.
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
        // SAFETY: both came from boxes that are freed when this is dropped. Who has the slot has
        // them alone: it is not lent.
        unsafe { (self.headers.as_mut(), self.payload.as_mut()) }
    }

    /// Whose requests it takes.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// A request's header, its structure, its payload's place, and how much of that is the
    /// request's.
    pub fn request(&mut self) -> Option<(InHeader, &[u8], &mut [u8], usize)> {
        let (headers, payload) = self.parts();
        let (head, _) = InHeader::read_from_prefix(&headers.in_out).ok()?;
        Some((head, &headers.arg, payload, headers.entry.payload_len as usize))
    }

    /// Answers the request with so many bytes of the payload, or with a negative error.
    pub fn answer(&mut self, unique: u64, error: i32, len: usize) {
        let head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        let (headers, _) = self.parts();
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        headers.entry.payload_len = len as u32;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: they came from boxes, and nobody has them: a slot that is lent is not dropped
        // before it came back.
        unsafe {
            drop(Box::from_raw(self.headers.as_ptr()));
            drop(Box::from_raw(self.payload.as_ptr()));
        }
    }
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A request is there.
    Request(Slot),
    /// An entry is served no more, for this error.
    Gone(i32),
    /// Somebody rang.
    Wake,
}

/// A ring, and the slots that the kernel has.
pub struct Ring {
    /// Freed by nobody while the kernel has any of the slots.
    lent: ManuallyDrop<Vec<Option<Slot>>>,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    fuse: RawFd,
}

impl Ring {
    /// A ring with room for so many slots, which [`Ring::enable`] starts. The connection `fuse` has
    /// to live longer.
    pub fn new(fuse: BorrowedFd<'_>, slots: usize) -> io::Result<Ring> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        builder.setup_single_issuer().setup_coop_taskrun().setup_r_disabled();
        let room = u32::try_from(slots + 1).map_err(io::Error::other)?.next_power_of_two();
        let ring = builder.build(room)?;
        let lent = ManuallyDrop::new((0..slots).map(|_| None).collect());
        Ok(Ring { lent, ring, fuse: fuse.as_raw_fd() })
    }

    /// Starts the ring. From now on it is this thread's.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what an entry points to is a slot's memory, which from now on nobody touches
        // before the entry is complete: the slot is in `lent`; or it points to nothing.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(io::Error::other)
    }

    /// Registers a new slot of a queue with so many bytes of payload.
    pub fn lend(&mut self, number: usize, queue: u16, payload: usize) -> io::Result<()> {
        let slot = Slot::new(number, queue, payload);
        let mut entry =
            self.command(REGISTER, queue, 0, number as u64, Some(slot.segments.as_ptr() as u64));
        // SAFETY: the entry is 128 bytes that begin with a `struct io_uring_sqe`, of which the
        // crate sets all fields but this one, which is a plain number.
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

    #[expect(clippy::too_many_arguments, reason = "the fields of a command")]
    fn command(
        &self,
        what: u32,
        queue: u16,
        commit_id: u64,
        data: u64,
        address: Option<u64>,
    ) -> squeue::Entry128 {
        let command = Command { flags: 0, commit_id, queue, padding: [0; 6], rest: [0; 56] };
        let mut bytes = [0; 80];
        bytes.copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(Fd(self.fuse), what)
            .cmd(bytes)
            .addr(address)
            .build()
            .user_data(data)
    }

    /// Sends a slot's answer, with the next [`Ring::wait`], and takes its next request.
    pub fn give_back(&mut self, mut slot: Slot) -> io::Result<()> {
        let commit_id = slot.parts().0.entry.commit_id;
        let entry = self.command(COMMIT_AND_FETCH, slot.queue, commit_id, slot.number as u64, None);
        let number = slot.number;
        if let Some(place) = self.lent.get_mut(number) {
            *place = Some(slot);
        }
        self.push(&entry)
    }

    /// Asks for one event when `bell` can be read.
    pub fn listen(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(bell.as_raw_fd()), PollFlags::IN.bits().into())
            .build()
            .user_data(WAKE);
        self.push(&entry.into())
    }

    /// Hands over what is to be sent and waits for an event, or for so long.
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

    /// Moves what has happened to `events`.
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
            // SAFETY: the list is used no more, and dropped once.
            unsafe { ManuallyDrop::drop(&mut self.lent) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
