//! `extant batch`: many commands, their results, and runs that go on where others ended.

use crate::args;
use crate::program::{EXTANT, await_that, done, extant, json, refused};
use extant_testkit::tool::run;
use extant_testkit::{Scratch, e2fsck};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A directory with a manifest that builds images of a small tree, and the images' names.
fn builds(scratch: &Scratch, count: usize) -> (PathBuf, Vec<PathBuf>) {
    let tree = scratch.dir("tree");
    fs::write(tree.join("file"), "content").expect("a file");
    let images: Vec<_> = (0..count).map(|n| scratch.join(format!("{n}.img"))).collect();
    let line = |image: &PathBuf| format!("build {} {}\n", image.display(), tree.display());
    let manifest = scratch.join("manifest");
    fs::write(&manifest, images.iter().map(line).collect::<String>()).expect("a manifest");
    (manifest, images)
}

fn records(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

#[test]
fn jobs_run_in_processes_of_their_own() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 5);
    let printed = done(&args!["batch", "--jobs", "3", &manifest]);
    assert!(printed.errors().contains("5 jobs: 5 done, 0 failed"), "{printed}");
    images.iter().for_each(|image| e2fsck::check(image).assert_clean());
    let odd = scratch.join(OsStr::from_bytes(b"a \xff.img"));
    fs::rename(&images[0], &odd).expect("an image");
    let lines =
        [b"# checks\ncheck '", odd.as_os_str().as_bytes(), b"'\n\nls /missing\ninfo /too\n"];
    fs::write(&manifest, lines.concat()).expect("a manifest");
    let printed = extant(&args!["--json", "batch", &manifest]);
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("3 jobs: 1 done, 2 failed"), "{printed}");
    assert!(printed.errors().contains("line 5: info /too: exit code 1: "), "{printed}");
    let records: Vec<Value> = serde_json::from_slice(&printed.stdout).expect("a document");
    let of = |line: u64| records.iter().find(|record| record["line"] == line).expect("a record");
    assert_eq!(records.len(), 3);
    assert_eq!(of(2)["exit_code"], 0);
    assert_eq!(of(2)["document"][0]["summary"]["clean"], true);
    assert!(of(2)["command_hex"].as_str().is_some_and(|digits| digits.contains("ff2e696d67")));
    assert_eq!(of(4)["document"]["error"]["errno"], 2);
    assert!(of(4)["seconds"].as_f64() > Some(0.0));
    scratch.leave_unjudged("manifest", "it is no image");
}

#[test]
fn another_run_does_what_is_left() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 4);
    let log = scratch.join("log");
    fs::create_dir(&images[3]).expect("a directory in the way");
    let call = args!["batch", "--log", &log, &manifest];
    let printed = extant(&call);
    assert!(printed.code == 1 && printed.errors().contains("3 done, 1 failed"), "{printed}");
    assert_eq!(records(&log).len(), 4);
    let again = extant(&call);
    assert!(again.code == 1 && again.errors().contains("3 done, 1 failed (4 before)"), "{again}");
    // A cut of the power in the middle of a record.
    let mut text = fs::read(&log).expect("the log");
    text.extend_from_slice(b"{\"command\":\"bu");
    fs::write(&log, text).expect("the log");
    fs::remove_dir(&images[3]).expect("the directory");
    fs::remove_file(&images[0]).expect("an image");
    let retried = done(&args!["batch", "--retry", "--log", &log, &manifest]);
    assert!(retried.errors().contains("4 done, 0 failed (3 before)"), "{retried}");
    assert!(!images[0].exists(), "a finished job is not repeated");
    e2fsck::check(&images[3]).assert_clean();
    assert_eq!(records(&log).len(), 5);
    done(&call);
}

#[test]
fn a_log_is_no_other_file_and_has_one_writer() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 1);
    for text in [&b"text\n"[..], b"text", &[0; 9000], b"{\"exit_code\":0}\n", b"{}"] {
        let other = scratch.join("other");
        fs::write(&other, text).expect("a file");
        refused(&args!["batch", "--log", &other, &manifest], 1, "no record of a batch");
        assert_eq!(fs::read(&other).expect("the file"), text);
    }
    refused(&args!["batch", "--log", scratch.path(), &manifest], 1, "");
    let log = fs::File::create(scratch.join("log")).expect("a log");
    rustix::fs::flock(&log, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    refused(&args!["batch", "--log", scratch.join("log"), &manifest], 1, "another batch");
    assert!(!images[0].exists());
    refused(&args!["batch", "--retry", &manifest], 2, "--log");
}

#[test]
fn a_manifest_with_a_mistake_starts_nothing() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 1);
    let good = fs::read_to_string(&manifest).expect("the manifest");
    let same = good.replace(' ', "  ");
    for (line, words) in [
        ("check\n", ":2: check: the following required arguments"),
        ("nonsense a\n", ":2: nonsense a: "),
        ("check 'a\n", ":2: a quote has no end"),
        ("mount a b\n", ":2: mount a b: this command cannot be a job"),
        ("batch\n", ":2: batch: this command cannot be a job"),
        ("--help\n", ":2: "),
        ("--json check a\n", ":2: --json check a: the argument '--json' cannot be used multiple"),
        (&same, ": line 1 is the same"),
    ] {
        fs::write(&manifest, [&good, line].concat()).expect("a manifest");
        refused(&args!["batch", &manifest], 2, words);
        assert!(!images[0].exists(), "{line}");
    }
    refused(&args!["batch", scratch.join("missing")], 1, "missing");
    for shard in ["2/2", "a/3", "1", "0/0", "-1/2"] {
        refused(&args!["batch", format!("--shard={shard}"), &manifest], 2, "K/N");
    }
    fs::write(&manifest, "\n# nothing\n").expect("a manifest");
    assert_eq!(json(&args!["batch", &manifest]), Value::Array(vec![]));
}

#[test]
fn parts_for_machines_are_disjoint_and_complete() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 5);
    for (shard, count) in [("0/3", 2), ("1/3", 2), ("2/3", 1)] {
        let records = json(&args!["batch", "--shard", shard, &manifest]);
        assert_eq!(records.as_array().expect("records").len(), count);
    }
    assert!(images.iter().all(|image| image.exists()));
}

#[test]
fn after_a_failure_no_job_starts_if_that_is_asked_for() {
    let scratch = Scratch::new();
    let (manifest, images) = builds(&scratch, 30);
    let lines = fs::read_to_string(&manifest).expect("the manifest");
    fs::write(&manifest, ["info /missing\n", &lines].concat()).expect("a manifest");
    let printed = extant(&args!["batch", "--fail-fast", "--jobs", "1", &manifest]);
    assert!(printed.code == 1 && printed.errors().contains("30 jobs left"), "{printed}");
    assert!(images.iter().all(|image| !image.exists()));
}

/// A batch whose third job waits for the content of a pipe.
struct Waiting {
    scratch: Scratch,
    call: Vec<OsString>,
    batch: Child,
    pipe: fs::File,
}

impl Waiting {
    fn new() -> Waiting {
        let scratch = Scratch::new();
        let (manifest, _) = builds(&scratch, 2);
        let (fifo, late) = (scratch.join("fifo"), scratch.join("late.img"));
        run("mkfifo", &[&fifo]).must_succeed();
        let waits = format!("build {} tar:{}\n", late.display(), fifo.display());
        let lines = fs::read_to_string(&manifest).expect("the manifest");
        fs::write(&manifest, [lines, waits].concat()).expect("a manifest");
        let log = scratch.join("log");
        let call = args!["batch", "--jobs", "1", "--log", &log, &manifest].to_vec();
        let batch = Command::new(EXTANT).args(&call).stderr(Stdio::piped()).spawn();
        // The job has opened the pipe.
        let pipe = fs::File::options().write(true).open(&fifo).expect("a reader");
        Waiting { scratch, call, batch: batch.expect("a batch"), pipe }
    }

    /// Sends a signal; returns the output of the batch after its job has left nothing behind.
    fn end(self, signal: &str) -> (Output, Scratch, Vec<OsString>) {
        let Waiting { scratch, call, batch, pipe } = self;
        run("kill", &args![signal, batch.id().to_string()]).must_succeed();
        let output = batch.wait_with_output().expect("its end");
        // Tree, manifest, log and pipe, and two images.
        let names = || fs::read_dir(scratch.path()).expect("a directory").count();
        await_that("the end of its output", || names() == 6);
        drop(pipe);
        (output, scratch, call)
    }
}

/// The next run does the job again that was at work.
fn assert_resumed(scratch: &Scratch, call: &[OsString]) {
    let (fifo, archive, log) = (scratch.join("fifo"), scratch.join("archive"), scratch.join("log"));
    assert_eq!(records(&log).len(), 2);
    run("tar", &args!["-cf", &archive, "-C", scratch.join("tree"), "."]).must_succeed();
    fs::remove_file(&fifo).expect("the pipe");
    fs::rename(archive, &fifo).expect("a name");
    done(call);
    e2fsck::check(&scratch.join("late.img")).assert_clean();
    assert_eq!(records(&log).len(), 3);
}

#[test]
fn a_signal_ends_the_jobs_in_order() {
    let (output, scratch, call) = Waiting::new().end("-TERM");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("interrupted: 3 jobs: 2 done, 0 failed, 1 job left"), "{errors}");
    assert_eq!(output.status.code(), Some(32));
    assert_resumed(&scratch, &call);
}

#[test]
fn a_batch_that_is_killed_takes_its_jobs_along() {
    let (_, scratch, call) = Waiting::new().end("-KILL");
    assert_resumed(&scratch, &call);
}
