//! What can be set on a live file system.

use super::Alloc;
use crate::error::{Errno, Result};
use extant_sync::atomic::Ordering::Relaxed;

/// The highest level of aggression.
const MAX_LEVEL: u64 = 3;

impl Alloc {
    /// Sets a tunable and gives the value that holds then:
    ///
    /// - `mb_frsp_max_mem`: bytes that free-space trees may take, 0 for any number; at least what the worst tree takes;
    /// - `frsp_cache_aggression`: how much a request itself does to know more, 0 to 3;
    /// - `prefetch_block_bitmaps`: whether bitmaps are scanned in the background, 0 or 1.
    ///
    /// # Errors
    /// ENOENT if there is no such tunable, EINVAL if it cannot have the value.
    pub fn set(&self, name: &str, value: u64) -> Result<u64> {
        match name {
            "mb_frsp_max_mem" => Ok(self.blocks.set_memory_limit(value)),
            "frsp_cache_aggression" if value <= MAX_LEVEL => {
                self.blocks.level.store(value as u8, Relaxed);
                Ok(value)
            }
            "prefetch_block_bitmaps" if value <= 1 => {
                self.blocks.scan.set(value == 1);
                Ok(value)
            }
            "frsp_cache_aggression" | "prefetch_block_bitmaps" => Err(Errno::Inval.into()),
            _ => Err(Errno::NoEnt.into()),
        }
    }

    /// Bounds the memory of trees by what the file system as a whole may take.
    pub(crate) fn bound_memory(&self, bytes: u64) {
        let limit = self.blocks.memory.limit();
        self.blocks.set_memory_limit(limit.min(bytes.max(1)));
    }
}
