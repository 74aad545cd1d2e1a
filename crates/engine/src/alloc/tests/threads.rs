//! Many threads that claim, book, free, commit and evict at once, held against one word for each
//! block.

use super::*;
use extant_testkit::FeatureSet;
use extant_testkit::rng::Rng;

/// The state of a block: 0 for free, OWNED, else the transaction that freed it.
const OWNED: u64 = u64::MAX;

struct Plain {
    blocks: Vec<AtomicU64>,
}

impl Plain {
    fn new(house: &House) -> Plain {
        Plain { blocks: (0..house.vol.geo.blocks_count).map(|_| AtomicU64::new(0)).collect() }
    }

    fn set(&self, (start, len): (u64, u32), to: u64, check: impl Fn(u64) -> bool) {
        for block in start..start + u64::from(len) {
            let was = self.blocks[block as usize].swap(to, SeqCst);
            assert!(check(was), "block {block} was {was}");
        }
    }
}

/// One thread's life.
fn live(house: &House, plain: &Plain, seed: u64) -> Vec<(u64, u32)> {
    let mut rng = Rng::new(seed);
    let ratio = u64::from(house.vol.geo.cluster_ratio());
    let mut booked: Vec<(u64, u32)> = Vec::new();
    for step in 0..400 {
        let len = 1 + rng.below(if step % 16 == 0 { 700 } else { 40 }) as u32;
        if let Ok(mut claim) = house.alloc.claim(&all(rng.below(9000), len)) {
            let run = (claim.start.0, claim.len);
            // Blocks of a transaction that is not durable must not be taken.
            plain.set(run, OWNED, |was| was != OWNED && was <= house.durable());
            if rng.below(4) == 0 {
                plain.set(run, 0, |was| was == OWNED);
                drop(claim);
            } else {
                let mut h = house.vol.start(house.alloc.credits(run.1)).unwrap();
                house.alloc.book(&mut h, &mut claim, run.1).unwrap();
                booked.push(run);
            }
        }
        if booked.len() > 6 || step % 7 == 0 && !booked.is_empty() {
            let (start, len) = booked.swap_remove(rng.below(booked.len() as u64) as usize);
            let part = (rng.below(u64::from(len)) / ratio * ratio) as u32;
            let freed = (start + u64::from(part), len - part);
            let mut h = house.vol.start(house.alloc.credits(freed.1)).unwrap();
            plain.set(freed, h.tid().0, |was| was == OWNED);
            match rng.below(3) {
                0 => house.alloc.free(&mut h, BlockNr(freed.0), freed.1, Purpose::Data).unwrap(),
                _ => house.alloc.free_data(&mut h, &[(BlockNr(freed.0), freed.1)]).unwrap(),
            }
            booked.extend((part > 0).then_some((start, part)));
        }
        match rng.below(40) {
            0 => house.sync(),
            1..4 => house.evict(),
            4 => drop(house.alloc.trim(0..u64::MAX, 1).unwrap()),
            _ => {}
        }
    }
    booked
}

#[test]
fn nothing_is_handed_out_twice_or_too_early() {
    for set in ["1k", "bigalloc_1k", "no_flex_bg"] {
        let house = House::on(FeatureSet::named(set).make_sized(9 << 20));
        let plain = Plain::new(&house);
        let total = house.alloc.usage().free;
        let booked = std::thread::scope(|scope| {
            let lives: Vec<_> = (0..6)
                .map(|seed| {
                    scope.spawn({
                        let (h, p) = (&house, &plain);
                        move || live(h, p, seed)
                    })
                })
                .collect();
            lives.into_iter().flat_map(|life| life.join().unwrap()).collect::<Vec<_>>()
        });
        house.sync();
        let used: u64 = booked.iter().map(|(_, len)| u64::from(*len)).sum();
        assert_eq!(house.alloc.usage().free + used, total, "{set}");
        house.check_counts();
        // Free space is the bitmaps' clear bits: all of it can be had.
        let mut rest = 0;
        while let Ok((start, len)) = take(&house, &all(0, 5000)) {
            plain.set((start.0, len), OWNED, |was| was != OWNED);
            rest += u64::from(len);
        }
        assert_eq!(rest + used, total, "{set}");
        let mine: Vec<(u64, u32)> = booked;
        mine.into_iter().for_each(|(start, len)| give(&house, (BlockNr(start), len)).unwrap());
        house.sync();
        assert_eq!(house.alloc.usage().free, used, "{set}");
    }
}
