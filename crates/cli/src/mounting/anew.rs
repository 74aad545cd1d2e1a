//! Makes a mount writable that was opened for reading: unmounts it and mounts it again, if it is
//! not in use.

use super::{Plan, spawn};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::table;
use extant_engine::device::{FileOptions, image_spec, is_remote, is_write_protected};
use rustix::mount::UnmountFlags;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long is waited for a server to finish.
const PATIENCE: Duration = Duration::from_secs(3600);

/// How long is waited without a remark.
const QUIET: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Mounts the image for writing where it is mounted for reading. If that fails, it is mounted for
/// reading again.
///
/// # Errors
/// The mount is in use, or shows at other places, too; those of mounting.
pub fn mount(plan: &Plan, context: &Context) -> Result {
    let refused = |why: &str| {
        let dir = plan.dir.display();
        Err(Failure::new(format_args!(
            "{dir}: cannot remount it read-write: it was opened for reading, and {why}"
        )))
    };
    if plan.lacks_files {
        return refused(
            "its journal is outside, or it is no raw image: name that again, by journal_path=, \
             format= and backing=",
        );
    }
    if is_write_protected(&image_spec(&plan.image).path) {
        return refused("is write-protected");
    }
    if table::served(&plan.image, &plan.subtype).len() != 1 {
        return refused("is mounted at other places, too");
    }
    // From here on the mount is gone: a failure below mounts it for reading again.
    if rustix::mount::unmount(&plan.dir, UnmountFlags::NOFOLLOW).is_err() {
        return refused("is in use");
    }
    // The old server releases its lock on the image after its last write.
    await_server(&plan.image, &plan.subtype)?;
    let mut plan = plan.clone();
    plan.options.remount = false;
    let mut lists: Vec<String> = plan.lists.iter().map(|list| without_remount(list)).collect();
    spawn::start(&plan, &lists, context).or_else(|failure| {
        plan.options.read_only = true;
        lists.push("ro".into());
        spawn::start(&plan, &lists, context).and(Err(failure))
    })
}

fn without_remount(list: &str) -> String {
    list.split(',').filter(|word| *word != "remount").collect::<Vec<_>>().join(",")
}

/// The end of a wait for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// No program uses it.
    Closed,
    /// It is mounted at another place, or again.
    Mounted,
    /// Its server has ended, and another program uses it.
    Taken,
}

/// Waits until the server has released the image: then everything is written.
pub fn await_server(source: &Path, subtype: &str) -> Result {
    await_release(source, subtype, || (), || false).map(|_| ())
}

/// Waits until the image is released. Calls `remark` once, if that takes long; `ended` must return
/// whether the server is known to have ended.
pub fn await_release(
    source: &Path,
    subtype: &str,
    remark: impl Fn(),
    ended: impl Fn() -> bool,
) -> Result<Release> {
    let spec = image_spec(source);
    if is_remote(&spec.path) {
        return Ok(await_end(source, subtype, remark, ended));
    }
    if !spec.path.exists() {
        return Ok(Release::Closed);
    }
    let options = FileOptions::from_spec(&spec).read_only(true);
    let begin = Instant::now();
    let mut told = false;
    loop {
        // Before the look at the image, which the server may release in between.
        let has_ended = ended();
        match options.open() {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && begin.elapsed() < PATIENCE => {
                if !table::served(source, subtype).is_empty() {
                    return Ok(Release::Mounted);
                }
                if has_ended {
                    return Ok(Release::Taken);
                }
                if begin.elapsed() >= QUIET && !std::mem::replace(&mut told, true) {
                    remark();
                }
                sleep(LOOK);
            }
            opened => {
                opened.at_path(source.as_os_str().as_bytes())?;
                return Ok(Release::Closed);
            }
        }
    }
}

/// Waits until the server of a network block device has ended: no lock tells that it has closed it.
fn await_end(source: &Path, subtype: &str, remark: impl Fn(), ended: impl Fn() -> bool) -> Release {
    let begin = Instant::now();
    let mut told = false;
    while !ended() && begin.elapsed() < PATIENCE {
        if !table::served(source, subtype).is_empty() {
            return Release::Mounted;
        }
        if begin.elapsed() >= QUIET && !std::mem::replace(&mut told, true) {
            remark();
        }
        sleep(LOOK);
    }
    Release::Closed
}
