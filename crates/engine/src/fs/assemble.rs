//! Builds the modules of an open file system, from bottom to top.

use super::{OpenOptions, superblocks};
use crate::alloc::Alloc;
use crate::bounds::Remarks;
use crate::error::{Error, Result};
use crate::extent::MapEnv;
use crate::groups::Groups;
use crate::inode::{InodeTable, PageBudget};
use crate::orphan::{Found, OrphanBlocks, Orphans};
use crate::quota::Quotas;
use crate::store::{DirtyFiles, Store};
use crate::volume::{LiveGeometry, MountPolicy, Volume};
use crate::xattr::{AttrCache, AttrEnv};
use extant_blocks::{BlockDevice, Cache, MountedDevice};
use extant_format::Geometry;
use extant_format::features::Incompat;
use extant_format::superblock::{ErrorPolicy, Superblock};
use extant_format::types::InodeNr;
use extant_journal::{Config, Journal, Log, LogFeatures};
use extant_sync::atomic::AtomicBool;
use extant_sync::{SharedRng, shard_count};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Share of the memory for metadata blocks.
pub(super) const CACHE_SHARE: u64 = 4;

/// Share of the memory for free-space trees, at most.
pub(super) const TREE_SHARE: u64 = 8;

/// Share of the memory for file content.
pub(super) const PAGE_SHARE: u64 = 2;

/// Share of the memory for inodes and names.
pub(super) const VFS_SHARE: u64 = 4;

/// Share of the memory for a transaction's blocks, and again for copies that are not home.
const JOURNAL_SHARE: u64 = 16;

/// The credits of an operation with any bound on memory, as far as the log has them: about those of
/// the smallest logs.
const LEAST_CREDITS: u32 = 1024;

/// Memory that a group takes while the file system is open, about: descriptor, locks, summary of
/// its free space.
const GROUP_BYTES: u64 = 400;

/// All descriptors are kept in memory: an image must not have more groups than memory is allowed
/// for.
fn check_groups(groups: u32, memory: u64) -> Result<()> {
    let needed = u64::from(groups) * GROUP_BYTES;
    if needed <= memory {
        return Ok(());
    }
    let (needed, memory) = (needed.div_ceil(1 << 20), memory >> 20);
    Err(Error::Invalid(format!(
        "{groups} block groups take {needed} MiB of memory, and {memory} MiB are allowed: allow \
        more memory to open this file system"
    )))
}

/// The kind of access of an opening.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub write: bool,
    /// It was closed properly.
    pub closed: bool,
}

pub(super) fn build(
    (dev, mounted): (Arc<dyn BlockDevice>, &Arc<MountedDevice>),
    sb: Superblock,
    log: Option<Log>,
    options: &OpenOptions,
    Use { write, closed }: Use,
) -> Result<Arc<Store>> {
    // The geometry must include the decisions of marking.
    let geo = Geometry::new(&sb)?;
    let head = if write { sb.last_orphan() } else { InodeNr::NONE };
    let quota_files = superblocks::quota_files(&*dev, &geo, &sb);
    let orphan_file = if write { superblocks::orphan_file(&*dev, &geo, &sb)? } else { None };
    let cache = Cache::new(
        dev.clone(),
        geo.block_size as usize,
        (options.total_memory() / CACHE_SHARE) as usize,
    );
    let log_blocks = log.as_ref().map(Log::own_blocks).unwrap_or_default();
    let mut config = Config::new(cache.clone(), log);
    config.commit_interval = options.commit_interval;
    (config.deterministic, config.tasks) = (options.is_deterministic(), Some(options.tasks()));
    let most = (options.shared_memory() / JOURNAL_SHARE) as usize / geo.block_size as usize;
    config.max_pending_blocks = config.max_pending_blocks.min(most);
    config.max_credits = Some(u32::try_from(most).unwrap_or(u32::MAX).max(LEAST_CREDITS));
    config.features = LogFeatures {
        checksums: geo.metadata_csum.then_some(true),
        bit64: sb.incompat().contains(Incompat::BIT64),
    };
    let journal = Journal::open(config)?;
    if write {
        // The superblock says it now.
        journal.clear_errno()?;
    }
    let vol = Volume {
        geo: LiveGeometry::new(geo),
        dev,
        mounted: mounted.clone(),
        closed: AtomicBool::new(false),
        cause: Default::default(),
        cache,
        journal,
        clock: options.clock.clone(),
        rng: options.seed.map_or_else(|| SharedRng::spread(chance()), SharedRng::new),
        read_only: AtomicBool::new(!write),
        shut_down: AtomicBool::new(false),
        policy: policy(options, &sb),
        shards: shard_count(),
        remarks: Remarks::default(),
    };
    let vol = Arc::new(vol);
    check_groups(vol.geo.groups_count, options.total_memory())?;
    let groups = Arc::new(Groups::open(vol.clone(), sb)?.with_log(log_blocks));
    let alloc = Arc::new(Alloc::open(vol.clone(), groups.clone())?);
    let quota = Quotas::new(vol.clone(), groups.clone(), quota_files);
    let file = orphan_file.map(|(ino, seed, blocks)| OrphanBlocks {
        ino,
        cache: vol.cache.clone(),
        blocks,
        seed,
        metadata_csum: vol.geo.metadata_csum,
        spread: !options.is_deterministic(),
    });
    let found = Found { file, live: !closed, head };
    let orphans = Orphans::open(found)?;
    let pages = PageBudget::new(options.shared_memory() / PAGE_SHARE, vol.geo.block_size);
    let maps = MapEnv { table: inode_table(vol, groups, &pages), alloc, quota };
    let names = AttrEnv { maps, attrs: AttrCache::default(), orphans };
    Ok(Arc::new(Store { names, pages, dirty_files: DirtyFiles::new() }))
}

#[cfg(not(feature = "designs"))]
fn inode_table(vol: Arc<Volume>, groups: Arc<Groups>, _: &PageBudget) -> InodeTable {
    InodeTable::new(vol, groups)
}

#[cfg(feature = "designs")]
fn inode_table(vol: Arc<Volume>, groups: Arc<Groups>, pages: &PageBudget) -> InodeTable {
    InodeTable::new(vol, groups).listed_by(pages)
}

fn policy(options: &OpenOptions, sb: &Superblock) -> MountPolicy {
    let errors = options.errors.unwrap_or_else(|| sb.error_policy());
    MountPolicy {
        stop_on_error: errors != ErrorPolicy::Continue,
        deterministic: options.is_deterministic(),
        log_data: options.log_data,
        use_reserve: AtomicBool::new(options.use_reserve),
    }
}

fn chance() -> u64 {
    let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    t.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_kept_within_the_memory_allowed() {
        let allowed = 64 << 20;
        assert!(check_groups((allowed / GROUP_BYTES) as u32, allowed).is_ok());
        let error = check_groups(5_000_000, allowed).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)));
        assert!(error.to_string().contains("allow more memory"), "{error}");
        assert!(check_groups(5_000_000, 2 << 30).is_ok());
    }
}
