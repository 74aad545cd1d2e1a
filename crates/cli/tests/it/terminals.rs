//! Progress of a build on a terminal, and none anywhere else.

use crate::args;
use crate::program::{EXTANT, extant};
use extant_testkit::Scratch;
use extant_testkit::tool::run;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Files of a tree, and bytes of each.
const FILES: usize = 64;
const SIZE: usize = 2 << 20;

/// A process whose standard error is a terminal.
struct Session {
    child: Child,
    terminal: OwnedFd,
    text: String,
}

impl Session {
    fn start(args: &[OsString], stdin: Stdio) -> Session {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes()));
        let mut command = Command::new(EXTANT);
        command.args(args).env("TERM", "xterm").stdin(stdin).stderr(side.unwrap());
        let child = command.spawn().unwrap();
        Session { child, terminal, text: String::new() }
    }

    /// Reads the output of the process for this time. Returns false when it has ended.
    fn read_for(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).unwrap();
            let mut polled = [PollFd::new(&self.terminal, PollFlags::IN)];
            if poll(&mut polled, Some(&left)).unwrap() == 0 {
                return true;
            }
            let mut bytes = [0; 4096];
            match rustix::io::read(&self.terminal, &mut bytes) {
                // The other side is closed.
                Ok(0) | Err(_) => return false,
                Ok(len) => self.text.push_str(&String::from_utf8_lossy(&bytes[..len])),
            }
        }
    }

    /// Returns the contents of the line of the progress, one after the other.
    fn frames(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.text.split(['\r', '\n', '\u{1b}'])
    }

    /// Waits for the end, and returns the last line.
    fn end(mut self) -> String {
        while self.read_for(Duration::from_secs(60)) {}
        assert!(self.child.wait().unwrap().success(), "{}", self.text);
        let mut lines = self.frames().map(|line| line.trim_start_matches("[2K"));
        lines.rfind(|line| !line.is_empty()).unwrap().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.dir("top");
    for number in 0..FILES {
        fs::write(top.join(format!("{number:02}")), vec![number as u8 + 1; SIZE]).unwrap();
    }
    top
}

#[test]
fn a_terminal_shows_bytes_files_and_the_time_left() {
    let scratch = Scratch::new();
    let (top, image) = (tree(&scratch), scratch.join("image"));
    let build = args!["build", &image, &top, "--threads", "1"];
    let mut session = Session::start(&build, Stdio::null());
    let all = format!("/{}.00 MiB", (FILES * SIZE) >> 20);
    let files = format!(" of {FILES} files");
    let is_whole = |frame: &str| {
        let parts = [all.as_str(), "/s ", " left ", &files];
        parts.iter().all(|part| frame.contains(part)) && !frame.contains(" 0 B/")
    };
    // The line is drawn five times in a second, and at once in a process that was stopped.
    while session.read_for(Duration::from_millis(30)) && !session.frames().any(is_whole) {
        if session.text.contains(" left") {
            session.signal(Signal::STOP);
            sleep(Duration::from_millis(220));
            session.signal(Signal::CONT);
        }
    }
    assert!(session.frames().any(is_whole), "{:?}", session.text);
    assert!(session.end().contains(": made an image of "), "the line is not cleared");
    let quiet = [&args!["--quiet"][..], &build].concat();
    let mut quiet = Session::start(&quiet, Stdio::null());
    while quiet.read_for(Duration::from_secs(60)) {}
    assert!(quiet.child.wait().unwrap().success() && quiet.text.is_empty(), "{}", quiet.text);
    let printed = extant(&build);
    let errors = printed.errors();
    assert!(printed.code == 0 && errors.lines().count() == 1, "progress in a pipe: {errors}");
    assert!(!errors.contains(['\r', '\u{1b}']), "{errors}");
}

#[test]
fn a_terminal_shows_the_part_of_a_stream_that_has_arrived() {
    let scratch = Scratch::new();
    let (top, image, archive) = (tree(&scratch), scratch.join("image"), scratch.join("tar"));
    run("tar", &args!["--sort=name", "-cf", &archive, "-C", &top, "."]).must_succeed();
    let bytes = fs::read(&archive).unwrap();
    // The header of the third file has arrived, and half of its content.
    let half = 512 + 2 * (512 + SIZE) + 512 + SIZE / 2;
    let build = args!["build", &image, "-", "--size", "256M", "-N", "256"];
    let mut session = Session::start(&build, Stdio::piped());
    let mut stdin = session.child.stdin.take().unwrap();
    stdin.write_all(&bytes[..half]).unwrap();
    let begin = Instant::now();
    let is_there = |frame: &str| frame.contains("3 files") && frame.contains("5.00 MiB");
    while !session.frames().any(is_there) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", session.text);
        assert!(session.read_for(Duration::from_millis(50)), "{:?}", session.text);
    }
    stdin.write_all(&bytes[half..]).unwrap();
    drop(stdin);
    assert!(session.end().contains(": made an image of "), "the line is not cleared");
}
