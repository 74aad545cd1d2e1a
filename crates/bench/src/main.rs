//! The program `extant` beside other programs: time and memory of whole runs, turn about.
//!
//! A *row* ([`row`]) is a piece of work that several programs do. [`images`] has those that build,
//! copy and export images, [`check`] those on existing file systems ([`disks`]). [`codecs`]
//! compares the codecs of archives. Inputs ([`inputs`]) and outputs are in memory, in /dev/shm.
#![forbid(unsafe_code)]

mod check;
mod codecs;
mod disks;
mod images;
mod inputs;
mod overlays;
mod program;
mod row;

use clap::{Parser, Subcommand};
use extant_measure::options::Options;
use std::process::ExitCode;

/// Measurements of the program `extant` beside other programs.
#[derive(Debug, Parser)]
#[command(name = "extant-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Builds, copies and exports images beside mke2fs, genext2fs, debugfs, the kernel, and
    /// programs that move the same bytes only. Needs root.
    Images(row::Args),
    /// Checks, repairs and resizes file systems beside e2fsck, resize2fs and cp.
    Check(row::Args),
    /// Decompresses and compresses an archive by the crates of Extant and by programs.
    Codecs(Options),
    /// Runs a program and prints its time and memory as JSON.
    #[command(hide = true)]
    Timed(program::Timed),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Images(args) => images::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Codecs(options) => codecs::run(&options),
        Command::Timed(timed) => timed.run().map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("extant-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
