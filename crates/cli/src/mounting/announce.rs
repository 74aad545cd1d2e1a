//! Messages of the serving process to its parent, through a pipe: remarks, then success or the
//! reason of the failure.
//!
//! Each message is a line: a word, a space, and text without line breaks.

use crate::context::{Context, complain};
use crate::failure::{Failure, Result};
use crate::tell::{NOTE, send};
use crate::text::shown;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const WAITS: &str = "waits";
const FAILED: &str = "failed";
const READY: &str = "ready";

/// Longest line that is read at once. A socket that keeps the bounds of messages drops the rest.
const LINE: usize = 64 << 10;

/// To whom a server talks.
#[derive(Clone, Debug)]
pub enum Audience {
    /// The process that started it, until it is mounted.
    Parent,
    /// The reader of standard error.
    Terminal(Context),
    /// The reader of the log: no process waits for the mount.
    Log,
}

impl Audience {
    /// A remark.
    pub fn note(&self, text: impl Display) {
        match self {
            Audience::Parent => send(NOTE, text),
            Audience::Terminal(context) => context.note(text),
            Audience::Log => tracing::info!("{text}"),
        }
    }

    /// A wait for something that this program does not control. It is told in any case: helpers and
    /// `--quiet` would leave the user without the reason.
    pub fn waits(&self, text: impl Display) {
        match self {
            Audience::Parent => send(WAITS, text),
            Audience::Terminal(_) => complain(text),
            Audience::Log => tracing::warn!("{text}"),
        }
    }

    /// Announces the mount. Afterwards the parent no longer reads: standard input and output become
    /// /dev/null, and so does standard error unless there is a `log`.
    pub fn ready(&self, log: Option<&File>) -> std::io::Result<()> {
        match self {
            Audience::Terminal(_) => return Ok(()),
            Audience::Log => {}
            Audience::Parent => {
                crate::log::leave_parent();
                // The end of the process that started this one ends nothing from now on.
                rustix::process::set_parent_process_death_signal(None)?;
                send(READY, "");
            }
        }
        let nowhere = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        Ok(rustix::stdio::dup2_stderr(log.unwrap_or(&nowhere))?)
    }

    /// It is not mounted.
    pub fn failed(&self, failure: Failure) -> Result {
        match (self, failure.message()) {
            (Audience::Parent, Some(_)) => {
                send(FAILED, failure.to_wire());
                Err(Failure::told())
            }
            (Audience::Log, Some(message)) => {
                tracing::error!("{message}");
                Err(Failure::told())
            }
            _ => Err(failure),
        }
    }
}

/// Listens until `image` is mounted or that has failed.
pub fn listen(from: impl Read, image: &Path, context: &Context) -> Result {
    for line in BufReader::with_capacity(LINE, from).lines() {
        let Ok(line) = line else { break };
        let (word, text) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            READY => return Ok(()),
            FAILED => return Err(Failure::from_wire(text)),
            NOTE => context.note(text),
            WAITS => complain(text),
            _ => {}
        }
    }
    Err(Failure::new(format_args!(
        "{}: the server ended before the image was mounted, killed for lack of memory perhaps; \
         `--foreground -v` shows how far it comes, `-o memory=64M` lets it take less",
        shown(image.as_os_str().as_bytes())
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_hears_how_it_went() {
        let (context, image) = (Context::helper(false), Path::new("/x.img"));
        assert!(listen(&b"note x\nready \n"[..], image, &context).is_ok());
        let failure = listen(&b"note x\nfailed no such thing\n"[..], image, &context).unwrap_err();
        assert_eq!(failure.message(), Some("no such thing"));
        let ended = listen(&b""[..], image, &context).unwrap_err();
        assert!(ended.message().is_some_and(|text| text.contains("/x.img")));
    }
}
