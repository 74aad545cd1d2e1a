//! Running the program.

use extant_testkit::Scratch;
use extant_testkit::tool::{Printed, run};
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const EXTANT: &str = env!("CARGO_BIN_EXE_extant");

/// How long something may take that does not depend on its amount of work.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of different kinds as one list.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(std::ffi::OsString::from($arg)),*] };
}

/// Runs the program, whatever comes of it.
pub fn extant(args: &[OsString]) -> Printed {
    run(EXTANT, args)
}

/// Runs the program, which must succeed.
#[track_caller]
pub fn done(args: &[OsString]) -> Printed {
    extant(args).must_succeed()
}

/// Runs the program with `--json`; standard output must be one JSON document.
#[track_caller]
pub fn json(args: &[OsString]) -> Value {
    let all: Vec<OsString> = ["--json".into()].into_iter().chain(args.iter().cloned()).collect();
    let printed = done(&all);
    serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"))
}

/// The program must fail with this code and say this.
#[track_caller]
pub fn refused(args: &[OsString], code: i32, words: &str) {
    let printed = extant(args);
    assert_eq!(printed.code, code, "{printed}");
    assert!(printed.errors().contains(words), "no `{words}` in: {printed}");
    assert!(!printed.errors().contains("panicked"), "{printed}");
}

/// Waits until something is so.
#[track_caller]
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether something is mounted on a directory.
pub fn is_mount(dir: &Path) -> bool {
    let parent = dir.parent().expect("a directory below another");
    match (std::fs::metadata(dir), std::fs::metadata(parent)) {
        (Ok(own), Ok(above)) => own.dev() != above.dev(),
        // A mount whose server is gone cannot even be looked at.
        (Err(_), _) => true,
        _ => false,
    }
}

/// A server in the foreground.
pub struct Server {
    child: Child,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Server {
    /// Mounts an image; serves from a child of this process.
    #[track_caller]
    pub fn start(image: &Path, options: &str) -> Server {
        Server::with(image, options, &[])
    }

    /// As [`Server::start`], with further arguments.
    #[track_caller]
    pub fn with(image: &Path, options: &str, arguments: &[OsString]) -> Server {
        let scratch = Scratch::new();
        let dir = scratch.dir("mnt");
        let child = Command::new(EXTANT)
            .args(["mount", "--foreground", "-o", options])
            .args(arguments)
            .args([image, &dir])
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        let mut server = Server { child, dir, _scratch: scratch };
        await_that("the mount", || {
            assert!(server.child.try_wait().expect("a child").is_none(), "the server ended");
            is_mount(&server.dir)
        });
        server
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        run("kill", &[format!("-{name}"), self.child.id().to_string()]).must_succeed();
    }

    /// Waits until the server has ended and gives its exit code, -1 for a signal.
    #[track_caller]
    pub fn end(&mut self) -> i32 {
        let mut code = None;
        await_that("the server's end", || {
            code = self.child.try_wait().expect("a child");
            code.is_some()
        });
        code.and_then(|status| status.code()).unwrap_or(-1)
    }

    /// Unmounts with umount(8); the server must end well.
    #[track_caller]
    pub fn unmount(mut self) {
        run("umount", &[&self.dir]).must_succeed();
        assert_eq!(self.end(), 0, "the server's exit code");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if is_mount(&self.dir) {
            run("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}
