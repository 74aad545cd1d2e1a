//! The mount service: servers without privileges, which get their images open.

use crate::args;
use crate::contained::{of_threads, process};
use crate::program::{await_that, done, extant, is_mount, json, refused};
use crate::unprivileged::{Fuse, NOBODY, as_user, home};
use extant_testkit::kernel::Loop;
use extant_testkit::tool::{need, run};
use extant_testkit::{FeatureSet, Image, Scratch};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Permissions};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A service that runs as a user without any privilege, as systemd starts it: each client gets a
/// process.
struct Service {
    activation: Child,
    home: Scratch,
}

impl Service {
    fn start(arguments: &[&str]) -> Service {
        Service::start_as(NOBODY, arguments)
    }

    fn start_as(user: u32, arguments: &[&str]) -> Service {
        let home = home();
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("root");
        let user = [format!("--reuid={user}"), format!("--regid={user}")];
        let activation = Command::new(need("systemd-socket-activate"))
            .args(["--accept", "--seqpacket", "--listen"])
            .arg(home.join("socket"))
            .arg(need("setpriv"))
            .args(user)
            .arg("--clear-groups")
            .arg(home.join("extant"))
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("systemd-socket-activate");
        let service = Service { activation, home };
        await_that("the socket", || service.socket().exists());
        service
    }

    /// The processes that serve.
    fn servers(&self) -> Vec<String> {
        let id = self.activation.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        children.expect("children").split_whitespace().map(String::from).collect()
    }

    fn socket(&self) -> PathBuf {
        self.home.join("socket")
    }

    /// The arguments of a mount by this service.
    fn mount(&self, options: &str, image: &Path, dir: &Path) -> Vec<std::ffi::OsString> {
        let options = format!("{options},service={}", self.socket().display());
        args!["mount", "-o", options, image, dir].to_vec()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.activation.kill();
        let _ = self.activation.wait();
    }
}

/// Unmounts the remaining mount of a failed test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mount(self.0) {
            run("umount", &["--lazy".as_ref(), self.0.as_os_str()]);
        }
    }
}

fn number(process: &Path) -> Pid {
    let number = process.file_name().and_then(|name| name.to_str()?.parse().ok());
    Pid::from_raw(number.expect("a number")).expect("a process")
}

#[test]
fn a_service_serves_without_privileges_and_paths() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    fs::set_permissions(image.path(), Permissions::from_mode(0o600)).expect("root");
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    for options in ["rw", "rw,noatime,suid,memory=64M"] {
        done(&service.mount(options, image.path(), &dir));
        fs::write(dir.join("file"), options).expect("a write");
        File::open(dir.join("file")).and_then(|file| file.sync_all()).expect("an fsync");
        let server = process(&dir);
        let user = NOBODY.to_string();
        for (name, expected) in [
            ("Uid:", [user.as_str(); 4].join("\t")),
            ("CapEff:", "0".repeat(16)),
            ("CapPrm:", "0".repeat(16)),
            ("Seccomp:", "2".into()),
            ("NoNewPrivs:", "1".into()),
        ] {
            let all = of_threads(&server, name);
            assert!(all.len() > 2 && all.iter().all(|value| *value == expected), "{name} {all:?}");
        }
        let stats = json(&args!["stats", &dir]);
        assert_eq!(stats["sandbox"]["landlock"], "all", "{stats}");
        let shown = run("findmnt", &args!["-rno", "FSTYPE,SOURCE,OPTIONS", &dir]);
        let shown = shown.must_succeed().text();
        let of_image = format!("fuse.extant {} rw,", image.path().display());
        assert!(shown.starts_with(&of_image), "{shown}");
        assert_eq!(shown.contains("nosuid"), !options.contains("suid"), "{shown}");
        let open = File::open(dir.join("file")).expect("the file");
        refused(&args!["umount", &dir], 1, "in use");
        drop(open);
        done(&args!["umount", &dir]);
        await_that("the end of the server", || !server.exists());
        done(&args!["info", image.path()]);
    }
    assert_eq!(done(&args!["cat", image.path(), "/file"]).text(), "rw,noatime,suid,memory=64M");
    image.assert_clean();
}

#[test]
fn a_signal_to_the_service_unmounts() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    done(&service.mount("restart", image.path(), &dir));
    fs::write(dir.join("file"), "text").expect("a write");
    let server = process(&dir);
    kill_process(number(&server), Signal::TERM).expect("a signal");
    await_that("the end", || !is_mount(&dir) && !server.exists());
    assert_eq!(done(&args!["cat", "--wait", image.path(), "/file"]).text(), "text");
    image.assert_clean();
}

#[test]
fn a_killed_service_is_asked_again() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    done(&service.mount("restart", image.path(), &dir));
    fs::write(dir.join("file"), "text").expect("a write");
    let open = File::open(dir.join("file")).expect("the file");
    open.sync_all().expect("an fsync");
    for _ in 0..2 {
        let server = process(&dir);
        kill_process(number(&server), Signal::KILL).expect("a kill");
        await_that("another server", || {
            let told = extant(&args!["--json", "stats", &dir]);
            told.code == 0 && process(&dir) != server
        });
        assert_eq!(fs::read(dir.join("file")).expect("the file"), b"text");
        assert_eq!(of_threads(&process(&dir), "CapEff:")[0], "0".repeat(16));
    }
    let stale = open.sync_all().expect_err("its server is gone");
    assert_eq!(stale.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    drop(open);
    done(&args!["umount", &dir]);
    assert!(!is_mount(&dir), "no mount lies below");
    image.assert_clean();
}

#[test]
fn disks_and_parts_are_handed_over() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let device = Loop::attach(image.path(), false);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    done(&service.mount("rw", device.device(), &dir));
    fs::write(dir.join("file"), "text").expect("a write");
    refused(&args!["mkdir", device.device(), "/d"], 1, "in use");
    done(&args!["umount", &dir]);
    drop(device);
    image.assert_clean();
    let disk = scratch.join("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes.extend(image.bytes());
    fs::write(&disk, bytes).expect("a disk");
    let part = PathBuf::from(format!("{}@1M", disk.display()));
    done(&service.mount("ro", &part, &dir));
    assert_eq!(fs::read(dir.join("file")).expect("the file"), b"text");
    done(&args!["umount", &dir]);
}

#[test]
fn what_a_service_cannot_serve_is_refused() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let mount = |options: &str| service.mount(options, image.path(), &dir);
    for option in ["journal_path=/x", "io=direct", "no_sandbox", "ro,sb=8193", "backing=/x"] {
        refused(&mount(option), 2, "by a service");
    }
    refused(&[&mount("rw")[..], &args!["-f"]].concat(), 2, "in the background");
    let absent = args!["mount", "-o", "service=/nowhere/x", image.path(), &dir];
    refused(&absent, 1, "must be the socket of a mount service");
    let empty = scratch.join("empty");
    fs::write(&empty, vec![0; 1 << 20]).expect("a file");
    refused(&service.mount("rw", &empty, &dir), 1, &empty.display().to_string());
    refused(&service.mount("rw", Path::new("/dev/null"), &dir), 1, "/dev/null");
    let held = crate::program::Server::start(image.path(), "rw");
    refused(&mount("rw"), 1, "in use");
    held.unmount();
    assert!(!is_mount(&dir));
    done(&mount("rw"));
    done(&args!["umount", &dir]);
    refused(&args!["serve"], 2, "Accept=yes");
}

/// Root of the machine and the service's own user are served always.
#[test]
fn other_users_are_served_where_asked() {
    let script = "extant mkfs -q -E root_owner disk.img 16M; mkdir mnt
        extant mount -o service=socket disk.img mnt; cat /proc/self/mounts | grep $PWD/mnt
        extant stats mnt | grep server.process; echo text > mnt/file; extant umount mnt
        extant cat disk.img /file";
    let run = |arguments: &[&str]| {
        let service = Service::start_as(NOBODY - 1, arguments);
        fs::set_permissions(service.socket(), Permissions::from_mode(0o666)).expect("root");
        as_user(&service.home, Fuse::Everybody, script)
    };
    let printed = run(&[]);
    assert!(printed.code == 1 && printed.errors().contains("serve user 65534"), "{printed}");
    for arguments in [&["--user", "65534"][..], &["--any-user"]] {
        let printed = run(arguments).must_succeed();
        assert!(printed.text().contains("user_id=65534"), "{printed}");
        assert!(printed.text().ends_with("text\n"), "{printed}");
    }
}

/// Connects to a service as a client of any kind.
fn connected(service: &Service) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    let address = SocketAddrUnix::new(service.socket()).expect("an address");
    connect(&socket, &address).expect("a service");
    socket
}

/// Sends a message with descriptors.
fn send(socket: &OwnedFd, message: &[u8], descriptors: &[impl AsFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || extra.push(SendAncillaryMessage::ScmRights(&descriptors)));
    // The service may have refused the user already.
    let _ = sendmsg(socket, &[IoSlice::new(message)], &mut extra, SendFlags::NOSIGNAL);
}

/// Returns all that the service answers until it closes the socket.
fn told(socket: OwnedFd) -> String {
    let mut told = Vec::new();
    let (mut socket, mut line) = (File::from(socket), vec![0; 64 << 10]);
    // Each read takes a message.
    while let Ok(len @ 1..) = socket.read(&mut line) {
        told.extend_from_slice(&line[..len]);
    }
    String::from_utf8(told).expect("text")
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("sockets")
}

fn handover(options: &str) -> String {
    format!("extant mount 1\0/etc/passwd\0/root\0{options}")
}

#[test]
fn hostile_clients_cost_an_error() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let answer = |message: &[u8], descriptors: &[OwnedFd]| {
        let socket = connected(&service);
        send(&socket, message, descriptors);
        told(socket)
    };
    let refused = |options: &str, image: OwnedFd, cause: &str| {
        let (acts, quick) = (sockets(), sockets());
        let told = answer(handover(options).as_bytes(), &[image, acts.1, quick.1]);
        assert!(told.starts_with("failed ") && told.contains(cause), "{options}: {told}");
    };
    let scratch = Scratch::new();
    let fifo = scratch.join("fifo");
    run("mkfifo", &[&fifo]).must_succeed();
    let open = |path: &Path, mode: OFlags| -> OwnedFd {
        rustix::fs::open(path, mode | OFlags::CLOEXEC, Mode::empty()).expect("a file")
    };
    let of_image = |mode| open(image.path(), mode);
    let unfit = "it is not open for that";
    for mode in [OFlags::RDONLY, OFlags::WRONLY, OFlags::PATH, OFlags::RDWR | OFlags::APPEND] {
        refused("rw", of_image(mode), unfit);
    }
    refused("ro", of_image(OFlags::WRONLY), unfit);
    refused("ro", of_image(OFlags::PATH), unfit);
    refused("rw", open(Path::new("/"), OFlags::RDONLY), unfit);
    refused("ro", open(Path::new("/"), OFlags::RDONLY), "neither a file");
    refused("rw", open(&fifo, OFlags::RDWR), "neither a file");
    refused("rw", open(Path::new("/dev/null"), OFlags::RDWR), "neither a file");
    refused("rw", open(Path::new("/dev/fuse"), OFlags::RDWR), "neither a file");
    refused("rw", sockets().0, "neither a file");
    refused("ro", open(Path::new("/proc/self/maps"), OFlags::RDONLY), "/etc/passwd");
    refused("rw,nonsense", of_image(OFlags::RDWR), "nonsense");
    refused("journal_path=/etc/shadow", of_image(OFlags::RDWR), "journal_path");
    refused("no_sandbox", of_image(OFlags::RDWR), "no_sandbox");
    let unknown = "none that this service knows";
    let (acts, quick) = (sockets(), sockets());
    let told = answer(b"junk", &[]);
    assert!(told.contains(unknown), "{told}");
    let no_sockets = [of_image(OFlags::RDWR), of_image(OFlags::PATH), quick.0];
    let told = answer(handover("rw").as_bytes(), &no_sockets);
    assert!(told.contains(unknown), "{told}");
    let many = [of_image(OFlags::RDWR), acts.0, quick.1, acts.1];
    let told = answer(handover("rw").as_bytes(), &many);
    assert!(told.contains(unknown), "{told}");
    await_that("the ends of the servers", || service.servers().is_empty());
    serves_others(&service, &image);
}

/// The service mounts for another client.
#[track_caller]
fn serves_others(service: &Service, image: &Image) {
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    done(&service.mount("rw", image.path(), &dir));
    done(&args!["umount", &dir]);
    image.assert_clean();
}

/// The process at the other ends of the sockets, by which the service mounts, is a client's, too.
#[test]
fn keepers_that_lie_cost_an_error() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let open = |path: &Path| -> OwnedFd {
        File::options().read(true).write(true).open(path).expect("a file").into()
    };
    let file = || open(image.path());
    let fuse = || open(Path::new("/dev/fuse"));
    let top = || -> OwnedFd { File::open("/").expect("/").into() };
    let done = || vec![0, 0, 0, 0, 0, 1];
    for (reply, descriptors, cause) in [
        (Vec::new(), vec![], "has ended"),
        (done(), vec![], "gave no connection"),
        (done(), vec![open(Path::new("/dev/null"))], "gave no connection"),
        (done(), vec![file()], "gave no connection"),
        (done(), vec![top(), fuse()], "gave no connection"),
        (done(), vec![sockets().0], "gave no connection"),
        // It is a connection of no mount.
        (done(), vec![fuse()], "not permitted"),
        (vec![0; 5], vec![fuse()], "/root"),
        (vec![0xff; 4096], vec![fuse()], "/root"),
        (vec![1, 0, 0, 0, 0, 0], vec![fuse()], "not permitted"),
    ] {
        let (socket, acts, quick) = (connected(&service), sockets(), sockets());
        send(&socket, handover("rw").as_bytes(), &[&file(), &acts.1, &quick.1]);
        drop((acts.1, quick.1));
        let mut request = [0; 64];
        let (len, _) = recv(&acts.0, &mut request, RecvFlags::empty()).expect("a request");
        assert!(len > 0, "no request");
        if !reply.is_empty() {
            send(&acts.0, &reply, &descriptors);
        }
        // It ends without an answer to further requests.
        drop((acts.0, quick.0, descriptors));
        let told = told(socket);
        assert!(told.contains("failed ") && told.contains(cause), "{reply:?}: {told}");
        await_that("the end of the server", || service.servers().is_empty());
    }
    serves_others(&service, &image);
}

#[test]
fn silent_clients_hold_up_no_others() {
    let service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let held = FeatureSet::named("default").make_sized(16 << 20);
    let (without_message, without_keeper) = (connected(&service), connected(&service));
    let (acts, quick) = (sockets(), sockets());
    let file = File::options().read(true).write(true).open(held.path()).expect("the image");
    send(&without_keeper, handover("rw").as_bytes(), &[&file.into(), &acts.1, &quick.1]);
    drop((acts.1, quick.1));
    let mut request = [0; 64];
    recv(&acts.0, &mut request, RecvFlags::empty()).expect("a request");
    serves_others(&service, &image);
    assert_eq!(service.servers().len(), 2, "they wait");
    drop((without_message, without_keeper, acts.0, quick.0));
    await_that("the ends of the servers", || service.servers().is_empty());
    held.assert_clean();
}

/// A client gets no more memory than the service gives.
#[test]
fn a_service_bounds_memory() {
    let service = Service::start(&["--memory", "64M"]);
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    for options in ["memory=1T,mb_frsp_max_mem=1T", "mb_frsp_max_mem=0"] {
        done(&service.mount(options, image.path(), &dir));
        let stats = json(&args!["stats", &dir]);
        let limit = stats["space"]["mb_frsp_max_mem"].as_u64().expect("a number");
        assert!((1..=64 << 20).contains(&limit), "{options}: {stats}");
        done(&args!["umount", &dir]);
    }
    image.assert_clean();
}

/// The keeper cannot ask for another server then, and logs that.
#[test]
fn a_service_that_is_gone_is_told_in_the_log() {
    let mut service = Service::start(&[]);
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
    let _mounted = Mounted(&dir);
    let arguments = service.mount("restart", image.path(), &dir);
    done(&[&arguments[..], &args!["--log", &log]].concat());
    let server = process(&dir);
    service.activation.kill().expect("a kill");
    service.activation.wait().expect("its end");
    kill_process(number(&server), Signal::KILL).expect("a kill");
    let log = || fs::read_to_string(&log).expect("the log");
    await_that("a message", || log().contains("must be the socket of a mount service"));
    assert!(log().contains("another one is started"), "{}", log());
    done(&args!["umount", "--dead", &dir]);
    assert!(!is_mount(&dir));
    image.leave_unjudged("its server was killed");
}
