//! Frees that are noted, and booked many at a time.

use super::*;
use crate::groups::Kind;
use extant_format::bitmap::count_zeros;
use extant_format::superblock::State;

/// Runs of which a full batch is made.
const BATCH: usize = 64;

fn note(house: &House, (start, len): (BlockNr, u32)) -> crate::Result<()> {
    let mut h = house.vol.start(house.alloc.credits(len))?;
    house.alloc.free_data(&mut h, &[(start, len)])
}

fn runs(house: &House, count: usize) -> Vec<(BlockNr, u32)> {
    let some = |n: u64| take(house, &want(n * 40, 1 + n as u32 % 7, 1)).unwrap();
    let runs = (0..count as u64).map(some).collect();
    house.sync();
    runs
}

/// Clusters that the bitmaps call free.
fn clear(house: &House) -> u64 {
    let of = |g: GroupNr| {
        let clusters = house.vol.geo.clusters_in_group(g) as usize;
        house.groups.bitmap(g, Kind::Blocks).unwrap().with(|bits| count_zeros(bits, 0..clusters))
            as u64
    };
    (0..house.groups.count()).map(GroupNr).map(of).sum()
}

#[test]
fn noted_frees_are_pending_until_the_freeze_books_them() {
    for set in ["default", "1k", "bigalloc_1k", "no_flex_bg", "uninit_bg"] {
        let house = House::named(set);
        let total = house.alloc.usage().free;
        let (runs, before) = (runs(&house, BATCH - 1), clear(&house));
        let blocks: u64 = runs.iter().map(|(_, len)| u64::from(*len)).sum();
        runs.iter().for_each(|run| note(&house, *run).unwrap());
        assert_eq!((house.alloc.pending(), house.alloc.usage().free), (blocks, total), "{set}");
        assert_eq!(clear(&house), before, "{set}: nothing is booked yet");
        // Trees that are made again from bitmaps find nothing of it.
        house.evict();
        house.sync();
        assert_eq!((house.alloc.pending(), house.alloc.usage().free), (0, total), "{set}");
        assert_eq!(house.groups.free_clusters(), clear(&house), "{set}");
        house.check_counts();
        assert_eq!(house.vol.journal.stats().overdrawn, 0, "{set}");
        house.reopen().close().assert_clean();
    }
}

#[test]
fn a_full_lot_is_booked_and_not_allocated_before_the_commit() {
    let house = House::named("1k");
    let (runs, before) = (runs(&house, BATCH), clear(&house));
    let blocks: u64 = runs.iter().map(|(_, len)| u64::from(*len)).sum();
    // All by this thread, so in one batch.
    runs.iter().for_each(|run| note(&house, *run).unwrap());
    assert_eq!(clear(&house), before + blocks);
    house.check_counts();
    let mut rest = Vec::new();
    while let Ok(run) = take(&house, &all(0, 5000)) {
        rest.push(run);
    }
    assert_eq!(house.alloc.pending(), blocks, "they are not free yet");
    house.sync();
    assert_eq!(house.alloc.usage().free, blocks);
    rest.into_iter().for_each(|run| note(&house, run).unwrap());
    house.close().assert_clean();
}

#[test]
fn frees_of_free_blocks_are_recorded_in_the_superblock() {
    let house = House::named("default");
    let runs = runs(&house, 3);
    let error = || house.groups.superblock().state().contains(State::ERROR);
    for run in &runs {
        note(&house, *run).unwrap();
    }
    note(&house, runs[1]).unwrap();
    assert!(!error());
    house.sync();
    assert!(error(), "freed twice");
    assert_eq!(house.alloc.pending(), 0);
    house.check_counts();
    let desc = house.groups.desc(GroupNr(0)).unwrap();
    for block in [
        0,
        1,
        desc.block_bitmap,
        desc.inode_bitmap,
        desc.inode_table + 3,
        house.vol.geo.blocks_count,
        u64::MAX,
    ] {
        assert!(note(&house, (BlockNr(block), 1)).is_err(), "{block}");
    }
    assert_eq!(house.alloc.pending(), 0);
    house.sync();
    house.check_counts();
}

/// Frees a run two times.
type FreeTwice = fn(&House, (BlockNr, u32)) -> bool;

/// A bitmap with clear bits for a file's blocks may have them for other blocks, too: no block of
/// its group is allocated any more, in each of the ways to find that. Used blocks there can still
/// be freed.
#[test]
fn a_double_free_disables_its_group() {
    let ways: [FreeTwice; 2] = [
        |house, run| {
            note(house, run).unwrap();
            note(house, run).unwrap();
            house.sync();
            true
        },
        |house, run| give(house, run).and_then(|()| give(house, run)).is_err(),
    ];
    for set in ["1k", "bigalloc_1k"] {
        for twice in ways {
            let house = House::named(set);
            let group = GroupNr(house.groups.count() - 1);
            let goal = house.vol.geo.first_block_of_group(group).0;
            let [run, other] = [0, 1].map(|_| take(&house, &want(goal, 16, 16)).unwrap());
            let of = |block: BlockNr| house.vol.geo.group_of_block(block);
            assert_eq!((of(run.0), of(other.0)), (Some(group), Some(group)), "{set}");
            house.sync();
            assert!(twice(&house, run), "{set}");
            house.sync();
            let clusters = || house.groups.with(group, |desc| u64::from(desc.free_clusters));
            let ratio = u64::from(house.vol.geo.cluster_ratio());
            let elsewhere = (house.groups.free_clusters() - clusters()) * ratio;
            assert_eq!(house.alloc.usage().free, elsewhere, "{set}: the budget has nothing of it");
            note(&house, other).unwrap();
            house.sync();
            house.evict();
            assert_eq!(house.alloc.usage().free, elsewhere, "{set}: nor of frees there");
            let mut h = house.vol.start(house.alloc.credits(16)).unwrap();
            assert!(
                house.alloc.book_free(&mut h, run.0, 16).is_err(),
                "{set}: it stays out of memory"
            );
            drop(h);
            let before = clusters();
            while take(&house, &all(goal, 5000)).is_ok() {}
            assert_eq!(
                (house.alloc.usage().free, clusters()),
                (0, before),
                "{set}: only other groups give space"
            );
            house.check_counts();
        }
    }
}
