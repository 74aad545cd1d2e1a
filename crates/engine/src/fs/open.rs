//! The steps of opening, in order: superblock, journal, superblock again, modules, orphans, jobs.

use super::assemble::{TREE_SHARE, Use, VFS_SHARE, build};
use super::features::{self, Access};
use super::jobs::{self, Jobs};
use super::journal_client::StoreClient;
use super::marks::{is_closed, mark_clean, mark_error, mark_mounted, unmark};
use super::shares::PoolMember;
use super::{Fs, OpenOptions, Recovery, superblocks};
use crate::error::{Error, Result};
use crate::mmp::Mmp;
use crate::ops::Operations;
use crate::store::Store;
use crate::vfs::Vfs;
use extant_blocks::{BlockDevice, MountedDevice};
use extant_format::Geometry;
use extant_format::features::{Incompat, RoCompat};
use extant_format::superblock::Superblock;
use extant_journal::Log;
use extant_sync::atomic::Ordering;
use extant_sync::with_shards;
use std::sync::Arc;

/// Opens the file system on `dev`.
pub fn open(dev: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Fs> {
    let exclusive = !options.read_only && !dev.read_only();
    // All shared structures of a file system are made by this call, on this thread.
    with_shards(options.shards, || {
        let mounted = MountedDevice::claimed(dev, exclusive)?;
        open_mounted(&mounted, &options.with_tasks()).inspect_err(|_| mounted.revoke())
    })
}

/// Reads the superblock of a file system that the options allow.
fn superblock(dev: &dyn BlockDevice, options: &OpenOptions) -> Result<(Superblock, Geometry)> {
    if options.allow_short && options.read_only {
        superblocks::superblock_of_part(dev)
    } else {
        superblocks::superblock(dev)
    }
}

fn open_mounted(mounted: &Arc<MountedDevice>, options: &OpenOptions) -> Result<Fs> {
    let (sb, geo) = superblock(&**mounted, options)?;
    let mut recovery = Recovery::default();
    let write = may_write(&**mounted, &sb, options, &mut recovery)?;
    let opening = Opening { mounted, options, write, recovery };
    if !write || options.under_claim || !sb.incompat().contains(Incompat::MMP) {
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
pub(super) struct Opening<'a> {
    pub mounted: &'a Arc<MountedDevice>,
    pub options: &'a OpenOptions,
    /// Whether the file system is opened for writing.
    pub write: bool,
    /// The report for the caller.
    pub recovery: Recovery,
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
        let (sb, _) = superblock(&*dev, options)?;
        if !self.write {
            let mut fs = self.assemble(dev, &sb, sb.clone(), None)?;
            fs.external_log = external_log;
            options.adopts.iter().for_each(|held| fs.ops.adopt_errors(held));
            return Ok(fs);
        }
        let mut marked = sb.clone();
        // Durable before the first change: the next opening recovers then.
        mark_mounted(&*dev, &mut marked, log.is_some(), options)?;
        let assembled = self.assemble(dev.clone(), &sb, marked, log);
        let mut fs = assembled.inspect_err(|_| unmark(&*dev, sb))?;
        fs.external_log = external_log;
        start(&mut fs, options).inspect_err(|_| abandon(&fs))?;
        options.adopts.iter().for_each(|held| fs.ops.adopt_errors(held));
        Ok(fs)
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
        options.adopts.iter().for_each(|held| ops.adopt_holds(held));
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
            has_adopted: options.adopts.is_some(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Errno, File, NodeKind, OpenFlags, Timestamp};
    use extant_sync::atomic::AtomicBool;
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
}
