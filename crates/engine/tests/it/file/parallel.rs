//! Several threads on one file, and many files at once.

use super::model::{World, noise};
use extant_engine::OpenOptions;
use extant_testkit::FeatureSet;
use extant_testkit::rng::Rng;

#[test]
fn parts_of_one_file_written_directly() {
    for set in ["default", "bigalloc_1k", "ext3"] {
        let mut world = World::new(FeatureSet::named(set).make(), OpenOptions::new(), 1);
        let part = 1_000_003;
        let data = noise(&mut Rng::new(9), part * 4);
        std::thread::scope(|scope| {
            for (i, own) in data.chunks(part).enumerate() {
                let file = world.open(0, true);
                scope.spawn(move || {
                    for (j, piece) in own.chunks(33_000).enumerate() {
                        let at = (i * part + j * 33_000) as u64;
                        assert_eq!(file.write_at(at, piece).unwrap(), piece.len());
                    }
                });
            }
        });
        world.files[0] = data;
        world.verify();
        world.remount();
        world.verify();
        world.close();
    }
}

#[test]
fn readers_and_syncers_beside_writers() {
    let world = World::new(FeatureSet::named("1k").make(), OpenOptions::new(), 4);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let file = world.open(i, i % 2 == 0);
            let world = &world;
            scope.spawn(move || {
                let mut rng = Rng::new(i as u64);
                for round in 0..60u64 {
                    let data = noise(&mut rng, 20_000);
                    file.write_at(rng.below(500_000), &data).unwrap();
                    match round % 10 {
                        3 => file.set_len(rng.below(600_000)).unwrap(),
                        6 => file.sync().unwrap(),
                        9 => world.fs().sync().unwrap(),
                        _ => {}
                    }
                    let other = world.open((i + 1) % 4, false);
                    other.read_at(rng.below(400_000), &mut vec![0; 50_000]).unwrap();
                }
            });
        }
    });
    let mut world = world;
    world.files = (0..4).map(|i| super::model::read_all(&world.open(i, false))).collect();
    world.remount();
    world.verify();
    world.close();
}
