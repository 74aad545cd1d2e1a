//! Other people's programs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories of administrators' tools that are often missing from `PATH`.
const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Returns the path of a program.
pub fn need(tool: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| missing(tool))
}

fn missing(tool: &str) -> io::Error {
    let package = match tool {
        "mke2fs" => "e2fsprogs",
        "losetup" => "mount",
        other => other,
    };
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("`{tool}` is not installed: apt-get install {package}"),
    )
}

/// Makes an ext4 file system in an image, with further arguments. Tables and journal are zeroed at
/// once, so that no side zeroes them in the background.
pub(crate) fn mke2fs(image: &Path, more: &[&str]) -> io::Result<()> {
    const USUAL: &str = "-q -F -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let words = USUAL.split(' ').chain(more.iter().copied()).map(OsStr::new);
    run("mke2fs", &words.chain([image.as_os_str()]).collect::<Vec<_>>()).map(drop)
}

/// Runs a program to its end, and returns its output.
pub fn run<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> io::Result<String> {
    let out =
        Command::new(need(tool)?).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(io::Error::other(format!(
            "`{tool}` failed: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        )))
    }
}
