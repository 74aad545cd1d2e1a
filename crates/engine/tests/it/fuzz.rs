//! Damaged images of every feature set: each may cause an error, and nothing else.
//!
//! A mutant is named by its feature set, whether the log is replayed, and a number. [`KEPT`] lists
//! the mutants that once broke something.

use crate::fast_commit;
use extant_hostile::atlas::Kind;
use extant_hostile::deep::Layout;
use extant_hostile::drive::{Depth, survive};
use extant_hostile::mutate;
use extant_hostile::seeds::{Seed, of_others};
use extant_testkit::figures;
use extant_testkit::image::{FEATURE_SETS, FeatureSet};
use extant_testkit::rng::Rng;
use std::time::{Duration, Instant};

/// Mutants of each image in the short form.
const SHORT: u64 = 8;

/// Mutants of each image with deep maps in the short form.
const DEEP: u64 = 30;

/// Mutants of fast commits in the short form.
const FAST_COMMITS: u64 = 60;

/// Mutants that broke something once: feature set, crashed, number.
const KEPT: &[(&str, bool, u64)] =
    &[("orphan_file", false, 10_407_116_827), ("64k", true, 10_407_116_819)];

fn depth(set: &FeatureSet) -> Depth {
    // A claim of multiple mount protection takes seconds.
    if set.name == "mmp" { Depth::Read } else { Depth::Write }
}

/// Tries one mutant. The error describes its damage.
fn try_mutant(seed: &Seed, depth: Depth, number: u64) -> Result<(), String> {
    let mut image = seed.bytes.clone();
    let what = mutate::mutate(&mut image, &seed.atlas, &mut Rng::new(number));
    survive(image, number, depth)
        .map_err(|why| format!("{} {number}: {why}\n    {}", seed.name, what.join("\n    ")))
}

fn fail_if_any(found: &[String]) {
    assert!(found.is_empty(), "{} mutants broke something:\n{}", found.len(), found.join("\n"));
}

/// Whether an image of the set can be left with a log to replay.
fn can_crash(set: &FeatureSet) -> bool {
    set.journal && set.name != "mmp"
}

fn both(set: &FeatureSet) -> impl Iterator<Item = Seed> {
    [false, true]
        .into_iter()
        .filter(|crashed| !crashed || can_crash(set))
        .map(|crashed| Seed::make(set, crashed))
}

/// An image that the kernel left with fast commits.
fn with_fast_commits() -> Seed {
    let (name, bytes) = fast_commit::left_by_the_kernel();
    let seed = Seed::of(name.into(), bytes);
    assert!(seed.atlas.of_kind(Kind::FastCommits).count() == 1, "{name}: no fast commits");
    seed
}

/// Images with maps and an index of several levels.
fn deep() -> [Seed; 2] {
    [Layout { levels: 2, ..Layout::sparse(3) }, Layout::full(2)].map(Seed::deep)
}

#[test]
fn mutants_of_deep_maps() {
    let mut broken = Vec::new();
    for seed in deep() {
        survive(seed.bytes.clone(), 1, Depth::Write)
            .unwrap_or_else(|why| panic!("{}: {why}", seed.name));
        broken.extend((0..DEEP).filter_map(|number| try_mutant(&seed, Depth::Write, number).err()));
    }
    fail_if_any(&broken);
}

#[test]
fn good_images_survive() {
    for set in FEATURE_SETS {
        for seed in both(set) {
            survive(seed.bytes.clone(), 1, depth(set))
                .unwrap_or_else(|why| panic!("{}: {why}", seed.name));
        }
    }
}

#[test]
fn mutants_that_broke_something() {
    let mut broken = Vec::new();
    for (set, crashed, number) in KEPT {
        let set = FeatureSet::named(set);
        broken.extend(try_mutant(&Seed::make(set, *crashed), depth(set), *number).err());
    }
    fail_if_any(&broken);
}

#[test]
fn mutants_of_every_feature_set() {
    let mut broken = Vec::new();
    for set in FEATURE_SETS {
        for seed in both(set) {
            broken.extend(
                (0..SHORT).filter_map(|number| try_mutant(&seed, depth(set), number).err()),
            );
        }
    }
    fail_if_any(&broken);
}

/// An image that the kernel left with fast commits, their records changed.
#[test]
fn mutants_of_fast_commits() {
    let seed = with_fast_commits();
    let broken: Vec<String> = (0..FAST_COMMITS)
        .filter_map(|number| try_mutant(&seed, Depth::Write, number).err())
        .collect();
    fail_if_any(&broken);
}

/// Damaged images that others keep, from a folder that `EXTANT_IMAGES` names; some as they are,
/// some compressed.
#[test]
#[ignore = "takes images that are not here: `make images` brings them"]
fn images_of_others() {
    let (mut tried, mut broken) = (0, Vec::new());
    for (path, image) in of_others() {
        tried += 1;
        if let Err(why) = survive(image, tried, Depth::Write) {
            println!("{path}: {why}");
            broken.push(format!("{path}: {why}"));
        }
    }
    println!("{tried} images");
    assert!(tried > 0, "EXTANT_IMAGES names no folder with images");
    figures::Figures::open().add(
        "images of e2fsprogs",
        0,
        &[("images", tried), ("failures", broken.len() as u64)],
    );
    fail_if_any(&broken);
}

/// Mutants without end: for `EXTANT_FUZZ_SECONDS`, or a minute. `EXTANT_FUZZ_FROM` is the first
/// number.
#[test]
#[ignore = "runs for as long as it is told to"]
fn fuzz_images() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let time = Duration::from_secs(number("EXTANT_FUZZ_SECONDS").unwrap_or(60));
    let first = number("EXTANT_FUZZ_FROM").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    let only = std::env::var("EXTANT_FUZZ_SET").ok();
    let sets =
        FEATURE_SETS.iter().filter(|set| only.as_deref().is_none_or(|only| set.name == only));
    let mut seeds: Vec<(Depth, Seed)> =
        sets.flat_map(|set| both(set).map(|seed| (depth(set), seed))).collect();
    if only.as_deref().is_none_or(|only| only == "fast commits") {
        seeds.push((Depth::Write, with_fast_commits()));
    }
    if only.as_deref().is_none_or(|only| only == "deep") {
        seeds.extend(deep().map(|seed| (Depth::Write, seed)));
    }
    let (start, mut tried, mut broken) = (Instant::now(), 0, Vec::new());
    for number in first.. {
        for (depth, seed) in &seeds {
            tried += 1;
            if let Err(why) = try_mutant(seed, *depth, number) {
                println!("{why}");
                broken.push(why);
            }
        }
        if start.elapsed() > time || broken.len() > 20 {
            break;
        }
    }
    println!("{tried} mutants from number {first}");
    let numbers = [
        ("mutants", tried),
        ("failures", broken.len() as u64),
        ("seconds", start.elapsed().as_secs()),
    ];
    figures::Figures::open().add("damaged images", first, &numbers);
    fail_if_any(&broken);
}
