//! The program, on little of everything.

use extant_testkit::tool::{Printed, need_root, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const LAB: &str = env!("CARGO_BIN_EXE_extant-lab");
const OTHER_BUILD: bool = cfg!(feature = "designs");

fn lab(args: &[&str]) -> Printed {
    run(LAB, args)
}

/// Returns the results of a run, which names its machine and its command.
fn json(args: &[&str]) -> Value {
    let printed = lab(args).must_succeed();
    let mut run: Value =
        serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
    assert!(run["machine"]["processors"].as_u64() > Some(0), "{printed}");
    let command: Vec<_> = [&["extant-lab"], args].concat();
    assert_eq!(run["command"], command.join(" ").replace(" --json", ""));
    run["results"].take()
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// Returns a number of an object.
fn number(object: &Value, name: &str) -> f64 {
    object[name].as_f64().unwrap_or_else(|| panic!("no number {name}: {object}"))
}

/// Returns the rows of a table, which are so many, each cell with a value of each run.
fn rows(grid: &Value, count: usize, runs: usize) -> &Vec<Value> {
    let rows = array(&grid["rows"]);
    assert_eq!(rows.len(), count, "{grid}");
    for cell in rows.iter().flat_map(|row| array(&row[1])) {
        let positive = |v: &Value| v.as_f64().is_some_and(|v| v > 0.0 && v.is_finite());
        assert!(array(cell).len() == runs && array(cell).iter().all(positive), "{cell}");
    }
    rows
}

#[test]
fn pairs_have_every_row_on_both_sides_and_are_judged() {
    need_root("pairs mount the kernel's ext4 on a loop device");
    let grids = json(&["pairs", "--tiny", "--runs", "2", "--json"]);
    // Sixteen workloads with four numbers of threads, two kinds of syncs, and creators with and
    // without them, beside an unrelated stat.
    rows(&grids[0], 16 * 4 + 2 + 2, 2);
    rows(&grids[3], 2, 2);
    let args = ["pairs", "--tiny", "--runs", "1", "--threads", "3", "--only", "unlink", "--json"];
    rows(&json(&args)[0], 3, 1);
    let printed = lab(&["pairs", "--tiny", "--runs", "2", "--only", "create empty"]).must_succeed();
    let text = String::from_utf8_lossy(&printed.stdout);
    // Beside the kernel with four numbers of threads, the most threads beside the best number, and
    // processor time.
    assert!(text.lines().any(|line| line.ends_with(" of 6 bars reached")), "{text}");
}

#[test]
fn arguments_that_leave_nothing_to_measure_are_refused() {
    for args in [
        &["pairs", "--runs", "0"][..],
        &["pairs", "--threads", "2,0"],
        &["fsmark", "--files", "0"],
        &["fsmark", "--empty", "0"],
    ] {
        let refused = lab(args);
        assert!(refused.code == 2 && refused.errors().contains("the least is 1"), "{refused}");
    }
    let refused = lab(&["reproduce", "frsp", "--stored", "--root", "/nonexistent"]);
    assert!(refused.code == 1 && refused.errors().contains("`--root`"), "{refused}");
}

/// The engine's design of each table is compared with all the others.
#[test]
fn tables_compare_the_design_of_the_engine() {
    for (command, engines) in [
        ("dref", &["lockref", "lockref"][..]),
        ("inodes", &["sharded list", "epoch", "look first", "never in it"]),
        ("sync", &["eager", "eager", "eager", "plug per batch", "plug per batch"]),
        ("orphan", &["lockless file"]),
        ("preallocs", &["tree"]),
    ] {
        let args = [command, "--quick", "--runs", "1", "--threads", "1"];
        if !OTHER_BUILD {
            let refused = lab(&args);
            assert!(refused.code == 1 && refused.errors().contains("make designs"), "{refused}");
            continue;
        }
        let text = lab(&args).must_succeed().text();
        let title = |line: &str| Some(line.split_once(": gain of ")?.1.to_owned());
        let compared: Vec<String> = text.lines().filter_map(title).collect();
        let wanted: Vec<String> = engines.iter().map(|name| format!("{name} over [95%]")).collect();
        assert_eq!(compared, wanted, "{text}");
    }
}

#[test]
fn programs_work_on_mounts() {
    need_root("programs work on mounts");
    let only = ["--only", "tar -x", "--only", "git clone", "--only", "overlayfs", "--json"];
    let results = json(
        &[&["work", "--quick", "--runs", "1", "--sides", "ext4,extant-fuse"], &only[..]].concat(),
    );
    rows(&results["times"], 3, 1);
    let refused = lab(&["work", "--quick", "--sides", "engine", "--only", "tar -x"]);
    assert!(refused.code == 1 && refused.errors().contains("a mounted side"), "{refused}");
}

#[test]
fn requests_of_operations_are_counted() {
    need_root("requests are counted by the kernel's tracepoint");
    let only = ["--only", "create empty", "--only", "open and close", "--json"];
    let grids = json(&[&["requests", "--sides", "extant-fuse,null"], &only[..]].concat());
    // Each side opens and closes a file by one request each.
    let rows = rows(&grids[0], 2, 1);
    for cell in array(&rows[1][1]) {
        assert!((2.0..2.2).contains(&cell[0].as_f64().unwrap()), "{grids}");
    }
    // At least a call that receives the request or sends the answer.
    let calls = array(&grids[1]["rows"]).iter().flat_map(|row| array(&row[1]));
    calls.for_each(|cell| assert!(cell[0].as_f64() > Some(0.5), "{grids}"));
    let kinds = array(&grids[2]["rows"]).iter().map(|row| row[0].as_str().unwrap());
    assert!(
        kinds
            .filter(|kind| ["create empty files: CREATE", "open and close: OPEN"].contains(kind))
            .count()
            == 2
    );
}

#[test]
fn users_of_aim7_work_on_the_kernel_the_mount_and_the_engine() {
    need_root("aim7 mounts the kernel's ext4 on a loop device");
    let grids = json(&["aim7", "--quick", "--runs", "1", "--only", "short", "--json"]);
    assert_eq!(grids[0]["columns"], serde_json::json!(["ext4", "extant-fuse", "engine"]));
    // Ranges of users.
    rows(&grids[0], 3, 1);
}

#[test]
fn files_are_made_and_looked_at_by_threads_and_by_processes() {
    need_root("fsmark mounts the kernel's ext4 on a loop device");
    let grids = json(&["fsmark", "--quick", "--json"]);
    for (grid, count) in array(&grids).iter().zip([3, 4]) {
        assert_eq!(array(&grid["columns"]).len(), 5, "{grid}");
        rows(grid, count, 1);
    }
    let refused = lab(&["fsmark", "--quick", "--empty", "1000000000000"]);
    assert!(refused.code == 1 && refused.errors().contains("in /dev/shm"), "{refused}");
    // A worker alone, in any directory: when it is prepared, when it has begun, and the time.
    let scratch = extant_testkit::Scratch::new();
    let dir = scratch.join("").into_os_string().into_string().expect("a path");
    let worker = |task| lab(&["fsmark-worker", &dir, task, "3", "2001"]).must_succeed().text();
    assert_eq!(worker("fill").lines().filter(|line| line.parse::<u64>().is_ok()).count(), 3);
    let made = std::fs::metadata(scratch.join("w3-1/f2000")).expect("the last file");
    assert_eq!(made.len(), 4096);
    worker("unlink");
    assert!(worker("bulkstat").contains("bulkstat: No such file"));
}

#[test]
fn published_tables_stand_beside_stored_runs() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let works = json(&["reproduce", "all", "--stored", "--root", root, "--json"]);
    let names: Vec<_> = array(&works).iter().map(|work| &work["name"]).collect();
    assert_eq!(names, ["orphan", "dcount", "sync", "prealloc", "frsp"]);
    let tables = array(&works).iter().flat_map(|work| array(&work["tables"]));
    let experiments: Vec<_> = tables.flat_map(|table| array(&table["here"])).collect();
    // Mounts, counts of instructions and requests, programs at work and tools repeat no published
    // experiment.
    let others = ["bench", "check", "codecs", "images", "instructions", "requests", "work"];
    let mut runs = BTreeSet::from(others.map(|name| format!("{name}.json")));
    runs.extend(experiments.iter().map(|here| format!("{}.json", here["run"].as_str().unwrap())));
    let stored = std::fs::read_dir(format!("{root}/docs/runs")).expect("stored runs");
    let stored = stored.map(|file| file.expect("a run").file_name().into_string().expect("UTF-8"));
    assert_eq!(runs, stored.collect());
    for here in experiments {
        let found = &here["found"];
        assert!(!found["machine"]["commit"].as_str().unwrap_or("").is_empty(), "{here}");
        let values = array(&found["grid"]["rows"]).len() + array(&found["notes"]).len();
        assert!(values > 0, "no row of the run: {here}");
        if !array(&found["grid"]["rows"]).is_empty() {
            let columns = array(&found["grid"]["columns"]);
            let designs =
                array(&here["after"]).iter().map(|pair| &pair[0]).chain([&here["before"]]);
            designs.for_each(|name| assert!(columns.contains(name), "{name}: {here}"));
        }
    }
    let wrong = lab(&["reproduce", "nonsense", "--stored", "--root", root]);
    assert!(wrong.code == 2 && wrong.errors().contains("dcount"), "{wrong}");
}

/// The page is XHTML, so that a parser of XML reads all of it.
#[test]
fn the_page_has_every_work_with_plots_and_needs_no_network() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/lab.html");
    lab(&["reproduce", "--stored", "--root", root, "--page", path]).must_succeed();
    let text = std::fs::read_to_string(path).expect("the page");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&text, options).expect("well-formed");
    for work in ["orphan", "dcount", "sync", "prealloc", "frsp"] {
        let section = page.descendants().find(|node| node.attribute("id") == Some(work));
        let section = section.unwrap_or_else(|| panic!("no section {work}"));
        let svg = ("http://www.w3.org/2000/svg", "svg");
        let plots = section.descendants().filter(|n| n.has_tag_name(svg)).count();
        assert!(plots >= 4, "{work}: {plots} plots");
        let tables = section.descendants().filter(|n| n.tag_name().name() == "table").count();
        assert!(tables > plots / 2, "{work}: {tables} tables");
    }
    for node in page.descendants() {
        let name = node.tag_name().name();
        assert!(!["script", "link", "img", "image", "iframe", "use"].contains(&name), "{name}");
        let outside = node.attributes().find(|a| ["src", "href"].contains(&a.name()));
        assert!(outside.is_none(), "{outside:?}");
    }
    assert!(!text.contains("url(") && !text.contains("@import"));
}

#[test]
fn works_are_measured_quickly_and_the_runs_are_kept() {
    need_root("pairs mount the kernel's ext4 on a loop device");
    let runs = concat!(env!("CARGO_TARGET_TMPDIR"), "/runs");
    let designs = if OTHER_BUILD { LAB } else { "no program" };
    let printed = lab(&["reproduce", "dcount", "--runs", runs, "--designs", designs]);
    if !OTHER_BUILD {
        assert!(printed.code == 1 && printed.errors().contains("make designs"), "{printed}");
        return;
    }
    let text = printed.must_succeed().text();
    assert!(text.contains("2966230") && text.contains("cas_split"), "{text}");
    for run in ["aim7", "dref", "pairs"] {
        assert!(std::fs::exists(format!("{runs}/{run}.json")).expect("a directory"), "{run}");
    }
}

/// Runs the program until `found` returns a value for one of its children, and has SIGTERM end it.
/// Returns the value, and whether that child is still there.
fn ended<T>(args: &[&str], found: impl Fn(u32) -> Option<T>) -> (T, bool) {
    let null = Stdio::null;
    let mut program = Command::new(LAB);
    let program = program.args(args).stdin(null()).stdout(null()).stderr(null()).spawn();
    let mut program = program.expect("a process");
    let (child, value) = loop {
        let ended = program.try_wait().expect("a child");
        assert!(ended.is_none(), "{args:?} ended by itself: {ended:?}");
        let mut all = children(program.id()).into_iter();
        if let Some(found) = all.find_map(|child| Some((child, found(child)?))) {
            break found;
        }
        std::thread::yield_now();
    };
    kill_process(Pid::from_child(&program), Signal::TERM).expect("a signal");
    let status = program.wait().expect("its end");
    assert_eq!((status.code(), status.signal()), (Some(128 + 15), None), "it cleans up first");
    (value, fs::read_link(format!("/proc/{child}/exe")).is_ok())
}

/// Returns the processes that this one has started.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("processes").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let stat = fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
        let of: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        if of == parent { name.parse().ok() } else { None }
    });
    processes.collect()
}

#[test]
fn a_signal_ends_experiments_in_other_processes() {
    need_root("age mounts the kernel's ext4 on a loop device");
    let runs = concat!(env!("CARGO_TARGET_TMPDIR"), "/ended");
    let image = |child| {
        let open = fs::read_dir(format!("/proc/{child}/fd")).ok()?;
        let mut open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        open.find(|path: &PathBuf| path.starts_with("/dev/shm") && path.ends_with("image"))
    };
    let (image, is_there) = ended(&["reproduce", "frsp", "--runs", runs], image);
    assert!(!is_there && !image.exists(), "{}", image.display());
}

#[test]
fn a_signal_ends_programs_at_work() {
    need_root("programs work on mounts");
    let sleeping = |child| {
        let command = fs::read(format!("/proc/{child}/cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains("sleep 1.1").then_some(())
    };
    let args = ["work", "--quick", "--sides", "ext4", "--only", "git status"];
    let ((), is_there) = ended(&args, sleeping);
    assert!(!is_there);
}

#[test]
fn a_program_that_does_not_count_says_how_to_get_one_that_does() {
    let names = lab(&["contention"]).must_succeed().text();
    assert!(names.lines().any(|line| line.starts_with("stat-path ")), "{names}");
    if cfg!(not(feature = "contention")) {
        let refused = lab(&["contention", "create"]);
        assert_eq!(refused.code, 1, "{refused}");
        assert!(refused.errors().contains("make contention"), "{refused}");
    }
}

/// A counting program that says of each workload that half of it is in a lock that all share.
const COUNTED: &str = r#"#!/bin/sh
echo '{"service":1000.0,"shared":{"here:1":{"lines":1,"moves":1.0}},"holds":{"here:1":500.0},
"levels":{"InodeCacheShard":[2.0,100.0]}}'
"#;

#[test]
fn counts_and_service_times_are_simulated_on_more_processors() {
    use std::os::unix::fs::PermissionsExt;
    let counted = concat!(env!("CARGO_TARGET_TMPDIR"), "/counted");
    std::fs::write(counted, COUNTED).expect("a program");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(counted, executable).expect("an executable program");
    let args =
        ["scale", "walk", "--quick", "--runs", "1", "--cpus", "1", "--topology", "1x10,8x10"];
    let run = json(&[&args[..], &["--counted", counted, "--json"]].concat());
    assert_eq!(run["rates"][0]["unit"], "ops/s, simulated");
    let rows = rows(&run["rates"][0], 3, 1);
    // Processors that the engine keeps busy: as half of an operation is in the lock, at most two.
    let busy = |row: usize| {
        let service = run["inputs"][0]["rows"][2 * row + 1][1][0][0].as_f64().expect("a time");
        rows[row][1][1][0].as_f64().expect("a rate") * service / 1e9
    };
    let [one, ten, eighty] = [0, 1, 2].map(busy);
    assert!((0.97..1.03).contains(&one), "{run}");
    assert!([ten, eighty].iter().all(|busy| (0.5..2.0).contains(busy)), "{run}");
    assert!(!array(&run["checks"]).is_empty(), "{run}");
    let missing = lab(&["scale", "walk", "--quick", "--counted", "/nonexistent"]);
    assert!(missing.code == 1 && missing.errors().contains("make contention"), "{missing}");
    assert_eq!(lab(&["scale", "walk", "--topology", "8"]).code, 1);
}

#[test]
fn wrong_names_and_options_without_effect_are_refused() {
    for wrong in [
        &["pairs", "--only", "nonsense"][..],
        &["bench", "--only", "nonsense"],
        &["age", "--quick", "--only", "nonsense"],
        &["space-claims", "--only", "nonsense"],
        &["fsmark", "--quick", "--only", "nonsense"],
        &["instructions", "--only", "nonsense"],
        &["scale", "--only", "walk"],
        &["space60t", "--runs", "3"],
        &["nonsense"],
    ] {
        let refused = lab(wrong);
        assert!(refused.code != 0 && !refused.errors().is_empty(), "{refused}");
    }
}

/// Rows by their names.
fn row<'a>(rows: &'a [Value], profile: &str, name: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["profile"] == profile && row["name"] == name);
    found.unwrap_or_else(|| panic!("no row {profile}, {name}"))
}

#[test]
fn allocators_on_a_large_fragmented_disk_have_the_shapes_that_were_published() {
    let all = json(&["space60t", "--quick", "--json"]);
    let rows = array(&all["rows"]);
    assert_eq!(rows.len(), 2 * (16 + 10));
    for write in rows.iter().flat_map(|row| array(&row["writes"])) {
        assert!(number(write, "seconds") > 0.0 && number(write, "pieces") > 0.0, "{write}");
    }
    let first = |name: &str, what: &str| number(&row(rows, "posted", name)["writes"][0], what);
    let levels =
        |name: &str, what| [0, 1, 2, 3].map(|level| first(&format!("{name}, level {level}"), what));
    let [none, one, two, three] = levels("frsp", "trees");
    assert!(none <= one && one < two && two <= three, "{none} {one} {two} {three}");
    let waited = |name: &str| first(name, "waited");
    assert!(waited("frsp, level 0") < waited("frsp, level 2"), "loading within requests");
    let buddies = ["frsp, level 0", "buddy, read ahead", "buddy"].map(waited);
    assert!(buddies.is_sorted_by(|a, b| a < b), "{buddies:?}");
    assert!(waited("Extant, at once, slow disk") < waited("frsp, level 0"));
    let read = levels("Extant, slow", "bitmaps");
    assert!(read.is_sorted_by(|a, b| a < b), "levels of the engine: {read:?}");
    assert!(first("Extant, slow, level 3, 1 GB", "tree_bytes") < 1e9);
    // A design that knows the whole disk finds the long runs.
    let pieces = |name: &str| number(&row(rows, "harsh", name)["writes"][1], "pieces");
    let [known, listed] = ["Extant, all known", "lists of 2023"].map(pieces);
    assert!(known * 2.0 < listed, "{known} {listed}");
}

#[test]
fn other_claims_of_the_postings_hold() {
    let claims =
        json(&["space-claims", "--quick", "--only", "memory", "--only", "limited", "--json"]);
    let claims = array(&claims);
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|claim| claim["standing"] == "Reached"), "{claims:?}");
}

#[test]
fn two_sides_are_aged_and_looked_at() {
    need_root("age mounts the kernel's ext4 on a loop device");
    let all = json(&["age", "--size", "96", "--churn", "0.5", "--runs", "1", "--json"]);
    let rows = array(&all);
    assert_eq!(rows.len(), 2 + 5);
    let (engine, kernel) = (&rows[0]["state"], &rows[1]["state"]);
    assert_eq!(engine["files"], kernel["files"], "the same was done to both");
    for row in rows {
        let [files, pieces, runs] = ["files", "pieces", "runs"].map(|n| number(&row["state"], n));
        assert!(files > 20.0 && pieces >= files && runs > 0.0, "{row}");
    }
}
