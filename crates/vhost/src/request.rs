//! Requests: chains of descriptors, checked, and the pieces of memory that they name.

use crate::wire::Fields;
use smallvec::SmallVec;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Bytes of the head of a request: kind, a reserved field, sector.
const HEAD_LEN: usize = 16;

/// Descriptors of a chain at most.
const MAX_PIECES: usize = 1024;

/// A chain that is no request, with the place of its status if it has one.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    pub why: &'static str,
    pub status: Option<GuestAddress>,
}

/// Pieces of guest memory, which are read or written from the front.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: SmallVec<[(GuestAddress, u32); 8]>,
    /// The first piece that is left.
    next: usize,
    len: u64,
}

impl Pieces {
    fn push(&mut self, address: GuestAddress, len: u32) {
        if len > 0 {
            self.pieces.push((address, len));
            self.len += u64::from(len);
        }
    }

    /// Returns the bytes that are left.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Cuts the last byte off.
    fn pop(&mut self) -> Option<GuestAddress> {
        let (address, len) = self.pieces.last_mut()?;
        *len -= 1;
        let last = GuestAddress(address.0 + u64::from(*len));
        if *len == 0 {
            self.pieces.pop();
        }
        self.len -= 1;
        Some(last)
    }

    /// Takes a part of the first piece, of at most `len` bytes.
    fn take(&mut self, len: usize) -> Option<(GuestAddress, usize)> {
        let (address, rest) = self.pieces.get_mut(self.next)?;
        let taken = (*rest).min(u32::try_from(len).unwrap_or(u32::MAX));
        let begin = *address;
        *rest -= taken;
        if *rest == 0 {
            self.next += 1;
        } else {
            *address = GuestAddress(begin.0 + u64::from(taken));
        }
        self.len -= u64::from(taken);
        Some((begin, taken as usize))
    }

    /// Reads from the front. Returns whether there was enough.
    #[must_use]
    pub fn read(&mut self, memory: &GuestMemoryMmap, mut buf: &mut [u8]) -> bool {
        while !buf.is_empty() {
            let Some((address, len)) = self.take(buf.len()) else { return false };
            let (part, rest) = buf.split_at_mut(len);
            if memory.read_slice(part, address).is_err() {
                return false;
            }
            buf = rest;
        }
        true
    }

    /// Writes to the front. Returns whether there was enough.
    #[must_use]
    pub fn write(&mut self, memory: &GuestMemoryMmap, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            let Some((address, len)) = self.take(data.len()) else { return false };
            let (part, rest) = data.split_at(len);
            if memory.write_slice(part, address).is_err() {
                return false;
            }
            data = rest;
        }
        true
    }
}

/// A request.
#[derive(Debug)]
pub struct Request {
    pub kind: u32,
    pub sector: u64,
    /// Data of the guest, behind the head.
    pub output: Pieces,
    /// Where data for the guest go, before the status.
    pub input: Pieces,
    pub status: GuestAddress,
}

impl Request {
    /// Takes a request from a chain.
    ///
    /// # Errors
    /// A chain that is none.
    pub fn parse(
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &GuestMemoryMmap,
    ) -> Result<Request, Malformed> {
        let (mut output, mut input) = (Pieces::default(), Pieces::default());
        let gathered = gather(chain, memory, &mut output, &mut input);
        let status = input.pop();
        let malformed = |why| Malformed { why, status };
        gathered.map_err(malformed)?;
        let Some(status) = status else { return Err(malformed("a chain without a status")) };
        let mut head = [0; HEAD_LEN];
        if !output.read(memory, &mut head) {
            return Err(malformed("a short head"));
        }
        let mut fields = Fields(&head);
        let (kind, _, sector) = (fields.le32(), fields.le32(), fields.le64());
        let (Some(kind), Some(sector)) = (kind, sector) else {
            return Err(malformed("a short head"));
        };
        Ok(Request { kind, sector, output, input, status })
    }
}

/// Gathers the pieces of a chain that lie in memory. A wrong chain is walked to its end all the
/// same, where its status is.
fn gather(
    chain: DescriptorChain<&GuestMemoryMmap>,
    memory: &GuestMemoryMmap,
    output: &mut Pieces,
    input: &mut Pieces,
) -> Result<(), &'static str> {
    // The iterator ends in silence at a loop, behind the end of a table, and at an address without
    // memory. The descriptor before it then says that another one follows.
    let mut complete = false;
    let mut wrong = None;
    for descriptor in chain.take(MAX_PIECES) {
        let (address, len) = (descriptor.addr(), descriptor.len());
        let writable = descriptor.is_write_only();
        complete = !descriptor.has_next();
        let access = if writable { Permissions::Write } else { Permissions::Read };
        if !memory.check_range(address, len as usize, access) {
            wrong = Some("a descriptor outside of memory");
        } else if writable {
            input.push(address, len);
        } else if input.len() > 0 {
            wrong = Some("a readable descriptor behind a writable one");
        } else {
            output.push(address, len);
        }
    }
    match wrong {
        Some(wrong) => Err(wrong),
        None if complete => Ok(()),
        None => Err("a chain without an end, or a long one"),
    }
}
