//! Serving a mounted image, from opening it to its clean end.

use super::announce::Audience;
use super::keep::{self, Kept};
use super::{Patience, Plan, succeed, upgrade};
use crate::failure::{At, Failure, Result};
use crate::format::{FormatArgs, backing_files, files};
use crate::holders;
use crate::image::substituted;
use crate::interrupt::Interrupt;
use crate::log::{Log, Sink};
use crate::recovery;
use crate::remote;
use crate::sandbox::{self, Containment, Sandbox};
use crate::substitutes::{self, is_damage};
use crate::table::HeldMount;
use crate::text::{count, shown};
use extant_engine::device::{image_spec, is_in_store, is_remote, is_write_protected};
use extant_engine::format::Superblock;
use extant_engine::{Errno, Error, Fs, OpenOptions};
use extant_fuse::{Handover, Keeper, MountOptions, Mounted, PreparedRings, Unmounter};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// A file system with fewer bytes is small.
const SMALL_BYTES: u64 = 512 << 20;

/// Interval between attempts to open an image in use.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// How long a mount waits before it reports that: most unmounts that it meets end sooner, and
/// scripts take the line for an error.
const QUIET: Duration = Duration::from_secs(2);

/// Opens and mounts the image and serves it until the mount's end.
pub fn run(plan: &Plan, audience: &Audience, level: tracing::Level) -> Result {
    if plan.succeeds {
        return run_by(plan, audience, level, || succeed::mount(plan, audience));
    }
    run_by(plan, audience, level, || {
        mount(plan, audience, |interrupt| open_contained(plan, audience, interrupt))
    })
}

/// As [`run`], with a function that enters the sandbox, opens the image, and mounts it.
pub(super) fn run_by(
    plan: &Plan,
    audience: &Audience,
    level: tracing::Level,
    mount: impl FnOnce() -> Result<(Mounted, Kept)>,
) -> Result {
    let log = plan
        .log
        .as_ref()
        .map(|path| File::options().create(true).append(true).open(path))
        .transpose();
    let log_path = plan.log.as_deref().unwrap_or_else(|| Path::new("the log")).as_os_str();
    let (mounted, kept, log) = match log.at_path(log_path.as_bytes()).and_then(|log| {
        start_log(plan, audience, log.as_ref(), level).at("the log file")?;
        let (mounted, kept) = mount()?;
        Ok((mounted, kept, log))
    }) {
        Ok(done) => done,
        Err(failure) => return audience.failed(failure),
    };
    if let Audience::Terminal(context) = audience {
        plan.tell(context)?;
    }
    // From here on messages go to the log only.
    audience.ready(log.as_ref()).at("standard output and error")?;
    let handover = mounted.handover();
    let ended =
        mounted.wait().at(format_args!("{}: the mount ended with an error", plan.image.display()));
    // The mount of a handover that failed is dead, as that of a server that was killed.
    if handover.is_lost() {
        kept.leave()
    } else {
        drop(kept)
    }
    match &ended {
        Ok(()) if handover.is_done() => {
            tracing::info!("{} is served by another process now", plan.dir.display());
        }
        Ok(()) => tracing::info!("{} is unmounted", plan.image.display()),
        Err(failure) => tracing::error!("{}", failure.message().unwrap_or_default()),
    }
    ended
}

/// Enters the sandbox and opens the image by its path.
fn open_contained(
    plan: &Plan,
    audience: &Audience,
    interrupt: &Interrupt,
) -> Result<(Contained, Fs)> {
    let contained = contained(plan, audience, interrupt)?;
    let fs = open(plan, audience, interrupt, &contained.keeper)?;
    if !plan.options.sandbox
        && let Err(failure) = hold(plan)
    {
        // That the image is another one is the failure to tell.
        let _ = fs.unmount();
        return Err(failure);
    }
    Ok((contained, fs))
}

pub(super) fn mount(
    plan: &Plan,
    audience: &Audience,
    open: impl FnOnce(&Interrupt) -> Result<(Contained, Fs)>,
) -> Result<(Mounted, Kept)> {
    let interrupt = Interrupt::register().at("signals")?;
    let (Contained { keeper, rings, containment }, fs) = open(&interrupt)?;
    #[cfg(debug_assertions)]
    crate::planted::strike(&fs.superblock());
    tell_recovery(plan, audience, &fs);
    // Before there is a mount: a signal that came between would leave it without a server.
    let signals = signals(plan, &interrupt)?;
    tracing::info!("{} is mounted at {}", plan.image.display(), plan.dir.display());
    let collects = plan.options.writeback_cache.unwrap_or_else(|| !is_small(&fs));
    let options = MountOptions { writeback_cache: collects, containment, ..fuse_options(plan) };
    #[cfg(debug_assertions)]
    let options = crate::planted::lie(&fs.superblock(), options);
    let mounted = extant_fuse::mount_by(fs, &keeper, &options, rings)
        .at_path(plan.dir.as_os_str().as_bytes())?;
    if let Some(why) = mounted.instead() {
        audience.note(format_args!("{}: served through /dev/fuse: {why}", plan.dir.display()));
    }
    if plan.options.fast_opens == Some(true)
        && let Some(why) = extant_fuse::missing_for_fast_opens()
    {
        audience.note(format_args!("{}: opens are requests: {why}", plan.dir.display()));
    }
    if plan.options.needs_more_flags()
        && let Err(error) = keeper.set_flags()
    {
        audience.note(format_args!("{}: some options have no effect: {error}", plan.dir.display()));
    }
    upgrade::offer(plan, &mounted);
    watch(signals, &mounted, &keeper, audience)?;
    Ok((mounted, keeper))
}

/// Takes signals over from the flag that notes them while the image is opened.
pub(super) fn signals(plan: &Plan, interrupt: &Interrupt) -> Result<Signals> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD]).at("signals")?;
    if interrupt.hand_over() {
        return Err(refused(plan, &Errno::Intr.into()));
    }
    Ok(signals)
}

/// Acts on signals from now on.
pub(super) fn watch(
    signals: Signals,
    mounted: &Mounted,
    keeper: &Keeper,
    audience: &Audience,
) -> Result {
    let detached = !matches!(audience, Audience::Terminal(_));
    let (unmounter, handover) = (mounted.unmounter(), mounted.handover());
    let watched = Watched { unmounter, keeper: keeper.clone(), handover };
    watch_signals(signals, watched, detached).at("signals")
}

/// Starts the log of the engine's messages: to the file of `--log`; otherwise, for a server in the
/// background, to the machine's log, and until it is mounted also to its parent.
fn start_log(
    plan: &Plan,
    audience: &Audience,
    log: Option<&File>,
    level: tracing::Level,
) -> io::Result<()> {
    // A log that is read later says when a mount began and ended, too.
    let lifecycle = level.max(tracing::Level::INFO);
    let (own, level) = match (log, audience) {
        (Some(log), _) => (Sink::File(log.try_clone()?), lifecycle),
        (None, Audience::Terminal(_)) => (Sink::Stderr, level),
        (None, _) => (Sink::syslog(&plan.syslog), lifecycle),
    };
    let sink = match audience {
        Audience::Parent => Sink::Parent(Box::new(own)),
        Audience::Terminal(_) | Audience::Log => own,
    };
    // With -v every message is shown.
    Log::new(sink, level <= tracing::Level::INFO).install(level, &plan.traces);
    Ok(())
}

pub(super) fn open_options(plan: &Plan) -> OpenOptions {
    let own = &plan.options;
    let mut options = OpenOptions::new()
        .read_only(own.read_only)
        .no_recovery(own.no_recovery)
        .direct_io(own.direct_io)
        .log_data(own.log_data)
        .discard(own.discard)
        .zero_tables(own.zero_tables)
        .prefetch_block_bitmaps(own.prefetch)
        // The kernel does.
        .remember_names(false)
        .look_ahead(true)
        .shards(own.shards)
        .mount_point(plan.dir.to_string_lossy());
    if let Some(bytes) = own.memory {
        options = options.memory(bytes);
    }
    if let Some(bytes) = own.tree_memory {
        options = options.mb_frsp_max_mem(bytes);
    }
    if let Some(level) = own.aggression {
        options = options.frsp_cache_aggression(level);
    }
    if let Some(path) = &own.journal {
        options = options.journal_image(image_spec(path));
    }
    if let Some(policy) = own.errors {
        options = options.errors(policy);
    }
    if let Some(interval) = own.commit {
        options = options.commit_interval(interval);
    }
    options
}

/// Resources of a server from before it entered the sandbox.
pub(super) struct Contained {
    pub(super) keeper: Kept,
    pub(super) rings: PreparedRings,
    pub(super) containment: Containment,
}

/// Starts the keeper of the mount, makes rings, and enters the sandbox, once no other program uses
/// the image: the wait for others looks into their processes.
fn contained(plan: &Plan, audience: &Audience, interrupt: &Interrupt) -> Result<Contained> {
    if !plan.options.sandbox {
        return Ok(Contained {
            keeper: if plan.options.restart { keep::start(plan)? } else { Kept::own(plan) },
            rings: PreparedRings::of(plan.options.transport),
            containment: vec![("state", "off".into())],
        });
    }
    sandbox::command::check_libraries().map_err(|error| refused(plan, &error))?;
    let keeper = keep::start(plan)?;
    let journal = plan.options.journal.as_deref().map(image_spec);
    for image in files(&plan.spec()).iter().chain(&journal) {
        remote::prepare(image).map_err(|error| refused(plan, &error))?;
    }
    let options = open_options(plan).interrupt(interrupt.flag());
    let free = || {
        let found = claimed(plan, &options, &keeper).and_then(|options| device(plan, &options));
        // The next opening may be one that takes the disk for itself.
        keeper.release();
        found
    };
    // Other errors come again when the image is opened.
    drop(await_free(plan, audience, interrupt, free)?);
    let rings = PreparedRings::of(plan.options.transport);
    enter(plan, keeper, rings)
}

/// Enters the sandbox, from which the files of the image are reached and nothing else.
pub(super) fn enter(plan: &Plan, keeper: Kept, rings: PreparedRings) -> Result<Contained> {
    let journal = plan.options.journal.as_deref().map(image_spec);
    // Another file that takes its place from now on cannot be opened.
    let held = hold(plan)?;
    let by_number = |held: &File| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let image = held.as_ref().map(by_number);
    let files = sandbox::files_of(
        &image.unwrap_or_else(|| image_spec(&plan.image).path),
        journal.as_ref().map(|spec| spec.path.as_path()),
    );
    // Called by mount(8) to mount for reading, the server recovers the image first.
    let writes = !plan.options.read_only || plan.patience == Patience::Helper;
    let (mut read, write) = if writes { (Vec::new(), files) } else { (files, Vec::new()) };
    read.extend(backing_files(&plan.spec()));
    let sandbox =
        Sandbox { read, write, rings: rings.exist(), processes: true, ..Sandbox::default() };
    Ok(Contained { keeper, rings, containment: sandbox.enter() })
}

/// Holds the file of the image. A failure comes again when the image is opened.
///
/// # Errors
/// It is a file instead of a disk, or the reverse, since the mount was planned: for disks it would
/// give power to programs and devices of the image. Or it is another file than that of the server
/// before.
pub(super) fn hold(plan: &Plan) -> Result<Option<File>> {
    let path = image_spec(&plan.image).path;
    let held = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Ok(held) = held.map(File::from) else { return Ok(None) };
    let found = held.metadata().at_path(path.as_os_str().as_bytes())?;
    plan.image_file.map_or(Ok(()), |file| file.check(&found, &path))?;
    if found.file_type().is_block_device() != plan.options.is_disk {
        return Err(Failure::new(format_args!(
            "{}: another file has taken the place of the image; mount it again",
            shown(path.as_os_str().as_bytes())
        )));
    }
    Ok(Some(held))
}

/// Opens the files of the image, and closes them. None is parsed but for a partition table. A
/// network block device is opened in the sandbox alone, where the threads of its connections are,
/// but locked here.
fn device(plan: &Plan, options: &OpenOptions) -> Result<(), Error> {
    let spec = plan.spec();
    if !options.is_read_only() {
        remote::hold(&image_spec(&plan.image), Duration::ZERO)?;
    }
    let files = files(&spec).into_iter().enumerate();
    files.filter(|(_, file)| !is_remote(&file.path)).try_for_each(|(place, file)| {
        let read_only = options.is_read_only() || place > 0;
        options.clone().read_only(read_only).device_of(&file).map(drop)
    })
}

/// Opens the image, a disk when the kernel holds it for the mount. One that is not mounted but in
/// use is waited for: `umount` returns before the server has finished. Each user with the right to
/// read the image can hold it, too. A wait longer than [`QUIET`] is therefore reported, with the
/// processes that hold the image, and has a limit.
fn open(plan: &Plan, audience: &Audience, interrupt: &Interrupt, keeper: &Keeper) -> Result<Fs> {
    let flag = interrupt.flag();
    let options = open_options(plan).interrupt(flag.clone());
    let opened = await_free(plan, audience, interrupt, || {
        recover_first(plan, &flag)?;
        claim_and_open(plan, &options, keeper).inspect_err(|_| keeper.release())
    })?;
    accepted(plan, opened.map_err(|error| refused(plan, &error))?)
}

/// Calls `open` until the image is not in use. Returns the error of another kind that `open`
/// returned.
///
/// # Errors
/// The image stays in use, or a signal came.
fn await_free<T>(
    plan: &Plan,
    audience: &Audience,
    interrupt: &Interrupt,
    mut open: impl FnMut() -> Result<T, Error>,
) -> Result<Result<T, Error>> {
    let flag = interrupt.flag();
    let begin = Instant::now();
    let mut told = false;
    loop {
        match open() {
            Err(Error::Io(e)) if e.kind() == ErrorKind::ResourceBusy => {
                if !may_wait(plan, begin) {
                    return Err(refused(plan, &Error::Io(e)));
                }
                if flag.load(Ordering::Acquire) {
                    return Err(refused(plan, &Errno::Intr.into()));
                }
                if begin.elapsed() >= QUIET && !std::mem::replace(&mut told, true) {
                    let limit = patience(plan).as_secs();
                    let holders = holders::named(&image_spec(&plan.image).path);
                    audience.waits(format_args!("{e}{holders}; waiting for up to {limit} s"));
                }
                thread::sleep(LOOK);
            }
            opened => return Ok(opened),
        }
    }
}

/// Called by mount(8) to mount for reading, does as the kernel does: a file system that was not
/// unmounted is recovered first, on its disk, unless that was not wanted (`noload`) or the disk is
/// write-protected. `extant mount -o ro` never writes.
fn recover_first(plan: &Plan, interrupt: &Arc<AtomicBool>) -> Result<(), Error> {
    let own = &plan.options;
    let asked = plan.patience == Patience::Helper
        && own.read_only
        && !own.no_recovery
        && own.superblock.is_none();
    if !asked || is_write_protected(&image_spec(&plan.image).path) {
        return Ok(());
    }
    // Without a place of the mount and the like: the superblock says of a mount for reading
    // nothing.
    let recovering = OpenOptions::new().count_mount(false).direct_io(own.direct_io);
    let recovering = own
        .journal
        .iter()
        .fold(recovering, |recovering, path| recovering.journal_image(image_spec(path)));
    let recovering =
        own.memory.iter().fold(recovering, |recovering, bytes| recovering.memory(*bytes));
    let recovering =
        own.errors.iter().fold(recovering, |recovering, policy| recovering.errors(*policy));
    let looked = Fs::open_image(&plan.spec(), &recovering.clone().no_recovery(true))?;
    let sb = looked.superblock();
    drop(looked);
    if !was_in_use(&sb) {
        return Ok(());
    }
    let recovered = Fs::open_image(&plan.spec(), &recovering.interrupt(interrupt.clone()))?;
    for line in recovery::lines(recovered.recovery()) {
        tracing::info!("{}: {line}", plan.image.display());
    }
    recovered.unmount()
}

/// Returns whether a file system was not unmounted: it has changes to replay, or files to free.
pub fn was_in_use(sb: &Superblock) -> bool {
    sb.last_orphan().0 != 0
        || sb
            .features()
            .names()
            .iter()
            .any(|name| ["needs_recovery", "orphan_present"].contains(&name.as_str()))
}

/// Lets the kernel claim a disk, and returns options that know it.
fn claimed(plan: &Plan, options: &OpenOptions, keeper: &Keeper) -> Result<OpenOptions, Error> {
    if !is_in_store(&image_spec(&plan.image).path) {
        remote::refuse_mounted(&plan.image)?;
    }
    let claimed = keeper.claim(plan.options.read_only).map_err(Error::Io)?;
    Ok(options.clone().claimed(claimed))
}

fn claim_and_open(plan: &Plan, options: &OpenOptions, keeper: &Keeper) -> Result<Fs, Error> {
    let options = claimed(plan, options, keeper)?;
    if let Some(place) = plan.options.superblock {
        return by_copy_at(place, plan, &options);
    }
    match Fs::open_image(&plan.spec(), &options) {
        Err(error) if may_use_copies(plan, &options) && is_damage(&error) => {
            by_copies(plan, error, &options)
        }
        opened => opened,
    }
}

/// Returns whether a damaged superblock and damaged descriptors may be replaced in memory: the user
/// has asked for a mount that reads. mount(8) expects the behavior of the kernel, which refuses.
fn may_use_copies(plan: &Plan, options: &OpenOptions) -> bool {
    options.is_read_only() && plan.patience != Patience::Helper
}

/// Opens a damaged image for reading by copies, if it has them.
fn by_copies(plan: &Plan, error: Error, options: &OpenOptions) -> Result<Fs, Error> {
    let journal = plan.options.journal.as_deref().map(image_spec);
    let opened = substitutes::open(&plan.spec(), journal.as_ref(), options);
    let Some((fs, found)) = opened else { return Err(error) };
    let name = shown(plan.image.as_os_str().as_bytes());
    tracing::warn!("{}", substituted(&name, &found, Some(&error)));
    Ok(fs)
}

/// Opens an image for reading by the copy of the superblock at a place in KiB.
fn by_copy_at(place: u64, plan: &Plan, options: &OpenOptions) -> Result<Fs, Error> {
    let (image, journal) = (plan.spec(), plan.options.journal.as_deref().map(image_spec));
    let blocks =
        (0..=6).filter(|log| place.is_multiple_of(1 << log)).map(|log| (place >> log, 1024 << log));
    let mut refused = Error::Invalid(format!("there is no copy of a superblock at {place} KiB"));
    for (block, size) in blocks {
        match substitutes::open_at(block, &image, journal.as_ref(), options) {
            Ok((fs, found)) if fs.superblock().block_size() == size => {
                let name = shown(plan.image.as_os_str().as_bytes());
                tracing::warn!("{}", substituted(&name, &found, None));
                return Ok(fs);
            }
            Err(error) if !matches!(error, Error::Invalid(_)) => refused = error,
            _ => {}
        }
    }
    Err(refused)
}

/// Refuses to mount(8) a write-protected disk whose log needs a replay, as the kernel does.
fn accepted(plan: &Plan, fs: Fs) -> Result<Fs> {
    let protected = is_write_protected(&image_spec(&plan.image).path);
    if plan.patience == Patience::Helper && fs.recovery().in_memory && protected {
        let (dir, image) = (plan.dir.display(), plan.image.display());
        return Err(Failure::new(format_args!(
            "mount: {dir}: cannot mount {image} read-only: it needs recovery, and is \
            write-protected (with norecovery it is mounted as it \
             is; `extant mount` recovers in memory)"
        )));
    }
    Ok(fs)
}

fn may_wait(plan: &Plan, begin: Instant) -> bool {
    let waits_for_mounts = plan.patience == Patience::Long;
    begin.elapsed() < patience(plan) && (waits_for_mounts || plan.served().is_empty())
}

fn patience(plan: &Plan) -> Duration {
    Duration::from_secs(match plan.patience {
        Patience::Short => 10,
        Patience::Helper => 60,
        Patience::Long => 3600,
    })
}

pub(super) fn refused(plan: &Plan, error: &Error) -> Failure {
    if let (Error::Io(e), Some(there)) = (error, plan.served().first())
        && e.kind() == ErrorKind::ResourceBusy
    {
        let (image, dir) = (plan.image.display(), there.dir.display());
        return Failure::new(format_args!("{image} is mounted at {dir}; unmount it there first"));
    }
    let journal = plan.options.journal.clone();
    let args = crate::image::ImageArgs {
        image: plan.image.clone(),
        wait: plan.patience == Patience::Long,
        journal,
        memory: plan.options.memory,
        stored: FormatArgs {
            format: plan.options.format.into(),
            backing: plan.options.backing.clone(),
        },
        in_use: false,
    };
    args.refused(error)
}

fn tell_recovery(plan: &Plan, audience: &Audience, fs: &Fs) {
    let image = plan.image.display();
    let recovery = fs.recovery();
    if let Some(journal) = recovery.journal.as_ref().filter(|journal| journal.transactions > 0) {
        let place = if recovery.in_memory { " in memory" } else { "" };
        audience.note(format_args!(
            "{image}: replayed {}{place}",
            count(journal.transactions.into(), "transaction")
        ));
    }
    if recovery.log_emptied {
        audience.note(format_args!(
            "{image}: the journal held changes of an earlier time, which were dropped"
        ));
    }
    if let Some(why) = &recovery.read_only {
        audience.note(format_args!("{image}: mounted read-only: {why}"));
    }
}

/// The kernel accepts some hundred MiB of writes without a check for space: more than a small file
/// system has. There it is better that each write reports itself whether it has space.
fn is_small(fs: &Fs) -> bool {
    let sb = fs.superblock();
    sb.blocks_count().saturating_mul(sb.block_size().into()) < SMALL_BYTES
}

/// Returns the options of the server.
pub fn fuse_options(plan: &Plan) -> MountOptions {
    let own = &plan.options;
    let mut options = MountOptions {
        source: plan.image.clone().into_os_string(),
        kernel: own.by_name(),
        threads: own.threads,
        transport: own.transport,
        fast_opens: own.fast_opens,
        acl: own.acl,
        id_maps: own.id_maps,
        view: own.view,
        access_times: own.access_times(),
        directory_access_times: !own.flags.contains(MountFlags::NODIRATIME),
        subtype: plan.subtype.clone(),
        shown_options: plan.lists.join(","),
        owner: plan.owner,
        ..MountOptions::default()
    };
    options.allow_other = own.allow_other.unwrap_or(options.allow_other && !own.view.as_root);
    options
}

/// Sets flags of the mount that cannot be given when a FUSE file system is mounted.
pub fn change_flags(plan: &Plan) -> io::Result<()> {
    let held = HeldMount::of(&plan.dir)?;
    // A user that may write to the mounted directory can mount a server of their own over it at
    // once.
    if !held.mount().is_ours(&plan.subtype) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "another mount is there, too"));
    }
    Ok(rustix::mount::mount_remount(
        held.path(),
        MountFlags::BIND | plan.options.mount_flags(),
        "",
    )?)
}

/// A mount whose server gets signals.
struct Watched {
    unmounter: Unmounter,
    keeper: Keeper,
    handover: Handover,
}

/// Unmounts at the first signal; commits and ends at the second; ends at the third. Tells of the
/// end of the keeper, which starts no other server after a signal.
fn watch_signals(mut signals: Signals, watched: Watched, detached: bool) -> io::Result<()> {
    let body = move || {
        let mut asked = 0;
        for signal in signals.forever() {
            if signal == SIGCHLD {
                tell_loss(&watched.keeper);
                continue;
            }
            if signal == SIGHUP && detached {
                continue;
            }
            asked += 1;
            watched.keeper.dismiss();
            match asked {
                1 => unmount_beside(watched.unmounter.clone()),
                2 => commit_beside(watched.handover.clone()),
                _ => std::process::exit(1),
            }
        }
    };
    Builder::new().name("extant-signals".into()).spawn(body).map(|_| ())
}

/// Says how the mount ends where the process that unmounts was ended.
fn tell_loss(keeper: &Keeper) {
    if keeper.is_lost() {
        let dir = keeper.dir().display();
        tracing::error!(
            "the process that keeps the privileges was ended: signals no longer unmount {dir}, and \
            administration is refused there; `umount {dir}` ends the mount"
        );
    }
}

/// Unmounts from a thread of its own, since that needs the mount to be served. A mount in use is
/// detached: it ends with its last user.
fn unmount_beside(unmounter: Unmounter) {
    let body = move || match unmounter.unmount() {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::ResourceBusy => {
            tracing::warn!("the mount is in use: it is detached, and ends with its last user");
            if let Err(e) = unmounter.detach() {
                tracing::error!("the mount cannot be detached: {e}");
            }
        }
        Err(e) => tracing::error!("the mount cannot be unmounted: {e}"),
    };
    if let Err(e) = Builder::new().name("extant-unmount".into()).spawn(body) {
        tracing::error!("the mount cannot be unmounted: {e}");
    }
}

fn commit_beside(handover: Handover) {
    let body = move || {
        // Not by the server of the beginning: a handover that failed has put another one in place.
        if let Err(e) = handover.sync() {
            tracing::error!("the last changes could not be written: {e}");
        }
        std::process::exit(1);
    };
    if Builder::new().name("extant-commit".into()).spawn(body).is_err() {
        std::process::exit(1);
    }
}
