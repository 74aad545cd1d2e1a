//! A device that fails on request.
//!
//! # Locking
//! One lock (`Device`) covers the plan and the counts. The inner device is not called under it.

use crate::{BlockDevice, DeviceError, Op};
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;
use std::io::{self, IoSlice};
use std::ops::Range;

/// The way in which an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The operation does nothing and returns the error number.
    Error(i32),
    /// Only this many bytes of a write reach the device, and the write returns the error number.
    Short(usize, i32),
    /// Only this many bytes of a write reach the device, and the write succeeds. Other operations
    /// do nothing and succeed.
    Torn(usize),
}

/// A planned failure: the operation that fails, and the way in which it does.
#[derive(Clone, Debug)]
pub struct Fault {
    op: Op,
    nth: u64,
    sticky: bool,
    within: Option<Range<u64>>,
    failure: Failure,
    seen: u64,
}

/// The error number of a failed transfer on Linux.
const EIO: i32 = 5;

impl Fault {
    /// Plans that the `nth` operation (from 0) of the kind from now on fails with EIO.
    pub fn new(op: Op, nth: u64) -> Self {
        let failure = Failure::Error(EIO);
        Fault { op, nth, sticky: false, within: None, failure, seen: 0 }
    }

    /// Makes all following operations of the kind fail, too.
    #[must_use]
    pub fn from_then_on(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// Counts only operations that touch a range of bytes.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.within = Some(range);
        self
    }

    /// Sets the way of failing.
    #[must_use]
    pub fn with(mut self, failure: Failure) -> Self {
        self.failure = failure;
        self
    }

    /// Counts an operation. Returns the failure if the operation is to fail.
    fn meet(&mut self, op: Op, offset: u64, len: u64) -> Option<Failure> {
        let touches =
            |range: &Range<u64>| offset < range.end && range.start < offset.saturating_add(len);
        if op != self.op || !self.within.as_ref().is_none_or(touches) {
            return None;
        }
        let number = self.seen;
        self.seen += 1;
        let hit = if self.sticky { number >= self.nth } else { number == self.nth };
        hit.then_some(self.failure)
    }
}

/// A device that counts the operations of another one and makes planned ones fail.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<Fault>,
    counts: FxHashMap<Op, u64>,
    failed: u64,
}

impl<D: BlockDevice> FaultDevice<D> {
    /// Makes a device around `inner` without planned faults.
    pub fn new(inner: D) -> Self {
        FaultDevice { inner, plan: Mutex::new(Level::Device, Plan::default()) }
    }

    /// Returns the inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Plans a fault. All planned faults count each operation; the first that matches decides.
    pub fn inject(&self, fault: Fault) {
        self.plan.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.plan.lock().faults.clear();
    }

    /// Returns the number of operations of a kind, including failed ones.
    pub fn count(&self, op: Op) -> u64 {
        self.plan.lock().counts.get(&op).copied().unwrap_or(0)
    }

    /// Returns the number of failed operations.
    pub fn failed(&self) -> u64 {
        self.plan.lock().failed
    }

    fn meet(&self, op: Op, offset: u64, len: u64) -> Option<Failure> {
        let mut plan = self.plan.lock();
        *plan.counts.entry(op).or_default() += 1;
        let hits: Vec<Failure> =
            plan.faults.iter_mut().filter_map(|fault| fault.meet(op, offset, len)).collect();
        let failure = hits.first().copied();
        plan.failed += u64::from(failure.is_some());
        failure
    }

    /// Runs an operation that cannot be partial, unless a fault matches it.
    fn run(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        f: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        match self.meet(op, offset, len) {
            None => f(),
            Some(Failure::Torn(_)) => Ok(()),
            Some(Failure::Error(errno) | Failure::Short(_, errno)) => {
                Err(self.error(op, offset, len, errno))
            }
        }
    }

    fn error(&self, op: Op, offset: u64, len: u64, errno: i32) -> io::Error {
        let cause = io::Error::from_raw_os_error(errno);
        DeviceError { op, device: self.name(), offset, len, cause }.into()
    }
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    crate::forward_device!(self => self.inner;
        len, name, alignment, read_only, refresh_len, next_data, claim);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.run(Op::Read, offset, buf.len() as u64, || self.inner.read_exact_at(buf, offset))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let len = data.len() as u64;
        match self.meet(Op::Write, offset, len) {
            None => self.inner.write_all_at(data, offset),
            Some(Failure::Error(errno)) => Err(self.error(Op::Write, offset, len, errno)),
            Some(Failure::Torn(count)) => {
                self.inner.write_all_at(&data[..count.min(data.len())], offset)
            }
            Some(Failure::Short(count, errno)) => {
                self.inner.write_all_at(&data[..count.min(data.len())], offset)?;
                Err(self.error(Op::Write, offset, len, errno))
            }
        }
    }

    /// Counts as one write.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.write_all_at(&data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.run(Op::Flush, 0, u64::MAX, || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(Op::Discard, offset, len, || self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(Op::Zero, offset, len, || self.inner.write_zeroes(offset, len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(Op::SetLen, 0, len, || self.inner.set_len(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, raw_os_error};

    /// The error number of a removed device.
    const ENODEV: i32 = 19;

    #[test]
    fn the_nth_fails_once_or_from_then_on() {
        let device = FaultDevice::new(MemDevice::new(100));
        device.inject(Fault::new(Op::Flush, 1));
        device.inject(Fault::new(Op::Read, 1).from_then_on().with(Failure::Error(ENODEV)));
        let flushes = [device.flush().is_ok(), device.flush().is_ok(), device.flush().is_ok()];
        assert_eq!(flushes, [true, false, true]);
        let mut buf = [0; 4];
        let reads = [0, 1, 2]
            .map(|_| device.read_exact_at(&mut buf, 0).map_err(|error| raw_os_error(&error)));
        assert_eq!(reads, [Ok(()), Err(Some(19)), Err(Some(19))]);
        device.heal();
        assert!(device.read_exact_at(&mut buf, 0).is_ok());
        assert_eq!((device.count(Op::Read), device.count(Op::Flush), device.failed()), (4, 3, 3));
    }

    #[test]
    fn writes_tear_and_stop_short() {
        let device = FaultDevice::new(MemDevice::new(8));
        device.inject(Fault::new(Op::Write, 0).with(Failure::Torn(2)));
        device.inject(Fault::new(Op::Write, 1).with(Failure::Short(1, EIO)));
        assert!(device.write_all_at(&[1; 4], 0).is_ok());
        assert!(
            device.write_vectored_at(&[IoSlice::new(&[2; 2]), IoSlice::new(&[2; 2])], 4).is_err()
        );
        assert_eq!(device.inner().to_vec(), [1, 1, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn a_fault_may_be_bound_to_a_range() {
        let device = FaultDevice::new(MemDevice::new(100));
        device.inject(Fault::new(Op::Write, 0).from_then_on().within(10..20));
        assert!(device.write_all_at(&[0; 10], 0).is_ok());
        assert!(device.write_all_at(&[0; 10], 20).is_ok());
        assert!(device.write_all_at(&[0; 2], 9).is_err());
    }
}
