//! FUSE requests of a mount and system calls of its server, counted by the kernel's tracepoints.

use extant_measure::scratch::{MountGuard, Scratch, Undo};
use parking_lot::Mutex;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use rustix::fs::{major, minor, stat};
use rustix::mount::{MountFlags, mount};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io, process};

/// The kernel's tracepoint of requests that are sent to servers.
const REQUESTS: &str = "events/fuse/fuse_request_send";

/// The kernel's tracepoint of system calls.
const CALLS: &str = "events/raw_syscalls/sys_enter";

/// Kibibytes of each processor's buffer: 600,000 requests.
const BUFFER_KIB: u32 = 32 << 10;

/// Numbers of requests by their name in the protocol.
pub type Requests = BTreeMap<String, u64>;

/// A trace of its own, which no other program's trace disturbs. Fields in the order in which they
/// have to go.
pub struct Trace {
    instance: PathBuf,
    system_calls: u64,
    server: Mutex<Option<u32>>,
    counters: Mutex<Vec<Counter>>,
    _undo: Undo,
    _mount: MountGuard,
    _scratch: Scratch,
}

impl Trace {
    /// Makes a trace that is off.
    pub fn new() -> io::Result<Trace> {
        let scratch = Scratch::new()?;
        let tracing = scratch.dir("tracing")?;
        let guard = MountGuard::new(&tracing);
        let about = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        mount("extant-lab", &tracing, "tracefs", MountFlags::empty(), None)
            .map_err(|e| about("mounting tracefs (which needs root)", e.into()))?;
        if !tracing.join(REQUESTS).exists() {
            let why = "this kernel has no tracepoint of FUSE requests: Linux 6.12 has";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let id = fs::read_to_string(tracing.join(CALLS).join("id"))
            .map_err(|e| about("the tracepoint of system calls", e))?;
        let system_calls = id.trim().parse().map_err(io::Error::other)?;
        let instance = tracing.join("instances").join(format!("extant-lab-{}", process::id()));
        fs::create_dir(&instance).map_err(|e| about("an instance of tracefs", e))?;
        let gone = instance.clone();
        let undo = Undo::new(move || drop(fs::remove_dir(gone)));
        let trace = Trace {
            instance,
            system_calls,
            server: Mutex::default(),
            counters: Mutex::default(),
            _undo: undo,
            _mount: guard,
            _scratch: scratch,
        };
        trace.set("tracing_on", "0")?;
        trace.set("options/overwrite", "0")?;
        trace.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        Ok(trace)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    }

    /// Chooses the mount on `dir` and the process that serves it.
    pub fn aim(&self, dir: &Path, server: Option<u32>) -> io::Result<()> {
        let device = stat(dir)?.st_dev;
        let connection = major(device) << 20 | minor(device);
        self.set(&format!("{REQUESTS}/filter"), &format!("connection == {connection}"))?;
        self.set(&format!("{REQUESTS}/enable"), "1")?;
        *self.server.lock() = server;
        Ok(())
    }

    /// Begins to count.
    pub fn start(&self) -> io::Result<()> {
        self.set("trace", "")?;
        let server = *self.server.lock();
        *self.counters.lock() = server.map_or(Ok(Vec::new()), |pid| self.counters(pid))?;
        self.set("tracing_on", "1")
    }

    /// Stops, and returns the counts since the start.
    pub fn stop(&self) -> io::Result<Counted> {
        self.set("tracing_on", "0")?;
        let mut counters = std::mem::take(&mut *self.counters.lock());
        let calls = counters.iter_mut().map(Counter::read).sum::<io::Result<u64>>()?;
        self.complete()?;
        let requests = by_name(&fs::read_to_string(self.instance.join("trace"))?);
        Ok(Counted { requests, calls })
    }

    /// A counter for each thread of a process, and for those that it starts.
    fn counters(&self, pid: u32) -> io::Result<Vec<Counter>> {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
        let counter = |thread: io::Result<fs::DirEntry>| {
            let thread = thread?.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
            let event = Tracepoint::with_id(self.system_calls);
            Builder::new(event)
                .observe_pid(thread)
                .include_kernel()
                .inherit(true)
                .enabled(true)
                .build()
        };
        threads.map(counter).collect()
    }

    /// Fails if a processor's buffer was full.
    fn complete(&self) -> io::Result<()> {
        for processor in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(processor?.path().join("stats"))?;
            let lost = ["overrun: ", "dropped events: "].iter().any(|name| {
                stats.lines().filter_map(|line| line.strip_prefix(name)).any(|count| count != "0")
            });
            if lost {
                return Err(io::Error::other("the kernel's buffer was too small for all requests"));
            }
        }
        Ok(())
    }
}

/// Requests of some work, and the system calls of the server meanwhile.
#[derive(Debug)]
pub struct Counted {
    pub requests: Requests,
    pub calls: u64,
}

impl Counted {
    /// Returns the number of all requests. Those of forgotten inodes are not among them: nothing
    /// waits for them, and the kernel does not trace them.
    pub fn all(&self) -> u64 {
        self.requests.values().sum()
    }
}

/// Counts the requests in the text of a trace.
fn by_name(trace: &str) -> Requests {
    let mut requests = Requests::new();
    let name = |line: &str| {
        let (_, rest) = line.split_once(" opcode ")?;
        let (name, _) = rest.split_once('(')?.1.split_once(')')?;
        Some(name.strip_prefix("FUSE_").unwrap_or(name).to_owned())
    };
    for name in trace.lines().filter_map(name) {
        *requests.entry(name).or_default() += 1;
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_name() {
        let line = |name: &str| {
            format!(
                "  cat-7 [001] ..... 1.2: fuse_request_send: connection 9 opcode 1 ({name}) len 4\n"
            )
        };
        let trace =
            ["# tracer: nop\n".into(), line("FUSE_OPEN"), line("FUSE_READ"), line("FUSE_OPEN")];
        let counted = by_name(&trace.concat());
        assert_eq!(counted, Requests::from([("OPEN".into(), 2), ("READ".into(), 1)]));
    }
}
