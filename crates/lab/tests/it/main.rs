//! The program, on little of everything.

use extant_testkit::tool::{Printed, need_root, run};
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_extant-lab");

fn lab(args: &[&str]) -> Printed {
    run(LAB, args)
}

fn json(args: &[&str]) -> Value {
    let printed = lab(args).must_succeed();
    serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"))
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// Numbers, all of them positive and finite.
fn positive(values: &Value, count: usize) {
    let values = array(values);
    assert_eq!(values.len(), count);
    assert!(values.iter().all(|v| v.as_f64().is_some_and(|v| v > 0.0 && v.is_finite())), "{values:?}");
}

#[test]
fn pairs_have_every_row_on_both_sides_and_are_judged() {
    need_root("pairs mount the kernel's ext4 on a loop device");
    let all = json(&["pairs", "--tiny", "--runs", "2", "--json"]);
    let rows = array(&all["rows"]);
    // Thirteen workloads with four numbers of threads, and two kinds of syncs.
    assert_eq!(rows.len(), 13 * 4 + 2);
    for row in rows {
        array(&row["sides"]).iter().for_each(|side| positive(&side["rate"], 2));
    }
    let bars = array(&all["bars"]);
    let barred = rows.iter().filter(|row| !row["bar"].is_null()).count();
    assert_eq!(bars.len(), barred + 13, "each bar beside the kernel, and each workload with the most threads");
    assert!(bars.iter().all(|bar| bar["found"]["mean"].as_f64().is_some_and(|mean| mean > 0.0)), "{bars:?}");
}

#[test]
fn tables_say_who_is_compared() {
    for command in ["dref", "inodes", "sync", "orphan"] {
        let text = lab(&[command, "--quick", "--runs", "1", "--threads", "1"]).must_succeed().text();
        assert!(text.lines().any(|line| line.starts_with("gain of ")), "{text}");
    }
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

#[test]
fn wrong_names_are_refused() {
    for wrong in [&["pairs", "--only", "nonsense"][..], &["bench", "--only", "nonsense"], &["nonsense"]] {
        let refused = lab(wrong);
        assert!(refused.code != 0 && !refused.errors().is_empty(), "{refused}");
    }
}
