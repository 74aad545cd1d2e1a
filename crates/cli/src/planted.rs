//! An exploit for tests: the acts of an image with the label [`MARK`], or of an archive with a file
//! of this name, that has taken the process over when it is read. Each is told on standard error,
//! as `planted: ACT: RESULT`. It is a part of builds with debug assertions only, and acts only if
//! the caller names a [`VICTIM`].

use extant_engine::device::BlockDevice;
use extant_engine::format::Superblock;
use extant_fuse::MountOptions;
use extant_image::Tree;
use rustix::io::Errno;
use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The label of an image that acts.
const MARK: &str = "PLANTED";

/// Variable with the path of a file whose content and attributes are attacked.
const VICTIM: &str = "EXTANT_PLANTED_VICTIM";

/// Acts if the file system of a device has the label.
pub fn strike_from(device: &dyn BlockDevice) {
    let mut bytes = [0; 1024];
    let read = device.read_exact_at(&mut bytes, 1024);
    if let Some(sb) = read.ok().and_then(|()| Superblock::parse(&bytes).ok()) {
        strike(&sb);
    }
}

/// Returns the victim that the caller names, if a file system has the label.
fn victim_of(sb: &Superblock) -> Option<PathBuf> {
    victim().filter(|_| sb.volume_name() == MARK)
}

fn victim() -> Option<PathBuf> {
    std::env::var_os(VICTIM).map(PathBuf::from)
}

/// Acts if a tree that was read has a file of this name.
pub fn strike_from_tree(tree: &Tree) {
    if let Some(victim) = victim().filter(|_| tree.entry(MARK.as_bytes()).is_some()) {
        act(&victim);
    }
}

/// Acts if a file system has the label.
pub fn strike(sb: &Superblock) {
    if let Some(victim) = victim_of(sb) {
        act(&victim);
    }
}

fn act(victim: &Path) {
    tell("inherit", inherited(victim));
    tell("read", File::open("/etc/passwd").map(drop));
    tell("list", fs::read_dir("/root").map(drop));
    tell("write", File::options().append(true).open(victim).map(drop));
    tell("create", File::create(victim.with_extension("new")).map(drop));
    tell("mode", fs::set_permissions(victim, Permissions::from_mode(0o666)));
    tell("owner", std::os::unix::fs::chown(victim, Some(7), None));
    tell("rename", fs::rename(victim, victim.with_extension("moved")));
    tell("remove", fs::remove_file(victim));
    tell("run", Command::new("true").status().map(drop));
    tell("connect", TcpStream::connect("127.0.0.1:9").map(drop));
    tell("socket", UdpSocket::bind("127.0.0.1:0").map(drop));
    tell("log", UnixDatagram::unbound().map(drop));
    let first = rustix::process::Pid::INIT;
    tell("signal", rustix::process::test_kill_process(first).map_err(io::Error::from));
    let flags = rustix::mount::UnmountFlags::empty();
    tell("unmount", rustix::mount::unmount("/proc/self/nowhere", flags).map_err(io::Error::from));
}

/// Finds a descriptor of the file, which the caller has left open.
fn inherited(victim: &Path) -> io::Result<()> {
    let mut open = fs::read_dir("/proc/self/fd")?.flatten();
    let is_of = |link: DirEntry| fs::read_link(link.path()).is_ok_and(|target| target == victim);
    if open.any(is_of) { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Adds an option to those that a server with the label tells.
pub fn lie(sb: &Superblock, mut options: MountOptions) -> MountOptions {
    if victim_of(sb).is_some() {
        options.shown_options.push_str(",allow_other");
    }
    options
}

fn tell(act: &str, done: io::Result<()>) {
    match done {
        Ok(()) => eprintln!("planted: {act}: done"),
        Err(error) => eprintln!("planted: {act}: {}", error.raw_os_error().unwrap_or(-1)),
    }
}
