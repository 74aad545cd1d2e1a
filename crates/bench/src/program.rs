//! Runs of programs, with their time, memory and transfers.
//!
//! A process of its own ([`Timed`]) starts the program, so that its memory is that of no other
//! child.

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A command line, with files for input and output.
#[derive(Clone, Debug)]
pub struct Program {
    words: Vec<OsString>,
    input: Option<PathBuf>,
    output: Option<PathBuf>,
}

/// Time, memory and transfers of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Cost {
    pub seconds: f64,
    /// The most bytes that a process of it had at once.
    pub bytes: u64,
    /// Bytes that its system calls read.
    pub read: u64,
    /// Bytes that its system calls wrote.
    pub written: u64,
}

impl Program {
    pub fn new<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Program {
        let words = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        Program { words, input: None, output: None }
    }

    /// A script of sh(1) with arguments, `$1` and so on.
    pub fn script<A: AsRef<OsStr>>(text: &str, args: impl IntoIterator<Item = A>) -> Program {
        let mut program = Program::new(["sh", "-euc", text, "sh"]);
        program.words.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        program
    }

    /// The same with a file as standard input.
    pub fn reading(self, path: &Path) -> Program {
        Program { input: Some(path.into()), ..self }
    }

    /// The same with a file as standard output, which is replaced.
    pub fn writing(self, path: &Path) -> Program {
        Program { output: Some(path.into()), ..self }
    }

    /// Runs it to its end.
    pub fn run(&self) -> io::Result<Cost> {
        let report = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("timed").arg(report.path()).arg("--").args(&self.words);
        let input = self.input.as_ref().map(File::open).transpose()?;
        command.stdin(input.map_or(Stdio::null(), Stdio::from));
        let output = self.output.as_ref().map(File::create).transpose()?;
        command.stdout(output.map_or(Stdio::null(), Stdio::from));
        let done = command.stderr(Stdio::piped()).output()?;
        if !done.status.success() {
            let (what, why) = (self.words.join(OsStr::new(" ")), &done.stderr);
            let (what, why) = (what.to_string_lossy(), String::from_utf8_lossy(why));
            return Err(io::Error::other(format!("`{what}` failed: {}", why.trim())));
        }
        Ok(serde_json::from_reader(report)?)
    }
}

/// Arguments of the process that starts a program.
#[derive(Debug, clap::Args)]
pub struct Timed {
    /// File for the result.
    report: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

impl Timed {
    /// Runs the program; its failure is an error.
    pub fn run(&self) -> io::Result<()> {
        let start = Instant::now();
        let status = Command::new(&self.words[0]).args(&self.words[1..]).status()?;
        let seconds = start.elapsed().as_secs_f64();
        if !status.success() {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        let kibibytes = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
        let bytes = kibibytes.unsigned_abs() << 10;
        // The children that have ended count; this process itself has read few bytes.
        let transfers = std::fs::read_to_string("/proc/self/io")?;
        let [read, written] = ["rchar: ", "wchar: "].map(|name| {
            let value = transfers.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
            value.unwrap_or(0)
        });
        let cost = Cost { seconds, bytes, read, written };
        Ok(serde_json::to_writer(File::create(&self.report)?, &cost)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_command_and_reason() {
        let error = Program::script("echo \"$1\" >&2; exit 3", ["why"]).words;
        let timed = Timed { report: "/dev/null".into(), words: error };
        assert!(timed.run().expect_err("it fails").to_string().contains("exit status: 3"));
    }
}
