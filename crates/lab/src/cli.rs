//! The command line of `extant-lab`.

use crate::bench;
#[cfg(not(feature = "designs"))]
use crate::tables::DESIGNS;
use crate::tables::aim7;
use crate::target::Directory;
use crate::{
    age, claims, contention, fsmark, huge, instructions, pages, pairs, prealloc, reproduce, scale,
    serve, space60t, work,
};
use clap::{Parser, Subcommand};
use extant_fuse::{MountOptions, Transport};
use extant_measure::options::Options;
use extant_measure::scratch::catch_signals;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measurements of Extant beside other file systems.
#[derive(Debug, Parser)]
#[command(name = "extant-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every workload on every side and prints medians, ratios and verdicts. Needs root for
    /// mounts and loop devices.
    Bench(bench::Args),
    /// Runs workloads on the engine and on the kernel's ext4 in pairs. Needs root for mounts and
    /// loop devices.
    Pairs(pairs::Args),
    /// Runs programs on mounts of the kernel's ext4, of Extant and of fuse2fs. Needs root.
    Work(work::Args),
    /// Counts the requests of operations and programs to servers of FUSE. Needs root.
    Requests(work::Args),
    /// Runs the published tests of preallocation on the engine and on the kernel's ext4. Needs
    /// root.
    Prealloc(prealloc::Args),
    /// Runs models of two workloads of AIM7 with up to 2000 users, on the kernel's ext4, a mount
    /// and the engine. Needs root.
    Aim7(Options),
    #[cfg(feature = "designs")]
    #[command(flatten)]
    Designs(crate::tables::designs::Command),
    /// Makes a million files while 100 callers sync, and makes, looks at and removes 10 million
    /// empty ones, on the kernel's ext4, a mount and the engine. Needs root.
    Fsmark(fsmark::Args),
    /// Commands of the program that has other designs under the engine.
    #[cfg(not(feature = "designs"))]
    #[command(hide = true, aliases = DESIGNS, disable_help_flag = true)]
    Designs {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        _arguments: Vec<String>,
    },
    /// Counts locks and writes of the engine's operations to memory that threads share.
    Contention(contention::Args),
    /// Simulates operations on more processors than there are, from measured service times and
    /// counted moves of cache lines. Needs the program of `make contention`.
    Scale(scale::Args),
    /// Counts instructions of the engine's hot operations by callgrind, and compares them with
    /// stored counts. Needs a program with symbols: `make instructions`.
    Instructions(instructions::Args),
    /// Writes to a fragmented file system of 60 TiB, beside the allocator of the postings of 2020.
    Space60t(space60t::Args),
    /// Says which other claims of those postings hold. Needs root for the kernel's ext4.
    SpaceClaims(Options),
    /// Fills and uses a file system for a long time, and the kernel's ext4, and looks how
    /// fragmented both are. Needs root.
    Age(age::Args),
    /// Puts the published tables of five works beside the same experiments here. Needs root, unless
    /// it reads stored runs.
    Reproduce(reproduce::Args),
    /// Writes the figures of stored runs, docs/runs/*.json, into the pages of the project.
    Pages(pages::Args),
    /// Serves a FUSE mount until standard input ends: an image, or nothing but names in memory.
    #[command(hide = true)]
    Serve {
        /// The image to serve.
        #[arg(long)]
        image: Option<PathBuf>,
        /// Requests come through io_uring.
        #[arg(long)]
        rings: bool,
        /// The kernel opens files without a request.
        #[arg(long)]
        fast: bool,
        /// Where to mount.
        dir: PathBuf,
    },
    /// Works on a mounted file system, as standard input says.
    #[command(hide = true)]
    FsmarkWorker {
        dir: PathBuf,
        #[command(flatten)]
        share: fsmark::Share,
    },
    /// Makes and opens a file system of 60 TiB, and prints time and memory as JSON.
    #[command(hide = true)]
    Open,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(e) = catch_signals() {
        eprintln!("extant-lab: {e}");
        return ExitCode::FAILURE;
    }
    let outcome = match arguments.command {
        Command::Bench(args) => bench::run(&args),
        Command::Pairs(args) => pairs::run(&args),
        Command::Work(args) => work::run(&args),
        Command::Requests(args) => work::requests(&args),
        Command::Prealloc(args) => prealloc::run(&args),
        Command::Aim7(options) => aim7::run(&options),
        #[cfg(feature = "designs")]
        Command::Designs(command) => command.run(),
        #[cfg(not(feature = "designs"))]
        Command::Designs { .. } => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this program has the engine's own design only; `make designs` builds one with others",
        )),
        Command::Fsmark(args) => fsmark::run(&args),
        Command::FsmarkWorker { dir, share } => Directory::new(&dir)
            .and_then(|dir| share.work(&dir, io::stdin(), io::stdout()))
            .map(|()| true),
        Command::Contention(args) => contention::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Space60t(args) => space60t::run(&args),
        Command::SpaceClaims(args) => claims::run(&args),
        Command::Age(args) => age::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Pages(args) => pages::run(&args),
        Command::Serve { image, rings, fast, dir } => {
            let transport = if rings { Transport::IoUring } else { Transport::Device };
            let fast_opens = fast.then_some(true);
            let options = MountOptions { transport, fast_opens, ..MountOptions::default() };
            serve::serve(image.as_deref(), &dir, &options).map(|()| true)
        }
        Command::Open => huge::open().map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of standard output has closed it.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("extant-lab: {e}");
            ExitCode::FAILURE
        }
    }
}
