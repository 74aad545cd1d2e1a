//! What fuzzing found once, tried again on each change.

use std::fs;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Inputs that broke something once, and some that reach far.
#[test]
fn kept_inputs_do_no_harm() {
    for (name, target) in extant_hostile::TARGETS {
        let kept = files(&fuzz().join("regressions").join(name));
        assert!(!kept.is_empty(), "no inputs for {name}");
        for path in kept {
            println!("{}", path.display());
            target(&fs::read(&path).expect("an input"));
        }
    }
}

#[test]
fn each_target_is_fuzzed() {
    let mut targets = extant_hostile::TARGETS.map(|(name, _)| format!("{name}.rs"));
    targets.sort();
    let found = files(&fuzz().join("fuzz_targets"));
    let found: Vec<_> =
        found.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
    assert_eq!(found, targets);
}
