//! Direct writes whose replies wait until the kernel has dropped pages.
//!
//! A direct write is a background request, of which the kernel has [`MAX_BACKGROUND`] under way.
//! Dropping a changed page makes the kernel write it, by another background request. If waiting
//! writes held all places, that request would never be sent, and the writes would wait forever. So
//! at most half of the places may wait. A write beyond that is answered first, and its pages are
//! dropped soon after.

use crate::connection::init::MAX_BACKGROUND;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The administrator's bound of background requests for mounts of users.
const USERS_LIMIT: &str = "/sys/module/fuse/parameters/max_user_bgreq";

/// The number of direct writes of a connection that may wait.
#[derive(Debug)]
pub struct HeldWrites {
    free: AtomicUsize,
}

impl HeldWrites {
    /// Allows half as many waiting writes as the kernel allows background requests.
    pub fn new() -> Arc<HeldWrites> {
        let users = if rustix::process::geteuid().is_root() {
            None
        } else {
            fs::read_to_string(USERS_LIMIT).ok().and_then(|text| text.trim().parse().ok())
        };
        let places = users.unwrap_or(usize::MAX).min(MAX_BACKGROUND.into());
        Arc::new(HeldWrites { free: AtomicUsize::new(places / 2) })
    }

    /// Takes a place to wait; `None` if all are taken.
    pub fn hold(self: &Arc<Self>) -> Option<Hold> {
        // Relaxed: only the number counts.
        let taken = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| Hold(self.clone()))
    }
}

/// The place of one waiting write, released on drop.
#[derive(Debug)]
pub struct Hold(Arc<HeldWrites>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_places_stay_free() {
        let writes = HeldWrites::new();
        let mut held: Vec<Hold> = std::iter::from_fn(|| writes.hold()).collect();
        assert_eq!(held.len(), usize::from(MAX_BACKGROUND) / 2);
        held.pop();
        assert!(writes.hold().is_some());
    }
}
