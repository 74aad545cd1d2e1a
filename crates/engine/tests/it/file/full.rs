//! File systems that become full: an accepted write is never lost.

use super::model::{World, assert_same, noise, read_all};
use extant_engine::{Errno, Error, OpenOptions};
use extant_testkit::FeatureSet;
use extant_testkit::rng::Rng;

/// Writes `len` bytes at a time, with gaps of `gap`, until there is no space. Returns the expected
/// bytes of the file.
fn fill(world: &World, file: usize, len: usize, gap: usize, direct: bool) -> Vec<u8> {
    let open = world.open(file, direct);
    let mut rng = Rng::new(file as u64);
    let mut expected = Vec::new();
    loop {
        let data = noise(&mut rng, len);
        let at = expected.len() + gap;
        match open.write_at(at as u64, &data) {
            Ok(n) => {
                expected.resize(at, 0);
                expected.extend_from_slice(&data[..n]);
            }
            Err(Error::Posix(Errno::NoSpc)) => return expected,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn nothing_accepted_is_lost() {
    for (set, bytes) in [
        ("default", 16 << 20),
        ("1k", 8 << 20),
        ("bigalloc_1k", 16 << 20),
        ("ext3_1k", 8 << 20),
        ("inline_data", 16 << 20),
    ] {
        for (direct, len, gap) in [(false, 100_000, 0), (false, 1500, 40_000), (true, 70_000, 4096)]
        {
            let image = FeatureSet::named(set).make_sized(bytes);
            let mut world = World::new(image, OpenOptions::new(), 1);
            world.files[0] = fill(&world, 0, len, gap, direct);
            assert!(!world.files[0].is_empty());
            world
                .open(0, false)
                .sync()
                .unwrap_or_else(|e| panic!("{set} direct {direct} gap {gap}: {e}"));
            world.verify();
            world.remount();
            world.verify();
            world.close();
        }
    }
}

#[test]
fn space_comes_back() {
    let mut world =
        World::new(FeatureSet::named("default").make_sized(16 << 20), OpenOptions::new(), 2);
    world.files[0] = fill(&world, 0, 100_000, 0, false);
    world.open(0, false).set_len(1 << 20).unwrap();
    world.files[0].truncate(1 << 20);
    world.files[1] = fill(&world, 1, 100_000, 0, true);
    assert!(world.files[1].len() > 4 << 20, "only {} bytes fit", world.files[1].len());
    for i in 0..2 {
        assert_same(&read_all(&world.open(i, true)), &world.files[i], "read past the pages");
    }
    world.remount();
    world.verify();
    world.close();
}

#[test]
fn a_small_page_cache_is_enough() {
    let options = OpenOptions::new().memory(64 << 20);
    let mut world = World::new(FeatureSet::named("default").make_sized(256 << 20), options, 1);
    let data = noise(&mut Rng::new(3), 120 << 20);
    let file = world.open(0, false);
    for (i, part) in data.chunks(1 << 20).enumerate() {
        assert_eq!(file.write_at((i as u64) << 20, part).unwrap(), part.len());
    }
    assert_same(&read_all(&file), &data, "large file");
    drop(file);
    world.files[0] = data;
    world.remount();
    world.verify();
    world.close();
}
