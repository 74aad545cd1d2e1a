//! The server of a mount service: serves an image that a client has handed over.
//!
//! It opens no path for the client, and needs no privileges: the client has opened the image, and
//! its keeper mounts and unmounts. The client may be any process, so its message, its options, the
//! answers of its keeper and its image count as hostile.

use super::announce::Audience;
use super::handover::Handover;
use super::keep::Kept;
use super::options::Options;
use super::serve::{self, Contained, LOOK, open_options};
use super::{Patience, Plan};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::sandbox::Sandbox;
use crate::text::shown;
use extant_engine::device::{FileDevice, FileOptions, ImageSpec, image_spec};
use extant_engine::{Errno, Error, Fs};
use extant_fuse::PreparedRings;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How long a server before this one may take to close the image.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bounds of a service, also for clients that ask for more.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Largest bound on all caches together, in bytes.
    pub memory: u64,
    /// Threads; 0: by the number of CPUs.
    pub threads: usize,
    /// The user that the client runs as.
    pub user: u32,
    /// Where the machine's log takes messages.
    pub syslog: PathBuf,
}

/// Serves until the mount has ended.
///
/// # Errors
/// The options or the image are refused, and those of the mount; the client is told.
pub fn run(handover: Handover, bounds: &Bounds) -> Result {
    let audience = Audience::Parent;
    let plan = match plan(&handover, bounds) {
        Ok(plan) => plan,
        Err(failure) => return audience.failed(failure),
    };
    serve::run_by(&plan, &audience, tracing::Level::INFO, || {
        serve::mount(&plan, &audience, |interrupt| open(handover, &plan, interrupt))
    })
}

fn plan(handover: &Handover, bounds: &Bounds) -> Result<Plan> {
    let words = &handover.words;
    let mut options = Options::parse([&*words.options]).map_err(Failure::usage)?;
    options.check_service().map_err(Failure::usage)?;
    if !options.sandbox {
        return Err(Failure::usage("a mount service keeps its sandbox: leave out no_sandbox"));
    }
    let found = handover.image.metadata();
    options.is_disk = found.is_ok_and(|found| found.file_type().is_block_device());
    options.threads = bounds.threads;
    options.memory = Some(options.memory.map_or(bounds.memory, |wish| wish.min(bounds.memory)));
    // 0 stands for any number.
    options.tree_memory = options
        .tree_memory
        .map(|wish| if wish == 0 { bounds.memory } else { wish.min(bounds.memory) });
    Ok(Plan {
        image: words.image.clone(),
        dir: words.dir.clone(),
        lists: vec![words.options.clone()],
        options,
        lacks_files: false,
        subtype: "extant".into(),
        log: None,
        traces: Vec::new(),
        syslog: bounds.syslog.clone(),
        patience: Patience::Short,
        verbose: 0,
        replaces: false,
        succeeds: false,
        adopts: None,
        kept: false,
        image_file: None,
        owner: Some(bounds.user),
    })
}

/// Opens the image in a sandbox without any file.
fn open(handover: Handover, plan: &Plan, interrupt: &Interrupt) -> Result<(Contained, Fs)> {
    let Handover { image, acts, quick, .. } = handover;
    let number = format!("/proc/self/fd/{}", image.as_raw_fd());
    // Messages name the image as the client does.
    let refused = |error: Error| {
        let name = shown(plan.image.as_os_str().as_bytes());
        let text = error.to_string().replace(&number, &name);
        let text = if text.contains(&name) { text } else { format!("{name}: {text}") };
        Failure::of(&error, plan.image.as_os_str().as_bytes(), text)
    };
    let keeper = Kept::by(plan, acts, quick);
    let spec = ImageSpec::whole(&number).at(image_spec(&plan.image).place);
    let files = FileOptions::from_spec(&spec).read_only(plan.options.read_only);
    let device = claim(&files, &image, interrupt).map_err(refused)?;
    let rings = PreparedRings::of(plan.options.transport);
    let sandbox = Sandbox { rings: rings.exist(), processes: true, ..Sandbox::default() };
    let containment = sandbox.enter();
    let options = open_options(plan).interrupt(interrupt.flag());
    let fs = Fs::open_device(Arc::new(device), &options).map_err(refused)?;
    Ok((Contained { keeper, rings, containment }, fs))
}

/// Locks the image. A server before this one may be about to close it.
fn claim(files: &FileOptions, image: &File, interrupt: &Interrupt) -> Result<FileDevice, Error> {
    let (begin, flag) = (Instant::now(), interrupt.flag());
    loop {
        match files.open_in(image.try_clone()?) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && begin.elapsed() < PATIENCE => {
                if flag.load(Ordering::Acquire) {
                    return Err(Errno::Intr.into());
                }
                thread::sleep(LOOK);
            }
            opened => return Ok(opened?),
        }
    }
}
