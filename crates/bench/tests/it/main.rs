//! The program, on little of everything.

use extant_testkit::tool::{need_root, run};
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_extant-bench");

/// Each row of checks has times, memory and transfers of both programs, and each bar a verdict.
#[test]
fn checks_are_compared_and_judged() {
    need_root("e2fsck of some images wants it");
    let args = ["check", "--quick", "--runs", "1", "--json"];
    let printed = run(BENCH, &args).must_succeed();
    let stored: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert_eq!(stored["command"], "extant-bench check --quick --runs 1");
    for table in ["times", "memory", "reads", "writes"] {
        let table = &stored["results"][table];
        let columns = table["columns"].as_array().expect("columns");
        let rows = table["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 8, "{table}");
        for row in rows {
            for name in ["extant", "e2fsprogs"] {
                let column = columns.iter().position(|column| column == name).expect("a column");
                assert_eq!(row[1][column].as_array().map(Vec::len), Some(1), "{row}");
            }
        }
    }
    assert_eq!(stored["results"]["bars"].as_array().map(Vec::len), Some(10), "{stored}");
}

/// Every row has a value of each run on each side that does the work, and every bar a verdict.
#[test]
fn images_are_compared_and_judged() {
    need_root("rows mount images by the kernel");
    let args = ["images", "--quick", "--runs", "2", "--json"];
    let printed = run(BENCH, &args).must_succeed();
    let stored: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert_eq!(stored["command"], "extant-bench images --quick --runs 2");
    let times = &stored["results"]["times"];
    let columns = times["columns"].as_array().expect("columns");
    let rows = times["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 17, "{times}");
    for row in rows {
        let cells = row[1].as_array().expect("cells");
        let measured = |name: &str| {
            let column = columns.iter().position(|column| column == name).expect("a column");
            cells[column].as_array().expect("values").len()
        };
        assert_eq!(measured("extant"), 2, "{row}");
        let others = ["floor", "e2fsprogs", "kernel", "cp"].map(measured);
        assert!(others.iter().all(|runs| [0, 2].contains(runs)), "{row}");
    }
    assert_eq!(stored["results"]["bars"].as_array().map(Vec::len), Some(20), "{stored}");
}

/// Every codec has a rate on both sides, and those that Extant writes a size.
#[test]
fn codecs_are_compared() {
    let printed = run(BENCH, &["codecs", "--quick", "--runs", "2", "--json"]).must_succeed();
    let stored: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    let grids = stored["results"].as_array().expect("tables");
    let rows = grids.iter().map(|grid| grid["rows"].as_array().expect("rows"));
    assert_eq!(rows.clone().map(Vec::len).collect::<Vec<_>>(), [4, 2, 2], "{stored}");
    for row in rows.flatten() {
        let runs = row[1].as_array().expect("columns").iter().map(|cell| cell.as_array());
        assert_eq!(runs.map(|cell| cell.map(Vec::len)).collect::<Vec<_>>(), [Some(2); 2], "{row}");
    }
}
