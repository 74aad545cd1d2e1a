//! Runs external programs.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Directories that hold administrators' tools but are often missing from `PATH`.
const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Programs of Debian's essential packages, which each system has.
const ESSENTIAL: &[&str] = &[
    "bash",
    "cat",
    "chmod",
    "chown",
    "cmp",
    "cp",
    "dd",
    "du",
    "env",
    "fallocate",
    "find",
    "grep",
    "gzip",
    "id",
    "install",
    "kill",
    "ln",
    "ls",
    "mkdir",
    "mkfifo",
    "mknod",
    "mv",
    "perl",
    "rm",
    "rmdir",
    "script",
    "sed",
    "seq",
    "setpriv",
    "sh",
    "sleep",
    "stat",
    "sync",
    "tar",
    "timeout",
    "touch",
    "true",
    "truncate",
    "unshare",
];

/// Returns the path of program `tool`, which `scripts/setup.sh` installs.
///
/// # Panics
/// If it is not installed, or the script does not know it.
pub fn need(tool: &str) -> PathBuf {
    let package = package_of(tool);
    find(tool).unwrap_or_else(|| panic!("`{tool}` is not installed: `apt-get install {package}`"))
}

fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|candidate| candidate.is_file())
}

/// Returns the Debian package that holds `tool`, from the lines `need PROGRAM PACKAGE` of the
/// script.
fn package_of(tool: &str) -> &str {
    let lines = include_str!("../../../scripts/setup.sh").lines();
    let listed = lines
        .filter_map(|line| line.trim_start().strip_prefix("need ")?.split_once(' '))
        .find_map(|(program, package)| (program == tool).then_some(package));
    // Programs of tests have a path.
    let known = tool.contains('/') || ESSENTIAL.contains(&tool);
    listed
        .or(known.then_some(tool))
        .unwrap_or_else(|| panic!("scripts/setup.sh does not install `{tool}`"))
}

/// Output and exit code of a program.
#[derive(Debug, Clone)]
pub struct Printed {
    /// The command line, for messages.
    pub command: String,
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Printed {
    /// Standard output as text, bytes that are not UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Panics with the output unless the exit code is 0.
    pub fn must_succeed(self) -> Self {
        assert!(self.code == 0, "{self}");
        self
    }
}

impl std::fmt::Display for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ended with {}:\n{}{}", self.command, self.code, self.text(), self.errors())
    }
}

/// Runs `tool` with `args` in the C locale and UTC and returns its output and exit code.
pub fn run<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> Printed {
    run_with_env(tool, args, &[])
}

/// As [`run`], with further environment variables.
pub fn run_with_env<A: AsRef<OsStr>>(tool: &str, args: &[A], env: &[(&str, &str)]) -> Printed {
    let until = Instant::now() + PATIENCE;
    loop {
        let printed = run_once(tool, args, env);
        if !is_unmount(tool) || !printed.errors().contains("busy") || Instant::now() >= until {
            return printed;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The time that an unmount may find its target busy before that counts as a failure. A child
/// process of another test holds copies of all descriptors between fork and exec, which may last
/// long on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Returns whether `tool` is umount(8) or one of its helpers.
fn is_unmount(tool: &str) -> bool {
    Path::new(tool).file_name().is_some_and(|name| name.to_string_lossy().starts_with("umount"))
}

/// Copies an executable file to `at`, in a process of its own: a file that this one writes may stay
/// open in a child process of another test, and cannot be run meanwhile.
pub fn install(program: &Path, at: &Path) {
    run("install", &[OsStr::new("-m755"), program.as_os_str(), at.as_os_str()]).must_succeed();
}

fn run_once<A: AsRef<OsStr>>(tool: &str, args: &[A], env: &[(&str, &str)]) -> Printed {
    let program = need(tool);
    let output = Command::new(&program)
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .envs(env.iter().copied())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
    printed(tool, args, output)
}

fn printed<A: AsRef<OsStr>>(tool: &str, args: &[A], output: Output) -> Printed {
    let mut command = OsString::from(tool);
    for arg in args {
        command.push(" ");
        command.push(arg);
    }
    Printed {
        command: command.to_string_lossy().into_owned(),
        code: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: output.stderr,
    }
}

/// Panics unless the test runs as root; `why` names the operation that needs it.
pub fn need_root(why: &str) {
    assert!(rustix::process::geteuid().is_root(), "{why} needs root: run this test as root");
}

/// A path as an argument vector's element.
pub(crate) fn arg(path: &Path) -> OsString {
    path.as_os_str().to_owned()
}
