//! `extant batch`: many commands side by side, each in its own process, resumable.
//!
//! # Invariants
//! - A job is in the log when its process has ended, whatever it found, unless a signal to the
//!   batch ended it: another run with the log does the others.
//! - A record is durable before the job counts as done.

mod job;
mod log;
mod manifest;

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::interrupt::Interrupt;
use crate::json;
use crate::text::count;
use indicatif::ProgressBar;
use job::{Job, Record, Running, joined};
use log::Log;
use std::io::{self, Stdout};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Run many commands side by side, each in a process of its own.
///
/// A manifest has one command a line, in words as a shell quotes them, without `extant`; # begins a
/// comment. For example: `check disk1.img`. Each one runs with --json and without standard input.
/// Failures are told, and end the others only with --fail-fast. With --log, another run does the
/// jobs that are left. Exit codes: 0 if all jobs end with 0, 1 if one does not, 32 after a signal.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File with the commands; - is standard input
    #[arg(default_value = "-")]
    manifest: PathBuf,
    /// Jobs at the same time [default: one for each CPU]
    #[arg(long, short = 'j', value_name = "N", value_parser = manifest::job_number())]
    jobs: Option<u16>,
    /// Record each finished job in this file, one JSON object a line, and leave out the jobs that
    /// it has already
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Do the jobs of the log that failed once more
    #[arg(long, requires = "log")]
    retry: bool,
    /// Start no job after one has failed
    #[arg(long)]
    fail_fast: bool,
    /// Do every Nth job only, from the Kth on (0 is the first): a part for each of N machines
    #[arg(long, value_name = "K/N", value_parser = manifest::parse_shard)]
    shard: Option<manifest::Shard>,
}

/// Tells which command a command line has.
pub type Parser = fn(&[std::ffi::OsString]) -> Result<&'static str, clap::Error>;

/// Exit code of a batch that a signal ended, as of fsck(8).
const INTERRUPTED: u8 = 32;

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(args: &Args, parser: Parser, context: &Context) -> Result {
    let jobs = manifest::read(&args.manifest, args.shard, parser)?;
    let mut counts = Counts { jobs: jobs.len() as u64, ..Counts::default() };
    let (log, left) = match &args.log {
        None => (None, jobs),
        Some(path) => {
            let (log, ended) = Log::open(path)?;
            let is_left = |job: &Job| {
                let code = ended.get(&joined(&job.words));
                let code = code.filter(|code| **code == 0 || !args.retry);
                code.inspect(|code| counts.add_earlier(**code)).is_none()
            };
            (Some(log), jobs.into_iter().filter(is_left).collect())
        }
    };
    let interrupt = Interrupt::register().at("signals")?;
    let crew = Crew::new(args, context, left);
    let array = context.json.then(|| context.array(io::stdout()));
    let bar = context.parts();
    bar.set_length(counts.jobs);
    let mut report = Report { counts, log, array, bar, context };
    let done = crew.run(&interrupt.flag(), &mut report);
    report.bar.finish_and_clear();
    done?;
    report.finish(interrupt.restore_default())
}

/// Numbers of jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// All of the manifest, or of its part.
    jobs: u64,
    /// Done before this run.
    earlier: u64,
    succeeded: u64,
    failed: u64,
}

impl Counts {
    fn add_earlier(&mut self, code: i32) {
        self.earlier += 1;
        self.add(code == 0);
    }

    fn add(&mut self, success: bool) {
        *if success { &mut self.succeeded } else { &mut self.failed } += 1;
    }

    fn left(&self) -> u64 {
        self.jobs - self.succeeded - self.failed
    }
}

/// Results of finished jobs.
struct Report<'c> {
    counts: Counts,
    log: Option<Log>,
    array: Option<json::Array<Stdout>>,
    bar: ProgressBar,
    context: &'c Context,
}

impl Report<'_> {
    /// Takes a record, if there is one. After a signal a failure is none of the job.
    fn take(&mut self, record: Option<Record>, is_over: bool) -> Result {
        record
            .filter(|record| !is_over || record.code == 0)
            .map_or(Ok(()), |record| self.add(&record))
    }

    fn add(&mut self, record: &Record) -> Result {
        let value = record.value();
        if let Some(log) = &mut self.log {
            log.append(&value)?;
        }
        if let Some(array) = &mut self.array {
            array.push(&value)?;
        }
        self.counts.add(record.code == 0);
        self.bar.set_position(self.counts.jobs - self.counts.left());
        self.bar.set_message(format!("{} failed", self.counts.failed));
        if record.code != 0 {
            self.bar.suspend(|| self.context.note(record.summary()));
        }
        Ok(())
    }

    fn finish(self, interrupted: bool) -> Result {
        if let Some(array) = self.array {
            array.finish()?;
        }
        let counts = self.counts;
        let text = format!(
            "{}: {} done, {} failed{}",
            count(counts.jobs, "job"),
            counts.succeeded,
            counts.failed,
            if counts.earlier > 0 {
                format!(" ({} before)", counts.earlier)
            } else {
                String::new()
            }
        );
        if counts.left() > 0 {
            let why = if interrupted { "interrupted" } else { "ended after a failure" };
            let remedy = if self.log.is_some() { "; run it again for the others" } else { "" };
            let left = count(counts.left(), "job");
            let failure = Failure::new(format_args!("{why}: {text}, {left} left{remedy}"));
            return Err(if interrupted { failure.with_exit_code(INTERRUPTED) } else { failure });
        }
        if counts.failed > 0 {
            return Err(Failure::new(text));
        }
        self.context.note(text);
        Ok(())
    }
}

/// The threads that run jobs, and the jobs.
struct Crew {
    jobs: Vec<Job>,
    workers: usize,
    threads: usize,
    no_sandbox: bool,
    fail_fast: bool,
    /// The next job.
    next: AtomicUsize,
}

impl Crew {
    fn new(args: &Args, context: &Context, jobs: Vec<Job>) -> Crew {
        let processors = std::thread::available_parallelism().map_or(2, NonZero::get);
        let workers = args.jobs.map_or(processors, usize::from).min(jobs.len());
        let threads = context.threads.unwrap_or((processors / workers.max(1)).max(1));
        Crew {
            jobs,
            workers,
            threads,
            no_sandbox: !context.sandbox,
            fail_fast: args.fail_fast,
            next: AtomicUsize::new(0),
        }
    }

    /// Runs all jobs. A signal ends those at work, which are not reported if they fail.
    fn run(&self, signal: &AtomicBool, report: &mut Report<'_>) -> Result {
        let (send, records) = mpsc::channel::<Result<Record>>();
        let running: Vec<Running> = (0..self.workers).map(|_| Running::default()).collect();
        std::thread::scope(|scope| {
            for slot in &running {
                let send = send.clone();
                scope.spawn(move || self.work(slot, &send));
            }
            drop(send);
            let mut result = Ok(());
            let mut ended = false;
            loop {
                let record = match records.recv_timeout(LOOK) {
                    Ok(record) => record.map(Some),
                    Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return result,
                };
                let is_over = signal.load(Ordering::Acquire);
                if let Err(failure) = record.and_then(|record| report.take(record, is_over)) {
                    result = Err(failure);
                }
                if (is_over || result.is_err()) && !std::mem::replace(&mut ended, true) {
                    self.start_no_more();
                    running.iter().for_each(Running::end);
                }
            }
        })
    }

    fn start_no_more(&self) {
        // Relaxed: the jobs do not change.
        self.next.store(self.jobs.len(), Ordering::Relaxed);
    }

    /// Runs one job after the other until none is left.
    fn work(&self, running: &Running, send: &mpsc::Sender<Result<Record>>) {
        // Relaxed: the jobs do not change.
        while let Some(job) = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let record = job.run(self.threads, self.no_sandbox, running);
            if self.fail_fast && record.as_ref().is_ok_and(|record| record.code != 0) {
                self.start_no_more();
            }
            if send.send(record).is_err() {
                return;
            }
        }
    }
}
