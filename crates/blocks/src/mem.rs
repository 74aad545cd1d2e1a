//! A device in memory.
//!
//! # Locking
//! Every transfer locks the list of chunks for reading, and a change of length locks it for
//! writing. Under it, chunks are locked one at a time. All locks are of level `Device`; the list's
//! is always taken first.

use crate::error::check_range;
use crate::{BlockDevice, Op};
use extant_sync::{Level, RwLock};
use std::io;
use std::ops::Range;

const CHUNK: u64 = 1 << 16;

/// A device in memory. Parts that were never written take no memory.
#[derive(Debug)]
pub struct MemDevice {
    name: String,
    body: RwLock<Body>,
}

struct Body {
    len: u64,
    chunks: Vec<RwLock<Chunk>>,
}

/// The bytes of a chunk: [`CHUNK`] of them, also in the last one, or none while all are zeroes.
#[derive(Default)]
struct Chunk(Vec<u8>);

impl Chunk {
    fn read(&self, within: Range<usize>, buf: &mut [u8]) {
        match self.0.get(within) {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => buf.fill(0),
        }
    }

    fn write(&mut self, within: Range<usize>, data: &[u8]) {
        if self.0.is_empty() {
            self.0 = vec![0; CHUNK as usize];
        }
        self.0[within].copy_from_slice(data);
    }

    fn zero_from(&mut self, at: usize) {
        if let Some(rest) = self.0.get_mut(at..) {
            rest.fill(0);
        }
    }
}

fn is_zero(data: &[u8]) -> bool {
    const ZEROES: [u8; 4096] = [0; 4096];
    data.chunks(ZEROES.len()).all(|part| *part == ZEROES[..part.len()])
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("len", &self.len).finish_non_exhaustive()
    }
}

impl MemDevice {
    /// Makes a device of `len` zeroes.
    pub fn new(len: u64) -> Self {
        let mut body = Body { len: 0, chunks: Vec::new() };
        body.set_len(len);
        MemDevice { name: "memory".into(), body: RwLock::new(Level::Device, body) }
    }

    /// Makes a device with the contents `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = MemDevice::new(bytes.len() as u64);
        device.body.read().each_chunk(0, bytes.len(), |chunk, within, of_buffer| {
            let data = &bytes[of_buffer];
            if !is_zero(data) {
                chunk.write_nested().write(within, data);
            }
        });
        device
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let body = self.body.read();
        let mut bytes = vec![0; body.len as usize];
        body.each_chunk(0, bytes.len(), |chunk, within, of_buffer| {
            if let Some(data) = chunk.read_nested().0.get(within) {
                bytes[of_buffer].copy_from_slice(data);
            }
        });
        bytes
    }

    fn check(&self, body: &Body, op: Op, offset: u64, len: u64) -> io::Result<()> {
        check_range(op, &|| self.name.clone(), body.len, offset, len)
    }
}

impl Body {
    fn set_len(&mut self, len: u64) {
        let whole = len.div_ceil(CHUNK) as usize;
        self.chunks.truncate(whole);
        // Bytes behind the end are zeroes.
        let kept = (len % CHUNK) as usize;
        if len < self.len
            && kept > 0
            && let Some(last) = self.chunks.last_mut()
        {
            last.get_mut().zero_from(kept);
        }
        self.chunks.resize_with(whole, || RwLock::new(Level::Device, Chunk::default()));
        self.len = len;
    }

    /// Calls `f` with each chunk of a range, the part of the range in that chunk, and the
    /// corresponding part of the buffer.
    fn each_chunk(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&RwLock<Chunk>, Range<usize>, Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % CHUNK) as usize;
            let count = (CHUNK as usize - within).min(len - done);
            f(&self.chunks[(at / CHUNK) as usize], within..within + count, done..done + count);
            done += count;
        }
    }
}

impl BlockDevice for MemDevice {
    fn len(&self) -> u64 {
        self.body.read().len
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let body = self.body.read();
        self.check(&body, Op::Read, offset, buf.len() as u64)?;
        body.each_chunk(offset, buf.len(), |chunk, within, of_buffer| {
            chunk.read_nested().read(within, &mut buf[of_buffer]);
        });
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let body = self.body.read();
        self.check(&body, Op::Write, offset, data.len() as u64)?;
        body.each_chunk(offset, data.len(), |chunk, within, of_buffer| {
            chunk.write_nested().write(within, &data[of_buffer]);
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(&self.body.read(), Op::Discard, offset, len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let body = self.body.read();
        let at = |nr: usize| nr as u64 * CHUNK;
        let first = (0..body.chunks.len())
            .skip((offset / CHUNK) as usize)
            .find(|nr| !body.chunks[*nr].read_nested().0.is_empty());
        let range = first.map(|nr| at(nr).max(offset)..at(nr + 1).min(body.len));
        Ok(range.filter(|range| !range.is_empty()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.body.write().set_len(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_cross_chunks() {
        let device = MemDevice::new(3 * CHUNK + 7);
        let data: Vec<u8> = (0..CHUNK + 20).map(|n| n as u8).collect();
        device.write_all_at(&data, CHUNK - 10).unwrap();
        let mut back = vec![0; data.len()];
        device.read_exact_at(&mut back, CHUNK - 10).unwrap();
        assert_eq!(back, data);
        assert!(device.write_all_at(&[0; 8], 3 * CHUNK).is_err());
        assert!(device.read_exact_at(&mut [0; 1], u64::MAX).is_err());
    }

    #[test]
    fn zeroes_take_no_memory() {
        let mut bytes = vec![0; 4 * CHUNK as usize + 9];
        bytes[2 * CHUNK as usize + 100] = 1;
        let device = MemDevice::from_bytes(&bytes);
        assert_eq!(device.to_vec(), bytes);
        let data = |offset| device.next_data(offset).unwrap();
        assert_eq!(data(0), Some(2 * CHUNK..3 * CHUNK));
        assert_eq!(data(2 * CHUNK + 5), Some(2 * CHUNK + 5..3 * CHUNK));
        assert_eq!(data(3 * CHUNK), None);
        device.write_all_at(&[7], 4 * CHUNK).unwrap();
        assert_eq!(data(3 * CHUNK), Some(4 * CHUNK..4 * CHUNK + 9));
        assert_eq!(data(4 * CHUNK + 9), None);
        assert_eq!(data(5 * CHUNK), None);
    }

    #[test]
    fn growth_after_a_cut_reads_as_zeroes() {
        let device = MemDevice::from_bytes(&vec![7; CHUNK as usize + 5]);
        device.set_len(CHUNK - 3).unwrap();
        device.set_len(2 * CHUNK + 1).unwrap();
        let bytes = device.to_vec();
        assert_eq!(bytes.len() as u64, 2 * CHUNK + 1);
        assert!(bytes[..(CHUNK - 3) as usize].iter().all(|b| *b == 7));
        assert!(bytes[(CHUNK - 3) as usize..].iter().all(|b| *b == 0));
        device.set_len(0).unwrap();
        assert_eq!(device.to_vec(), []);
    }
}
