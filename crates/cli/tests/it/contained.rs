//! The sandbox of a server.

use crate::args;
use crate::program::{Server, done, json};
use extant_testkit::kernel::enable_rings;
use extant_testkit::{FeatureSet, Scratch};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The process that serves.
fn process(dir: &Path) -> PathBuf {
    let stats = json(&args!["stats", dir]);
    PathBuf::from(format!("/proc/{}", stats["server"]["process"].as_u64().expect("a process")))
}

/// A line of the states of all threads of a process.
fn of_threads(process: &Path, name: &str) -> Vec<String> {
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
    for options in ["rw", "ro", "rw,transport=uring"] {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let server = Server::start(image.path(), options);
        if !options.contains("ro") {
            fs::write(server.dir().join("file"), vec![1; 8 << 20]).expect("a write");
        }
        let stats = json(&args!["stats", server.dir()]);
        let sandbox = &stats["sandbox"];
        assert_eq!(sandbox["capabilities"], "dac_override", "{options}: {sandbox}");
        assert_eq!(sandbox["landlock"], "all", "{options}: {sandbox}");
        let rings = options.contains("uring");
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
    assert_eq!(stats["sandbox"]["seccomp"], Value::Null);
}

/// The process that keeps the privileges has no part in the mount, and ends with the server.
#[test]
fn a_keeper_ends_with_its_server() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let server = Server::start(image.path(), "rw");
    let process = process(server.dir());
    let id = process.file_name().unwrap().to_str().unwrap().to_owned();
    let children =
        fs::read_to_string(process.join(format!("task/{id}/children"))).expect("children");
    let keeper = PathBuf::from("/proc").join(children.trim());
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
