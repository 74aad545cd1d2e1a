//! Recovery of the journal at an opening.

use super::marks::note_errors;
use super::open::Opening;
use super::{fast_commit, superblocks};
use crate::error::Result;
use extant_blocks::BlockDevice;
use extant_format::Geometry;
use extant_format::features::Incompat;
use extant_format::superblock::Superblock;
use extant_journal::{Log, recovery};
use std::sync::Arc;

impl Opening<'_> {
    /// Replays the journal, onto the device or in memory. Gives the device to work on, and the log.
    pub(super) fn recover(
        &mut self,
        external_log: Option<&Arc<dyn BlockDevice>>,
        geo: &Geometry,
        sb: &Superblock,
    ) -> Result<(Arc<dyn BlockDevice>, Option<Log>)> {
        let Opening { options, write, ref mut recovery, .. } = *self;
        let dev: Arc<dyn BlockDevice> = self.mounted.clone();
        let needed = sb.incompat().contains(Incompat::RECOVER);
        if options.no_recovery || !(needed || write) {
            return Ok((dev, None));
        }
        let Some(log) = superblocks::log(&dev, external_log, geo, sb)? else {
            return Ok((dev, None));
        };
        // Only for writing: without the flag, a reader has returned above.
        if !needed && log.needs_recovery() {
            recovery.log_emptied = true;
            return Ok((dev.clone(), empty_log(&dev, external_log, geo, sb)?));
        }
        if !log.needs_recovery() {
            if write && log.errno() != 0 {
                note_errors(&*dev, sb, log.errno())?;
            }
            return Ok((dev, Some(log)));
        }
        let mut blocks = device_blocks(&*dev, geo);
        if options.allow_short && !write {
            blocks = blocks.max(geo.blocks_count);
        }
        let replay = recovery::scan(&log, blocks)?;
        let (outcome, fast) = (replay.outcome(), replay.fast_commits().clone());
        recovery.journal = Some(outcome);
        if write {
            let log = if fast.is_empty() {
                replay.finish(&*dev)?
            } else {
                recovery::scan(&fast_commit::commit(replay, &dev, options)?, blocks)?
                    .finish(&*dev)?
            };
            note_errors(&*dev, sb, outcome.errno)?;
            return Ok((dev, Some(log)));
        }
        recovery.in_memory = true;
        let full = replay.overlay(dev);
        if fast.is_empty() {
            Ok((full, None))
        } else {
            Ok((fast_commit::in_memory(full, &fast, options)?, None))
        }
    }
}

/// The blocks that a log may name. The superblock on the device does not bound them: a file system
/// that was enlarged while it was mounted has its new size in the log only.
fn device_blocks(dev: &dyn BlockDevice, geo: &Geometry) -> u64 {
    dev.len() / u64::from(geo.block_size)
}

/// Empties a log that the superblock does not require. Its content is older than changes that were
/// made without it, which a replay would undo. The kernel empties it at mount, too.
fn empty_log(
    dev: &Arc<dyn BlockDevice>,
    external_log: Option<&Arc<dyn BlockDevice>>,
    geo: &Geometry,
    sb: &Superblock,
) -> Result<Option<Log>> {
    let Some(log) = superblocks::log(dev, external_log, geo, sb)? else { return Ok(None) };
    tracing::warn!(
        "the superblock says that nothing is to be recovered: the journal's content is dropped"
    );
    recovery::scan(&log, device_blocks(&**dev, geo))?.discard()?;
    note_errors(&**dev, sb, log.errno())?;
    superblocks::log(dev, external_log, geo, sb)
}
