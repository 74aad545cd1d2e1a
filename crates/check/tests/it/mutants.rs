//! Images with a damaged structure, of all feature sets: the verdict must be that of e2fsck.

use crate::oracle::{Agreement, compare, damages};
use extant_hostile::bombs::share;
use extant_hostile::mutate::mutate_once;
use extant_hostile::seeds::Seed;
use extant_testkit::rng::Rng;
use extant_testkit::{FEATURE_SETS, FeatureSet};
use std::ops::Range;

/// Opening an image with multiple mount protection for writing takes seconds.
fn is_quick(set: &&FeatureSet) -> bool {
    set.name != "mmp"
}

fn seeds(crashed: bool) -> Vec<Seed> {
    FEATURE_SETS.iter().filter(is_quick).map(|set| Seed::make(set, crashed)).collect()
}

/// Compares verdicts on mutants of the seeds, and prints the numbers.
fn compare_mutants(seeds: &[Seed], numbers: Range<u64>) {
    let (mut clean, mut damaged, mut excepted) = (0, 0, 0);
    for number in numbers {
        let seed = &seeds[number as usize % seeds.len()];
        let mut bytes = seed.bytes.clone();
        let what = mutate_once(&mut bytes, &seed.atlas, &mut Rng::new(number));
        match compare(&bytes) {
            Ok(Agreement::Same { damaged: true }) => damaged += 1,
            Ok(Agreement::Same { damaged: false }) => clean += 1,
            Ok(Agreement::Excepted(reason)) => {
                println!("mutant {number} of {}: {reason}", seed.name);
                excepted += 1;
            }
            Err(both) => panic!("mutant {number} of {}, {what}: {both}", seed.name),
        }
    }
    println!("{damaged} damaged and {clean} clean by both, {excepted} exceptions");
    assert!(damaged > 0 && clean > 0);
}

#[test]
fn all_feature_sets_are_clean() {
    for set in FEATURE_SETS {
        assert_eq!(damages(&set.make().bytes(), false), [""; 0], "{}, empty", set.name);
    }
    for seed in seeds(false) {
        assert_eq!(damages(&seed.bytes, false), [""; 0], "{}", seed.name);
        assert_eq!(damages(&seed.bytes, true), [""; 0], "{}", seed.name);
    }
}

/// The log is replayed in memory, and orphans are no damage then.
#[test]
fn crashed_images_are_clean_once_the_log_is_replayed() {
    for seed in seeds(true) {
        assert_eq!(damages(&seed.bytes, false), [""; 0], "{}", seed.name);
    }
}

#[test]
fn verdicts_on_mutants_equal_those_of_e2fsck() {
    compare_mutants(&seeds(false), 0..270);
    compare_mutants(&seeds(true), 0..54);
}

/// Maps, leaves and values that share blocks, so that a naive walk never ends.
#[test]
fn bombs_end() {
    for (number, seed) in (0..).zip(&seeds(false)) {
        // Some copies change blocks that nothing uses.
        let damaged = (0..4).filter(|round| {
            let mut bytes = seed.bytes.clone();
            share(&mut bytes, &seed.atlas, &mut Rng::new(number * 4 + round));
            !damages(&bytes, true).is_empty()
        });
        assert!(damaged.count() > 0, "{}", seed.name);
    }
}

/// Noise over whole structures.
#[test]
fn noise_ends() {
    for (number, seed) in (0..).zip(&seeds(true)) {
        let (mut bytes, mut rng) = (seed.bytes.clone(), Rng::new(number));
        for piece in &seed.atlas.pieces {
            let at = piece.bytes.start + rng.below(piece.bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        damages(&bytes, true);
        damages(&bytes, false);
    }
}

/// The long form: `EXTANT_MUTANTS` is the number of mutants, clean and crashed.
#[test]
#[ignore = "minutes: make check-mutants"]
fn verdicts_on_many_mutants_equal_those_of_e2fsck() {
    let count = std::env::var("EXTANT_MUTANTS").ok().and_then(|text| text.parse().ok());
    let count: u64 = count.expect("EXTANT_MUTANTS is a number");
    compare_mutants(&seeds(false), 1000..1000 + count);
    compare_mutants(&seeds(true), 1000..1000 + count / 2);
}
