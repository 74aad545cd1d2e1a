//! Counters and traces of real mounts: events are provoked, and their counters move. Those that
//! need a race, or a disk with a past, move in the engine's tests, and are only looked for here.

use crate::args;
use crate::program::{Server, await_that, done, json, refused};
use extant_testkit::{FeatureSet, Image, Scratch};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Returns a counter by its name, `module.counter`.
#[track_caller]
fn counter(server: &Server, name: &str) -> u64 {
    let stats = json(&args!["stats", server.dir()]);
    let (module, counter) = name.split_once('.').expect("module.counter");
    stats[module][counter].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
}

fn nameless(dir: &Path) -> File {
    openat(CWD, dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).expect("O_TMPFILE").into()
}

fn write_synced(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("a file");
    file.write_all(content).expect("a write");
    file.sync_all().expect("a sync");
}

#[test]
fn files_without_names_and_retried_slots_are_counted() {
    let image = FeatureSet::named("orphan_file").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    let before = counter(&server, "orphans.retries");
    assert_eq!(counter(&server, "memory.inodes_nameless"), 0);
    // Each search begins at the slot that the previous one of its thread filled.
    let files: Vec<File> = (0..40).map(|_| nameless(server.dir())).collect();
    assert_eq!(counter(&server, "orphans.live"), 40);
    assert!(counter(&server, "orphans.retries") > before);
    assert_eq!(counter(&server, "orphans.listed"), 0);
    drop(files);
    // A file system without slots has them in the list.
    server.unmount();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    let file = nameless(server.dir());
    assert_eq!((counter(&server, "orphans.live"), counter(&server, "orphans.listed")), (1, 1));
    drop(file);
    server.unmount();
}

#[test]
fn counters_of_rare_events_are_there() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    for name in ["memory.lockref_fallbacks", "prealloc.discard_visited", "space.cache_hits"] {
        assert_eq!(counter(&server, name), 0, "{name}");
    }
    server.unmount();
}

#[test]
fn merged_writes_are_counted() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    let before = counter(&server, "plugs.merged");
    let logged = counter(&server, "journal.writes_merged");
    // The new block's bytes and the zeroes behind them.
    write_synced(&server.dir().join("file"), b"x");
    assert!(counter(&server, "plugs.merged") > before);
    assert!(counter(&server, "plugs.writes") > counter(&server, "plugs.requests"));
    assert!(counter(&server, "plugs.bytes") > 0);
    assert!(counter(&server, "journal.writes_merged") > logged);
    server.unmount();
}

#[test]
fn evicted_inodes_are_counted() {
    let image = Image::mke2fs(64 << 20, &["-N", "30000"]);
    let server = Server::start(image.path(), "rw,memory=64M");
    assert_eq!(counter(&server, "memory.inodes_evicted"), 0);
    for i in 0..28_000 {
        File::create(server.dir().join(format!("{i}"))).expect("a file");
    }
    assert!(counter(&server, "memory.inodes_evicted") > 0);
    assert!(counter(&server, "memory.inodes") < 28_000);
    // The kernel keeps the names of a mount.
    assert_eq!(
        (counter(&server, "memory.names"), counter(&server, "memory.names_evicted")),
        (0, 0)
    );
    server.unmount();
}

const FEATURES: &str = "none,extent,flex_bg,filetype,large_file,dir_index";

/// Many small groups: trees that a low limit has no space for, once free space is fragmented.
#[test]
fn loaded_and_evicted_trees_are_counted() {
    let image = Image::mke2fs(
        40 << 20,
        &["-b", "1024", "-g", "256", "-G", "16", "-N", "20000", "-I", "128", "-O", FEATURES],
    );
    let server = Server::start(image.path(), "rw");
    let limit = |bytes: u32| {
        let set = format!("mb_frsp_max_mem={bytes}");
        done(&args!["stats", server.dir(), "--set", set]);
        counter(&server, "space.mb_frsp_max_mem")
    };
    // Raised to the bytes of the worst tree.
    let least = limit(1);
    limit(0);
    let path = |i: u32| server.dir().join(format!("{i}"));
    (0..14_000).for_each(|i| fs::write(path(i), "x").expect("a file"));
    (0..14_000).step_by(2).for_each(|i| fs::remove_file(path(i)).expect("a removal"));
    File::open(server.dir()).and_then(|dir| dir.sync_all()).expect("a sync");
    assert!(counter(&server, "space.trees_loaded") > 0);
    let usage = || counter(&server, "space.frsp_tree_usage");
    await_that("trees beyond the limit", || usage() > least);
    let before = counter(&server, "space.trees_evicted");
    assert_eq!(limit(1), least);
    assert!(usage() <= least, "{} bytes", usage());
    assert!(counter(&server, "space.trees_evicted") > before);
    server.unmount();
}

#[test]
fn changes_are_watched() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    let once = args!["stats", server.dir(), "--watch", "0.01", "--count", "1"];
    let all = done(&once).text();
    assert!(all.contains("journal.commits") && all.contains("state.changes"), "{all}");
    let watch = args!["stats", server.dir(), "--watch", "0.01", "--count", "400"];
    let watched = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| done(&watch).text());
        let mut i = 0;
        while !watcher.is_finished() {
            write_synced(&server.dir().join("file"), format!("{i}").as_bytes());
            i += 1;
        }
        watcher.join().expect("the watcher")
    });
    // The first time every value, then those that changed, with their change.
    let (first, rest) = watched.split_once("\n\n").expect("several times");
    assert!(first.contains("prealloc.pa ") && !rest.contains("prealloc.pa "));
    let changed = rest.lines().find(|line| line.starts_with("journal.commits")).expect("commits");
    assert!(changed.contains("(+"), "{changed}");
    let documents = json(&args!["stats", server.dir(), "--watch", "0.01", "--count", "3"]);
    let commits = |document: &Value| document["journal"]["commits"].as_u64().expect("commits");
    let commits: Vec<u64> = documents.as_array().expect("documents").iter().map(commits).collect();
    assert!(commits.len() == 3 && commits.is_sorted(), "{commits:?}");
    refused(&args!["stats", server.dir(), "--watch", "0"], 2, "0.001 to 86400");
    refused(&args!["stats", server.dir(), "--count", "2"], 2, "--watch");
    server.unmount();
}

#[test]
fn prometheus_reads_the_counters() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let server = Server::start(image.path(), "rw");
    let text = done(&args!["stats", server.dir(), "--prometheus"]).text();
    let dir = format!("dir=\"{}\"", server.dir().display());
    let mut typed = None;
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("# TYPE ") {
            typed = words.strip_suffix(" untyped");
            assert!(typed.is_some(), "{line}");
            continue;
        }
        let (name, rest) = line.split_once('{').expect("a sample with labels");
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        assert_eq!(Some(name), typed, "its type precedes it");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        assert!(labels.starts_with(&dir), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for expected in [
        format!("extant_state_changes{{{dir},value=\"writable\"}} 1"),
        format!("extant_state_journal_aborted{{{dir}}} 0"),
        format!("extant_prealloc_lg{{{dir}}} 2"),
        format!("extant_fragmentation_free_runs_by_order{{{dir},index=\"0\"}} "),
    ] {
        assert!(text.lines().any(|line| line.starts_with(&expected)), "no {expected} in {text}");
    }
    // Every number of the document is there.
    let stats = json(&args!["stats", server.dir()]);
    for (module, values) in stats.as_object().expect("modules") {
        for (name, value) in values.as_object().into_iter().flatten() {
            let sample = format!("\nextant_{module}_{name}{{{dir}");
            assert_eq!(text.contains(&sample), !value.is_null(), "{module}.{name}");
        }
    }
    server.unmount();
}

/// Searches for free space by a mount and by a command, traced if asked for.
#[test]
fn the_allocator_is_traced_if_asked() {
    // Groups of 8 MiB, of which a file of 20 MiB needs several.
    let image = Image::mke2fs(64 << 20, &["-b", "1024"]);
    let scratch = Scratch::new();
    for traced in [false, true] {
        let log = scratch.path().join(format!("log-{traced}"));
        let mut arguments = args!["--log", &log].to_vec();
        if traced {
            arguments.extend(args!["--trace", "extant::frsp"]);
        }
        let server = Server::with(image.path(), "rw", &arguments);
        write_synced(&server.dir().join("file"), &vec![1; 20 << 20]);
        fs::remove_file(server.dir().join("file")).expect("a removal");
        server.unmount();
        let log = fs::read_to_string(&log).expect("a log");
        assert!(log.contains("is mounted at"), "{log}");
        for words in ["optimiser", "allocator step", "request{goal="] {
            assert_eq!(log.contains(words), traced, "{words} in {log}");
        }
        assert!(!log.contains("left out"), "traces are not limited");
        // Nothing else is traced.
        let others = |line: &&str| line.contains("trace:") && !line.contains("request{");
        assert_eq!(log.lines().find(others), None);
    }
    let content = scratch.path().join("content");
    fs::write(&content, vec![1; 20 << 20]).expect("a file");
    let put = |traced: bool| {
        let trace = if traced { args!["--trace=extant::frsp"].to_vec() } else { Vec::new() };
        let words = args!["put", image.path(), &content, "/put"];
        let printed = done(&words.into_iter().chain(trace).collect::<Vec<_>>());
        done(&args!["rm", image.path(), "/put"]);
        printed.errors().contains("optimiser")
    };
    assert!(put(true) && !put(false));
}
