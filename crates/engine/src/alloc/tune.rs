//! Tunables of a mounted file system.

use super::Alloc;
use crate::error::{Errno, Result};
use extant_sync::atomic::Ordering::Relaxed;

/// The highest level of aggression.
pub const MAX_AGGRESSION: u8 = 3;

impl Alloc {
    /// Sets a tunable and gives the value that holds then:
    ///
    /// - `mb_frsp_max_mem`: bytes that free-space trees may take, 0 for any number; at least
    ///   those of the worst tree;
    /// - `frsp_cache_aggression`: how much a request itself does to know more, 0 to 3;
    /// - `prefetch_block_bitmaps`: whether bitmaps are scanned in the background, 0 or 1;
    /// - `pa`: whether space is kept for files that are being written, 0 or 1;
    /// - `lg`: the sharing of runs by small files: none (0), one run for all threads (1), or one
    ///   for each thread (2).
    ///
    /// # Errors
    /// ENOENT if there is no such tunable, EINVAL if it cannot have the value.
    pub fn set(&self, name: &str, value: u64) -> Result<u64> {
        match (name, value) {
            ("mb_frsp_max_mem", bytes) => return Ok(self.space.set_memory_limit(bytes)),
            ("frsp_cache_aggression", level) if level <= MAX_AGGRESSION.into() => {
                self.space.level.store(level as u8, Relaxed);
            }
            ("prefetch_block_bitmaps", on @ 0..=1) => self.space.scan.set(on == 1),
            ("pa", on @ 0..=1) => self.preallocs.set_files(on == 1),
            ("lg", sharing @ 0..=2) => self.preallocs.set_sharing(sharing as u8),
            ("frsp_cache_aggression" | "prefetch_block_bitmaps" | "pa" | "lg", _) => {
                return Err(Errno::Inval.into());
            }
            _ => return Err(Errno::NoEnt.into()),
        }
        Ok(value)
    }

    /// Bounds the memory of trees by the memory of the whole file system.
    pub(crate) fn bound_memory(&self, bytes: u64) {
        let limit = self.space.memory.limit();
        self.space.set_memory_limit(limit.min(bytes.max(1)));
    }
}
