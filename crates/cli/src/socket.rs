//! Sockets in the file system of commands that serve an image.

use crate::failure::{At, Failure, Result};
use crate::process;
use crate::text::shown;
use rustix::fs::Mode;
use rustix::process::umask;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// Listens at a path, for this user alone.
///
/// # Errors
/// A file is there; those of bind(2).
pub fn bind(path: &Path) -> Result<UnixListener> {
    let name = shown(path.as_os_str().as_bytes());
    // No other user may connect, not for a moment either.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(path);
    umask(before);
    bound.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::new(format_args!(
            "{name} exists; remove it if no server listens there, or name another path"
        )),
        _ => Failure::new(format_args!("{name}: {error}")),
    })
}

/// Name of the program as the process that removes the name of a socket.
pub const KEEPER: &str = "extant-socket";

/// A socket in the file system, whose name ends with this value, or with this process. A process
/// outside of the sandbox removes it.
#[derive(Debug)]
pub struct SocketName {
    keeper: Child,
}

impl SocketName {
    /// Starts the process for the socket that was just made at a path.
    ///
    /// # Errors
    /// Those of a new process.
    pub fn of(path: &Path) -> Result<SocketName> {
        SocketName::start(path).at_path(path.as_os_str().as_bytes())
    }

    fn start(path: &Path) -> io::Result<SocketName> {
        let identity = file_at(path)?.map(|number| number.to_string());
        let path = std::path::absolute(path)?;
        let mut command = Command::new(process::program());
        command.arg0(KEEPER).arg(path).args(identity);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        extant_fuse::keep_descriptors_from_children()?;
        Ok(SocketName { keeper: command.spawn()? })
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // An error says that it has ended.
        let _ = self.keeper.wait();
    }
}

/// Returns device and inode of the file at a path, and the time of its creation, if it is a socket:
/// the number of an inode is soon used again.
fn file_at(path: &Path) -> io::Result<[i64; 4]> {
    let found = path.symlink_metadata()?;
    Ok([found.dev() as i64, found.ino() as i64, found.mtime(), found.mtime_nsec()])
}

/// Removes the socket of a server, by its path and identity, when that has ended.
pub fn keep(words: &[OsString]) -> ExitCode {
    let Some((path, identity)) = words.split_first() else { return ExitCode::FAILURE };
    if process::leave_signals().is_err() {
        return ExitCode::FAILURE;
    }
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    // Another server may have put its own in the place.
    let found = file_at(Path::new(path)).unwrap_or_default();
    if found.map(|number| OsString::from(number.to_string())) == identity {
        let _ = std::fs::remove_file(path);
    }
    ExitCode::SUCCESS
}
