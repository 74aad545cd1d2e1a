//! Fast commits are replayed in memory, over the result of the full commits. Readers see the
//! outcome there; for writers it becomes one full commit, so that a power cut leaves either the
//! fast commits, to be replayed again, or that commit.

use super::journal_client::StoreClient;
use super::{OpenOptions, assemble, superblocks};
use crate::error::Result;
use crate::ops::Operations;
use crate::vfs::Vfs;
use extant_blocks::{BlockDevice, MountedDevice, OverlayDevice};
use extant_journal::Log;
use extant_journal::recovery::{FastCommits, Replay};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of blocks that a replay may change.
const MAX_BYTES: usize = 256 << 20;

/// `dev` with the fast commits replayed in memory; it is to have the full ones.
pub(super) fn in_memory(
    dev: Arc<dyn BlockDevice>,
    fast: &FastCommits,
    options: &OpenOptions,
) -> Result<Arc<OverlayDevice>> {
    // Whether its end may be missing was checked before.
    let (sb, geo) = superblocks::superblock_of_part(&*dev)?;
    let overlay = Arc::new(OverlayDevice::new(dev, geo.block_size as usize, MAX_BYTES));
    // A commit on the way would only cost time.
    let options = options.clone().commit_interval(Duration::from_secs(3600));
    let mounted = MountedDevice::unclaimed(overlay.clone());
    let store = assemble::build(
        (mounted.clone(), &mounted),
        sb,
        None,
        &options,
        assemble::Use { write: true, closed: false },
    )?;
    let client: Arc<dyn extant_journal::Client> = Arc::new(StoreClient(store.clone()));
    store.journal.set_client(Arc::downgrade(&client));
    let ops = Operations::new(Vfs::new(store.clone(), options.memory / 4, options.names, false));
    // The changes were allowed when they were made.
    store.quota.ignore_limits(true);
    ops.replay_fast_commits(fast.iter())?;
    store.journal.shutdown()?;
    Ok(overlay)
}

/// Brings all commits to `dev`, the fast ones as a full one, which is left in the log that this
/// gives.
pub(super) fn commit(
    replay: Replay,
    dev: &Arc<dyn BlockDevice>,
    options: &OpenOptions,
) -> Result<Log> {
    replay.apply_full(&**dev)?;
    let replayed = in_memory(dev.clone(), replay.fast_commits(), options)?;
    Ok(replay.append(&replayed.written(), options.clock.now())?)
}
