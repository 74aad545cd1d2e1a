//! A device as it will be after the replay. Only the table of copies is in memory: each read of a
//! block that has a copy reads the log.

use super::Replay;
use extant_blocks::{BlockDevice, OriginRun, ReplaySource};
use extant_sync::Arc;
use std::io;

/// A device that reads blocks from the log if it has them, and otherwise from the device below.
#[derive(Debug)]
pub(super) struct Overlay {
    base: Arc<dyn BlockDevice>,
    replay: Replay,
}

impl Overlay {
    pub fn new(base: Arc<dyn BlockDevice>, replay: Replay) -> Overlay {
        Overlay { base, replay }
    }

    /// Reads the part of `buf` up to the end of the block at `offset`, or of its run of blocks
    /// without a copy. Returns its length.
    fn read_some(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let size = self.replay.block_size() as u64;
        let nr = offset / size;
        match self.replay.copy_from(nr) {
            Some(copy) if copy.block == nr => {
                let mut block = vec![0; size as usize];
                self.replay.read(copy, &mut block).map_err(io::Error::other)?;
                let within = (offset % size) as usize;
                let len = buf.len().min(block.len() - within);
                buf[..len].copy_from_slice(&block[within..within + len]);
                Ok(len)
            }
            next => {
                let run = next.map_or(u64::MAX, |copy| copy.block.saturating_mul(size) - offset);
                let len = buf.len().min(usize::try_from(run).unwrap_or(usize::MAX));
                self.base.read_exact_at(&mut buf[..len], offset)?;
                Ok(len)
            }
        }
    }
}

/// For programs that put it into an `OverlayDevice`. The engine puts such a device on top of an
/// `Overlay` instead.
impl ReplaySource for Replay {
    fn covers(&self, nr: u64) -> bool {
        self.copy_from(nr).is_some_and(|copy| copy.block == nr)
    }

    fn read_block(&self, nr: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.copy_from(nr) {
            Some(copy) if copy.block == nr => self.read(copy, buf).map_err(io::Error::other),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(
        io::ErrorKind::ReadOnlyFilesystem,
        "the journal is shown replayed, but it is not",
    ))
}

impl BlockDevice for Overlay {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn name(&self) -> String {
        self.base.name()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len()) {
            return self.base.read_exact_at(buf, offset);
        }
        let mut done = 0;
        while done < buf.len() {
            done += self.read_some(&mut buf[done..], offset + done as u64)?;
        }
        Ok(())
    }

    fn write_all_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        refused()
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        let size = self.replay.block_size() as u64;
        let nr = offset / size;
        match self.replay.copy_from(nr) {
            Some(copy) if copy.block == nr => {
                Ok(OriginRun::own(len.min(size.saturating_sub(offset % size))))
            }
            Some(copy) => {
                let run = copy.block.saturating_mul(size).saturating_sub(offset);
                self.base.origin(offset, len.min(run))
            }
            None => self.base.origin(offset, len),
        }
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        refused()
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> io::Result<()> {
        refused()
    }
}
