//! A front-end of vhost-user with its guest, for servers of virtio block devices.
//!
//! It speaks the protocol by itself: tests compare a server with the specification, and can send
//! anything. Each queue of the guest has 64 KiB of its memory, data lie behind.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the guest's memory.
pub const MEMORY: usize = 256 << 20;

/// Addresses of the front-end are higher by this number.
const USER: u64 = 0x7000_0000_0000;

/// Bytes of a queue, and its parts; the table of indirect descriptors is the last.
const QUEUE: u64 = 64 << 10;
const AVAILABLE: u64 = 16 << 10;
const USED: u64 = 32 << 10;
const INDIRECT: u64 = 48 << 10;

/// Where data begin.
pub const DATA: u64 = 1 << 20;

/// The feature of flushes.
pub const FLUSH: u64 = 1 << 9;
/// The feature of indexes that ask for kicks and calls.
pub const EVENT_IDX: u64 = 1 << 29;

/// The flag of a descriptor that another one follows.
pub const NEXT: u16 = 1;
/// The flag of a descriptor whose memory the device writes.
pub const WRITE: u16 = 2;
/// The flag of a descriptor that names a table of others.
pub const TABLE: u16 = 4;

/// Kinds of requests.
pub mod kind {
    /// `READ`.
    pub const READ: u32 = 0;
    /// `WRITE`.
    pub const WRITE: u32 = 1;
    /// `FLUSH`.
    pub const FLUSH: u32 = 4;
    /// `GET_ID`.
    pub const GET_ID: u32 = 8;
    /// `DISCARD`.
    pub const DISCARD: u32 = 11;
    /// `WRITE_ZEROES`.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Messages of the protocol.
pub mod message {
    /// `GET_FEATURES`.
    pub const GET_FEATURES: u32 = 1;
    /// `SET_FEATURES`.
    pub const SET_FEATURES: u32 = 2;
    /// `SET_OWNER`.
    pub const SET_OWNER: u32 = 3;
    /// `SET_MEM_TABLE`.
    pub const SET_MEM_TABLE: u32 = 5;
    /// `SET_VRING_NUM`.
    pub const SET_VRING_NUM: u32 = 8;
    /// `SET_VRING_ADDR`.
    pub const SET_VRING_ADDR: u32 = 9;
    /// `SET_VRING_BASE`.
    pub const SET_VRING_BASE: u32 = 10;
    /// `GET_VRING_BASE`.
    pub const GET_VRING_BASE: u32 = 11;
    /// `SET_VRING_KICK`.
    pub const SET_VRING_KICK: u32 = 12;
    /// `SET_VRING_CALL`.
    pub const SET_VRING_CALL: u32 = 13;
    /// `GET_PROTOCOL_FEATURES`.
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    /// `SET_PROTOCOL_FEATURES`.
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    /// `GET_QUEUE_NUM`.
    pub const GET_QUEUE_NUM: u32 = 17;
    /// `SET_VRING_ENABLE`.
    pub const SET_VRING_ENABLE: u32 = 18;
    /// `GET_CONFIG`.
    pub const GET_CONFIG: u32 = 24;
    /// `SET_CONFIG`.
    pub const SET_CONFIG: u32 = 25;
    /// `ADD_MEM_REG`.
    pub const ADD_MEM_REG: u32 = 37;
    /// `REM_MEM_REG`.
    pub const REM_MEM_REG: u32 = 38;
}

/// Features of the protocol that are asked for: several queues, acknowledgments, the configuration.
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9 | 1 << 15;

/// The connection of a front-end, and the memory of its guest.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    file: File,
    /// The memory of the guest.
    pub memory: GuestMemoryMmap,
    /// Features that both sides have.
    pub features: u64,
    acknowledges: bool,
}

/// Returns numbers of 64 bits as the body of a message.
pub fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Returns numbers of 32 bits as the body of a message.
pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("a number of 64 bits"))
}

impl FrontEnd {
    /// Connects without a word.
    pub fn dial(socket: &Path) -> FrontEnd {
        let begin = Instant::now();
        let socket = loop {
            match UnixStream::connect(socket) {
                // It has its name a moment before it listens.
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && begin.elapsed() < PATIENCE =>
                {
                    std::thread::yield_now();
                }
                connected => break connected.expect("a server"),
            }
        };
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let file = memfd_create("guest", MemfdFlags::ALLOW_SEALING).expect("memory");
        let file = File::from(file);
        file.set_len(MEMORY as u64).expect("memory");
        let region = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
        let regions = [(GuestAddress(0), MEMORY, Some(region))];
        let memory = GuestMemoryMmap::from_ranges_with_files(regions).expect("a mapping");
        FrontEnd { socket, file, memory, features: 0, acknowledges: false }
    }

    /// Connects, agrees on the features of a mask and shares the memory.
    pub fn connect(socket: &Path, mask: u64) -> FrontEnd {
        let mut front = FrontEnd::dial(socket);
        front.agree(mask);
        front.share();
        front
    }

    /// Agrees on features.
    pub fn agree(&mut self, mask: u64) {
        self.send(message::SET_OWNER, &[], &[]);
        self.features = long(&self.ask(message::GET_FEATURES, &[])) & mask;
        let protocol = long(&self.ask(message::GET_PROTOCOL_FEATURES, &[])) & PROTOCOL;
        self.send(message::SET_PROTOCOL_FEATURES, &longs(&[protocol]), &[]);
        self.send(message::SET_FEATURES, &longs(&[self.features]), &[]);
        self.acknowledges = protocol & 1 << 3 != 0;
    }

    /// Shares the memory.
    pub fn share(&self) {
        let body = [words(&[1, 0]), longs(&[0, MEMORY as u64, USER, 0])].concat();
        self.tell(message::SET_MEM_TABLE, &body, &[self.file.as_fd()]);
    }

    /// Returns the file with the memory.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    fn send_as(&self, flags: u32, request: u32, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let head = words(&[request, flags, body.len() as u32]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [IoSlice::new(&head), IoSlice::new(body)];
        let sent = sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
        assert!(sent.is_ok_and(|sent| sent == head.len() + body.len()), "message {request}");
    }

    /// Sends a message that needs no reply.
    pub fn send(&self, request: u32, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.send_as(1, request, body, descriptors);
    }

    /// Receives the body of a reply.
    ///
    /// # Errors
    /// Those of the socket, as its end.
    pub fn receive(&self, request: u32) -> io::Result<Vec<u8>> {
        let mut head = [0; 12];
        (&self.socket).read_exact(&mut head)?;
        let fields: Vec<u32> =
            head.chunks(4).map(|field| u32::from_ne_bytes(field.try_into().unwrap())).collect();
        assert_eq!((fields[0], fields[1]), (request, 5), "request and flags of a reply");
        let mut body = vec![0; fields[2] as usize];
        (&self.socket).read_exact(&mut body)?;
        Ok(body)
    }

    /// Sends a message that has a reply.
    pub fn ask(&self, request: u32, body: &[u8]) -> Vec<u8> {
        self.send(request, body, &[]);
        self.receive(request).expect("a reply")
    }

    /// Sends a message, and waits for its acknowledgment. Returns whether it is accepted.
    ///
    /// # Errors
    /// Those of the socket, as its end.
    pub fn attempt(
        &self,
        request: u32,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<bool> {
        if !self.acknowledges {
            self.send(request, body, descriptors);
            return Ok(true);
        }
        self.send_as(1 | 1 << 3, request, body, descriptors);
        Ok(long(&self.receive(request)?) == 0)
    }

    /// Sends a message that must be accepted.
    #[track_caller]
    pub fn tell(&self, request: u32, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        assert!(self.attempt(request, body, descriptors).expect("an answer"), "message {request}");
    }

    /// Returns a part of the configuration.
    pub fn config(&self, offset: u32, len: u32) -> Vec<u8> {
        let body = [words(&[offset, len, 0]), vec![0; len as usize]].concat();
        self.ask(message::GET_CONFIG, &body)[12..].to_vec()
    }

    /// Returns the number of queues that the server has.
    pub fn queue_count(&self) -> u64 {
        long(&self.ask(message::GET_QUEUE_NUM, &[]))
    }

    /// Starts a queue of `size` descriptors, with nothing in it.
    pub fn start(&self, index: u32, size: u16) -> Queue {
        let memory = self.memory.clone();
        let base = u64::from(index) * QUEUE;
        memory.write_slice(&vec![0; QUEUE as usize], GuestAddress(base)).expect("memory");
        let event =
            || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an event");
        let queue = Queue {
            memory,
            index,
            base,
            size,
            event_idx: self.features & EVENT_IDX != 0,
            kick: event(),
            call: event(),
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); size.into()],
            available: 0,
            used: 0,
        };
        self.resume(&queue, 0);
        queue
    }

    /// Lets the server take a queue up, from a chain on.
    pub fn resume(&self, queue: &Queue, base: u32) {
        let (index, at) = (queue.index, USER + queue.base);
        self.tell(message::SET_VRING_NUM, &words(&[index, queue.size.into()]), &[]);
        self.tell(message::SET_VRING_BASE, &words(&[index, base]), &[]);
        let places = longs(&[at, at + USED, at + AVAILABLE, 0]);
        self.tell(message::SET_VRING_ADDR, &[words(&[index, 0]), places].concat(), &[]);
        let number = longs(&[index.into()]);
        self.tell(message::SET_VRING_CALL, &number, &[queue.call.as_fd()]);
        self.tell(message::SET_VRING_KICK, &number, &[queue.kick.as_fd()]);
        self.tell(message::SET_VRING_ENABLE, &words(&[index, 1]), &[]);
    }

    /// Stops a queue. Returns the next available chain.
    pub fn stop(&self, index: u32) -> u32 {
        let reply = self.ask(message::GET_VRING_BASE, &words(&[index, 0]));
        u32::from_ne_bytes(reply[4..8].try_into().unwrap())
    }
}

/// A descriptor: address, length and flags. [`NEXT`] is set by the queue.
pub type ChainPiece = (u64, u32, u16);

/// A queue of the guest.
#[derive(Debug)]
pub struct Queue {
    memory: GuestMemoryMmap,
    index: u32,
    base: u64,
    size: u16,
    event_idx: bool,
    kick: OwnedFd,
    call: OwnedFd,
    /// Descriptors that are free, and those of each chain by its head.
    free: Vec<u16>,
    chains: Vec<Vec<u16>>,
    available: u16,
    used: u16,
}

impl Queue {
    fn store(&self, value: u16, at: u64) {
        let at = GuestAddress(self.base + at);
        self.memory.store(value.to_le(), at, Ordering::Release).expect("memory");
    }

    fn load(&self, at: u64) -> u16 {
        let at = GuestAddress(self.base + at);
        u16::from_le(self.memory.load(at, Ordering::Acquire).expect("memory"))
    }

    /// Writes a descriptor as it is.
    pub fn describe(&self, slot: u16, piece: ChainPiece, next: u16) {
        self.describe_at(self.base + 16 * u64::from(slot), piece, next);
    }

    fn describe_at(&self, at: u64, (address, len, flags): ChainPiece, next: u16) {
        let bytes = [
            &address.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ];
        self.memory.write_slice(&bytes.concat(), GuestAddress(at)).expect("memory");
    }

    /// Makes a chain available, without a kick. Returns its head.
    pub fn put(&mut self, chain: &[ChainPiece]) -> u16 {
        let slots: Vec<u16> = self.free.split_off(self.free.len() - chain.len());
        for (position, (address, len, flags)) in chain.iter().enumerate() {
            let next = slots.get(position + 1).copied();
            let flags = flags | if next.is_some() { NEXT } else { 0 };
            self.describe(slots[position], (*address, *len, flags), next.unwrap_or(0));
        }
        let head = slots[0];
        self.chains[usize::from(head)] = slots;
        self.offer(head);
        head
    }

    /// Makes a chain in a table of its own available, without a kick. Returns its head.
    pub fn put_indirect(&mut self, chain: &[ChainPiece]) -> u16 {
        let table = self.base + INDIRECT;
        for (position, (address, len, flags)) in chain.iter().enumerate() {
            let flags = flags | if position + 1 < chain.len() { NEXT } else { 0 };
            let at = table + 16 * position as u64;
            self.describe_at(at, (*address, *len, flags), position as u16 + 1);
        }
        self.put(&[(table, 16 * chain.len() as u32, TABLE)])
    }

    /// Makes a head available as it is.
    pub fn offer(&mut self, head: u16) {
        self.store(head, AVAILABLE + 4 + 2 * u64::from(self.available % self.size));
        self.available = self.available.wrapping_add(1);
        self.announce(self.available);
    }

    /// Writes the index of available chains.
    pub fn announce(&self, index: u16) {
        self.store(index, AVAILABLE + 2);
    }

    /// Asks for no calls, or for all, by the flag.
    pub fn want_calls(&self, yes: bool) {
        self.store(u16::from(!yes), AVAILABLE);
    }

    /// Tells the server about available chains, if it wants to know. Returns whether it did.
    pub fn notify(&self, since: u16) -> bool {
        fence(Ordering::SeqCst);
        let wants = if self.event_idx {
            let event = self.load(USED + 4 + 8 * u64::from(self.size));
            let (new, old) = (self.available, since);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.load(USED) & 1 == 0
        };
        if wants {
            self.kick();
        }
        wants
    }

    /// Returns the index of available chains.
    pub fn available(&self) -> u16 {
        self.available
    }

    /// Kicks.
    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).expect("a kick");
    }

    /// Takes a used chain: its head, and the bytes that the server has written.
    pub fn poll(&mut self) -> Option<(u16, u32)> {
        if self.load(USED + 2) == self.used {
            return None;
        }
        let at = USED + 4 + 8 * u64::from(self.used % self.size);
        let mut element = [0; 8];
        self.memory.read_slice(&mut element, GuestAddress(self.base + at)).expect("memory");
        let head = u32::from_le_bytes(element[..4].try_into().unwrap()) as u16;
        self.used = self.used.wrapping_add(1);
        let slots = std::mem::take(&mut self.chains[usize::from(head)]);
        self.free.extend(slots);
        Some((head, u32::from_le_bytes(element[4..].try_into().unwrap())))
    }

    /// Waits for a used chain, and for the call of it.
    #[track_caller]
    pub fn wait(&mut self) -> (u16, u32) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.poll() {
                return used;
            }
            // The next one is announced.
            self.store(self.used, AVAILABLE + 4 + 2 * u64::from(self.size));
            fence(Ordering::SeqCst);
            if let Some(used) = self.poll() {
                return used;
            }
            assert!(self.is_called(end.saturating_duration_since(Instant::now())), "no answer");
        }
    }

    /// Waits for a call. Returns whether one came in time.
    pub fn is_called(&self, patience: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&timeout)).expect("poll");
        let mut count = [0; 8];
        ready > 0 && rustix::io::read(&self.call, &mut count).is_ok()
    }

    /// Returns the pieces of a request whose memory begins at `at`: head, data of both directions,
    /// status. Head and output are written.
    pub fn request(
        &self,
        at: u64,
        kind: u32,
        sector: u64,
        (output, input): (&[u8], u32),
    ) -> Vec<ChainPiece> {
        let head = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), output].concat();
        self.memory.write_slice(&head, GuestAddress(at)).expect("memory");
        let data = at + 16;
        let behind = data + output.len() as u64;
        self.memory.write_obj(0xff_u8, GuestAddress(behind + u64::from(input))).expect("memory");
        let pieces = [
            (at, 16, 0),
            (data, output.len() as u32, 0),
            (behind, input, WRITE),
            (behind + u64::from(input), 1, WRITE),
        ];
        pieces.into_iter().filter(|(_, len, _)| *len > 0).collect()
    }

    /// Executes a request. Returns its status and its data.
    #[track_caller]
    pub fn execute(&mut self, kind: u32, sector: u64, output: &[u8], input: u32) -> (u8, Vec<u8>) {
        let chain = self.request(DATA, kind, sector, (output, input));
        self.execute_chain(&chain)
    }

    /// Executes a chain whose last two pieces are data and status. Returns its status, and the
    /// bytes that the server says it has written.
    #[track_caller]
    pub fn execute_chain(&mut self, chain: &[ChainPiece]) -> (u8, Vec<u8>) {
        let since = self.available;
        let head = self.put(chain);
        self.notify(since);
        let (used, len) = self.wait();
        assert_eq!(used, head, "another chain is used");
        let input: Vec<&ChainPiece> = chain.iter().filter(|piece| piece.2 & WRITE != 0).collect();
        let Some(((status, ..), data)) = input.split_last() else { return (0xff, Vec::new()) };
        let mut bytes = Vec::new();
        let mut left = len.saturating_sub(1);
        for (address, len, _) in data {
            let mut part = vec![0; (*len).min(left) as usize];
            self.memory.read_slice(&mut part, GuestAddress(*address)).expect("memory");
            left -= part.len() as u32;
            bytes.extend(part);
        }
        (self.memory.read_obj(GuestAddress(*status)).expect("memory"), bytes)
    }

    /// Reads, which must succeed.
    #[track_caller]
    pub fn read(&mut self, sector: u64, len: u32) -> Vec<u8> {
        let (status, bytes) = self.execute(kind::READ, sector, &[], len);
        assert_eq!((status, bytes.len()), (0, len as usize), "a read of {len} at {sector}");
        bytes
    }

    /// Writes, which must succeed.
    #[track_caller]
    pub fn write(&mut self, sector: u64, data: &[u8]) {
        assert_eq!(self.execute(kind::WRITE, sector, data, 0).0, 0, "a write at {sector}");
    }

    /// Flushes, which must succeed.
    #[track_caller]
    pub fn flush(&mut self) {
        assert_eq!(self.execute(kind::FLUSH, 0, &[], 0).0, 0, "a flush");
    }
}
