//! Images that lie: every answer is allowed but a panic, an endless loop, or a count below zero.

use super::*;
use extant_testkit::FeatureSet;
use extant_testkit::rng::Rng;

/// Places of the structures: superblock, descriptors, bitmaps.
fn places(house: &House) -> Vec<std::ops::Range<u64>> {
    let size = u64::from(house.vol.geo.block_size);
    let block = |nr: u64| nr * size..(nr + 1) * size;
    let mut places =
        vec![1024..1400, 1024 + 0x58..1024 + 0x70, block(house.vol.geo.gdt_block(0).0)];
    for g in (0..house.groups.count().min(3)).map(GroupNr) {
        let desc = house.groups.desc(g).unwrap();
        places.extend([block(desc.block_bitmap), block(desc.inode_bitmap)]);
    }
    places
}

fn use_all(house: &House, rng: &mut Rng) {
    let groups = u64::from(house.groups.count());
    let mut runs = Vec::new();
    for _ in 0..30 {
        if let Ok(run) = take(house, &all(rng.below(9000), 1 + rng.below(3000) as u32)) {
            runs.push(run);
        }
        let Ok(mut h) = house.vol.start(Alloc::INODE_CREDITS + 4) else { return };
        let home = GroupNr(rng.below(groups) as u32);
        let ino = house.alloc.inodes.take_elsewhere(&mut h, home, rng.below(2) == 0);
        let ino = ino.unwrap_or(InodeNr(rng.below(5000) as u32));
        let _ = house.alloc.inode_in_use(ino);
        if rng.below(2) == 0 {
            let _ = house.alloc.free_inode(&mut h, ino, FileType::Directory, rng.below(2) == 0);
        }
    }
    runs.push((BlockNr(rng.below(10_000)), 1 + rng.below(100) as u32));
    for run in runs {
        let _ = give(house, run);
        if let Ok(mut h) = house.vol.start(house.alloc.credits(run.1)) {
            let _ = house.alloc.free_data(&mut h, &[run]);
        }
    }
    let _ = house.alloc.trim(0..u64::MAX, 1);
    let _ = house.vol.journal.sync();
    let _ = house.alloc.usage();
}

#[test]
fn lying_images_cost_an_error_only() {
    for set in ["ext2_1k", "no_csum", "bigalloc_1k"] {
        let clean = House::on(FeatureSet::named(set).make_sized(9 << 20));
        let places = places(&clean);
        let image = clean.close();
        let bytes = image.bytes();
        let mut opened = 0;
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let mut bytes = bytes.clone();
            for _ in 0..1 + rng.below(6) {
                let place = &places[rng.below(places.len() as u64) as usize];
                let at = rng.between(place.start, place.end - 1) as usize;
                bytes[at] = match rng.below(3) {
                    0 => 0,
                    1 => 0xFF,
                    _ => rng.below(256) as u8,
                };
            }
            if let Ok(house) = House::of_bytes(Image::blank(0), &bytes) {
                opened += 1;
                use_all(&house, &mut rng);
            }
        }
        assert!(opened > 20, "{set}: only {opened} images opened");
    }
}
