//! Another program that changes a tree during a copy.

use extant_testkit::Ending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs `round` again and again beside `rival`, until `rival` has counted enough hits.
pub fn beside_a_rival(rival: impl Fn(&AtomicU64) + Sync, mut round: impl FnMut()) {
    let (hits, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rival(&hits);
            }
        });
        let _ending = Ending(&stop);
        let mut rounds = 0;
        while hits.load(Ordering::Relaxed) < 20 || rounds < 5 {
            round();
            rounds += 1;
            assert!(rounds < 500, "the rival was never in time");
        }
    });
}
