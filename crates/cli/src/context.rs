//! Context of every command: amount, place and form of its output.

use crate::failure::{At, Failure, Result};
use crate::json;
use crate::log::{Log, Sink};
pub use crate::tell::complain;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options that every command has.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// Print one JSON document on standard output, and nothing else there
    #[arg(long, global = true)]
    json: bool,
    /// Print errors only
    #[arg(long, short = 'q', global = true)]
    quiet: bool,
    /// Print more; twice for the engine's own messages
    #[arg(long, short = 'v', global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Threads to work with [default: one for each CPU]
    #[arg(long, global = true, value_name = "N", value_parser = thread_number())]
    threads: Option<u16>,
    /// Print the engine's traces of this target, too; `extant::frsp`: searches for free space
    #[arg(long, global = true, value_name = "TARGET")]
    trace: Vec<String>,
    /// Keep all privileges, files and system calls while the image is read
    #[arg(long, global = true)]
    no_sandbox: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,
    /// End with this process, which has started the command
    #[arg(long, global = true, value_name = "PID", hide = true)]
    ends_with: Option<i32>,
}

impl Global {
    /// Lets the end of the process that has started this one end it, too, if that is asked for.
    pub fn follow(&self) -> Result {
        let Some(parent) = self.ends_with else { return Ok(()) };
        set_parent_process_death_signal(Some(Signal::TERM)).at("signals")?;
        // It may have ended before.
        if getppid().is_none_or(|now| now.as_raw_nonzero().get() != parent) {
            return Err(Failure::new("the process that started this command has ended"));
        }
        Ok(())
    }
}

/// Returns a parser of 1 to 1024, as for `threads=` of a mount.
fn thread_number() -> impl clap::builder::TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=1024)
}

/// Exit code of a command that read all it was asked for from a damaged image.
const DAMAGED: u8 = 3;

/// How a command talks.
#[derive(Clone, Debug)]
pub struct Context {
    /// Standard output carries one JSON document.
    pub json: bool,
    /// Only errors are told.
    pub quiet: bool,
    /// How much is told beyond results: 0 to 2.
    pub verbose: u8,
    /// Targets whose traces are told.
    pub traces: Vec<String>,
    /// Threads as asked for.
    pub threads: Option<usize>,
    /// A command enters a sandbox before it reads an image.
    pub sandbox: bool,
    /// Standard output is coloured.
    pub color: bool,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// A JSON document was printed. Relaxed: the thread that ends the program reads it after all
    /// others have ended.
    printed: Arc<AtomicBool>,
    /// Result of the recovery at opening for writing, for the JSON document.
    recovery: Arc<OnceLock<Value>>,
    /// An image was read although it is damaged. Relaxed: as for `printed`.
    damaged: Arc<AtomicBool>,
}

impl Context {
    /// Makes the context that the options ask for.
    pub fn new(global: &Global) -> Context {
        let terminal = io::stdout().is_terminal();
        let color = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Context {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            traces: global.trace.clone(),
            threads: global.threads.map(usize::from),
            sandbox: !global.no_sandbox,
            color: color && !global.json,
            terminal,
            printed: Arc::default(),
            recovery: Arc::default(),
            damaged: Arc::default(),
        }
    }

    /// Makes the context of a helper: silent unless something fails.
    pub fn helper(verbose: bool) -> Context {
        Context {
            json: false,
            quiet: !verbose,
            verbose: 0,
            traces: Vec::new(),
            threads: None,
            sandbox: true,
            color: false,
            terminal: false,
            printed: Arc::default(),
            recovery: Arc::default(),
            damaged: Arc::default(),
        }
    }

    /// Makes the context of arguments that are not a command, for a JSON document.
    pub fn for_json() -> Context {
        Context { json: true, ..Context::helper(false) }
    }

    /// Returns the number of threads to use.
    pub fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from))
    }

    /// Prints a result or a remark, unless only errors are wanted.
    pub fn note(&self, message: impl Display) {
        if !self.quiet {
            complain(message);
        }
    }

    /// Prints a detail for `--verbose`.
    pub fn detail(&self, message: impl Display) {
        if self.verbose > 0 && !self.quiet {
            complain(message);
        }
    }

    /// Returns whether the JSON document was printed.
    pub fn has_document(&self) -> bool {
        self.printed.load(Ordering::Relaxed)
    }

    /// Adds the result of the recovery at opening for writing to the JSON document.
    pub fn note_recovery(&self, recovery: Value) {
        // The first image is the one that the command is about.
        let _ = self.recovery.set(recovery);
    }

    /// Says how a damaged image is read, also if only errors are wanted.
    pub fn note_damage(&self, message: impl Display) {
        complain(message);
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// Returns the exit code of a command that succeeded.
    pub fn success(&self) -> ExitCode {
        if self.damaged.load(Ordering::Relaxed) { DAMAGED.into() } else { ExitCode::SUCCESS }
    }

    /// Begins the JSON document, an array.
    pub fn array<W: Write>(&self, out: W) -> json::Array<W> {
        self.printed.store(true, Ordering::Relaxed);
        json::Array::new(out)
    }

    /// Prints the JSON document.
    pub fn document(&self, document: &Value) -> Result {
        self.printed.store(true, Ordering::Relaxed);
        let mut document = document.clone();
        if let (Value::Object(object), Some(recovery)) = (&mut document, self.recovery.get()) {
            object.insert("recovery".into(), recovery.clone());
        }
        let mut out = io::stdout().lock();
        let text = serde_json::to_string_pretty(&document).map_err(io::Error::from)?;
        writeln!(out, "{}", json::without_controls(&text))?;
        Ok(out.flush()?)
    }

    /// Returns whether progress is shown: on a terminal only.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Returns a progress bar over `total` bytes (0: not known).
    pub fn progress(&self, total: u64) -> ProgressBar {
        if !self.shows_progress() {
            return ProgressBar::hidden();
        }
        let (bar, template) = match total {
            0 => (ProgressBar::no_length(), "{spinner} {bytes} {binary_bytes_per_sec} {wide_msg}"),
            _ => (
                ProgressBar::new(total),
                "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {wide_msg}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// Returns a progress bar over parts that are counted.
    pub fn parts(&self) -> ProgressBar {
        if !self.shows_progress() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        bar
    }

    /// Sends the engine's own messages to standard error.
    pub fn log_to_stderr(&self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => tracing::Level::ERROR,
            (_, 0 | 1) => tracing::Level::WARN,
            _ => tracing::Level::DEBUG,
        };
        // With -v every message is shown.
        Log::new(Sink::Stderr, self.verbose == 0).install(level, &self.traces);
    }
}

impl Failure {
    /// Says why on standard error, and as a JSON document where one is due and none was printed.
    /// Gives the exit code.
    pub fn report(&self, context: &Context) -> ExitCode {
        if let Some(message) = self.message() {
            complain(message);
        }
        if context.json && !context.has_document() {
            // Nothing is left to do if that cannot be written.
            let _ = context.document(&self.document());
        }
        ExitCode::from(self.exit_code())
    }
}

/// Prints the error document of arguments that are not understood; clap says the rest.
pub fn report_usage(message: impl Display) {
    // Nothing is left to do if that cannot be written.
    let _ = Context::for_json().document(&Failure::usage(message).document());
}
