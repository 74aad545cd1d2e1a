//! The device behind the requests of a guest.

use crate::request::{Pieces, Request};
use crate::settings::{Choices, MAX_RANGE, MAX_RANGES, Offer, SECTOR};
use crate::wire::Fields;
use extant_blocks::BlockDevice;
use std::fmt;
use std::io;
use std::sync::Arc;
use vm_memory::GuestMemoryMmap;

/// Kinds of requests.
mod kind {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Bytes of a serial number.
pub const SERIAL_LEN: usize = 20;

/// Bytes that are copied at once: more of a request go in several reads or writes of the device.
const MAX_PIECE: usize = 4 << 20;

/// Bytes that a thread keeps while it waits.
const KEPT: usize = 128 << 10;

/// Bytes of a transfer that counts as slow from here on.
const LARGE: u64 = 256 << 10;

/// Bytes of a range to discard or to zero: sector, number of sectors, flags.
const RANGE_LEN: usize = 16;

/// The flag of a range by which zeroes need no space.
const UNMAP: u32 = 1;

/// A failure of a request.
#[derive(Debug)]
pub enum Failure {
    /// The device failed.
    Device(io::Error),
    /// The request is wrong.
    Invalid(&'static str),
    /// No such kind.
    Unsupported,
}

impl Failure {
    /// Returns the status for the guest.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Device(_) | Failure::Invalid(_) => 1,
            Failure::Unsupported => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Device(error) => error.fmt(f),
            Failure::Invalid(why) => f.write_str(why),
            Failure::Unsupported => f.write_str("an unknown request"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Device(error)
    }
}

/// Memory of a thread for data on their way.
#[derive(Debug, Default)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    fn of(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }

    /// Gives memory back.
    pub fn shrink(&mut self) {
        if self.0.len() > KEPT {
            self.0 = Vec::new();
        }
    }
}

/// The disk of a guest.
#[derive(Debug)]
pub struct Disk {
    pub device: Arc<dyn BlockDevice>,
    pub offer: Offer,
    pub serial: [u8; SERIAL_LEN],
}

/// A range to discard or to zero, in bytes.
struct Range {
    offset: u64,
    len: u64,
}

impl Disk {
    /// Returns whether a request may take so long that others should not wait for it.
    pub fn is_slow(request: &Request) -> bool {
        match request.kind {
            kind::READ => request.input.len() >= LARGE,
            kind::WRITE => request.output.len() >= LARGE,
            kind::GET_ID => false,
            _ => true,
        }
    }

    /// Executes a request. Returns the bytes that the guest got.
    pub fn execute(
        &self,
        request: Request,
        memory: &GuestMemoryMmap,
        choices: &Choices,
        buffer: &mut Buffer,
    ) -> Result<u64, Failure> {
        let Request { kind, sector, mut output, mut input, .. } = request;
        match kind {
            kind::READ => self.read(sector, &mut input, memory, buffer),
            kind::WRITE => {
                self.write(sector, &mut output, memory, buffer)?;
                self.settle(choices)
            }
            kind::FLUSH => Ok(self.device.flush().map(|()| 0)?),
            kind::GET_ID => {
                let serial = &self.serial[..SERIAL_LEN.min(input.len() as usize)];
                let len = serial.len() as u64;
                to_guest(input.write(memory, serial)).map(|()| len)
            }
            kind::DISCARD | kind::WRITE_ZEROES => {
                for range in self.ranges(kind, &mut output, memory)? {
                    self.clear(kind, &range)?;
                }
                self.settle(choices)
            }
            _ => Err(Failure::Unsupported),
        }
    }

    /// Returns the place of a transfer in bytes.
    fn place(&self, sector: u64, len: u64) -> Result<u64, Failure> {
        let end = sector.checked_add(len / SECTOR);
        if !len.is_multiple_of(SECTOR) {
            return Err(Failure::Invalid("a part of a sector"));
        }
        if end.is_none_or(|end| end > self.offer.sectors) {
            return Err(Failure::Invalid("a place beyond the end"));
        }
        Ok(sector * SECTOR)
    }

    fn read(
        &self,
        sector: u64,
        input: &mut Pieces,
        memory: &GuestMemoryMmap,
        buffer: &mut Buffer,
    ) -> Result<u64, Failure> {
        let len = input.len();
        let mut at = self.place(sector, len)?;
        while input.len() > 0 {
            let piece = buffer.of(input.len().min(MAX_PIECE as u64) as usize);
            self.device.read_exact_at(piece, at)?;
            at += piece.len() as u64;
            to_guest(input.write(memory, piece))?;
        }
        Ok(len)
    }

    fn write(
        &self,
        sector: u64,
        output: &mut Pieces,
        memory: &GuestMemoryMmap,
        buffer: &mut Buffer,
    ) -> Result<(), Failure> {
        self.check_writable()?;
        let mut at = self.place(sector, output.len())?;
        while output.len() > 0 {
            let piece = buffer.of(output.len().min(MAX_PIECE as u64) as usize);
            to_guest(output.read(memory, piece))?;
            self.device.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), Failure> {
        if self.offer.read_only {
            return Err(Failure::Invalid("a write to a disk for reading only"));
        }
        Ok(())
    }

    /// Ends a change: it is durable if the guest has no flushes.
    fn settle(&self, choices: &Choices) -> Result<u64, Failure> {
        if choices.writes_are_durable() {
            self.device.flush()?;
        }
        Ok(0)
    }

    /// Takes the ranges of a request, all of which are within the disk.
    fn ranges(
        &self,
        kind: u32,
        output: &mut Pieces,
        memory: &GuestMemoryMmap,
    ) -> Result<Vec<Range>, Failure> {
        self.check_writable()?;
        let len = output.len();
        if len == 0 || !len.is_multiple_of(RANGE_LEN as u64) || len / RANGE_LEN as u64 > MAX_RANGES
        {
            return Err(Failure::Invalid("a list of ranges with a wrong length"));
        }
        let mut ranges = Vec::new();
        while output.len() > 0 {
            let mut bytes = [0; RANGE_LEN];
            to_guest(output.read(memory, &mut bytes))?;
            let mut fields = Fields(&bytes);
            let (sector, count, flags) = (fields.le64(), fields.le32(), fields.le32());
            let (Some(sector), Some(count), Some(flags)) = (sector, count, flags) else {
                return Err(Failure::Invalid("a short range"));
            };
            let known = if kind == kind::WRITE_ZEROES { UNMAP } else { 0 };
            if flags & !known != 0 {
                return Err(Failure::Unsupported);
            }
            if count > MAX_RANGE {
                return Err(Failure::Invalid("a long range"));
            }
            let len = u64::from(count) * SECTOR;
            ranges.push(Range { offset: self.place(sector, len)?, len });
        }
        Ok(ranges)
    }

    fn clear(&self, kind: u32, range: &Range) -> Result<(), Failure> {
        if range.len == 0 {
            return Ok(());
        }
        if kind == kind::WRITE_ZEROES {
            return Ok(self.device.write_zeroes(range.offset, range.len)?);
        }
        match self.device.discard(range.offset, range.len) {
            // A disk need not discard.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            done => Ok(done?),
        }
    }
}

/// Turns the outcome of a copy into a failure.
fn to_guest(copied: bool) -> Result<(), Failure> {
    copied.then_some(()).ok_or(Failure::Invalid("data outside of memory"))
}
