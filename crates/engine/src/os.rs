//! Calls of the operating system. On others than Linux the standard library stands in.

use extant_format::types::Timestamp;

/// The wall clock, in the steps in which the kernel stamps files.
#[cfg(target_os = "linux")]
pub fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
}

/// The wall clock.
#[cfg(not(target_os = "linux"))]
pub fn now() -> Timestamp {
    use std::time::{SystemTime, UNIX_EPOCH};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: now.as_secs().try_into().unwrap_or(i64::MAX), nsec: now.subsec_nanos() }
}

/// Lets requests run before this thread. Without effect where the system does not grant that.
pub fn run_in_background() {
    // A denied request leaves the thread equal to the others.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}
