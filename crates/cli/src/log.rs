//! The engine's messages: where they go, one line each, and not too many.
//!
//! # Invariants
//! - A message is one line, whatever names of an image it contains: control characters are escaped
//!   here, for all sinks.
//! - A limited log writes at most [`BURST`] messages in [`WINDOW`]: a damaged or hostile image
//!   cannot fill a disk with them. Traces, which were asked for, are not limited.

use crate::tell;
use crate::text::{count, shown};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// Messages of a limited log in a window.
const BURST: u32 = 20;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(5);

/// Where the machine's log takes messages.
pub const SYSLOG: &str = "/dev/log";

/// The facility of daemons, as syslog(3) counts it.
const DAEMON: u8 = 3 << 3;

/// Where messages go.
#[derive(Debug)]
pub enum Sink {
    /// Standard error.
    Stderr,
    /// A file.
    File(File),
    /// The machine's log.
    Syslog(UnixDatagram),
    /// The process that started this one, until `ready` is set; then, and besides, the sink within.
    Parent(Box<Sink>),
    /// Nowhere.
    Nowhere,
}

impl Sink {
    /// Returns the machine's log if it takes messages at `path`.
    pub fn syslog(path: &Path) -> Sink {
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.connect(path)?;
            // A log that does not keep up must not hold up a file system.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        socket.map_or(Sink::Nowhere, Sink::Syslog)
    }

    fn write(&self, level: &Level, line: &str) -> io::Result<()> {
        match self {
            Sink::Stderr => writeln!(io::stderr().lock(), "{} {line}", word(level)),
            Sink::File(file) => {
                let mut file = file;
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |now| now.as_secs() as i64);
                file.write_all(
                    format!("{} {} {line}\n", crate::text::seconds(now), word(level)).as_bytes(),
                )
            }
            Sink::Syslog(socket) => {
                let text =
                    format!("<{}>extant[{}]: {line}", DAEMON | severity(level), std::process::id());
                socket.send(text.as_bytes()).map(drop)
            }
            Sink::Parent(next) => {
                if !READY.load(Ordering::Acquire) && *level <= Level::WARN {
                    tell::send(tell::NOTE, line);
                }
                next.write(level, line)
            }
            Sink::Nowhere => Ok(()),
        }
    }
}

/// The parent process no longer reads messages.
static READY: AtomicBool = AtomicBool::new(false);

/// Ends the messages to the parent process.
pub fn leave_parent() {
    READY.store(true, Ordering::Release);
}

fn word(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error:",
        Level::WARN => "warning:",
        Level::INFO => "info:",
        Level::TRACE => "trace:",
        _ => "debug:",
    }
}

/// Returns the severity that syslog(3) has for a level.
fn severity(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// How many messages came in the window that is open.
#[derive(Debug)]
struct Limiter {
    begin: Instant,
    written: u32,
    left_out: u64,
}

/// Decision about a message.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Write it, after a remark that so many were left out.
    Write { left_out: u64 },
    /// Leave it out, with a remark if it is the first one.
    LeaveOut { first: bool },
}

impl Limiter {
    fn judge(&mut self, now: Instant) -> Verdict {
        let mut left_out = 0;
        if now.duration_since(self.begin) >= WINDOW {
            left_out = std::mem::take(&mut self.left_out);
            (self.begin, self.written) = (now, 0);
        }
        if self.written < BURST {
            self.written += 1;
            return Verdict::Write { left_out };
        }
        self.left_out += 1;
        Verdict::LeaveOut { first: self.left_out == 1 }
    }
}

/// The log that messages of the engine are written to.
#[derive(Debug)]
pub struct Log {
    sink: Sink,
    limiter: Option<Mutex<Limiter>>,
}

impl Log {
    /// Makes a log; with every message, or a limited number of them.
    pub fn new(sink: Sink, limited: bool) -> Log {
        let limiter = Limiter { begin: Instant::now(), written: 0, left_out: 0 };
        Log { sink, limiter: limited.then(|| Mutex::new(limiter)) }
    }

    /// Makes this the log of the process: of messages up to `level`, and of all messages of the
    /// targets `traces`. A log that is there already stays.
    pub fn install(self, level: Level, traces: &[String]) {
        // The place of a message compares its level with the highest one of all targets, and no
        // more: without `traces` a trace costs a load.
        let most = if traces.is_empty() { level } else { Level::TRACE };
        let logger =
            tracing_subscriber::fmt().with_max_level(most).with_target(false).with_level(false);
        let logger = logger.without_time().with_ansi(false).with_writer(self).finish();
        let logger: Box<dyn Subscriber + Send + Sync> = if traces.is_empty() {
            Box::new(logger)
        } else {
            let traced = traces.iter().map(|target| (target.clone(), LevelFilter::TRACE));
            Box::new(logger.with(Targets::new().with_default(level).with_targets(traced)))
        };
        let _ = tracing::subscriber::set_global_default(logger);
    }

    fn write(&self, level: &Level, line: &str) -> io::Result<()> {
        let Some(limiter) = self.limiter.as_ref().filter(|_| *level < Level::TRACE) else {
            return self.sink.write(level, line);
        };
        let verdict = limiter.lock().unwrap_or_else(PoisonError::into_inner).judge(Instant::now());
        match verdict {
            Verdict::Write { left_out: 0 } => self.sink.write(level, line),
            Verdict::Write { left_out } => {
                self.sink.write(level, &format!("{} left out", count(left_out, "message")))?;
                self.sink.write(level, line)
            }
            Verdict::LeaveOut { first: true } => {
                let seconds = WINDOW.as_secs();
                self.sink.write(
                    level,
                    &format!("too many messages: further ones are left out for up to {seconds} s"),
                )
            }
            Verdict::LeaveOut { first: false } => Ok(()),
        }
    }
}

/// A message on its way to the log.
#[derive(Debug)]
pub struct Entry<'a> {
    log: &'a Log,
    level: Level,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Entry<'a>;

    fn make_writer(&'a self) -> Entry<'a> {
        Entry { log: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Entry<'a> {
        Entry { log: self, level: *meta.level() }
    }
}

impl Write for Entry<'_> {
    /// Takes a whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let line = shown(message.trim_ascii());
        self.log.write(&self.level, &line)?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_log_counts_its_omissions() {
        let begin = Instant::now();
        let mut limiter = Limiter { begin, written: 0, left_out: 0 };
        for _ in 0..BURST {
            assert_eq!(limiter.judge(begin), Verdict::Write { left_out: 0 });
        }
        assert_eq!(limiter.judge(begin), Verdict::LeaveOut { first: true });
        assert_eq!(limiter.judge(begin), Verdict::LeaveOut { first: false });
        assert_eq!(limiter.judge(begin + WINDOW), Verdict::Write { left_out: 2 });
        assert_eq!(limiter.judge(begin + WINDOW), Verdict::Write { left_out: 0 });
    }
}
