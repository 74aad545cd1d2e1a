//! Network block devices in place of images, and images for clients of NBD.

use crate::args;
use crate::contained::{of_threads, process};
use crate::program::{EXTANT, PATIENCE, Server, await_that, done, extant, is_mount, json, refused};
use extant_testkit::tool::{need, run};
use extant_testkit::{Scratch, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A program that serves at a socket.
pub struct Serving {
    child: Child,
    pub socket: PathBuf,
}

impl Serving {
    pub fn start(program: &Path, args: &[OsString], socket: PathBuf) -> Serving {
        let _ = fs::remove_file(&socket);
        let child = Command::new(program).args(args).stdin(Stdio::null()).spawn().unwrap();
        let mut serving = Serving { child, socket };
        await_that("a server", || {
            assert!(serving.child.try_wait().unwrap().is_none(), "the server has ended");
            serving.socket.exists()
        });
        serving
    }

    /// Serves a file by nbdkit, with further arguments.
    pub fn nbdkit(scratch: &Scratch, file: &Path, more: &[OsString]) -> Serving {
        let socket = scratch.join("nbdkit");
        let own = args!["--foreground", "--unix", &socket];
        let args = [&own[..], more, &args!["file", file]].concat();
        Serving::start(&need("nbdkit"), &args, socket)
    }

    /// Serves an image by the program under test.
    pub fn own(scratch: &Scratch, image: &Path, more: &[OsString]) -> Serving {
        let socket = scratch.join("own");
        let args = [&args!["--quiet", "serve-nbd", image, "--socket", &socket][..], more].concat();
        Serving::start(Path::new(EXTANT), &args, socket)
    }

    fn address(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order.
    #[track_caller]
    pub fn end(mut self) {
        run("kill", &["-TERM".to_string(), self.child.id().to_string()]).must_succeed();
        self.await_end();
    }

    #[track_caller]
    pub fn await_end(&mut self) {
        let begin = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.dir("top");
    fs::write(top.join("file"), "of the tree").unwrap();
    fs::create_dir(top.join("dir")).unwrap();
    fs::write(top.join("dir/large"), vec![7; 5 << 20]).unwrap();
    top
}

#[test]
fn commands_take_an_address() {
    let scratch = Scratch::new();
    let (top, file) = (tree(&scratch), scratch.file("disk", 64 << 20));
    let server = Serving::nbdkit(&scratch, &file, &[]);
    let at = server.address();
    done(&args!["mkfs", &at]);
    refused(&args!["mkfs", &at], 1, "-F overwrites it");
    done(&args!["put", &at, top.join("file"), "/file"]);
    done(&args!["mkdir", &at, "/dir"]);
    assert_eq!(done(&args!["cat", &at, "/file"]).text(), "of the tree");
    assert_eq!(done(&args!["--no-sandbox", "cat", &at, "/file"]).text(), "of the tree");
    let script = scratch.join("script");
    fs::write(&script, "mkdir /applied\n").unwrap();
    done(&args!["apply", &at, &script]);
    for command in ["info", "ls", "tree", "check", "recover", "repair", "trim", "tune", "hash"] {
        done(&args![command, &at]);
    }
    done(&args!["find", &at, "/dir"]);
    done(&args!["resize", "--minimum", &at]);
    done(&args!["get", &at, "/file", scratch.join("copy")]);
    done(&args!["export", &at, "--tar", scratch.join("all.tar")]);
    done(&args!["clone", &at, scratch.join("clone.img")]);
    done(&args!["debug", &at, "dir", "/"]);
    assert_eq!(extant(&args!["diff", &at, scratch.join("clone.img")]).code, 0);
    e2fsck::check(&file).assert_clean();
    done(&args!["build", "-F", &at, &top]);
    assert_eq!(done(&args!["cat", &at, "/dir/large"]).stdout, vec![7; 5 << 20]);
    // The image is shorter than the device: the rest behind it stays.
    drop(server);
    done(&args!["ls", &file]);
}

#[test]
fn missing_servers_and_exports_are_told() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 1 << 20);
    let server = Serving::own(&scratch, &file, &args!["--export", "disk"]);
    let other = server.address().replace("///?", "///other?");
    refused(&args!["info", &other], 1, "no such export");
    refused(&args!["info", server.address()], 1, "holds no file system");
    drop(server);
    let gone = format!("nbd+unix:///?socket={}", scratch.join("none").display());
    for command in ["info", "recover", "mkfs"] {
        refused(&args![command, &gone], 1, "check that the server runs");
    }
    refused(&args!["--no-sandbox", "ls", &gone], 1, "No such file");
    refused(&args!["ls", "nbd://"], 1, "names no host");
    refused(&args!["ls", "nbds://host/?tls-psk-file=/x"], 1, "use certificates");
    let mount = extant(&args!["mount", &gone, scratch.dir("mnt")]);
    assert!(mount.code == 1 && mount.errors().contains("check that the server runs"), "{mount}");
}

#[test]
fn partitions_and_formats_of_an_address_are_opened() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    done(&args!["build", &image, tree(&scratch), "--free", "16M"]);
    let disk = scratch.join("disk");
    fs::write(&disk, [vec![0; 1 << 20], fs::read(&image).unwrap()].concat()).unwrap();
    let server = Serving::nbdkit(&scratch, &disk, &[]);
    let at = format!("{}@1M", server.address());
    assert_eq!(done(&args!["cat", &at, "/file"]).text(), "of the tree");
    drop(server);
    // An overlay in a file whose base is remote, and an image of the format at an address.
    let server = Serving::nbdkit(&scratch, &image, &[]);
    let at = server.address();
    let packed = scratch.join("packed");
    done(&args!["build", &packed, "--format", "qcow2", scratch.join("top")]);
    let second = scratch.join("second");
    let create = args!["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base", "-u", &second];
    let size = args![fs::metadata(&image).unwrap().len().to_string()];
    run("qemu-img", &[&create[..], &size].concat()).must_succeed();
    let overlay = args!["--format", "qcow2", "--backing", &at, &second];
    done(&[&args!["mkdir"][..], &overlay, &args!["/made"]].concat());
    assert_eq!(
        done(&[&args!["cat"][..], &overlay, &args!["/file"]].concat()).text(),
        "of the tree"
    );
    drop(server);
    let server = Serving::nbdkit(&scratch, &packed, &[]);
    let cat = args!["cat", "--format", "qcow2", server.address(), "/file"];
    assert_eq!(done(&cat).text(), "of the tree");
}

#[test]
fn a_mount_survives_servers_that_are_killed() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 128 << 20);
    let mut server = Serving::nbdkit(&scratch, &file, &[]);
    let at = PathBuf::from(server.address());
    done(&args!["mkfs", &at]);
    let top = tree(&scratch);
    let mount = Server::start(&at, "rw");
    let stats = json(&args!["stats", mount.dir()]);
    assert_eq!(stats["sandbox"]["landlock"], "all", "{stats}");
    let process = process(mount.dir());
    let is_contained = || {
        let calls = of_threads(&process, "Seccomp:");
        assert!(calls.len() > 2 && calls.iter().all(|value| value == "2"), "{calls:?}");
    };
    is_contained();
    for round in 0..4 {
        let dir = mount.dir().join(round.to_string());
        run("cp", &args!["-r", &top, &dir]).must_succeed();
        if round % 2 == 0 {
            run("sync", &args!["-f", &dir]).must_succeed();
        }
        server.kill();
        server = Serving::nbdkit(&scratch, &file, &[]);
        run("cp", &args!["-r", &top, dir.join("again")]).must_succeed();
    }
    // The threads of new connections, too.
    is_contained();
    mount.unmount();
    drop(server);
    e2fsck::check(&file).assert_clean();
    for round in 0..4 {
        let path = format!("/{round}/again/dir/large");
        assert!(done(&args!["cat", &file, path]).stdout == vec![7; 5 << 20]);
    }
}

#[test]
fn mounts_of_an_address_are_known_by_it() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 64 << 20);
    let server = Serving::own(&scratch, &file, &[]);
    let at = server.address();
    done(&args!["mkfs", &at]);
    let dir = scratch.dir("mnt");
    done(&args!["mount", &at, &dir]);
    refused(&args!["mount", &at, scratch.dir("other")], 1, "is mounted at");
    refused(&args!["mkdir", &at, "/x"], 1, "is mounted at");
    refused(&args!["repair", &at], 8, "is mounted at");
    refused(&args!["mkfs", "-F", &at], 1, "is mounted at");
    let again = args!["serve-nbd", &at, "--socket", scratch.join("again")];
    refused(&again, 1, "is mounted at");
    // The same export by other addresses.
    let same = format!("{at}&timeout=50");
    refused(&args!["mkdir", &same, "/x"], 1, "another process here writes to it");
    refused(&args!["trim", &same], 1, "another process here writes to it");
    refused(&args!["mount", &same, scratch.dir("third")], 1, "another process here writes");
    done(&args!["ls", &at]);
    fs::write(dir.join("file"), "written").unwrap();
    // Mounts of other tests have any names.
    let options = fs::read("/proc/mounts").unwrap();
    let options = String::from_utf8_lossy(&options);
    let line = options.lines().find(|line| line.contains(&*dir.to_string_lossy())).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    done(&args!["umount", &at]);
    server.end();
    assert_eq!(done(&args!["cat", &file, "/file"]).text(), "written");
    e2fsck::check(&file).assert_clean();
}

#[test]
fn the_end_of_a_mount_whose_server_is_lost_is_a_failure() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 64 << 20);
    let server = Serving::nbdkit(&scratch, &file, &[]);
    let at = format!("{}&timeout=1", server.address());
    done(&args!["mkfs", &at]);
    let dir = scratch.dir("mnt");
    done(&args!["mount", &at, &dir]);
    fs::write(dir.join("file"), "written").unwrap();
    server.kill();
    assert!(fs::File::open(dir.join("file")).unwrap().sync_all().is_err());
    refused(&args!["umount", &dir], 1, "cannot be read, so changes that no fsync made durable");
    assert!(!is_mount(&dir));
}

#[test]
fn images_are_served_to_other_programs() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    done(&args!["build", &image, tree(&scratch), "--free", "16M"]);
    let server = Serving::own(&scratch, &image, &args!["--read-only"]);
    assert_eq!(fs::metadata(&server.socket).unwrap().permissions().mode() & 0o777, 0o600);
    let copy = scratch.join("copy");
    run("nbdcopy", &args![server.address(), &copy]).must_succeed();
    assert!(fs::read(&copy).unwrap() == fs::read(&image).unwrap());
    // The socket is there before the image is taken; a client that was served came after both.
    refused(&args!["mkdir", &image, "/x"], 1, "in use");
    refused(&args!["mkdir", server.address(), "/x"], 1, "");
    let socket = server.socket.clone();
    server.end();
    assert!(!socket.exists(), "the socket is removed");
    // An overlay, for one client.
    let overlay = scratch.join("overlay");
    done(&args!["overlay", "create", &overlay, "--backing", &image]);
    let format = args!["--format", "qcow2", "--backing", &image, "--once", "--export", "a b"];
    let mut server = Serving::own(&scratch, &overlay, &format);
    let at = server.address().replace("///?", "///a%20b?");
    let write = args!["-f", "raw", "-c", "write -P 9 0 512", &at];
    run("qemu-io", &write).must_succeed();
    server.await_end();
    run("qemu-img", &args!["check", "-f", "qcow2", &overlay]).must_succeed();
    let read = args!["-f", "qcow2", "-c", "read -P 9 0 512", &overlay];
    assert!(!run("qemu-io", &read).must_succeed().text().contains("failed"));
}

#[test]
fn a_server_tells_its_address() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 8 << 20);
    let child = Command::new(EXTANT)
        .args(["--json", "serve-nbd", "--listen", "127.0.0.1:0", "--once", "--export", "disk"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = Serving { child, socket: scratch.join("none") };
    let mut line = String::new();
    let mut out = std::io::BufReader::new(server.child.stdout.take().unwrap());
    let mut told = serde_json::Value::Null;
    while told.is_null() {
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        told = serde_json::from_str(&line).unwrap_or_default();
    }
    assert_eq!((&told["bytes"], &told["read_only"]), (&(8 << 20).into(), &false.into()));
    let at = told["address"].as_str().unwrap();
    assert!(at.starts_with("nbd://127.0.0.1:") && at.ends_with("/disk"), "{at}");
    done(&args!["mkfs", at]);
    server.await_end();
    e2fsck::check(&file).assert_clean();
    refused(&args!["serve-nbd", &file, "--listen", "256.0.0.1:x"], 1, "--listen");
    refused(&args!["serve-nbd", &file, "--socket", &file], 1, "exists; remove it");
    refused(&args!["serve-nbd", scratch.join("missing")], 1, "No such file");
}

#[test]
fn servers_of_whole_blocks_alone_are_read_at_any_place() {
    let scratch = Scratch::new();
    let disk = scratch.join("disk");
    done(&args!["build", scratch.join("image"), tree(&scratch), "--free", "16M"]);
    // A file system that begins within a block of the server.
    let image = fs::read(scratch.join("image")).unwrap();
    let rest = vec![0; 4096 - 512];
    fs::write(&disk, [vec![0; 512], image, rest].concat()).unwrap();
    let file = args!["file", &disk];
    let policy = args![
        "--filter=blocksize-policy",
        "blocksize-error-policy=error",
        "blocksize-minimum=4096",
        "blocksize-preferred=4096",
        "blocksize-maximum=65536"
    ];
    let socket = scratch.join("nbdkit");
    let own = args!["--foreground", "--unix", &socket];
    let all = [&own[..], &policy[..1], &file, &policy[1..]].concat();
    let server = Serving::start(&need("nbdkit"), &all, socket);
    let at = format!("{}@512", server.address());
    for command in ["check", "repair", "trim", "info"] {
        done(&args![command, &at]);
    }
    done(&args!["mkdir", &at, "/made"]);
    assert_eq!(done(&args!["cat", &at, "/file"]).text(), "of the tree");
}

#[test]
fn an_overlay_names_an_address_as_its_base() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    done(&args!["build", &image, tree(&scratch)]);
    let server = Serving::nbdkit(&scratch, &image, &[]);
    let overlay = scratch.join("overlay");
    done(&args!["overlay", "create", &overlay, "--backing", server.address()]);
    let printed = run("qemu-img", &args!["info", "--output=json", &overlay]).must_succeed().text();
    assert!(printed.contains(&format!("\"{}\"", server.address())), "{printed}");
}

#[test]
fn a_socket_of_another_server_stays() {
    let scratch = Scratch::new();
    let image = scratch.file("image", 1 << 20);
    let server = Serving::own(&scratch, &image, &[]);
    let socket = server.socket.clone();
    fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    server.end();
    assert!(socket.exists());
}
