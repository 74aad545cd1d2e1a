//! `extant mounts` and `extant umount`.

use crate::args;
use crate::contained::of_threads;
use crate::program::{EXTANT, Server, await_that, done, extant, is_mount, json, refused};
use crate::unprivileged::{Fuse, NOBODY, as_user, home};
use extant_testkit::tool::{Printed, need, run, run_with_env};
use extant_testkit::{FeatureSet, Image, Scratch};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that uses a mount. It ends with the test.
struct User(Child);

impl User {
    /// Runs a script of sh(1), which must print a line when it is ready, and must not end.
    fn of(script: &str) -> User {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let read = child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]);
        read.expect("a line");
        User(child)
    }

    /// As [`User::of`], with a script that ends.
    fn after(script: &str) -> User {
        User::of(&format!("{script}; echo; exec sleep 1000"))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // With the processes that it started.
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The row of a mount in the list, if there is one.
fn row(dir: &Path) -> Option<Value> {
    let rows = json(&args!["mounts"]);
    let is_of = |row: &&Value| row["dir"] == dir.to_str().expect("UTF-8");
    rows.as_array().expect("an array").iter().find(is_of).cloned()
}

#[track_caller]
fn state(dir: &Path) -> String {
    row(dir).expect("a row")["state"].as_str().expect("a state").to_owned()
}

/// An image that is mounted in the background.
fn mounted(options: &str) -> (Image, Scratch) {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    done(&args!["mount", "-o", options, image.path(), scratch.dir("mnt")]);
    (image, scratch)
}

fn names(row: &Value, user: &User) -> bool {
    let users = row["users"].as_array().expect("users");
    users.iter().any(|process| process["id"] == user.id())
}

#[test]
fn mounts_are_listed_with_state_users_and_server() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw");
    let dir = server.dir().to_owned();
    let shown = row(&dir).expect("a row");
    assert_eq!(shown["image"], image.path().to_str().unwrap());
    assert_eq!((&shown["state"], &shown["type"]), (&"writable".into(), &"fuse.extant".into()));
    assert_eq!(shown["mounted_by"], 0);
    // Commands of other tests that list mounts hold them for a moment, also before they have a name
    // of their own.
    let users = shown["users"].as_array().expect("users");
    let is_own = |user: &Value| user["command"] == "extant" || user["command"] == "exe";
    assert!(users.iter().all(is_own), "{users:?}");
    assert!(shown["age_seconds"].as_u64().expect("seconds") < 600);
    let stats = json(&args!["stats", &dir]);
    assert_eq!(shown["server"]["id"], stats["server"]["process"]);
    assert_eq!(shown["server"]["command"], "extant");
    let user = User::after(&format!("cd {}", dir.display()));
    assert!(names(&row(&dir).expect("a row"), &user));
    drop(user);
    let text = done(&args!["mounts"]).text();
    let line = text.lines().find(|line| line.contains(dir.to_str().unwrap())).expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], "writable", "{text}");
    done(&args!["mount", "-o", "remount,ro", image.path(), &dir]);
    assert_eq!(state(&dir), "read-only");
    // A server that does not answer is waited for no longer than a second.
    server.signal("STOP");
    assert_eq!(state(&dir), "no answer");
    server.signal("CONT");
    // Nor is one that has read the request, and waits for its keeper.
    let id = stats["server"]["process"].as_u64().expect("a number");
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a list");
    let keeper = children.split_whitespace().next().and_then(|id| id.parse().ok());
    let keeper = keeper.and_then(Pid::from_raw).expect("a keeper");
    kill_process(keeper, Signal::STOP).expect("a process");
    let process = PathBuf::from(format!("/proc/{keeper}"));
    let has_stopped = |state: &String| state.starts_with('T');
    await_that("its stop", || of_threads(&process, "State:").iter().all(has_stopped));
    assert_eq!(state(&dir), "no answer");
    kill_process(keeper, Signal::CONT).expect("a process");
    await_that("an answer", || state(&dir) == "read-only");
    server.signal("STOP");
    let named = row(&dir).expect("a row")["server"]["id"] == stats["server"]["process"];
    assert!(named, "the kernel knows the server");
    server.signal("CONT");
    server.signal("KILL");
    await_that("the end", || state(&dir) == "ended");
    done(&args!["umount", &dir]);
    assert_eq!(row(&dir), None);
}

/// A working directory, an open file, a mapped file, a program and a mount namespace of its own.
#[test]
fn every_kind_of_use_is_found() {
    let (image, scratch) = mounted("rw");
    let dir = scratch.path().join("mnt");
    fs::copy("/bin/sleep", dir.join("sleep")).expect("a program");
    let at = dir.display();
    for script in [
        format!("cd {at}"),
        format!("exec 5< {at}/sleep"),
        format!("{at}/sleep 1000 & while ! grep -q sleep /proc/$!/maps; do :; done"),
    ] {
        let user = User::after(&script);
        await_that(&script, || {
            let users = row(&dir).expect("a row")["users"].clone();
            !users.as_array().expect("users").is_empty()
        });
        let printed = extant(&args!["umount", &dir]);
        assert_eq!(printed.code, 1, "{printed}");
        assert!(printed.errors().contains("is in use (process "), "{script}: {printed}");
        drop(user);
        await_that("no users", || row(&dir).expect("a row")["users"] == Value::Array(Vec::new()));
    }
    done(&args!["umount", image.path()]);
    image.assert_clean();
}

/// The image is closed when the command returns, and nothing that was written is missing.
#[test]
fn a_following_command_can_use_the_image() {
    let (image, scratch) = mounted("rw,delalloc");
    let dir = scratch.path().join("mnt");
    for round in 0..5 {
        let content = vec![round; 30 << 20];
        fs::write(dir.join("file"), &content).expect("a write");
        let document = json(&args!["umount", &dir]);
        assert_eq!((&document["closed"], is_mount(&dir)), (&true.into(), false));
        assert_eq!(document["unmounted"][0]["dir"], dir.to_str().unwrap());
        image.assert_clean();
        let printed = done(&args!["cat", image.path(), "/file"]);
        assert!(printed.stdout == content, "the content is another one");
        done(&args!["mount", "-o", "rw,delalloc", image.path(), &dir]);
    }
    let printed = done(&args!["-v", "umount", &dir]);
    assert!(printed.errors().contains("is unmounted and closed"), "{printed}");
    refused(&args!["umount", &dir], 1, "no mount point and no mounted image");
    refused(&args!["umount", image.path()], 1, "`extant mounts`");
    refused(&args!["umount", "/proc"], 1, "umount(8) ends it");
}

#[test]
fn a_mount_in_use_is_detached_if_asked() {
    let (image, scratch) = mounted("rw");
    let dir = scratch.path().join("mnt");
    let file = File::create(dir.join("file")).expect("a file");
    let printed = extant(&args!["umount", &dir]);
    assert!(printed.code == 1 && printed.errors().contains("is in use (process"), "{printed}");
    assert!(dir.join("file").exists(), "a refused unmount changes nothing");
    let printed = done(&args!["umount", "-v", "--lazy", &dir]);
    assert!(printed.errors().contains("ends with its last user (process"), "{printed}");
    assert!(!is_mount(&dir));
    std::io::Write::write_all(&mut &file, b"later").expect("a write after that");
    drop(file);
    done(&args!["info", "--wait", image.path()]);
    assert_eq!(done(&args!["cat", image.path(), "/file"]).text(), "later");
}

/// By its image a file system is unmounted at all places.
#[test]
fn an_image_is_unmounted_at_all_places() {
    let (image, scratch) = mounted("rw");
    let (dir, other) = (scratch.path().join("mnt"), scratch.dir("other"));
    run("mount", &["--bind".into(), dir.clone().into_os_string(), other.clone().into()])
        .must_succeed();
    let document = json(&args!["umount", &other]);
    assert_eq!((&document["closed"], is_mount(&dir)), (&false.into(), true));
    run("mount", &["--bind".into(), dir.clone().into_os_string(), other.clone().into()])
        .must_succeed();
    let document = json(&args!["umount", image.path()]);
    assert_eq!(document["closed"], true, "{document}");
    assert_eq!(document["unmounted"].as_array().map(Vec::len), Some(2));
    assert!(!is_mount(&dir) && !is_mount(&other));
}

#[test]
fn a_mount_below_is_named() {
    let (image, scratch) = mounted("rw");
    let dir = scratch.path().join("mnt");
    fs::create_dir(dir.join("below")).expect("a directory");
    let below = dir.join("below").into_os_string();
    run("mount", &["-t".into(), "tmpfs".into(), "none".into(), below.clone()]).must_succeed();
    refused(&args!["umount", &dir], 1, "below is mounted on it");
    run("umount", &[below]).must_succeed();
    done(&args!["umount", &dir]);
    image.assert_clean();
}

/// A copy in another mount namespace keeps the server alive: the wait says which process has it.
#[test]
fn another_namespace_is_waited_for_and_named() {
    let (image, scratch) = mounted("rw");
    let dir = scratch.path().join("mnt");
    let user = User::of("exec unshare --mount --propagation private sh -c 'echo; exec sleep 1000'");
    assert_eq!(row(&dir).expect("a row")["namespaces"][0]["id"], user.id());
    let mut umount = Command::new(EXTANT)
        .args(["umount".as_ref(), dir.as_os_str()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    await_that("the unmount", || !is_mount(&dir));
    let mut remark = String::new();
    let mut errors = BufReader::new(umount.stderr.take().expect("a pipe"));
    errors.read_line(&mut remark).expect("a remark");
    assert!(remark.contains("in other mount namespaces"), "{remark}");
    drop(user);
    assert!(umount.wait().expect("its end").success());
    image.assert_clean();
}

/// The server alone knows the format of the image, and may end before it is asked, or while its
/// mount in another namespace is waited for.
#[test]
fn a_killed_server_of_an_overlay_is_told() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let overlay = scratch.join("o.qcow2");
    done(&args!["overlay", "create", &overlay, "--backing", image.path()]);
    let backing = args!["--format", "qcow2", "--backing", image.path()];
    let server = Server::with(&overlay, "rw", &backing);
    server.signal("KILL");
    await_that("the end", || state(server.dir()) == "ended");
    refused(&args!["umount", server.dir()], 1, "did not end in order");
    let server = Server::with(&overlay, "rw", &backing);
    let user = User::of("exec unshare --mount --propagation private sh -c 'echo; exec sleep 1000'");
    let mut umount = Command::new(EXTANT)
        .args(["umount".as_ref(), server.dir().as_os_str()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut told = String::new();
    let mut errors = BufReader::new(umount.stderr.take().expect("a pipe"));
    errors.read_line(&mut told).expect("a remark");
    server.signal("KILL");
    errors.read_to_string(&mut told).expect("the end");
    drop(user);
    assert_eq!(umount.wait().expect("its end").code(), Some(1), "{told}");
    assert!(told.contains("did not end in order"), "{told}");
    // In order.
    let server = Server::with(&overlay, "rw", &backing);
    done(&args!["umount", server.dir()]);
}

/// A killed server has not written its last changes: that is told, and the image is as durable as
/// after a crash.
#[test]
fn a_killed_server_is_told() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw");
    fs::write(server.dir().join("file"), "text").expect("a write");
    File::open(server.dir().join("file")).and_then(|file| file.sync_all()).expect("a sync");
    server.signal("KILL");
    await_that("the end", || state(server.dir()) == "ended");
    refused(&args!["umount", server.dir()], 1, "did not end in order");
    assert!(!is_mount(server.dir()));
    done(&args!["recover", image.path()]);
    assert_eq!(done(&args!["cat", image.path(), "/file"]).text(), "text");
}

#[test]
fn users_list_and_end_their_own_mounts() {
    let home = home();
    let script = "extant mkfs -E root_owner=65534:65534 disk.img 64M; mkdir mnt
        extant mount disk.img mnt; echo text > mnt/file; extant mounts; extant --json mounts > list
        ( cd mnt; if extant umount ../mnt; then exit 1; fi )
        extant umount disk.img; extant cat disk.img /file; extant mounts";
    let printed: Printed = as_user(&home, Fuse::Everybody, script).must_succeed();
    assert!(printed.text().contains("writable") && printed.text().contains("text\n"), "{printed}");
    assert!(printed.errors().contains("mnt is in use (process"), "{printed}");
    let list = fs::read(home.join("list")).expect("a list");
    let list: Value = serde_json::from_slice(&list).expect("a document");
    let own = home.join("disk.img");
    let mut rows = list.as_array().expect("an array").iter();
    let row = rows.find(|row| row["image"] == own.to_str().unwrap()).expect("a row");
    assert_eq!((&row["mounted_by"], &row["state"]), (&65534.into(), &"writable".into()));
}

/// Makes a sync(1) that exchanges two mount points. It does so from another mount namespace: there
/// they are directories, which their owner may rename. Returns the PATH with it.
fn exchanging(scratch: &Scratch, one: &Path, other: &Path) -> String {
    let programs = scratch.dir("programs");
    let (one, other, between) = (one.display(), other.display(), scratch.join("between"));
    let exchange = format!(
        "umount -i {one}; umount -i {other}; mv -T {one} {between}; mv -T {other} {one}; mv -T \
        {between} {other}",
        between = between.display()
    );
    let script =
        format!("#!/bin/sh\nexec unshare --mount --propagation private sh -c '{exchange}'");
    let sync = programs.join("sync");
    fs::write(&sync, script).expect("a program");
    fs::set_permissions(&sync, Permissions::from_mode(0o755)).expect("a program");
    format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"))
}

/// A mount of tmpfs(5) with a file.
fn other_mount(scratch: &Scratch) -> PathBuf {
    let other = scratch.dir("other");
    run("mount", &args!["-t", "tmpfs", "none", &other]).must_succeed();
    fs::write(other.join("kept"), "").expect("a file");
    other
}

#[test]
fn a_mount_that_takes_the_place_of_another_stays() {
    let (image, scratch) = mounted("rw");
    let (dir, other) = (scratch.path().join("mnt"), other_mount(&scratch));
    let path = exchanging(&scratch, &dir, &other);
    let printed = run_with_env(EXTANT, &args!["umount", &dir], &[("PATH", &path)]);
    let stays = dir.join("kept").exists();
    run("umount", &args![&dir]);
    done(&args!["umount", &other]);
    assert!(stays, "{printed}");
    assert!(printed.code == 1 && printed.errors().contains("lies in its place"), "{printed}");
    image.assert_clean();
}

/// A mount over that of the image is not taken for it.
#[test]
fn a_mount_above_is_not_unmounted_instead() {
    let (image, scratch) = mounted("rw");
    let dir = scratch.path().join("mnt");
    run("mount", &args!["-t", "tmpfs", "none", &dir]).must_succeed();
    let printed = extant(&args!["umount", image.path()]);
    run("umount", &args![&dir]).must_succeed();
    assert!(printed.code == 1 && printed.errors().contains("another mount lies"), "{printed}");
    done(&args!["umount", image.path()]);
    image.assert_clean();
}

/// A server that is told to end does not end the mount that others put in the place of its own.
#[test]
fn a_signal_ends_the_own_mount_only() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let scratch = Scratch::new();
    let (dir, log, other) = (scratch.dir("mnt"), scratch.join("log"), other_mount(&scratch));
    let path = exchanging(&scratch, &dir, &other);
    let mount = args!["mount", "--log", &log, image.path(), &dir];
    run_with_env(EXTANT, &mount, &[("PATH", &path)]).must_succeed();
    let id = json(&args!["stats", &dir])["server"]["process"].as_i64().expect("a process");
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(id, Signal::TERM).expect("a signal");
    let told = || fs::read_to_string(&log).unwrap_or_default();
    await_that("the answer", || told().contains("cannot be unmounted") || !is_mount(&dir));
    let stays = dir.join("kept").exists();
    run("umount", &args![&dir]);
    done(&args!["umount", &other]);
    assert!(stays && told().contains("lies in its place"), "{}", told());
    image.assert_clean();
}

/// Arguments of names that are links.
#[test]
fn links_lead_to_mount_points() {
    let (image, scratch) = mounted("rw");
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink("mnt", &link).expect("a link");
    done(&[OsString::from("umount"), link.into_os_string()]);
    image.assert_clean();
}

/// Under another group, as after newgrp(1), the kernel lets users no longer use their mounts. They
/// can end them, though they cannot make the kernel write its cache before.
#[test]
fn users_end_their_mounts_under_another_group() {
    let home = home();
    let (setpriv, at) = (need("setpriv").display().to_string(), home.path().display().to_string());
    need("fusermount3");
    let script = format!(
        "set -eu; mount --make-rprivate /; cd {at}; PATH=$PWD:$PATH
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        with_group() {{
            group=$1; shift
            {setpriv} --reuid={NOBODY} --regid=$group --clear-groups \"$@\"
        }}
        with_group {NOBODY} extant mkfs -E root_owner={NOBODY}:{NOBODY} disk.img 64M
        with_group {NOBODY} mkdir mnt; with_group {NOBODY} extant mount disk.img mnt
        if with_group 7 ls mnt; then exit 1; fi
        with_group 7 extant umount mnt 2>&1 | grep 'mnt is unmounted'
        if grep $PWD/mnt /proc/self/mountinfo; then exit 1; fi"
    );
    let printed = run("unshare", &["--mount", "sh", "-c", &script]).must_succeed();
    assert!(printed.errors().contains("Permission denied"), "{printed}");
}
