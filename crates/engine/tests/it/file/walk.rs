//! Random steps over every feature set.

use super::model::{Step, World, random_step};
use extant_engine::OpenOptions;
use extant_hostile::deep::Layout;
use extant_testkit::FeatureSet;
use extant_testkit::image::FEATURE_SETS;
use extant_testkit::rng::Rng;

/// Bytes that an allocation is aligned to.
fn cluster(set: &FeatureSet) -> u64 {
    match set.name {
        "bigalloc" => 65536,
        "bigalloc_1k" => 16384,
        _ => set.block_size.into(),
    }
}

fn walk(set: &FeatureSet, options: OpenOptions, seed: u64, steps: usize) {
    walk_on(World::new(set.make(), options, 3), set, seed, steps);
}

/// The files begin with maps of several levels.
fn deep_walk(set: &str, layout: Layout, seed: u64, steps: usize) {
    let set = FeatureSet::named(set);
    walk_on(World::planted(set.make_sized(64 << 20), &layout, 3), set, seed, steps);
}

fn walk_on(mut world: World, set: &FeatureSet, seed: u64, steps: usize) {
    let mut rng = Rng::new(seed);
    let unit = cluster(set);
    let max = (unit * 40).clamp(256 << 10, 4 << 20);
    for step in 0..steps {
        let file = rng.below(3) as usize;
        let size = world.files[file].len() as u64;
        let what = random_step(&mut rng, size, max, unit);
        if std::env::var_os("EXTANT_TRACE").is_some() {
            eprintln!("{step}: file {file} ({size}): {}", brief(&what));
        }
        world.step(file, &what);
        if rng.one_in(40) {
            world.verify();
            world.remount();
        }
    }
    world.verify();
    world.remount();
    world.verify();
    world.close();
    if set.kernel_mountable {
        world.verify_by_kernel();
    }
}

fn brief(step: &Step) -> String {
    match step {
        Step::Write { at, data, direct } => format!("write {at}+{} direct {direct}", data.len()),
        other => format!("{other:?}"),
    }
}

/// Runs the accepted feature sets in sequence, each with its own seed.
fn walk_all(accept: impl Fn(&FeatureSet) -> bool, steps: usize) {
    for (i, set) in FEATURE_SETS.iter().enumerate().filter(|(_, set)| accept(set)) {
        eprintln!("feature set {}", set.name);
        walk(set, OpenOptions::new(), 1000 + i as u64, steps);
    }
}

#[test]
fn extents() {
    let names = ["default", "orphan_file", "1k", "2k", "no_journal", "no_csum", "no_64bit"];
    walk_all(|set| names.contains(&set.name), 120);
}

#[test]
fn block_maps() {
    walk_all(|set| set.name.starts_with("ext2") || set.name.starts_with("ext3"), 120);
}

#[test]
fn clusters() {
    walk_all(|set| set.name.starts_with("bigalloc"), 150);
}

#[test]
fn inline() {
    walk_all(|set| set.name.starts_with("inline") || set.name.starts_with("inode_"), 100);
}

#[test]
fn the_other_sets() {
    let names = ["64k", "meta_bg", "ea_inode", "sparse_super2", "uninit_bg", "no_flex_bg", "mmp"];
    walk_all(|set| names.contains(&set.name), 50);
}

#[test]
fn logged_data() {
    for name in ["default", "1k", "ext3", "bigalloc", "inline_data"] {
        walk(FeatureSet::named(name), OpenOptions::new().log_data(true), 77, 80);
    }
}

#[test]
fn deep_maps() {
    deep_walk("large_dir", Layout::sparse(3), 11, 120);
    deep_walk("1k", Layout::full(2), 12, 80);
    deep_walk("bigalloc_1k", Layout::sparse(2), 13, 120);
}

/// Many seeds; `EXTANT_SEED` and `EXTANT_STEPS` choose where to begin and how far to go.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let (first, steps) = (number("EXTANT_SEED", 1), number("EXTANT_STEPS", 300));
    for seed in first..first + number("EXTANT_SEEDS", 3) {
        for set in FEATURE_SETS {
            for log_data in [false, true] {
                eprintln!("feature set {}, seed {seed}, log_data {log_data}", set.name);
                walk(set, OpenOptions::new().log_data(log_data), seed, steps as usize);
            }
        }
        for depth in 1..=3 {
            ["1k", "bigalloc_1k"]
                .iter()
                .for_each(|set| deep_walk(set, Layout::sparse(depth), seed, steps as usize));
            deep_walk("large_dir", Layout::full(depth), seed, steps as usize);
        }
    }
}
