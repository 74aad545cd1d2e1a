//! The tests of the package, which are in Python, on the library of this build.

use std::path::Path;
use std::process::Command;

/// Runs all tests of `tests` but those with pandas, which `make test-python` runs.
#[test]
fn package_passes_its_tests() {
    let program = std::env::current_exe().expect("the path of this program");
    let library = program.parent().expect("a directory").join("lib_extant.so");
    assert!(library.exists(), "{}: cargo builds it with this program", library.display());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let run = |word: &str| {
        let mut script = Command::new(root.join("scripts/python.sh"));
        let done = script.arg(word).arg(&library).status().expect("a shell");
        assert!(done.success(), "scripts/python.sh {word} ended with {done}");
    };
    run("prepare");
    run("short");
}
