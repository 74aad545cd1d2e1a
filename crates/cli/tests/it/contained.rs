//! The sandbox of a server.

use crate::args;
use crate::program::{EXTANT, Server, done, json, refused};
use extant_testkit::kernel::{Loop, enable_rings};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The process that serves.
pub fn process(dir: &Path) -> PathBuf {
    let stats = json(&args!["stats", dir]);
    PathBuf::from(format!("/proc/{}", stats["server"]["process"].as_u64().expect("a process")))
}

/// A line of the states of all threads of a process.
pub fn of_threads(process: &Path, name: &str) -> Vec<String> {
    let threads = fs::read_dir(process.join("task")).expect("threads").flatten();
    let states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let line = |state: String| {
        let value = state.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        value.trim().to_owned()
    };
    states.map(line).collect()
}

#[test]
fn every_thread_of_a_server_is_contained() {
    enable_rings();
    for options in ["rw,transport=dev", "ro,transport=dev", "rw,transport=uring", "rw"] {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let server = Server::start(image.path(), options);
        if !options.contains("ro") {
            fs::write(server.dir().join("file"), vec![1; 8 << 20]).expect("a write");
        }
        let stats = json(&args!["stats", server.dir()]);
        let sandbox = &stats["sandbox"];
        assert_eq!(sandbox["capabilities"], "dac_override", "{options}: {sandbox}");
        assert_eq!(sandbox["landlock"], "all", "{options}: {sandbox}");
        let rings = !options.contains("dev");
        let calls = if rings { "all, with io_uring" } else { "all" };
        assert_eq!(sandbox["seccomp"], calls, "{options}: {sandbox}");
        let process = process(server.dir());
        for (name, expected) in [
            ("CapEff:", "0000000000000002"),
            ("CapPrm:", "0000000000000002"),
            ("Seccomp:", "2"),
            ("NoNewPrivs:", "1"),
        ] {
            let all = of_threads(&process, name);
            assert!(all.len() > 2 && all.iter().all(|value| value == expected), "{name} {all:?}");
        }
        server.unmount();
    }
}

#[test]
fn a_sandbox_can_be_left_out() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw,no_sandbox");
    let stats = json(&args!["stats", server.dir()]);
    assert_eq!(stats["sandbox"]["state"], "off");
    let states = of_threads(&process(server.dir()), "Seccomp:");
    assert!(states.iter().all(|value| value == "0"), "{states:?}");
    server.unmount();
    let (scratch, image) = (Scratch::new(), FeatureSet::named("default").make_sized(64 << 20));
    let dir = scratch.dir("mnt");
    done(&args!["mount", "--no-sandbox", image.path(), &dir]);
    let stats = json(&args!["stats", &dir]);
    assert_eq!(stats["sandbox"]["state"], "off");
    done(&args!["umount", &dir]);
    // The options that a server tells give the next one no power.
    done(&args!["mount", "-o", "ro,no_sandbox", image.path(), &dir]);
    done(&args!["mount", "-o", "remount,rw", image.path(), &dir]);
    assert_eq!(json(&args!["stats", &dir])["sandbox"]["state"], "on");
    done(&args!["umount", &dir]);
    assert_eq!(stats["sandbox"]["seccomp"], Value::Null);
}

/// The path of a journal outside is not taken from a server that may be taken over: a mount anew
/// that could not open the image is refused, and the mount stays.
#[test]
fn a_journal_outside_is_named_again() {
    let (scratch, journal) = (Scratch::new(), Image::blank(8 << 20));
    let words = ["-q", "-F", "-O", "journal_dev", "-b", "4096"].map(OsString::from);
    run("mke2fs", &[&words[..], &args![journal.path()]].concat()).must_succeed();
    journal.leave_unjudged("it holds a journal only");
    let device = Loop::attach(journal.path(), false);
    let option = format!("device={}", device.device().display());
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &option]);
    drop(device);
    image.leave_unjudged("its journal is not at hand");
    let dir = scratch.dir("mnt");
    let named = format!("journal_path={}", journal.path().display());
    done(&args!["mount", "-o", format!("ro,{named}"), image.path(), &dir]);
    let remount = args!["mount", "-o", "remount,rw", image.path(), &dir];
    refused(&remount, 1, "its journal is outside");
    assert_eq!(json(&args!["stats", &dir])["sandbox"]["state"], "on", "the mount stays");
    let remount = args!["mount", "-o", format!("remount,rw,{named}"), image.path(), &dir];
    done(&remount);
    fs::write(dir.join("file"), "content").expect("a write");
    done(&args!["umount", &dir]);
}

/// The keeper of a server, a child of it.
fn keeper(server: &Path) -> PathBuf {
    let id = server.file_name().and_then(|id| id.to_str()).expect("a number");
    let children = fs::read_to_string(server.join(format!("task/{id}/children")));
    PathBuf::from("/proc").join(children.expect("children").trim())
}

/// Without its keeper a server cannot unmount: it says so at once, and at a signal.
#[test]
fn the_loss_of_a_keeper_is_told() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
    done(&args!["mount", "--log", &log, image.path(), &dir]);
    let server = process(&dir);
    let signal = |name: &str, process: &Path| {
        run("kill", &[format!("-{name}").as_ref(), process.file_name().expect("a number")])
            .must_succeed();
    };
    let told = |words: &str| {
        let remedy = format!("`umount {}` ends the mount", dir.display());
        let log = fs::read_to_string(&log).unwrap_or_default();
        log.lines().any(|line| line.contains(words) && line.contains(&remedy))
    };
    signal("KILL", &keeper(&server));
    crate::program::await_that("a message", || told("signals no longer unmount"));
    signal("TERM", &server);
    crate::program::await_that("a message", || told("cannot be unmounted"));
    fs::write(dir.join("file"), "text").expect("the mount is served");
    done(&args!["umount", &dir]);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/file"]).text(), "text");
}

#[test]
fn a_server_closes_descriptors_of_its_caller() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let (dir, held) = (scratch.dir("mnt"), scratch.file("held", 0));
    let script = "exec 9< \"$1\"; shift; exec \"$@\"";
    let mut server = Command::new("sh")
        .args(["-c", script, "sh"])
        .args(args![&held, EXTANT, "mount", "--foreground", image.path(), &dir])
        .spawn()
        .expect("a server");
    crate::program::await_that("the mount", || crate::program::is_mount(&dir));
    let open = fs::read_dir(format!("/proc/{}/fd", server.id())).expect("descriptors");
    let mut open = open.flatten().filter_map(|link| fs::read_link(link.path()).ok());
    let inherited = open.any(|target| target == held);
    done(&args!["umount", &dir]);
    server.wait().expect("its end");
    assert!(!inherited, "it has the descriptor");
}

/// The process that keeps the privileges has no part in the mount, and ends with the server.
#[test]
fn a_keeper_ends_with_its_server() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw");
    let keeper = keeper(&process(server.dir()));
    let name = || fs::read_to_string(keeper.join("comm")).unwrap_or_default();
    assert_eq!(name().trim(), "extant-keeper");
    // It holds the directory above the mount point.
    let above = server.dir().parent().and_then(|dir| dir.to_str()).expect("UTF-8");
    for link in fs::read_dir(keeper.join("fd")).expect("descriptors").flatten() {
        let target = fs::read_link(link.path()).expect("a link");
        let text = target.to_str().expect("UTF-8");
        assert!(["/dev/null", above].contains(&text) || text.starts_with("socket:"), "{text}");
    }
    server.signal("KILL");
    crate::program::await_that("the keeper's end", || name().trim() != "extant-keeper");
    done(&args!["umount", "--lazy", server.dir()]);
    done(&args!["recover", image.path()]);
}

/// Descriptors that arguments name are open in a sandbox, as images and as outputs.
#[test]
fn descriptors_of_the_caller_are_used_by_name() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let run = |script: &str| {
        let script = format!("set -euo pipefail; cd \"$1\"; {script}");
        run("bash", &args!["-c", script, EXTANT, scratch.path(), image.path()]).must_succeed()
    };
    run("\"$0\" export \"$2\" --tar plain.tar; \"$0\" ls \"$2\" > plain.list");
    run("exec 9< \"$2\"; \"$0\" ls /dev/fd/9 | cmp - plain.list; \"$0\" ls /proc/self/fd/9@0 | \
        cmp - plain.list");
    run("exec 9<> old.tar; \"$0\" export \"$2\" --tar /dev/fd/9; cmp old.tar plain.tar");
    run(
        "\"$0\" export \"$2\" --tar >(cat > piped.tar; touch ended); while ! test -e ended; do :; \
        done; cmp piped.tar plain.tar",
    );
    run("\"$0\" export \"$2\" --tar /dev/stdout | cmp - plain.tar");
    run("\"$0\" export \"$2\" --tar=/proc/self/fd/7 7>&1 | cmp - plain.tar");
    run("mkfifo fifo; cmp fifo plain.tar & \"$0\" export \"$2\" --tar fifo; wait $!");
    let printed = run("exec 9< plain.list; \"$0\" ls \"$2\" > /dev/null; cat <&9");
    assert!(printed.text().contains("lost+found"), "the caller keeps its own: {printed}");
}

/// Root that may make no mount namespace is told that copies could change other files.
#[test]
fn a_weaker_sandbox_of_copies_is_told() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let told = |flags: &[OsString], to: &str| {
        let call = args![EXTANT, "get", image.path(), "/", scratch.join(to)];
        let printed = run("setpriv", &[flags, &call].concat()).must_succeed();
        printed.errors().contains("the sandbox is weaker")
    };
    let less = args!["--inh-caps=-sys_admin", "--bounding-set=-sys_admin"];
    assert!(told(&less, "a") && !told(&args![], "b"));
}

/// A disk that others unmount while a copy runs is free at once.
#[test]
fn a_copy_keeps_no_mounts_of_others() {
    let (image, other) = (FeatureSet::named("default"), Image::mke2fs(8 << 20, &["-t", "ext4"]));
    let (image, disk) = (image.make_sized(64 << 20), Loop::attach(other.path(), false));
    let (scratch, shared) = (Scratch::new(), Scratch::new());
    let dir = shared.dir("mnt");
    run("mount", &args!["--bind", "--make-shared", shared.path(), shared.path()]).must_succeed();
    run("mount", &args![disk.device(), &dir]).must_succeed();
    let (messages, mut full) = std::io::pipe().expect("a pipe");
    full.write_all(&[b'.'; 64 << 10]).expect("room of a new pipe");
    // It waits with the first message, which is about the sandbox.
    let mut copy = Command::new(EXTANT)
        .args(args!["-vv", "get", image.path(), "/", scratch.dir("to")])
        .stderr(full)
        .spawn()
        .expect("a command");
    let process = PathBuf::from(format!("/proc/{}", copy.id()));
    crate::program::await_that("the sandbox", || of_threads(&process, "Seccomp:") == ["2"]);
    let unmounted = run("umount", &args![&dir]);
    let flag = i32::try_from(rustix::fs::OFlags::EXCL.bits()).expect("a flag");
    let claimed = fs::File::options().read(true).custom_flags(flag).open(disk.device());
    drop(messages);
    copy.wait().expect("its end");
    run("umount", &args![shared.path()]).must_succeed();
    unmounted.must_succeed();
    claimed.expect("a disk that no mount has");
}

/// A file that takes the place of a disk while that is waited for gets no power of disks.
#[test]
fn an_exchanged_image_is_not_mounted_as_a_disk() {
    let (scratch, file) = (Scratch::new(), FeatureSet::named("default").make_sized(64 << 20));
    let disk = Image::mke2fs(64 << 20, &["-t", "ext4"]);
    let device = Loop::attach(disk.path(), false);
    let (dir, link) = (scratch.dir("mnt"), scratch.join("link"));
    for flags in [&["--foreground"][..], &["--foreground", "--no-sandbox"]] {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(device.device(), &link).expect("a link");
        let flag = i32::try_from(rustix::fs::OFlags::EXCL.bits()).expect("a flag");
        let held = fs::File::options().read(true).custom_flags(flag).open(device.device());
        let held = held.expect("a disk");
        let mut server = Command::new(EXTANT)
            .arg("mount")
            .args(flags)
            .args([&link, &dir])
            .stderr(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut errors = BufReader::new(server.stderr.take().expect("a pipe"));
        let mut told = String::new();
        errors.read_line(&mut told).expect("a remark");
        assert!(told.contains("waiting for up to"), "{told}");
        fs::remove_file(&link).expect("a link");
        std::os::unix::fs::symlink(file.path(), &link).expect("a link");
        drop(held);
        let mut ended = None;
        crate::program::await_that("the end or a mount", || {
            ended = server.try_wait().expect("a child");
            ended.is_some() || crate::program::is_mount(&dir)
        });
        if ended.is_none() {
            run("umount", &args![&dir]).must_succeed();
            server.wait().expect("its end");
        }
        errors.read_to_string(&mut told).expect("messages");
        assert!(ended.is_some() && told.contains("has taken the place"), "{told}");
    }
}

/// The process that names an output outlives its command, and removes one without a name.
#[test]
fn the_output_of_a_killed_command_is_removed() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw");
    let scratch = Scratch::new();
    let begun = || fs::read_dir(scratch.path()).expect("a directory").count() > 0;
    for words in [["export", "--oci"], ["get", "/"], ["export", "--dir"]].repeat(3) {
        let mut command = Command::new(EXTANT)
            .args(args![words[0], "--wait", image.path(), words[1], scratch.join("new")])
            .spawn()
            .expect("a command");
        // At its first sight, when no other process may know of it.
        let begin = std::time::Instant::now();
        while !begun() {
            assert!(begin.elapsed() < crate::program::PATIENCE, "waited in vain for an output");
        }
        command.kill().and_then(|()| command.wait()).expect("its end");
        crate::program::await_that("an empty directory", || !begun());
    }
    server.unmount();
}

/// A mount whose server does not answer, and another one below it, stop no copy elsewhere.
#[test]
fn copies_are_made_beside_a_mount_without_an_answer() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let other = FeatureSet::named("default").make_sized(64 << 20);
    let (server, scratch) = (Server::start(image.path(), "rw"), Scratch::new());
    let below = server.dir().join("below");
    fs::create_dir(&below).expect("a directory");
    run("mount", &args!["-t", "tmpfs", "none", &below]).must_succeed();
    server.signal("STOP");
    let mut copy = Command::new(EXTANT)
        .args(args!["get", other.path(), "/", scratch.join("copy")])
        .spawn()
        .expect("a copy");
    let mut ended = None;
    let begin = std::time::Instant::now();
    while ended.is_none() && begin.elapsed() < crate::program::PATIENCE {
        ended = copy.try_wait().expect("a child");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.signal("CONT");
    run("umount", &args![&below]).must_succeed();
    copy.wait().expect("its end");
    server.unmount();
    assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");
}
