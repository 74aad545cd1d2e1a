//! Locks of exports that this user's processes on this host write to.
//!
//! A server of NBD has no locks. Each writer holds a lock of a file of its user, whose name is made
//! of the place and the export, without the parameters of the address. Two names of the same host
//! or export are not known to be the same, except for those of this host itself.

use crate::address::{Address, Place};
use extant_sync::{Arc, LazyLock, Level, Mutex, Weak};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between looks at a lock that another process has.
const PAUSE: Duration = Duration::from_millis(50);

/// Files of locks, by the places and names of exports.
type Held = HashMap<(Place, String), Weak<File>>;

/// The locks of this process, which its devices share: their claims exclude each other.
static HELD: LazyLock<Mutex<Held>> = LazyLock::new(|| Mutex::new(Level::Leaf, HashMap::new()));

/// The right to write to an export until it is dropped, among the processes of this user and host.
/// It holds nothing where no file can be made, as in a sandbox.
#[derive(Clone, Debug)]
#[must_use]
pub struct WriteLock(#[expect(dead_code, reason = "kept open")] Option<Arc<File>>);

impl WriteLock {
    /// Takes the lock of the export at an address, or shares that of this process. Waits for
    /// another process for `patience`.
    ///
    /// # Errors
    /// `ResourceBusy` if another process has it.
    pub fn take(address: &Address, patience: Duration) -> io::Result<WriteLock> {
        let key = (address.place.clone(), address.export.clone());
        let found = HELD.lock().get(&key).and_then(Weak::upgrade);
        if found.is_some() {
            return Ok(WriteLock(found));
        }
        let file = match directory().and_then(|dir| open(&dir.join(file_name(address)))) {
            Ok(file) => file,
            Err(error) => {
                tracing::debug!("{address}: no lock against other writers: {error}");
                return Ok(WriteLock(None));
            }
        };
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begin.elapsed() < patience => sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let text = format!("{address} is in use: another process here writes to it");
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let file = Arc::new(file);
        let mut held = HELD.lock();
        held.retain(|_, file| file.strong_count() > 0);
        held.insert(key, Arc::downgrade(&file));
        Ok(WriteLock(Some(file)))
    }
}

/// Opens the file of a lock, which stays when the lock ends: another process may wait for it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Returns a directory of this user alone, which is made.
fn directory() -> io::Result<PathBuf> {
    let user = geteuid();
    let of_session = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    let temporary = PathBuf::from(format!("/tmp/extant-{}", user.as_raw()));
    let all = if user.is_root() {
        ["/run/extant".into(), temporary]
    } else {
        [of_session.join("extant"), temporary]
    };
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for dir in all {
        match own(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Makes a directory, or makes sure that no other user can write to it.
fn own(dir: &Path) -> io::Result<()> {
    const WRITABLE: u32 = 0o022;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = dir.symlink_metadata()?;
    let is_own = found.uid() == geteuid().as_raw() && found.mode() & WRITABLE == 0;
    if found.is_dir() && is_own { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Returns the name of the lock of an export.
fn file_name(address: &Address) -> String {
    let place = match &address.place {
        Place::Tcp(host, port) => {
            let host = host.trim_end_matches('.').to_ascii_lowercase();
            let ip = host.parse::<std::net::IpAddr>();
            let is_here = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
            format!("{}:{port}", if is_here { "localhost" } else { &host })
        }
        Place::Unix(path) => {
            // The last link may be the socket itself.
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            path.to_string_lossy().into_owned()
        }
    };
    format!("nbd-{:016x}.lock", hash(format!("{place}\0{}", address.export).as_bytes()))
}

/// Returns the hash FNV-1a, which is the same in each version of the program.
fn hash(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_one_export_have_one_lock() {
        let name = |text: &str| file_name(&parsed(text));
        for same in ["nbd://LocalHost:7/a", "nbd://127.0.0.1:7/a", "nbd://[::1]:7/a?timeout=5"] {
            assert_eq!(name(same), name("nbd://localhost:7/a"));
        }
        assert_ne!(name("nbd://localhost:7/a"), name("nbd://localhost:7/b"));
        assert_ne!(name("nbd://localhost:7/a"), name("nbd://localhost/a"));
        assert_ne!(name("nbd://h/a"), name("nbd+unix:///a?socket=/h"));
    }

    #[test]
    fn another_process_is_kept_out() {
        let at = format!("nbd://localhost/{}", std::process::id());
        let (one, two) = (parsed(&at), parsed(&format!("{at}?timeout=5")));
        // As by another process: a file that was opened for itself.
        let other = open(&directory().unwrap().join(file_name(&one))).unwrap();
        other.try_lock().unwrap();
        let refused = WriteLock::take(&two, Duration::ZERO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        other.unlock().unwrap();
        let held = WriteLock::take(&one, Duration::ZERO).unwrap();
        // Devices of this process share it.
        let shared = WriteLock::take(&two, Duration::ZERO).unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        assert!(other.try_lock().is_err());
        drop(shared);
        other.try_lock().unwrap();
        std::fs::remove_file(directory().unwrap().join(file_name(&one))).unwrap();
    }
}
