//! Containment of a process that reads the image of a stranger: it gives up the privileges, the
//! files of the machine, and the system calls that it does not need. Servers of mounts enter by
//! themselves, commands by [`command`].
//!
//! # Parts
//! - *no_new_privs*: no program that it could run would gain privileges.
//! - *Capabilities*: all are dropped but `CAP_DAC_OVERRIDE`, by which root opens an image that
//!   belongs to another user. Landlock bounds it to the allowed files.
//! - *Landlock*: files of the machine can be opened only where [`Sandbox`] allows it; no TCP, no
//!   signals and no ptrace to processes outside.
//! - *Mounts*: where files are made and no image is written, all mounts but the one of the target
//!   are read-only in a namespace of the process, since Landlock does not bound attributes; root
//!   only.
//! - *seccomp*: [`calls`] lists the system calls that remain; all others fail with `EPERM`.
//!
//! A kernel without one of these applies the others; [`Sandbox::enter`] returns the state of each.
//!
//! # Threads
//! Capabilities and Landlock belong to a thread, and new threads inherit them: a process must enter
//! before it starts threads.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    //! Filters of system calls for other processors, which have none.

    /// Restricts nothing.
    pub fn restrict(_sandbox: &super::Sandbox) -> String {
        "none: there is no filter for this processor".into()
    }
}

pub mod command;
mod namespace;

use extant_engine::device::is_remote;
use landlock::{
    ABI, Access, AccessFs, AccessNet, AddRuleError, AddRulesError, BitFlags, CompatLevel,
    Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directories that the engine and the server read: loop devices, numbers of processors, limits of
/// memory. Other directories below `/sys` have files for root only.
const READABLE: [&str; 5] = [
    "/sys/block",
    "/sys/devices/system/cpu",
    "/sys/devices/virtual/block",
    "/sys/fs/cgroup",
    "/sys/module/fuse",
];

/// Files about this process and the machine. Credentials of other processes need all of `/proc`,
/// which has files for root only, too.
const OWN_PROC: [&str; 3] = ["/proc/self", "/proc/meminfo", "/proc/sys/kernel/hostname"];
const ALL_PROC: [&str; 1] = ["/proc"];

/// Devices that are read and written.
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/null"];

/// The newest features of Landlock that are asked for. The kernel may have fewer.
const LANDLOCK: ABI = ABI::V6;

/// System calls for files, beyond those for contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCalls {
    /// None.
    #[default]
    Contents,
    /// Attributes of files are read.
    Reading,
    /// Files are made, named and removed, and get attributes while they are open.
    Making,
    /// Files that cannot be opened get attributes, too. Landlock does not bound that.
    Attributes,
}

/// Files and calls that a process keeps.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Files that it may open for reading.
    pub read: Vec<PathBuf>,
    /// Files that it may open for reading and writing.
    pub write: Vec<PathBuf>,
    /// Directories beneath which it may read.
    pub read_trees: Vec<PathBuf>,
    /// Directories beneath which it may make, change and remove files.
    pub trees: Vec<PathBuf>,
    /// It takes connections at sockets that it has.
    pub serves: bool,
    /// It reads credentials of other processes.
    pub processes: bool,
    /// Its system calls for files.
    pub files: FileCalls,
    /// It has rings of io_uring, which it starts and uses; it can make no others.
    pub rings: bool,
}

/// Names of the parts of a sandbox, with their states.
pub type Containment = Vec<(&'static str, String)>;

impl Sandbox {
    /// Enters for the rest of this thread and of those that it starts.
    pub fn enter(&self) -> Containment {
        let mut states = vec![("state", "on".into())];
        let makes = matches!(self.files, FileCalls::Making | FileCalls::Attributes);
        // An image that is written may lie on any mount.
        if makes && self.write.is_empty() {
            states.push(("mounts", namespace::protect_all_but(&self.trees, &self.read)));
        }
        let landlock = if self.files == FileCalls::Attributes && !links_across_directories() {
            "none: the kernel's makes no links across directories".into()
        } else {
            self.landlock().unwrap_or_else(|error| format!("failed: {error}"))
        };
        states.extend([
            ("capabilities", self.drop_capabilities()),
            ("landlock", landlock),
            ("seccomp", calls::restrict(self)),
        ]);
        states
    }

    /// Drops the capabilities of this thread that it does not need. Returns the remaining ones.
    fn drop_capabilities(&self) -> String {
        let drop = || {
            let kept = capabilities(None)?.effective & self.capabilities();
            let inheritable = CapabilitySet::empty();
            let sets = CapabilitySets { effective: kept, permitted: kept, inheritable };
            set_capabilities(None, sets)?;
            Ok::<_, rustix::io::Errno>(kept)
        };
        match drop() {
            Ok(kept) => {
                let names: Vec<String> =
                    kept.iter_names().map(|(name, _)| name.to_lowercase()).collect();
                if names.is_empty() { "none".into() } else { names.join(" ") }
            }
            Err(error) => format!("all: {error}"),
        }
    }

    fn capabilities(&self) -> CapabilitySet {
        let more = match self.files {
            FileCalls::Contents | FileCalls::Making => CapabilitySet::empty(),
            // For `trusted.*` attributes, and `/proc/kallsyms`.
            FileCalls::Reading => CapabilitySet::SYS_ADMIN | CapabilitySet::SYSLOG,
            // For `trusted.*` attributes, and those with capabilities.
            FileCalls::Attributes => {
                let owner = CapabilitySet::CHOWN | CapabilitySet::FOWNER | CapabilitySet::FSETID;
                let attributes = CapabilitySet::SYS_ADMIN | CapabilitySet::SETFCAP;
                owner | attributes | CapabilitySet::MKNOD
            }
        };
        CapabilitySet::DAC_OVERRIDE | more
    }

    fn landlock(&self) -> Result<String, RulesetError> {
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let created = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let created = allow(created, &READABLE.map(PathBuf::from), read)?;
        let proc: &[&str] = if self.processes { &ALL_PROC } else { &OWN_PROC };
        let proc: Vec<PathBuf> = proc.iter().map(PathBuf::from).collect();
        let created = allow(created, &proc, read)?;
        // Files of `/proc` would be others, without a rule, after the kernel has forgotten them.
        let sources =
            self.read.iter().chain(&self.read_trees).filter(|path| path.starts_with("/proc"));
        proc.iter().chain(sources).flat_map(PathFd::new).for_each(std::mem::forget);
        let disks = self.read.iter().chain(&self.write).filter_map(|image| properties(image));
        let created = allow(created, &disks.collect::<Vec<_>>(), read)?;
        let created = allow(created, &DEVICES.map(PathBuf::from), device)?;
        let created = allow(created, &self.read, AccessFs::ReadFile | AccessFs::IoctlDev)?;
        let created = allow(created, &self.read_trees, read)?;
        let created = allow(created, &self.write, device | AccessFs::Truncate)?;
        let beneath = AccessFs::from_all(LANDLOCK) & !(AccessFs::Execute | AccessFs::IoctlDev);
        let created = allow(created, &self.trees, beneath)?;
        let held = created.restrict_self()?;
        Ok(match held.ruleset {
            RulesetStatus::FullyEnforced => "all",
            RulesetStatus::PartiallyEnforced => "partly: the kernel is older",
            RulesetStatus::NotEnforced => "none: the kernel has no Landlock",
        }
        .into())
    }
}

/// Returns whether Landlock, where it is, allows links from one directory to another: since Linux
/// 5.19.
fn links_across_directories() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (major, minor) = (numbers.next(), numbers.next());
    !matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < (5, 19))
}

/// Returns the directory with the properties of a disk; `None` for other files.
fn properties(image: &Path) -> Option<PathBuf> {
    let found =
        std::fs::metadata(image).ok().filter(|found| found.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

/// Allows access to files, as far as they exist.
fn allow(
    mut created: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    for path in paths {
        if let Ok(open) = PathFd::new(path) {
            let access =
                if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
            match (&mut created).add_rule(PathBeneath::new(open, access)) {
                Err(error) if !is_of_no_mount(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(created)
}

/// Returns whether a file can have no rule, and needs none: pipes, and files of memory.
fn is_of_no_mount(error: &RulesetError) -> bool {
    let RulesetError::AddRules(AddRulesError::Fs(AddRuleError::AddRuleCall { source, .. })) = error
    else {
        return false;
    };
    source.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error())
}

/// Returns the files that belong to an image: the image itself and its external journal. Network
/// block devices are none.
pub fn files_of(image: &Path, journal: Option<&Path>) -> Vec<PathBuf> {
    let all = [Some(image), journal].into_iter().flatten();
    all.filter(|path| !is_remote(path)).map(Path::to_path_buf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::{IoUring, Probe};
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    use std::fs::{self, DirBuilder, File, Permissions};
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::Command;
    use std::thread;

    /// Number of the error of an act that must fail.
    #[track_caller]
    fn refused<T>(done: io::Result<T>) -> Option<i32> {
        done.err().expect("the sandbox refuses it").raw_os_error()
    }

    /// Enters on a thread of its own; the others stay free.
    fn contained(rings: bool, exploit: impl FnOnce(&Path) + Send + 'static) {
        contained_with(Sandbox { rings, ..Sandbox::default() }, exploit);
    }

    fn contained_with(sandbox: Sandbox, exploit: impl FnOnce(&Path) + Send + 'static) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("allowed");
        fs::write(&file, "content").expect("a file");
        let body = move || {
            let sandbox = Sandbox { write: vec![file.clone()], ..sandbox };
            let held = sandbox.enter();
            assert_eq!(held[2], ("landlock", "all".into()), "tests need Landlock");
            assert!(held[3].1.starts_with("all"), "tests need seccomp: {held:?}");
            exploit(&file);
        };
        thread::spawn(body).join().expect("the contained thread");
    }

    #[test]
    fn files_of_the_machine_are_out_of_reach() {
        contained(false, |file| {
            let denied = Some(Errno::ACCESS.raw_os_error());
            assert_eq!(refused(File::open("/etc/passwd")), denied);
            assert_eq!(refused(File::open("/")), denied);
            assert_eq!(refused(File::open("/proc/self/root/etc/passwd")), denied);
            assert_eq!(refused(File::open("/proc/self/exe")), denied);
            let beside = file.with_file_name("beside");
            assert_eq!(refused(File::create(&beside)), denied);
            let proc = File::options().write(true).open("/proc/sys/kernel/core_pattern");
            assert_eq!(refused(proc), denied);
            let forbidden = Some(Errno::PERM.raw_os_error());
            assert_eq!(refused(fs::remove_file(file)), forbidden);
            assert_eq!(refused(fs::rename(file, beside)), forbidden);
            assert_eq!(refused(fs::hard_link(file, "/tmp/extant-link")), forbidden);
            assert_eq!(refused(std::os::unix::fs::chown(file, Some(7), None)), forbidden);
        });
    }

    /// Not even by root: other processes are for servers, which check permissions of callers.
    #[test]
    fn facts_about_the_machine_are_few() {
        for processes in [false, true] {
            contained_with(Sandbox { processes, ..Sandbox::default() }, move |_| {
                assert_eq!(fs::read("/proc/1/status").is_ok(), processes);
                assert_eq!(fs::read("/proc/uptime").is_ok(), processes);
                assert!(fs::read("/proc/self/status").is_ok() && fs::read("/proc/meminfo").is_ok());
                assert!(fs::read("/proc/thread-self/status").is_ok());
                assert!(fs::read("/sys/devices/system/cpu/possible").is_ok());
                let denied = Some(Errno::ACCESS.raw_os_error());
                assert_eq!(refused(fs::read("/sys/kernel/mm/ksm/run")), denied);
                assert_eq!(refused(fs::read_dir("/sys/class")), denied);
                assert_eq!(refused(fs::read_dir("/sys/devices")), denied);
            });
        }
    }

    #[test]
    fn other_processes_and_machines_are_out_of_reach() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        for rings in [false, true] {
            contained(rings, move |_| {
                let forbidden = Some(Errno::PERM.raw_os_error());
                assert_eq!(refused(TcpStream::connect(address)), forbidden);
                assert_eq!(refused(UdpSocket::bind("127.0.0.1:0")), forbidden);
                assert_eq!(refused(UnixStream::connect("/dev/log")), forbidden);
                assert_eq!(refused(UnixDatagram::unbound()), forbidden);
                let (one, _other) = UnixDatagram::pair().expect("a pair");
                assert_eq!(refused(one.send_to(b"x", "/dev/log")), forbidden);
                assert_eq!(refused(Command::new("true").spawn()), forbidden);
                let first = Pid::from_raw(1).expect("a process");
                assert_eq!(test_kill_process(first), Err(Errno::PERM));
                let all = sched_getaffinity(None).expect("of this thread");
                assert_eq!(sched_setaffinity(Some(first), &all), Err(Errno::PERM));
                assert_eq!(sched_setaffinity(None, &all), Ok(()));
                assert!(fs::read("/proc/1/environ").is_err());
            });
        }
    }

    /// Operations of rings escape filters of system calls. Those that a server has from before are
    /// restricted to its own (`extant_fuse`), and it can make no others.
    #[test]
    fn rings_are_handed_in_and_not_made() {
        for rings in [false, true] {
            let handed: IoUring = IoUring::builder().setup_r_disabled().build(4).expect("a ring");
            contained(rings, move |_| {
                let forbidden = Some(Errno::PERM.raw_os_error());
                assert_eq!(refused(IoUring::new(4)), forbidden);
                let submitter = handed.submitter();
                assert_eq!(refused(submitter.register_probe(&mut Probe::new())), forbidden);
                assert_eq!(refused(submitter.register_files(&[0])), forbidden);
                assert_eq!(submitter.register_enable_rings().is_ok(), rings);
                assert_eq!(submitter.submit_and_wait(0).is_ok(), rings);
            });
        }
    }

    #[test]
    fn mounts_and_credentials_stay() {
        contained(false, |_| {
            let flags = rustix::mount::MountFlags::empty();
            let mounted = rustix::mount::mount("none", "/tmp", "tmpfs", flags, None);
            assert_eq!(mounted, Err(Errno::PERM));
            let unmounted = rustix::mount::unmount("/", rustix::mount::UnmountFlags::DETACH);
            assert_eq!(unmounted, Err(Errno::PERM));
            let all = CapabilitySet::all();
            let sets = CapabilitySets { effective: all, permitted: all, inheritable: all };
            assert_eq!(set_capabilities(None, sets), Err(Errno::PERM));
            let kept = capabilities(None).expect("capabilities").effective;
            assert!((kept - CapabilitySet::DAC_OVERRIDE).is_empty(), "{kept:?}");
            assert_eq!(
                std::env::set_current_dir("/proc").map_err(|e| e.kind()),
                Err(io::ErrorKind::PermissionDenied)
            );
        });
    }

    /// A copy into an image reads its source, with all attributes, and nothing beside it.
    #[test]
    fn sources_are_read_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, beside) = (dir.path().join("source"), dir.path().join("beside"));
        fs::create_dir(&source).expect("a directory");
        [source.join("file"), beside.clone()].iter().for_each(|file| {
            fs::write(file, "content").expect("a file");
            let name = "trusted.test";
            rustix::fs::setxattr(file, name, b"x", rustix::fs::XattrFlags::empty()).expect("root");
        });
        let read_trees = vec![source.clone()];
        contained_with(
            Sandbox { files: FileCalls::Reading, read_trees, ..Sandbox::default() },
            move |_| {
                let file = File::open(source.join("file")).expect("the source");
                let mut names = [0; 64];
                let len = rustix::fs::flistxattr(&file, &mut names[..]).expect("its attributes");
                assert_eq!(&names[..len], b"trusted.test\0");
                assert_eq!(fs::read_dir(&source).expect("the source").count(), 1);
                let denied = Some(Errno::ACCESS.raw_os_error());
                assert_eq!(refused(File::open(&beside)), denied);
                assert_eq!(refused(fs::read_dir(dir.path())), denied);
                assert_eq!(refused(File::create(source.join("new"))), denied);
                let write = File::options().write(true).open(source.join("file"));
                assert_eq!(refused(write), denied);
                let mode = fs::set_permissions(source.join("file"), Permissions::from_mode(0o666));
                assert_eq!(refused(mode), Some(Errno::PERM.raw_os_error()));
            },
        );
    }

    /// A server takes connections, and makes none.
    #[test]
    fn servers_take_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        for serves in [false, true] {
            let listener = listener.try_clone().expect("a socket");
            let client = TcpStream::connect(address).expect("a connection");
            contained_with(Sandbox { serves, ..Sandbox::default() }, move |_| {
                let forbidden = Some(Errno::PERM.raw_os_error());
                let taken = listener.accept();
                if serves {
                    let (mut stream, _) = taken.expect("a connection");
                    stream.set_nodelay(true).expect("an option");
                    stream.set_write_timeout(Some(std::time::Duration::from_secs(9))).expect("one");
                    stream.write_all(b"x").expect("a write");
                } else {
                    assert_eq!(refused(taken), forbidden);
                }
                assert_eq!(refused(TcpStream::connect(address)), forbidden);
                assert_eq!(refused(TcpListener::bind("127.0.0.1:0")), forbidden);
                let socket = rustix::net::sockopt::set_socket_broadcast(&listener, true);
                assert_eq!(socket, Err(Errno::PERM));
            });
            drop(client);
        }
    }

    /// An output is no program that runs as another user.
    #[test]
    fn made_files_get_no_bits_of_other_users() {
        let dir = tempfile::tempdir().expect("a directory");
        let (top, trees) = (dir.path().to_owned(), vec![dir.path().to_owned()]);
        let making = Sandbox { files: FileCalls::Making, trees, ..Sandbox::default() };
        contained_with(making, move |_| {
            let forbidden = Some(Errno::PERM.raw_os_error());
            let open =
                |mode| File::options().write(true).create(true).mode(mode).open(top.join("made"));
            let make = |mode| DirBuilder::new().mode(mode).create(top.join("below"));
            assert_eq!(refused(open(0o4755)), forbidden);
            assert_eq!(refused(make(0o2755)), forbidden);
            let made = open(0o644).expect("a file");
            make(0o755).expect("a directory");
            let set = |mode| made.set_permissions(Permissions::from_mode(mode));
            assert_eq!(refused(set(0o2755)), forbidden);
            set(0o755).expect("a mode");
        });
    }

    #[test]
    fn work_goes_on() {
        contained(false, |file| {
            let mut file = File::options().read(true).write(true).open(file).expect("the file");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("content");
            assert_eq!(text, "content");
            file.write_all(b"more").and_then(|()| file.sync_all()).expect("a write");
            assert!(fs::read_to_string("/proc/self/status").is_ok());
            assert!(File::options().write(true).open("/dev/null").is_ok());
            let thread = thread::Builder::new()
                .name("within".into())
                .spawn(|| File::open("/etc/passwd").map(drop).map_err(|e| e.kind()));
            let within = thread.expect("a thread").join().expect("its end");
            assert_eq!(within, Err(io::ErrorKind::PermissionDenied));
            let caught = std::panic::catch_unwind(|| panic!("caught"));
            assert!(caught.is_err());
        });
    }
}
