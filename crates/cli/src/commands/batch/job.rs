//! One command of a batch, in a process of its own.

use crate::failure::{At, Result};
use crate::json;
use crate::process;
use crate::script::shown_words;
use crate::text::shown;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Most bytes that are kept of a document, and of messages.
const MAX_DOCUMENT: u64 = 1 << 20;
const MAX_MESSAGES: u64 = 16 << 10;

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    /// Its line, from 1 on.
    pub line: usize,
    /// Its words, at least one.
    pub words: Vec<OsString>,
}

/// The process of the job that a worker is at, which may be ended.
#[derive(Debug, Default)]
pub struct Running(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A child that was not waited for, so that its number is its own.
    process: Option<Pid>,
    /// Jobs are ended, also one that begins now.
    ends: bool,
}

impl Running {
    fn set(&self, process: Option<Pid>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.process = process;
        state.signal();
    }

    /// Ends the job, which removes its unfinished output.
    pub fn end(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.ends = true;
        state.signal();
    }
}

impl State {
    fn signal(&self) {
        if let Some(process) = self.process.filter(|_| self.ends) {
            let _ = kill_process(process, Signal::TERM);
        }
    }
}

/// A job that has ended.
#[derive(Debug)]
pub struct Record {
    line: usize,
    words: Vec<OsString>,
    text: String,
    /// Exit code; of a process that a signal ended, 128 and its number.
    pub code: i32,
    seconds: f64,
    /// `Null` if the output is no document, or too long.
    document: Value,
    messages: String,
}

impl Job {
    /// Returns the command as text, for messages.
    pub fn text(&self) -> String {
        shown_words(&self.words)
    }

    /// Runs the command with that many threads, unless its words say otherwise.
    pub fn run(&self, threads: usize, no_sandbox: bool, running: &Running) -> Result<Record> {
        let begin = Instant::now();
        let (status, out, errors) = self.output(threads, no_sandbox, running).at(self.text())?;
        Ok(Record {
            line: self.line,
            words: self.words.clone(),
            text: self.text(),
            code: code(status),
            seconds: begin.elapsed().as_secs_f64(),
            document: serde_json::from_slice(&out).unwrap_or_default(),
            messages: String::from_utf8_lossy(&errors).into_owned(),
        })
    }

    fn output(
        &self,
        threads: usize,
        no_sandbox: bool,
        running: &Running,
    ) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
        let mut command = Command::new(process::program());
        command.arg0("extant").arg("--json");
        // This process may be killed: its jobs would be at work beside those of another run.
        command.arg(format!("--ends-with={}", std::process::id()));
        if !self.words.iter().any(|word| word.as_bytes().starts_with(b"--threads")) {
            command.arg(format!("--threads={threads}"));
        }
        command.args(no_sandbox.then_some("--no-sandbox")).args(&self.words);
        // Signals of a terminal come through this process only.
        command.process_group(0).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        running.set(i32::try_from(child.id()).ok().and_then(Pid::from_raw));
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        let (out, errors) = std::thread::scope(|scope| {
            let errors = scope.spawn(|| read(errors, MAX_MESSAGES));
            let out = read(out, MAX_DOCUMENT);
            (out, errors.join().unwrap_or_default())
        });
        running.set(None);
        Ok((child.wait()?, out, errors))
    }
}

/// Reads to the end, and keeps up to `most` bytes.
fn read(from: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(mut from) = from else { return bytes };
    // The exit code tells of a process whose output breaks off.
    let _ = from.by_ref().take(most).read_to_end(&mut bytes);
    let _ = io::copy(&mut from, &mut io::sink());
    bytes
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl Record {
    /// Returns the record as a JSON object.
    pub fn value(&self) -> Value {
        let mut object = Map::new();
        object.insert("line".into(), self.line.into());
        json::put_bytes(&mut object, "command", &joined(&self.words));
        object.insert("exit_code".into(), self.code.into());
        object.insert("seconds".into(), self.seconds.into());
        object.insert("document".into(), self.document.clone());
        object.insert("messages".into(), self.messages.clone().into());
        object.into()
    }

    /// Returns a line about a failure.
    pub fn summary(&self) -> String {
        let cause = self.messages.lines().next().unwrap_or("no message");
        format!(
            "line {}: {}: exit code {}: {}",
            self.line,
            self.text,
            self.code,
            shown(cause.as_bytes())
        )
    }
}

/// Returns the words as a line of a manifest: each one within quotes.
pub fn joined(words: &[OsString]) -> Vec<u8> {
    let quoted = |word: &OsString| {
        let bytes = word.clone().into_vec();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(byte);
        if !bytes.is_empty() && bytes.iter().all(is_plain) {
            return bytes;
        }
        let parts: Vec<_> = bytes.split(|byte| *byte == b'\'').collect();
        [b"'", &parts.join(&b"'\\''"[..])[..], b"'"].concat()
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::parse_script;

    #[test]
    fn words_come_back_from_a_line() {
        for words in [
            &[&b"check"[..], b"a b", b""][..],
            &[b"put", b"it's", b"''", b"\xff#\n\\\"$"],
            &[b"#x", b"a=b", b"/dev/nbd0@p1"],
        ] {
            let words: Vec<OsString> =
                words.iter().map(|word| OsString::from_vec(word.to_vec())).collect();
            let lines = parse_script(&joined(&words)).unwrap();
            assert_eq!(lines.len(), 1);
            assert_eq!(lines[0].words, words);
        }
        assert_eq!(joined(&["check".into(), "a.img".into()]), b"check a.img");
    }
}
