//! Questions to the server of a mount about the image, before the mount ends.

use super::options::Options;
use crate::table::{HeldMount, Mount};
use extant_engine::device::ImageFormat;
use rustix::io::Errno;
use serde_json::Value;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a server has for its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answer of a server about its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Format of the image. The server may have been taken over and lie.
    Format(ImageFormat),
    /// The server is gone.
    Gone,
    /// It did not answer, or was not asked.
    Unknown,
}

/// Asks the server of a mount of this user, through a process: it may never answer, and a process
/// that waits for a server cannot always end. Nothing of the mount stays open in this process.
pub fn ask(mount: &Mount) -> Served {
    let Ok(held) = HeldMount::of(&mount.dir) else { return Served::Unknown };
    // A mount may lie over it.
    if held.mount() != mount {
        return Served::Unknown;
    }
    match listen(&held) {
        Ok(Some(told)) => format_in(&told).map_or(Served::Unknown, Served::Format),
        Ok(None) if is_gone(&held) => Served::Gone,
        _ => Served::Unknown,
    }
}

/// Returns the document of the server's counters; none if there is no server, or after an error.
fn listen(held: &HeldMount) -> io::Result<Option<Value>> {
    let mut stats = Command::new("/proc/self/exe");
    stats.arg0("extant").args(["stats", "--json", "/proc/self/fd/0"]);
    let mut asking =
        stats.stdin(held.root()?).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    // It holds the root of the mount as well.
    drop(stats);
    let Some(mut answer) = asking.stdout.take() else { return Ok(None) };
    let (sender, heard) = mpsc::channel();
    let listening = thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let read = answer.read_to_end(&mut bytes);
        // The receiver is gone if this took too long.
        let _ = sender.send(read.map(|_| bytes));
    });
    let told = listening.and_then(|_| {
        heard.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    });
    let succeeded = end(asking, told.is_ok());
    // A failure is a document, too.
    Ok(serde_json::from_slice(&told?).ok().filter(|_| succeeded))
}

/// Ends the process, which would keep the mount, and returns whether it succeeded. One that waits
/// for a server that has its request stays all the same, and is not waited for.
fn end(mut asking: Child, has_answered: bool) -> bool {
    if has_answered {
        return asking.wait().is_ok_and(|status| status.success());
    }
    let _ = asking.kill();
    false
}

fn is_gone(held: &HeldMount) -> bool {
    let asked = extant_fuse::control::stats(&held.path()).err();
    asked.and_then(|error| error.raw_os_error()) == Some(Errno::NOTCONN.raw_os_error())
}

fn format_in(document: &Value) -> Option<ImageFormat> {
    let list = document.get("options")?.as_str()?;
    Options::parse([list]).ok().map(|options| options.format)
}
