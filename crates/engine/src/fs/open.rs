//! The steps of opening, in order: superblock, journal, superblock again, modules, orphans, jobs.

use super::features::{self, Access};
use super::jobs::{self, Jobs};
use super::journal_client::StoreClient;
use super::shares::PoolMember;
use super::{Fs, OpenOptions, Recovery, fast_commit, superblocks};
use crate::alloc::Alloc;
use crate::bounds::Remarks;
use crate::error::{Error, Result};
use crate::extent::MapEnv;
use crate::groups::Groups;
use crate::inode::{InodeTable, PageBudget};
use crate::mmp::Mmp;
use crate::ops::Operations;
use crate::orphan::{Found, OrphanBlocks, Orphans};
use crate::quota::Quotas;
use crate::store::{DirtyFiles, Store};
use crate::vfs::Vfs;
use crate::volume::{MountPolicy, Volume, superblock_seconds};
use crate::xattr::{AttrCache, AttrEnv};
use extant_blocks::{BlockDevice, Cache, MountedDevice};
use extant_format::Geometry;
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::superblock::{ErrorPolicy, State, SuperFlags, Superblock};
use extant_format::types::InodeNr;
use extant_journal::{Config, Journal, Log, LogFeatures, recovery};
use extant_sync::SharedRng;
use extant_sync::atomic::{AtomicBool, Ordering};
use std::ffi::c_char;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Share of the memory for metadata blocks.
pub(super) const CACHE_SHARE: u64 = 4;

/// Share of the memory for free-space trees, at most.
const TREE_SHARE: u64 = 8;

/// Share of the memory for file content.
pub(super) const PAGE_SHARE: u64 = 2;

/// Share of the memory for inodes and names.
pub(super) const VFS_SHARE: u64 = 4;

/// Share of the memory for a transaction's blocks, and again for copies that are not home.
const JOURNAL_SHARE: u64 = 16;

/// The credits of an operation with any bound on memory, as far as the log has them: about those of
/// the smallest logs.
const LEAST_CREDITS: u32 = 1024;

/// Whether this machine's C counts bytes above 127 as positive, as the kernel that runs on it does.
const UNSIGNED_CHARS: bool = c_char::MAX as i32 == 255;

/// Opens the file system on `dev`.
pub fn open(dev: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Fs> {
    let exclusive = !options.read_only && !dev.read_only();
    let mounted = MountedDevice::claimed(dev, exclusive)?;
    open_mounted(&mounted, &options.with_tasks()).inspect_err(|_| mounted.revoke())
}

fn open_mounted(mounted: &Arc<MountedDevice>, options: &OpenOptions) -> Result<Fs> {
    let (sb, geo) = superblocks::superblock(&**mounted)?;
    let mut recovery = Recovery::default();
    let write = may_write(&**mounted, &sb, options, &mut recovery)?;
    let opening = Opening { mounted, options, write, recovery };
    if !write || !sb.incompat().contains(Incompat::MMP) {
        return opening.open(&sb, &geo);
    }
    // An owner of its own: the renewal must not wait for other jobs of the file system.
    let renewal = options.tasks().scheduler().owner();
    let mmp = Mmp::claim(mounted.clone(), &sb, &geo, options.interrupt.as_deref(), &renewal)?;
    match opening.open(&sb, &geo) {
        Ok(mut fs) => {
            let store = Arc::downgrade(&fs.ops.vfs.st);
            mmp.when_lost(move || store.upgrade().into_iter().for_each(|st| stop_writing(&st)));
            fs.mmp = Some(mmp);
            Ok(fs)
        }
        Err(e) => {
            if let Err(e) = mmp.release() {
                tracing::error!("the MMP block could not be released: {e}");
            }
            Err(e)
        }
    }
}

/// An opening in progress.
struct Opening<'a> {
    mounted: &'a Arc<MountedDevice>,
    options: &'a OpenOptions,
    /// Whether the file system is opened for writing.
    write: bool,
    /// The report for the caller.
    recovery: Recovery,
}

impl Opening<'_> {
    /// Opens the file system of a superblock, as it was found on the device, and its geometry.
    fn open(mut self, sb: &Superblock, geo: &Geometry) -> Result<Fs> {
        let (options, mounted) = (self.options, self.mounted);
        let external_log = external_log(options, self.write)?;
        let log_device = external_log.clone().map(|log| -> Arc<dyn BlockDevice> { log });
        self.recovery.was_in_use = sb.incompat().contains(Incompat::RECOVER)
            || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
        let (dev, log) = match self.recover(log_device.as_ref(), geo, sb) {
            Err(e @ (Error::Corrupt(_) | Error::Io(_)))
                if !self.write && options.skip_damaged_log =>
            {
                self.recovery.journal = None;
                self.recovery.in_memory = false;
                self.recovery.log_skipped = Some(e.to_string());
                (mounted.clone() as Arc<dyn BlockDevice>, None)
            }
            other => other?,
        };
        // The journal may have held a newer superblock.
        let (sb, _) = superblocks::superblock(&*dev)?;
        if !self.write {
            let mut fs = self.assemble(dev, &sb, sb.clone(), None)?;
            fs.external_log = external_log;
            return Ok(fs);
        }
        let mut marked = sb.clone();
        // Durable before the first change: the next opening recovers then.
        mark_mounted(&*dev, &mut marked, log.is_some(), options)?;
        let assembled = self.assemble(dev.clone(), &sb, marked, log);
        let mut fs = assembled.inspect_err(|_| unmark(&*dev, sb))?;
        fs.external_log = external_log;
        start(&mut fs, options).inspect_err(|_| abandon(&fs))?;
        Ok(fs)
    }

    /// Replays the journal, onto the device or in memory. Gives the device to work on, and the log.
    fn recover(
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
        // Only an opening for writing comes here.
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
        let blocks = device_blocks(&*dev, geo);
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

    /// Builds the modules, from bottom to top. `before` is the superblock as it was found, `sb` as
    /// it is marked now.
    fn assemble(
        self,
        dev: Arc<dyn BlockDevice>,
        before: &Superblock,
        sb: Superblock,
        log: Option<Log>,
    ) -> Result<Fs> {
        let Opening { mounted, options, write, recovery } = self;
        let closed = is_closed(before) && recovery.journal.is_none() && !recovery.log_emptied;
        let store = build((dev, mounted), sb, log, options, Use { write, closed })?;
        let client = Arc::new(StoreClient(store.clone()));
        // Before the first handle: a commit calls the client.
        let as_client: Arc<dyn extant_journal::Client> = client.clone();
        store.journal.set_client(Arc::downgrade(&as_client));
        store.alloc.set_discard(options.discard);
        store.alloc.bound_memory(options.shared_memory() / TREE_SHARE);
        for (name, value) in &options.tunables {
            store.alloc.set(name, *value)?;
        }
        store.quota.ignore_limits(options.use_reserve);
        let looks_ahead = options.look_ahead && !options.is_deterministic();
        let ops = Arc::new(Operations::new(Vfs::new(
            store,
            options.shared_memory() / VFS_SHARE,
            options.names,
            looks_ahead,
        )));
        let anchors = ops.moor();
        if looks_ahead {
            jobs::look_ahead(&ops, &options.tasks())?;
        }
        let memory = match options.memory_pool() {
            Some(pool) => Some(PoolMember::join(pool, &ops, &options.tasks())?),
            None => None,
        };
        Ok(Fs {
            ops,
            memory,
            _anchors: anchors,
            jobs: None,
            recovery,
            _client: client,
            clean_state: before.state(),
            mmp: None,
            external_log: None,
        })
    }
}

/// The journal's own device, claimed, where one was named and is used.
fn external_log(options: &OpenOptions, write: bool) -> Result<Option<Arc<MountedDevice>>> {
    if options.no_recovery {
        return Ok(None);
    }
    let device = options.journal_device(!write)?;
    Ok(device.map(|device| MountedDevice::claimed(device, write)).transpose()?)
}

/// Makes the first changes: processes the orphans of a crash, and starts the jobs.
fn start(fs: &mut Fs, options: &OpenOptions) -> Result<()> {
    fs.recovery.orphans = fs.ops.process_orphans()?;
    if fs.is_read_only() {
        fs.recovery.read_only =
            Some("an orphan could not be recovered, and errors stop all changes".into());
    }
    if options.is_deterministic() {
        return start_deterministic(fs, options);
    }
    fs.jobs = Some(Jobs::start(&fs.ops, &options.tasks(), options)?);
    Ok(())
}

/// As the end of [`start`], without threads, since their progress would show in the image's bytes.
fn start_deterministic(fs: &mut Fs, options: &OpenOptions) -> Result<()> {
    fs.jobs = Some(Jobs::none(&fs.ops));
    let zero_next = || fs.ops.st().alloc.zero_next_table();
    while options.zero_tables && !fs.is_read_only() {
        match zero_next() {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => {
                tracing::warn!("inode tables are not zeroed any further: {e}");
                break;
            }
        }
    }
    Ok(())
}

/// Removes the mark of a mounted file system after an opening that failed before any other change.
/// If that cannot be written, the mark stays.
fn unmark(dev: &dyn BlockDevice, mut sb: Superblock) {
    if let Err(e) = superblocks::write_superblock(dev, &mut sb) {
        tracing::error!("the superblock could not be written back: {e}");
    }
}

/// Opening failed after the first changes: closes the file system with those that were made.
fn abandon(fs: &Fs) {
    let st = fs.ops.st();
    let closed = match st.journal.shutdown() {
        Ok(()) => mark_clean(st, fs.clean_state),
        Err(_) => mark_error(st),
    };
    if let Err(e) = closed {
        tracing::error!("the superblock could not be written: {e}");
    }
}

/// Whether the file system was closed properly: no orphan record is live.
fn is_closed(sb: &Superblock) -> bool {
    !sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
        && !sb.incompat().contains(Incompat::RECOVER)
        && sb.state().contains(State::VALID)
        && !sb.state().contains(State::ERROR)
}

/// Another host has the file system now: nothing is written any more, as if the power had failed
/// here.
fn stop_writing(st: &Store) {
    st.read_only.store(true, Ordering::Release);
    st.journal.crash();
}

/// Whether the file system is opened for writing; notes why not if that was wished for.
fn may_write(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    options: &OpenOptions,
    recovery: &mut Recovery,
) -> Result<bool> {
    if options.read_only {
        return Ok(false);
    }
    if dev.read_only() {
        recovery.read_only = Some("the device can be read only".into());
        return Ok(false);
    }
    if let Access::ReadOnly(why) = features::access(&sb.features())? {
        recovery.read_only = Some(why);
        return Ok(false);
    }
    Ok(true)
}

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
        "the superblock says that nothing is to be recovered: what the journal holds is dropped"
    );
    recovery::scan(&log, device_blocks(&**dev, geo))?.discard()?;
    note_errors(&**dev, sb, log.errno())?;
    superblocks::log(dev, external_log, geo, sb)
}

/// A file system has errors until it is checked: those of a journal that was aborted, and those
/// that the superblock named before an older copy from the log took its place.
fn note_errors(dev: &dyn BlockDevice, before: &Superblock, errno: i32) -> Result<()> {
    if errno == 0 && !before.state().contains(State::ERROR) {
        return Ok(());
    }
    let (mut sb, _) = superblocks::superblock(dev)?;
    sb.set_state(sb.state() | State::ERROR);
    if let (Some(error), None) = (before.last_error(), sb.last_error()) {
        sb.record_error(&error);
    }
    superblocks::write_superblock(dev, &mut sb)
}

/// Before the first change: says on the device that recovery may be needed.
fn mark_mounted(
    dev: &dyn BlockDevice,
    sb: &mut Superblock,
    journal: bool,
    options: &OpenOptions,
) -> Result<()> {
    let mut features = sb.features();
    if journal {
        features.incompat |= Incompat::RECOVER;
    } else {
        sb.set_state(sb.state() & !State::VALID);
    }
    if features.compat.contains(Compat::ORPHAN_FILE) {
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
    }
    sb.set_features(features);
    if sb.unsigned_hash().is_none() {
        // The first writer decides how bytes above 127 are hashed in names.
        sb.set_flags(
            sb.flags()
                | if UNSIGNED_CHARS { SuperFlags::UNSIGNED_HASH } else { SuperFlags::SIGNED_HASH },
        );
    }
    if options.count_mount {
        sb.set_mtime(superblock_seconds(&*options.clock));
        sb.set_mnt_count(sb.mnt_count().saturating_add(1));
    }
    if let Some(path) = &options.mount_point {
        sb.set_last_mounted(path.as_bytes());
    }
    superblocks::write_superblock(dev, sb)
}

/// After everything was written: says on the device that nothing is left to do.
pub fn mark_clean(st: &Store, state: State) -> Result<()> {
    let mut sb = st.groups.superblock();
    let mut features = sb.features();
    features.incompat.remove(Incompat::RECOVER);
    if st.orphans.is_empty() {
        features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
    }
    sb.set_features(features);
    sb.set_state(sb.state() | state & State::VALID);
    sb.set_wtime(superblock_seconds(&*st.clock));
    superblocks::write_superblock(&*st.dev, &mut sb)
}

/// After an error that stopped all changes: the next one to look is told.
pub fn mark_error(st: &Store) -> Result<()> {
    let (mut sb, _) = superblocks::superblock(&*st.dev)?;
    let noted = st.groups.superblock();
    sb.set_state(sb.state() | State::ERROR);
    if let Some(error) = noted.last_error() {
        sb.record_error(&error);
    }
    superblocks::write_superblock(&*st.dev, &mut sb)
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
        geo,
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
    let orphans = Orphans::open(Found { file, live: !closed, head }, options.orphans.as_ref())?;
    let pages = PageBudget::new(options.shared_memory() / PAGE_SHARE, vol.geo.block_size);
    let maps = MapEnv { table: InodeTable::new(vol, groups), alloc, quota };
    let names = AttrEnv { maps, attrs: AttrCache::default(), orphans };
    Ok(Arc::new(Store { names, pages, dirty_files: DirtyFiles::new(options.plug) }))
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
    use crate::{Clock, Errno, File, NodeKind, OpenFlags, Timestamp};
    use extant_testkit::{FeatureSet, Memory};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A device with panicking writes, and a panicking clock, while the switch is on.
    /// [`Fs::open_device`] would make an error of the device's panic, as of no other panic.
    #[derive(Debug)]
    struct Brittle(Memory, Arc<AtomicBool>);

    #[derive(Debug)]
    struct BrittleClock(Arc<AtomicBool>);

    impl Clock for BrittleClock {
        fn now(&self) -> Timestamp {
            assert!(!self.0.load(Ordering::Relaxed), "planted");
            Timestamp { sec: 1_700_000_000, nsec: 0 }
        }
    }

    impl BlockDevice for Brittle {
        extant_blocks::forward_device!(self => self.0; len, name, read_exact_at, flush, discard);

        fn write_all_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
            assert!(!self.1.load(Ordering::Relaxed), "planted");
            self.0.write_all_at(data, offset)
        }
    }

    /// A file system on such a device with such a clock. It is not judged if `unjudged` tells why.
    fn brittle(unjudged: Option<&str>) -> (Fs, Arc<AtomicBool>) {
        let (image, panics) =
            (FeatureSet::named("default").make(), Arc::new(AtomicBool::new(false)));
        let device = Arc::new(Brittle(Memory::from_bytes(&image.bytes()), panics.clone()));
        unjudged.into_iter().for_each(|why| device.0.leave_unjudged(why));
        let clock = Arc::new(BrittleClock(panics.clone()));
        let options = OpenOptions::new().commit_interval(Duration::from_secs(3600)).clock(clock);
        (open(device, &options).unwrap(), panics)
    }

    /// The abort of the journal, which is part of the first panic, writes to the device: a second
    /// panic would end the process.
    #[test]
    fn a_panic_while_the_journal_is_aborted_ends_no_process() {
        let (fs, panics) = brittle(Some("it needs recovery"));
        let root = fs.root().unwrap();
        panics.store(true, Ordering::Relaxed);
        let made =
            catch_unwind(AssertUnwindSafe(|| fs.create(&root, b"file", 0o644, NodeKind::File)));
        assert!(made.is_err(), "the clock panics");
        panics.store(false, Ordering::Relaxed);
        assert!(fs.is_read_only(), "the journal is aborted");
        drop(root);
        assert!(fs.unmount().is_err());
    }

    /// Panics in the writeback of one file, or of all files together, and syncs afterwards.
    #[test]
    fn a_panic_in_writeback_leaves_no_page_to_wait_for() {
        for together in [false, true] {
            let (fs, panics) = brittle(None);
            let root = fs.root().unwrap();
            let files = ["one", "two"].map(|name| -> File {
                let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap()
            });
            files
                .iter()
                .for_each(|file| assert_eq!(file.write_at(0, &[1; 100_000]).unwrap(), 100_000));
            panics.store(true, Ordering::Relaxed);
            let write = || if together { fs.sync() } else { files[0].sync() };
            assert!(catch_unwind(AssertUnwindSafe(write)).is_err(), "the write panics");
            panics.store(false, Ordering::Relaxed);

            let (ops, (done, ended)) = (fs.operations().clone(), channel());
            std::thread::spawn(move || done.send(ops.sync()));
            if ended.recv_timeout(Duration::from_secs(60)).is_err() {
                // Its end would hang, too.
                std::mem::forget(fs);
                panic!("a sync after the panic hangs");
            }
            assert_eq!(
                files[0].take_error().unwrap_err().errno(),
                Errno::Io as i32,
                "the loss is told"
            );
            drop((files, root));
            let _ = fs.unmount();
        }
    }

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
