//! Regression tests of inputs that fuzzing found.

mod bombs;
mod deep;
mod noise;

use extant_blocks::MemDevice;
use extant_engine::{Follow, Fs};
use extant_format::BlockNr;
use extant_hostile::atlas::change_superblock;
use extant_hostile::parsers::of_image;
use extant_hostile::seeds::{Seed, options, with_fast_commits};
use extant_testkit::Image;
use extant_testkit::image::FeatureSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Inputs that once revealed a bug, and some with a large coverage.
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
fn a_damaged_image_gives_inputs_too() {
    let good = Seed::make(FeatureSet::named("mmp"), false);
    let mut bytes = good.bytes.clone();
    change_superblock(&mut bytes, |sb| sb.set_mmp_block(BlockNr(1 << 40)));
    let inputs = of_image(&Seed::of("mmp beyond the end".into(), bytes)).len();
    assert_eq!(inputs, of_image(&good).len() - 1, "all but the block that is beyond the end");
}

#[test]
fn each_target_is_fuzzed() {
    let mut targets = extant_hostile::TARGETS.map(|(name, _)| format!("{name}.rs"));
    targets.sort();
    let found = files(&fuzz().join("fuzz_targets"));
    let found: Vec<_> = found
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, targets);
}

/// Recovery replays both fast commits, beside orphans, with the result that their records describe.
#[test]
fn fast_commits_of_the_seed_are_good_ones() {
    let seed = with_fast_commits();
    let device = Arc::new(MemDevice::from_bytes(&seed.bytes));
    let fs = Fs::open_device(device.clone(), &options()).expect("a good image");
    let found = fs.recovery().journal.expect("a log");
    assert!(found.transactions > 0 && found.fast_records == 11, "{found:?}");
    assert_eq!(fs.recovery().orphans.freed, 4);
    let sizes = ["/dir/sub/file4", "/dir/sub/file3", "/dir/made by a fast commit"]
        .map(|path| fs.resolve(path, Follow::No).expect(path).attr().size);
    assert_eq!(sizes, [34 << 10, 35 << 10, 5000]);
    assert!(fs.resolve("/dir/linked", Follow::No).is_err(), "a name that went");
    fs.unmount().expect("unmount");
    Image::holding(&device.to_vec()).assert_clean();
}
