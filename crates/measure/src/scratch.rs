//! Changes of a run to the machine, undone when their guards go out of scope, and also when a
//! signal ends the program.
//!
//! # Invariants
//! Each undo runs at most once: the thread that takes it out of the register runs it.
//! A change is made and registered under a shared lock of `MAKING`. The thread that undoes all
//! takes that lock alone and keeps it: no change is between these two steps, and none follows.

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll as wait_for};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Act = Box<dyn FnOnce() + Send>;

struct Register {
    next: u64,
    acts: BTreeMap<u64, Act>,
}

static REGISTER: Mutex<Register> = Mutex::new(Register { next: 0, acts: BTreeMap::new() });

static MAKING: RwLock<()> = RwLock::new(());

/// Something to take back. Runs when dropped.
#[derive(Debug)]
pub struct Undo(u64);

impl Undo {
    /// Registers `act`.
    pub fn new(act: impl FnOnce() + Send + 'static) -> Undo {
        let mut register = REGISTER.lock();
        let id = register.next;
        register.next += 1;
        register.acts.insert(id, Box::new(act));
        Undo(id)
    }

    /// Forgets it: it was done in another way.
    pub fn cancel(self) {
        REGISTER.lock().acts.remove(&self.0);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // While another thread undoes all this one stays here: its end would be the program's.
        let _making = MAKING.read_recursive();
        let act = REGISTER.lock().acts.remove(&self.0);
        if let Some(act) = act {
            act();
        }
    }
}

/// Takes everything back, the latest first.
fn undo_all() {
    loop {
        let last = REGISTER.lock().acts.pop_last();
        match last {
            Some((_, act)) => act(),
            None => return,
        }
    }
}

/// Makes SIGINT, SIGTERM, SIGHUP and SIGQUIT undo all changes and end the program. Further calls
/// do nothing.
pub fn catch_signals() -> io::Result<()> {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag itself is all that is shared.
    if CAUGHT.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let name = signal_name(signal).unwrap_or("a signal");
            eprintln!("\n{}: {name}, cleaning up", crate::program());
            let _alone = MAKING.write();
            undo_all();
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// A directory of its own in memory (tmpfs), removed in the end.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _undo: Undo,
}

impl Scratch {
    /// Makes a directory below `/dev/shm`.
    pub fn new() -> io::Result<Scratch> {
        let _making = MAKING.read();
        let path = tempfile::Builder::new().prefix("extant-").tempdir_in("/dev/shm")?.keep();
        let gone = path.clone();
        let undo = Undo::new(move || {
            if let Err(e) = remove(&gone) {
                eprintln!("{}: {} stays: {e}", crate::program(), gone.display());
            }
        });
        Ok(Scratch { path, _undo: undo })
    }

    /// Returns the path of a name in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory in it.
    pub fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.join(name);
        std::fs::create_dir(&dir)?;
        Ok(dir)
    }
}

/// Removes a directory, in which other threads may still make files where something was mounted:
/// they fail once it is gone.
fn remove(dir: &Path) -> io::Result<()> {
    let patience = Duration::from_secs(5);
    let removed = poll(patience, || match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(None),
        other => other.map(Some),
    })?;
    removed.ok_or_else(|| io::ErrorKind::DirectoryNotEmpty.into())
}

/// A loop device over an image.
#[derive(Debug)]
pub struct Loop {
    /// The block device.
    pub device: PathBuf,
    _undo: Undo,
}

impl Loop {
    /// Attaches a free one.
    pub fn attach(image: &Path) -> io::Result<Loop> {
        let _making = MAKING.read();
        let printed = run("losetup", &["--find".as_ref(), "--show".as_ref(), image.as_os_str()])?;
        let device = PathBuf::from(printed.trim());
        let gone = device.clone();
        let undo = Undo::new(move || {
            if let Err(e) = run("losetup", &["--detach".as_ref(), gone.as_os_str()]) {
                eprintln!("{}: {e}", crate::program());
            }
        });
        Ok(Loop { device, _undo: undo })
    }
}

/// A mount that must not be left behind: detached when dropped, if it is still there.
#[derive(Debug)]
pub struct MountGuard {
    dir: PathBuf,
    _undo: Undo,
}

impl MountGuard {
    /// Guards a present or future mount on `dir`.
    pub fn new(dir: &Path) -> MountGuard {
        let gone = dir.to_path_buf();
        // An error says that nothing is mounted there any more.
        let undo = Undo::new(move || {
            let _ = unmounted(&gone, true);
        });
        MountGuard { dir: dir.into(), _undo: undo }
    }

    /// Mounts an ext4 device, which needs root.
    pub fn ext4(device: &Path, dir: &Path, options: Option<&CStr>) -> io::Result<MountGuard> {
        let _making = MAKING.read();
        let guard = MountGuard::new(dir);
        mount(device, dir, "ext4", MountFlags::empty(), options)
            .map_err(|e| io::Error::other(format!("mounting ext4 (which needs root): {e}")))?;
        Ok(guard)
    }

    /// Unmounts; waits a little for users that are about to leave.
    pub fn unmount(&self) -> io::Result<()> {
        poll(Duration::from_secs(5), || match unmounted(&self.dir, false) {
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(None),
            other => Ok(Some(other?)),
        })
        .and_then(|gone| gone.ok_or_else(|| Errno::BUSY.into()))
        .map_err(|e| io::Error::other(format!("unmounting {}: {e}", self.dir.display())))
    }
}

/// Unmounts, at once or lazily. Users have a helper do it, for their mounts of FUSE.
fn unmounted(dir: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(dir, flags) {
        Err(Errno::PERM) => {
            let options: &[&OsStr] =
                if lazily { &["-u".as_ref(), "-z".as_ref()] } else { &["-u".as_ref()] };
            run("fusermount3", &[options, &["--".as_ref(), dir.as_os_str()]].concat()).map(drop)
        }
        other => Ok(other?),
    }
}

/// Asks again and again until there is an answer; `None` after so long without one.
pub fn poll<T>(
    patience: Duration,
    mut ask: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let give_up = Instant::now() + patience;
    loop {
        let answer = ask()?;
        if answer.is_some() || Instant::now() > give_up {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child process, killed when dropped unless it has ended.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub child: Child,
    ended: Arc<AtomicBool>,
    _undo: Undo,
}

impl Server {
    /// Takes over a child.
    pub fn new(child: Child) -> Server {
        let pid = Pid::from_child(&child);
        let ended = Arc::new(AtomicBool::new(false));
        let gone = ended.clone();
        let undo = Undo::new(move || {
            // Once it was waited for, its number may be another's.
            if !gone.load(Ordering::Acquire) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Server { child, ended, _undo: undo }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<()> {
        let ended = poll(Duration::from_secs(60), || self.child.try_wait())?;
        let status = ended.ok_or_else(|| io::Error::other("a process does not end"))?;
        self.ended.store(true, Ordering::Release);
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("a process ended with {status}")))
        }
    }
}

/// How long a signalled process may clean up.
const FAREWELL: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Runs a command in a process group of its own, and returns its output: of standard error only if
/// that is a pipe. When a signal ends this program, the group gets `signal` first, and the end of
/// the command is waited for.
pub fn contained(command: &mut Command, signal: Signal) -> io::Result<Output> {
    let making = MAKING.read();
    let child = command.process_group(0).stdout(Stdio::piped()).spawn()?;
    let (group, process) = (Pid::from_child(&child), pidfd_of(&child)?);
    let _undo = Undo::new(move || {
        // Once the child was waited for, its number may be another's.
        if !has_ended(&process, Timespec::default()) {
            let _ = kill_process_group(group, signal);
            has_ended(&process, FAREWELL);
        }
    });
    drop(making);
    child.wait_with_output()
}

fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}

/// Returns whether a process ends within some time.
fn has_ended(process: &OwnedFd, within: Timespec) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    wait_for(&mut ended, Some(&within)).is_ok_and(|count| count > 0)
}

/// Directories of administrators' tools that are often missing from `PATH`.
const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Returns the path of a program.
pub fn need(tool: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            let package = match tool {
                "mke2fs" => "e2fsprogs",
                "losetup" => "mount",
                other => other,
            };
            let why = format!("`{tool}` is not installed: apt-get install {package}");
            io::Error::new(io::ErrorKind::NotFound, why)
        })
}

/// Makes an ext4 file system in an image, with further arguments. Tables and journal are zeroed at
/// once, so that no side zeroes them in the background.
pub fn mke2fs(image: &Path, more: &[&str]) -> io::Result<()> {
    const USUAL: &str = "-q -F -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let words = USUAL.split(' ').chain(more.iter().copied()).map(OsStr::new);
    run("mke2fs", &words.chain([image.as_os_str()]).collect::<Vec<_>>()).map(drop)
}

/// Runs a program to its end, and returns its output.
pub fn run<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> io::Result<String> {
    let out =
        Command::new(need(tool)?).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(io::Error::other(format!("`{tool}` failed: {}", why.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
