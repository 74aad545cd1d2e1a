//! The workloads by which scalable syncs and the inode cache were published: fsmark with 100 syncs;
//! then stats, find(1) and removal of many empty files.
//!
//! Workers are threads, or processes that run this program again. All begin when the writing end of
//! a pipe is closed. Through another, each answers with a number in a line when it is prepared,
//! when it has done 15% of its work, and at its end; the last is the processor time in nanoseconds.

use crate::jobs::SYNCERS;
use crate::side::{Running, Setup, Side};
use crate::tables::Grid;
use crate::target::{Put, Target};
use extant_measure::options::{Options, at_least_one, invalid};
use extant_measure::scratch::Server;
use extant_measure::stored::Results;
use extant_measure::timing::joined;
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::process::Command;
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Arguments of `extant-lab fsmark`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Files of 4 KiB: a million, or 4,000 with `--quick`.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    files: Option<usize>,
    /// Empty files: 10 million, or 40,000 with `--quick`.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    empty: Option<usize>,
}

/// Workers, as published.
const WORKERS: usize = 16;

/// Files in a directory.
const IN_DIRECTORY: usize = 2000;

/// Sides, and whether their workers are processes. The engine in process has threads only.
const COLUMNS: [(&str, Side, bool); 5] = [
    ("ext4", Side::Ext4, false),
    ("ext4, processes", Side::Ext4, true),
    ("extant-fuse", Side::ExtantFuse, false),
    ("extant-fuse, processes", Side::ExtantFuse, true),
    ("engine", Side::Engine, false),
];

/// Rows of a table and their times.
type Times = Vec<(&'static str, Duration)>;

pub fn run(Args { options, files, empty }: &Args) -> io::Result<bool> {
    options.refuse(&["threads"])?;
    let usual = if options.quick { [4_000, 40_000] } else { [1_000_000, 10_000_000] };
    let counts = [files.unwrap_or(usual[0]), empty.unwrap_or(usual[1])];
    require(counts[0], 4096).and_then(|()| require(counts[1], 0))?;
    let columns = COLUMNS.map(|(name, ..)| name);
    let grid = |title: &'static str| Grid::new(title, "s", &columns, 4).less();
    let mut grids = vec![grid("files of 4 KiB"), grid("empty files")];
    let parts = [Stage::fsmark, Stage::look as fn(&mut Stage) -> io::Result<Times>];
    let rows = [0, 1].map(|part| (format!("{} {}", counts[part], grids[part].title), part));
    let rows: Vec<_> = rows.into_iter().filter(|(name, _)| options.wants(name)).collect();
    options.measure(options.runs(3, 1), &rows, &columns, |name, &part, column| {
        let (side, processes, count) = (COLUMNS[column].1, COLUMNS[column].2, counts[part]);
        eprintln!("{name} on {}", columns[column]);
        let setup = Setup { memory: None, ..Setup::for_inodes(count as u64) };
        let running = side.start_with(&Setup { block_device: true, ..setup })?;
        let mut stage = Stage { running, processes, files: count.div_ceil(WORKERS) };
        for (row, time) in parts[part](&mut stage)? {
            grids[part].add(&format!("{row}, {count} files"), column, time.as_secs_f64());
        }
        stage.running.stop()
    })?;
    grids.report(options)
}

/// Returns an error if memory lacks space for an image with so many files: content, names, inodes
/// of 256 bytes, and at most a gigabyte of journal. The engine takes up to a quarter of the memory.
fn require(files: usize, content: u64) -> io::Result<()> {
    let needed = (files as u64).saturating_mul(content + 400).saturating_add(3 << 29);
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let free = free.and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok()).unwrap_or(0);
    let shm = rustix::fs::statvfs("/dev/shm")?;
    let space = (free * 768).min(shm.f_bavail * shm.f_frsize);
    if needed <= space {
        return Ok(());
    }
    let [needed, space] = [needed, space].map(|bytes| format!("{:.1} GB", bytes as f64 / 1e9));
    Err(invalid(format!(
        "{files} files need {needed} in /dev/shm, where {space} can be used (a quarter of the \
         memory is left to the engine): ask for fewer by `--files` and `--empty`"
    )))
}

/// A file system, and the kind of its workers.
struct Stage {
    running: Running,
    processes: bool,
    /// Files of each worker.
    files: usize,
}

impl Stage {
    /// Makes files; once each worker has made 15% of them, others call sync once.
    fn fsmark(&mut self) -> io::Result<Times> {
        std::thread::scope(|scope| {
            let mut makers = self.start(scope, WORKERS, "fill")?;
            let syncers = self.start(scope, SYNCERS, "sync")?;
            let start = makers.begin()?;
            let makers = scope.spawn(move || makers.end().map(|_| start.elapsed()));
            let (synced, used) = syncers.timed()?;
            let made = joined(makers)?;
            Ok(vec![("fsmark", made), ("100 syncs", synced), ("processor time of 100 syncs", used)])
        })
    }

    /// Makes empty files, looks at them and removes them. Stats and find begin on a cold mount.
    fn look(&mut self) -> io::Result<Times> {
        let mut times = Vec::new();
        for task in ["create", "bulkstat", "lookup", "unlink"] {
            if ["bulkstat", "lookup"].contains(&task) {
                self.running.cold()?;
            }
            let time = std::thread::scope(|scope| self.start(scope, WORKERS, task)?.timed())?.0;
            times.push((task, time));
        }
        Ok(times)
    }

    /// Starts workers, and returns when all are prepared.
    fn start<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        workers: usize,
        task: &str,
    ) -> io::Result<Crew> {
        let ((told, wait), (answers, says)) = (io::pipe()?, io::pipe()?);
        let (target, mut processes) = (self.running.target(), Vec::new());
        for worker in 0..workers {
            let (told, says) = (told.try_clone()?, says.try_clone()?);
            let share = Share { task: task.to_owned(), worker, files: self.files };
            if let Some(root) = target.root().filter(|_| self.processes) {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("fsmark-worker").arg(root).arg(task);
                command.args([worker, self.files].map(|n| n.to_string()));
                processes.push(Server::new(command.stdin(told).stdout(says).spawn()?));
            } else {
                scope.spawn(move || share.work(target, told, says));
            }
        }
        let answers = BufReader::new(answers);
        let mut crew = Crew { workers, wait: Some(wait), answers, processes };
        drop(says);
        crew.hear()?;
        Ok(crew)
    }
}

/// Workers that do the same at the same time.
struct Crew {
    workers: usize,
    /// All begin when it is closed.
    wait: Option<PipeWriter>,
    answers: BufReader<PipeReader>,
    processes: Vec<Server>,
}

impl Crew {
    /// Waits for a line of each worker, and returns the sum of the times.
    fn hear(&mut self) -> io::Result<Duration> {
        let mut time = || {
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            let time = line.trim().parse().map(Duration::from_nanos);
            time.map_err(|_| io::Error::other(format!("a worker failed: {}", line.trim())))
        };
        (0..self.workers).map(|_| time()).sum()
    }

    /// Has all begin, and waits until each has done 15%. Returns the time of the start.
    fn begin(&mut self) -> io::Result<Instant> {
        let start = Instant::now();
        self.wait = None;
        self.hear().map(|_| start)
    }

    /// Waits for the end of all, and returns their processor time.
    fn end(mut self) -> io::Result<Duration> {
        let used = self.hear()?;
        self.processes.iter_mut().try_for_each(Server::wait).map(|()| used)
    }

    /// Returns the time of all, and their processor time.
    fn timed(mut self) -> io::Result<(Duration, Duration)> {
        let start = self.begin()?;
        self.end().map(|used| (start.elapsed(), used))
    }
}

/// The work of one worker, and the arguments of its process.
#[derive(Debug, clap::Args)]
pub struct Share {
    /// A row of the table, or `fill` or `sync`.
    task: String,
    /// Number of the worker, which has directories of its own.
    worker: usize,
    files: usize,
}

impl Share {
    /// Works when `told` ends.
    pub fn work(
        &self,
        target: &dyn Target,
        told: impl Read,
        mut says: impl Write,
    ) -> io::Result<()> {
        // One write for each line: workers share the pipe.
        let mut say = |line: String| says.write_all((line + "\n").as_bytes());
        let line = match self.all(target, told, || say("0".into())) {
            Ok(used) => used.as_nanos().to_string(),
            Err(e) => format!("{}: {e}", self.task),
        };
        say(line)
    }

    fn all(
        &self,
        target: &dyn Target,
        mut told: impl Read,
        mut say: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Duration> {
        let count = match &*self.task {
            "sync" => 1,
            "lookup" => self.files.div_ceil(IN_DIRECTORY),
            _ => self.files,
        };
        say()?;
        told.read_to_end(&mut Vec::new())?;
        let used = || clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or(Duration::ZERO);
        let before = used();
        for n in 0..count {
            if n == count * 3 / 20 {
                say()?;
            }
            self.operation(target, n)?;
        }
        Ok(used() - before)
    }

    fn operation(&self, target: &dyn Target, n: usize) -> io::Result<()> {
        let dir = |n: usize| format!("w{}-{n}", self.worker).into_bytes();
        let join = |dir: &[u8], name: &[u8]| [dir, b"/", name].concat();
        let path = join(&dir(n / IN_DIRECTORY), format!("f{n}").as_bytes());
        if ["fill", "create"].contains(&&*self.task) && n.is_multiple_of(IN_DIRECTORY) {
            target.mkdir(&dir(n / IN_DIRECTORY))?;
        }
        match &*self.task {
            "fill" => target.put(&path, Put { data: &[0x5a; 4096], mode: 0o644, mtime: None }),
            "create" => target.create(&path),
            "bulkstat" => target.stat(&path).map(drop),
            "unlink" => target.unlink(&path),
            "lookup" => {
                let names = target.list(&dir(n))?;
                names.iter().try_for_each(|name| target.stat(&join(&dir(n), &name.name)).map(drop))
            }
            _ => target.sync(),
        }
    }
}
