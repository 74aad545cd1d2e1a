//! Trims: order of flushes and discards, interruption, devices that fail.

use extant_blocks::{BlockDevice, Event, MemDevice, RecordingDevice, forward_device};
use extant_check::{Trim, TrimError};
use extant_testkit::FeatureSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A new file system on a device that logs its changes.
fn recorded() -> Arc<RecordingDevice<MemDevice>> {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image.bytes())))
}

/// A power cut may undo unflushed writes. The metadata that free a block must not be among them
/// when the block is discarded.
#[test]
fn a_trim_flushes_and_then_only_discards() {
    let device = recorded();
    let plan = Trim::new(device.clone()).threads(2).plan().expect("a plan");
    assert!(device.log().is_empty(), "planning wrote");
    let (mut count, mut bytes) = (0, 0);
    plan.apply(&mut |len| (count, bytes) = (count + 1, bytes + len)).expect("a trim");
    let events = device.log();
    assert_eq!((events.first(), events.last()), (Some(&Event::Flush), Some(&Event::Flush)));
    let discards = &events[1..events.len() - 1];
    assert!(discards.iter().all(|event| matches!(event, Event::Discard { .. })), "{discards:?}");
    assert_eq!(discards.len(), count);
    assert!(bytes > 16 << 20, "{bytes}");
}

#[test]
fn an_interruption_ends_the_trim_between_two_discards() {
    let device = recorded();
    let stop = Arc::new(AtomicBool::new(false));
    let plan = Trim::new(device.clone()).interrupt(stop.clone()).plan().expect("a plan");
    let ended = plan.apply(&mut |_| stop.store(true, Ordering::Relaxed));
    assert!(matches!(ended, Err(TrimError::Interrupted)), "{ended:?}");
    assert_eq!(device.log().len(), 2);
    let planned = Trim::new(device).interrupt(stop).plan();
    assert!(matches!(planned, Err(TrimError::Interrupted)), "{planned:?}");
}

/// A device whose flushes fail.
#[derive(Debug)]
struct Unflushed(Arc<RecordingDevice<MemDevice>>);

impl BlockDevice for Unflushed {
    forward_device!(self => self.0; len, name, read_exact_at, write_all_at, discard);

    fn flush(&self) -> io::Result<()> {
        Err(io::Error::other("no flush"))
    }
}

#[test]
fn nothing_is_discarded_after_a_failed_flush() {
    let device = recorded();
    let plan = Trim::new(Arc::new(Unflushed(device.clone()))).plan().expect("a plan");
    let failed = plan.apply(&mut |_| ());
    assert!(matches!(failed, Err(TrimError::Io(_))), "{failed:?}");
    assert!(device.log().is_empty());
}

#[test]
fn a_device_without_a_file_system_is_refused() {
    let planned = Trim::new(Arc::new(MemDevice::new(1 << 20))).plan();
    assert!(matches!(planned, Err(TrimError::NoSuperblock)), "{planned:?}");
}
