//! Real mounts through FUSE.

use crate::args;
use crate::contained::of_threads;
use crate::program::{EXTANT, Server, await_that, done, extant, is_mount, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::tree::{Manifest, Plan, Shape};
use extant_testkit::{FeatureSet, Image, Scratch, counts, debugfs, dumpe2fs, e2fsck};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Unmounts the remaining mount of a failed test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mount(self.0) {
            run("umount", &["--lazy".as_ref(), self.0.as_os_str()]);
        }
    }
}

fn await_free(image: &Path) {
    done(&args!["info", "--wait", image]);
}

#[test]
fn several_programs_write_at_once() {
    let image = FeatureSet::named("default").make_sized(128 << 20);
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    Plan::random(21, &Shape { wide: 100, ..Shape::small() }).apply(&source);
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    let printed = done(&args!["mount", image.path(), &dir]);
    assert!(printed.stdout.is_empty() && printed.stderr.is_empty(), "{printed}");
    let shown = run("findmnt", &["-no".as_ref(), "FSTYPE,SOURCE".as_ref(), dir.as_os_str()])
        .must_succeed()
        .text();
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>(),
        ["fuse.extant", image.path().to_str().unwrap()]
    );
    std::thread::scope(|scope| {
        for copy in ["cp -a", "rsync", "tar", "cp -a"].iter().enumerate() {
            let (source, dir) = (source.display(), dir.join(format!("copy{}", copy.0)));
            let to = dir.display();
            let script = match *copy.1 {
                "tar" => format!(
                    "mkdir {to} && tar --xattrs --xattrs-include=* --acls -C {source} -cf - . | \
                    tar --xattrs --xattrs-include=* --acls -C {to} -xpf -"
                ),
                _ => format!("cp -a {source} {to}"),
            };
            scope.spawn(move || run("sh", &["-c", &script]).must_succeed());
        }
    });
    let expected = Manifest::walk(&source).without_root();
    for number in [0, 1, 3] {
        expected.assert_same(&Manifest::walk(&dir.join(format!("copy{number}"))).without_root());
    }
    run("umount", &[&dir]).must_succeed();
    await_free(image.path());
    image.assert_clean();
    let kernel = Mount::new(image.path(), "ro");
    for number in [0, 1, 3] {
        expected.assert_same(&Manifest::walk(&kernel.join(format!("copy{number}"))).without_root());
    }
}

/// A mount for reading only goes on by copies, as other readers do.
#[test]
fn a_damaged_image_is_mounted_for_reading_only() {
    let image = FeatureSet::named("1k").make_sized(40 << 20);
    let scratch = Scratch::new();
    let (top, dir) = (scratch.dir("top"), scratch.dir("mnt"));
    std::fs::write(top.join("text"), "text").unwrap();
    done(&args!["put", image.path(), &top, "/"]);
    image.leave_unjudged("its superblock is lost");
    let file = std::fs::OpenOptions::new().write(true).open(image.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 1024], 1024).unwrap();
    drop(file);
    let bytes = image.bytes();
    refused(&args!["mount", image.path(), &dir], 1, "`extant repair ");
    let _mounted = Mounted(&dir);
    let printed = done(&args!["mount", image.path(), &dir, "-o", "ro"]);
    assert!(printed.errors().contains("the superblock is replaced by a copy"), "{printed}");
    assert_eq!(std::fs::read(dir.join("text")).unwrap(), b"text");
    assert!(std::fs::write(dir.join("new"), "").is_err());
    run("umount", &[&dir]).must_succeed();
    assert!(image.bytes() == bytes, "the image has changed");
}

/// `sb=` counts KiB, as for the kernel's ext4.
#[test]
fn a_copy_of_the_superblock_is_named_by_its_place() {
    for (set, place) in [("default", 32 << 12), ("1k", 8193)] {
        let image = FeatureSet::named(set).make_sized(256 << 20);
        let bytes = image.bytes();
        let scratch = Scratch::new();
        let dir = scratch.dir("mnt");
        let option = |place: u64| format!("ro,sb={place}");
        refused(&args!["mount", image.path(), &dir, "-o", "sb=8193"], 2, "for reading only");
        refused(&args!["mount", image.path(), &dir, "-o", option(77)], 1, "77 KiB");
        let _mounted = Mounted(&dir);
        let printed = done(&args!["mount", image.path(), &dir, "-o", option(place)]);
        assert!(printed.errors().contains("the superblock is replaced by a copy"), "{printed}");
        assert!(dir.join("lost+found").exists());
        run("umount", &[&dir]).must_succeed();
        assert!(image.bytes() == bytes, "the image has changed");
    }
}

#[test]
fn a_wait_for_an_image_ends_by_a_signal() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let server = Server::start(image.path(), "rw");
    let scratch = Scratch::new();
    let (path, new) = (image.path(), scratch.join("new"));
    for line in [
        args!["check", "--wait", path].to_vec(),
        args!["--no-sandbox", "check", "--wait", path].to_vec(),
        args!["--no-sandbox", "trim", "--wait", path].to_vec(),
        args!["--no-sandbox", "verity", "--wait", path, "--tree", &new].to_vec(),
        args!["repair", "--wait", path].to_vec(),
        args!["clone", "--wait", path, &new].to_vec(),
        args!["mkdir", "--wait", path, "/d"].to_vec(),
    ] {
        let mut command = Command::new(EXTANT);
        let mut waiting = command.args(&line).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(waiting.stderr.take().unwrap()).lines().next();
        assert!(told.is_some_and(|line| line.unwrap().contains("waiting for up to")), "{line:?}");
        run("kill", &["-TERM".to_string(), waiting.id().to_string()]).must_succeed();
        let mut ended = None;
        await_that("an end", || {
            ended = waiting.try_wait().unwrap();
            ended.is_some()
        });
        assert!(!ended.unwrap().success(), "{line:?}");
        assert!(!new.exists());
    }
    server.unmount();
}

#[test]
fn an_image_in_use_is_refused() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let server = Server::start(image.path(), "rw");
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    refused(&args!["ls", image.path()], 1, "in use");
    refused(&args!["mkdir", image.path(), "/d"], 1, "--wait");
    refused(&args!["recover", image.path()], 1, "in use");
    refused(&args!["mkfs", image.path(), "-F"], 1, "in use");
    refused(&args!["mount", image.path(), &dir], 1, &server.dir().display().to_string());
    server.unmount();
    let kernel = Mount::new(image.path(), "");
    refused(&args!["ls", image.path()], 1, "the kernel has mounted it");
    refused(&args!["recover", image.path()], 1, "the kernel has mounted it");
    kernel.unmount();
    done(&args!["ls", image.path()]);
}

/// A file system of few groups is not scanned in the background.
#[test]
fn free_space_of_a_small_disk_is_known() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let block = dumpe2fs::header(image.path()).number("Block size");
    let expected = counts::free_runs(image.path());
    let server = Server::start(image.path(), "rw");
    let stats = json(&args!["stats", server.dir()]);
    let shown = &stats["fragmentation"];
    assert_eq!(shown["trees_unknown"], 0, "{shown}");
    assert_eq!(shown["longest_free_run"], expected.longest * 1024 / block, "{shown}");
    let runs = shown["free_runs_by_order"].as_array().expect("runs");
    let number: u64 = runs.iter().filter_map(serde_json::Value::as_u64).sum();
    assert!((1..=expected.runs).contains(&number), "{shown} and {expected:?}");
    server.unmount();
}

#[test]
fn the_server_shows_as_extant_with_image_and_directory() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    done(&args!["mount", image.path(), &dir]);
    let shown = run("ps", &["-eo", "comm=,args="]).must_succeed().text();
    let name = dir.display().to_string();
    let server: Vec<&str> = shown.lines().filter(|line| line.contains(&name)).collect();
    let [server] = server[..] else { panic!("no single server in {shown}") };
    let mut words = server.split_whitespace();
    assert_eq!((words.next(), words.next()), (Some("extant"), Some("extant")), "{server}");
    assert!(server.ends_with(&format!("{} {name}", image.path().display())), "{server}");
    run("umount", &[&dir]).must_succeed();
    await_free(image.path());
}

/// The server's threads use the code of 128 processors, or share everything.
#[test]
fn threads_of_a_mount_share_as_many_shards_as_asked_for() {
    for shards in [1, 128] {
        let image = FeatureSet::named("default").make_sized(32 << 20);
        let server = Server::start(image.path(), &format!("rw,threads=4,shards={shards}"));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dir = server.dir().join(format!("d{thread}"));
                scope.spawn(move || {
                    std::fs::create_dir(&dir).unwrap();
                    for n in 0..60 {
                        let file = dir.join(format!("f{n}"));
                        std::fs::write(&file, vec![n; 5000]).unwrap();
                        match n % 3 {
                            0 => std::fs::remove_file(&file).unwrap(),
                            1 => std::fs::rename(&file, dir.join(format!("g{n}"))).unwrap(),
                            _ => std::fs::File::open(&file).unwrap().sync_all().unwrap(),
                        }
                    }
                });
            }
        });
        let stats = json(&args!["stats", server.dir()]);
        assert_eq!(stats["memory"]["shards"], shards, "{stats}");
        server.unmount();
        image.assert_clean();
    }
}

#[test]
fn counters_of_a_mount_are_shown() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let options = "rw,mb_frsp_max_mem=32M,frsp_cache_aggression=2,no_prefetch_block_bitmaps";
    let server = Server::start(image.path(), options);
    std::fs::write(server.dir().join("f"), "x").unwrap();
    std::fs::File::open(server.dir().join("f")).unwrap().sync_all().unwrap();
    let stats = json(&args!["stats", server.dir()]);
    assert!(stats["journal"]["commits"].as_u64().unwrap() > 0, "{stats}");
    assert!(done(&args!["stats", server.dir()]).text().contains("journal.commits"));
    refused(&args!["stats", server.dir().join("f")], 1, "nothing that extant serves");
    assert!(stats["space"]["bitmaps_read"].as_u64().unwrap() > 0, "{stats}");
    let space = &stats["space"];
    let holds = ["mb_frsp_max_mem", "frsp_cache_aggression", "prefetch_block_bitmaps"]
        .map(|name| space[name].as_u64());
    assert_eq!(holds, [Some(32 << 20), Some(2), Some(0)]);
    assert!(space["frsp_tree_usage"].as_u64().unwrap() > 0, "{stats}");
    let set = |setting: &str| json(&args!["stats", server.dir(), "--set", setting]);
    assert_eq!(set("mb_frsp_max_mem=64M")["mb_frsp_max_mem"], 64 << 20);
    assert!(
        set("mb_frsp_max_mem=1")["mb_frsp_max_mem"].as_u64().unwrap() > 1,
        "room for the worst tree"
    );
    assert_eq!(set("frsp_cache_aggression=3")["frsp_cache_aggression"], 3);
    assert_eq!(set("prefetch_block_bitmaps=1")["prefetch_block_bitmaps"], 1);
    assert_eq!((&set("pa=0")["pa"], &set("lg=1")["lg"]), (&0.into(), &1.into()));
    let stats = json(&args!["stats", server.dir()]);
    assert_eq!(
        (&stats["space"]["frsp_cache_aggression"], &stats["space"]["prefetch_block_bitmaps"]),
        (&3.into(), &1.into())
    );
    refused(
        &args!["stats", server.dir(), "--set", "frsp_cache_aggression=4"],
        1,
        "cannot have this value",
    );
    refused(&args!["stats", server.dir(), "--set", "colour=4"], 1, "no such tunable");
    refused(&args!["stats", server.dir(), "--set", "colour"], 2, "NAME=VALUE");
    server.unmount();
}

#[test]
fn sigterm_unmounts_cleanly() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let mut server = Server::start(image.path(), "rw");
    std::fs::write(server.dir().join("f"), vec![5; 3 << 20]).unwrap();
    server.signal("TERM");
    assert_eq!(server.end(), 0);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/f"]).stdout, vec![5; 3 << 20]);
}

#[test]
fn sigterm_lets_users_finish() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let mut server = Server::start(image.path(), "rw");
    let mut open = std::fs::File::create(server.dir().join("f")).unwrap();
    std::io::Write::write_all(&mut open, b"first ").unwrap();
    server.signal("TERM");
    await_that("the detaching", || !is_mount(server.dir()));
    std::io::Write::write_all(&mut open, b"second").unwrap();
    drop(open);
    assert_eq!(server.end(), 0);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/f"]).text(), "first second");
}

#[test]
fn a_second_sigterm_commits_and_ends() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let mut server = Server::start(image.path(), "rw");
    let open = std::fs::File::create(server.dir().join("f")).unwrap();
    server.signal("TERM");
    await_that("the detaching", || !is_mount(server.dir()));
    server.signal("TERM");
    assert_eq!(server.end(), 1);
    drop(open);
    done(&args!["recover", image.path()]);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/f"]).text(), "");
}

#[test]
fn synced_files_survive_the_death_of_the_server() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mut server = Server::start(image.path(), "rw");
    let content: Vec<u8> = (0..2_000_000u32).map(|i| (i / 7) as u8).collect();
    let synced = server.dir().join("d/synced");
    std::fs::create_dir(server.dir().join("d")).unwrap();
    std::fs::write(&synced, &content).unwrap();
    std::fs::File::open(&synced).unwrap().sync_all().unwrap();
    for i in 0..200 {
        std::fs::write(server.dir().join(format!("f{i}")), "never synced").unwrap();
    }
    server.signal("KILL");
    assert_eq!(server.end(), -1);
    refused(&args!["mount", image.path(), server.dir()], 1, "umount it first");
    run("umount", &["--lazy".as_ref(), server.dir().as_os_str()]).must_succeed();
    let copy = image.copy();
    assert_eq!(done(&args!["cat", image.path(), "/d/synced"]).stdout, content);
    done(&args!["recover", image.path()]);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/d/synced"]).stdout, content);
    e2fsck::recover(copy.path()).assert_clean();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["mkdir", image.path(), "/d"]);
    let before = image.bytes();
    for options in ["ro", "ro,noload"] {
        let server = Server::start(image.path(), options);
        assert!(server.dir().join("d").is_dir());
        assert!(std::fs::write(server.dir().join("f"), "x").is_err());
        // Others may read meanwhile.
        done(&args!["ls", image.path()]);
        server.unmount();
        assert!(before == image.bytes(), "{options}");
    }
}

/// The option overrides the superblock, which has `continue`.
#[test]
fn an_error_ends_changes_if_the_mount_is_told_so() {
    for (options, ends) in
        [("rw", false), ("errors=remount-ro", true), ("errors=remount-ro,errors=continue", false)]
    {
        let image = FeatureSet::named("default").make_sized(16 << 20);
        image.leave_unjudged("a directory's map is damaged");
        debugfs::write(image.path(), "set_inode_field lost+found block[5] 0xFFFFFF");
        let scratch = Scratch::new();
        let dir = scratch.dir("mnt");
        let _mounted = Mounted(&dir);
        done(&args!["mount", "-o", options, image.path(), &dir]);
        std::fs::read_dir(dir.join("lost+found"))
            .and_then(|mut list| list.next().transpose())
            .expect_err("it is damaged");
        let written = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
        assert_eq!(
            written == Err(std::io::ErrorKind::ReadOnlyFilesystem),
            ends,
            "{options}: {written:?}"
        );
        run("umount", &[&dir]).must_succeed();
        await_free(image.path());
    }
}

#[test]
fn a_mount_can_follow_an_unmount_at_once() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    for round in 0..3 {
        let mounted = json(&args![
            "mount",
            "--threads",
            "3",
            "-o",
            "memory=64M,commit=1",
            image.path(),
            &dir
        ]);
        assert_eq!(mounted["type"], "fuse.extant");
        std::fs::write(dir.join(format!("f{round}")), vec![round; 1 << 20]).unwrap();
        run("umount", &[&dir]).must_succeed();
    }
    await_free(image.path());
    image.assert_clean();
    assert_eq!(done(&args!["ls", image.path()]).text(), "f0\nf1\nf2\nlost+found\n");
}

#[test]
fn errors_of_the_server_reach_the_caller() {
    let blank = extant_testkit::Image::blank(1 << 20);
    let scratch = Scratch::new();
    let (dir, file) = (scratch.dir("mnt"), scratch.file("file", 0));
    refused(&args!["mount", blank.path(), &dir], 1, &blank.path().display().to_string());
    refused(&args!["mount", scratch.join("missing"), &dir], 1, "missing");
    refused(&args!["mount", blank.path(), &file], 1, "not a directory");
    let printed = extant(&args!["mount", "-o", "ro,nonsense", blank.path(), &dir]);
    assert_eq!(printed.code, 2, "{printed}");
    assert!(!is_mount(&dir));
}

/// A small file system has space for each accepted write: only the write without space fails; fsync
/// and later reads succeed.
#[test]
fn a_small_disk_says_itself_that_it_is_full() {
    let image = FeatureSet::named("default").make_sized(96 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    done(&args!["mount", image.path(), &dir]);
    let mut file = std::fs::File::create(dir.join("fill")).unwrap();
    let mut accepted = 0u64;
    let error = loop {
        match file.write(&[accepted as u8 | 1; 1 << 20]) {
            Ok(written) => accepted += written as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(accepted > 50 << 20, "{accepted}");
    file.sync_all().unwrap();
    drop(file);
    run("umount", &[&dir]).must_succeed();
    await_free(image.path());
    image.assert_clean();
    done(&args!["mount", image.path(), &dir]);
    let content = std::fs::read(dir.join("fill")).unwrap();
    assert_eq!(content.len() as u64, accepted);
    assert!(content.iter().all(|byte| *byte != 0), "the accepted data are there");
    run("umount", &[&dir]).must_succeed();
}

/// An image whose lost+found is damaged, mounted so that the first error stops changes.
fn stopped(image: &Image, dir: &Path, more: &[OsString]) {
    image.leave_unjudged("a directory's map is damaged");
    debugfs::write(image.path(), "set_inode_field lost+found block[5] 0xFFFFFF");
    let mut words = args!["mount", "-o", "errors=remount-ro,noatime"].to_vec();
    words.extend_from_slice(more);
    words.extend(args![image.path(), dir]);
    done(&words);
    assert!(
        std::fs::read_dir(dir.join("lost+found"))
            .and_then(|mut names| names.next().transpose())
            .is_err()
    );
    assert!(std::fs::write(dir.join("f"), "x").is_err());
}

#[test]
fn a_stopped_mount_says_why() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
    let _mounted = Mounted(&dir);
    stopped(&image, &dir, &args!["--log", &log]);
    let state = json(&args!["stats", &dir]);
    assert_eq!(state["state"]["changes"], "read-only", "{state}");
    assert!(state["state"]["errors"].as_u64().unwrap() > 0, "{state}");
    assert!(state["state"]["first_error"]["time"].as_u64().unwrap() > 0, "{state}");
    assert_eq!(
        (&state["state"]["first_error"]["inode"], &state["state"]["last_error"]["inode"]),
        (&11.into(), &11.into())
    );
    assert_eq!(state["options"], "errors=remount-ro,noatime", "{state}");
    assert!(done(&args!["stats", &dir]).text().contains("state.first_error.inode"));
    run("umount", &[&dir]).must_succeed();
    let logged = || std::fs::read_to_string(&log).unwrap();
    await_that("the server's end", || logged().contains("the mount ended with an error"));
    for words in ["is mounted at", "corrupt", "nothing is changed any more"] {
        assert!(logged().contains(words), "{words} in {}", logged());
    }
}

#[test]
fn messages_of_a_mount_go_to_the_log_of_the_machine() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let log = std::os::unix::net::UnixDatagram::bind(scratch.join("log")).unwrap();
    log.set_read_timeout(Some(crate::program::PATIENCE)).unwrap();
    let _mounted = Mounted(&dir);
    stopped(&image, &dir, &args!["--syslog", scratch.join("log")]);
    run("umount", &[&dir]).must_succeed();
    let mut messages = Vec::new();
    let mut bytes = [0; 4096];
    while !messages
        .iter()
        .any(|text: &String| text.contains("ended with an error") || text.contains("left out"))
    {
        let len = match log.recv(&mut bytes) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            received => received.expect("a message"),
        };
        messages.push(String::from_utf8(bytes[..len].to_vec()).unwrap());
    }
    assert!(
        messages
            .iter()
            .any(|text| text.starts_with("<30>extant[") && text.contains("is mounted at")),
        "{messages:?}"
    );
    assert!(
        messages
            .iter()
            .any(|text| text.starts_with("<27>extant[") && text.contains("nothing is changed")),
        "{messages:?}"
    );
}

/// Fills a file until there is no space, as a user.
fn fill(user: u32, file: &Path) {
    let script = format!("exec dd if=/dev/zero of={} bs=64k conv=fsync", file.display());
    let id = user.to_string();
    let printed =
        run("setpriv", &["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", &script]);
    assert!(printed.code != 0 && printed.errors().contains("No space left"), "{printed}");
}

#[test]
fn root_and_the_user_that_the_superblock_names_use_reserved_blocks() {
    const USER: u32 = 65534;
    for (options, allowed) in
        [("nodelalloc", 0), ("delalloc", 0), ("nodelalloc", USER), ("delalloc", USER)]
    {
        let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-m", "10"]);
        run("tune2fs", &["-u".as_ref(), allowed.to_string().as_ref(), image.path().as_os_str()])
            .must_succeed();
        let reserved = json(&args!["info", image.path()])["reserved_blocks"].as_u64().unwrap();
        let server = Server::start(image.path(), &format!("rw,{options},allow_other"));
        let users = server.dir().join("users");
        std::fs::create_dir(&users).unwrap();
        std::os::unix::fs::chown(&users, Some(USER), Some(USER)).unwrap();
        let free = || {
            let usage = json(&args!["stats", server.dir()])["usage"].clone();
            (usage["free_blocks"].as_u64().unwrap(), usage["available_blocks"].as_u64().unwrap())
        };
        let (before, available) = free();
        assert!(before - available >= reserved, "statfs leaves out the reserve of root");
        fill(USER, &users.join("f"));
        let (left, available) = free();
        assert_eq!(
            left < reserved / 2,
            allowed == USER,
            "{options}, {allowed}: {left} of {reserved} left to the user"
        );
        assert_eq!(available, 0, "{options}, {allowed}");
        fill(0, &server.dir().join("f"));
        let (left, _) = free();
        assert!(left < reserved / 2, "{options}, {allowed}: {left} of {reserved} left to root");
        server.unmount();
        image.assert_clean();
    }
}

#[test]
fn root_puts_files_into_reserved_blocks() {
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-m", "20"]);
    let usage = json(&args!["info", image.path()])["usage"].clone();
    let blocks = |field: &str| usage[field].as_u64().unwrap();
    let scratch = Scratch::new();
    let file = scratch.join("f");
    let len = (blocks("available_blocks")
        + (blocks("free_blocks") - blocks("available_blocks")) / 2)
        * 4096;
    std::fs::write(&file, vec![7; len as usize]).unwrap();
    done(&args!["put", image.path(), &file, "/f"]);
    image.assert_clean();
}

/// Under a limit of memory a mount comes about, or ends with an error: its server never waits for
/// itself.
#[test]
fn a_mount_without_memory_ends() {
    let image = FeatureSet::named("default").make();
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _left = Mounted(&dir);
    for kib in [200_000, 300_000, 400_000, 600_000, 1_000_000] {
        let line = format!("ulimit -v {kib}; exec timeout -s KILL 100 \"$0\" mount \"$1\" \"$2\"");
        let mut command = std::process::Command::new("bash");
        command
            .args(["-c", &line, EXTANT])
            .args([image.path(), &dir])
            .stdin(std::process::Stdio::null());
        let ended = command.output().expect("bash");
        assert_ne!(ended.status.code(), None, "{kib} KiB: it hangs");
        assert_ne!(ended.status.code(), Some(137), "{kib} KiB: it hangs");
        // It answers, be it by an error, and ends: by itself, if threads are missing.
        let _ = std::fs::write(dir.join("file"), "x");
        drop(Mounted(&dir));
        await_that("the end of the mount", || !is_mount(&dir));
        await_free(image.path());
    }
}

/// Returns whether a file can be read while its server is stopped, for so long.
fn is_read_without(server: Pid, file: &Path, patience: Duration) -> bool {
    kill_process(server, Signal::STOP).unwrap();
    // A busy machine stops its threads one by one.
    let process = Path::new("/proc").join(server.as_raw_nonzero().to_string());
    let stopped = || of_threads(&process, "State:").iter().all(|state| state.starts_with('T'));
    await_that("the stop of all threads", stopped);
    let mut cat = Command::new("cat").arg(file).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let read = loop {
        if cat.try_wait().unwrap().is_some() || begin.elapsed() > patience {
            break begin.elapsed() <= patience;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    kill_process(server, Signal::CONT).unwrap();
    assert!(cat.wait().unwrap().success());
    read
}

/// A file that the kernel knows can be opened and read while the server is stopped, unless opens
/// are requests.
#[test]
fn opens_of_a_mount_need_no_requests_where_that_holds() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let scratch = Scratch::new();
    let (dir, file) = (scratch.dir("mnt"), scratch.join("file"));
    std::fs::write(&file, "content").unwrap();
    done(&args!["put", image.path(), file, "/file"]);
    let _mounted = Mounted(&dir);
    let cases = [
        ("ro", true),
        ("ro,open=usual", false),
        ("ro,open=fast", true),
        ("rw", false),
        ("open=fast", true),
    ];
    for (options, fast) in cases {
        done(&args!["mount", "-o", options, image.path(), &dir]);
        // The first read sets the access time, after which the kernel asks for attributes.
        for _ in 0..2 {
            assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"content");
        }
        let shown = json(&args!["stats", &dir])["server"]["open"].clone();
        assert_eq!(shown, if fast { "fast" } else { "usual" });
        let mounts = json(&args!["mounts"]);
        let mut rows = mounts.as_array().unwrap().iter();
        let row = rows.find(|row| row["dir"] == dir.to_str().unwrap());
        let server = row.unwrap_or_else(|| panic!("{mounts}"))["server"]["id"].as_i64().unwrap();
        let server = Pid::from_raw(server as i32).unwrap();
        // Enough for a read that waits for nothing, in the first case on a busy machine, too.
        let patience = Duration::from_secs(if fast { 60 } else { 1 });
        assert_eq!(is_read_without(server, &dir.join("file"), patience), fast, "{options}");
        done(&args!["umount", &dir]);
    }
}

/// The mount would have to refuse opens of the file.
#[test]
fn open_fast_is_refused_for_images_with_immutable_files() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let _mounted = Mounted(&dir);
    let mount = |options: &str| done(&args!["mount", "-o", options, image.path(), &dir]);
    mount("open=fast");
    std::fs::write(dir.join("file"), "content").unwrap();
    let file = dir.join("file").into_os_string();
    let chattr = |flag: &str| run("chattr", &[OsString::from(flag), file.clone()]);
    let printed = chattr("+i");
    assert!(printed.errors().contains("not supported"), "{printed}");
    done(&args!["umount", &dir]);
    mount("open=usual");
    chattr("+i").must_succeed();
    done(&args!["umount", &dir]);
    refused(&args!["mount", "-o", "open=fast", image.path(), &dir], 1, "is immutable");
    mount("open=usual");
    chattr("-i").must_succeed();
    done(&args!["umount", &dir]);
    mount("open=fast");
    done(&args!["umount", &dir]);
}
