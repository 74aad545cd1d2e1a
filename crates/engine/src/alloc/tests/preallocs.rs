//! Bounds of preallocations, and the order in which files lose them.

use super::harness::House;
use super::{Taken, all, want};
use crate::alloc::free_space::FreeSpace;
use crate::alloc::{Prealloc, Purpose, Request, Small};
use extant_format::types::{BlockNr, InodeNr};
use extant_testkit::FeatureSet;
use std::sync::Arc;

fn house() -> House {
    House::on(FeatureSet::named("default").make_sized(256 << 20))
}

/// Preallocates `len` blocks for the file's blocks from `lblk` on.
fn add(house: &House, file: &Arc<Prealloc>, lblk: u32, len: u32) -> bool {
    house.alloc.claim(&want(0, len, len)).is_ok_and(|claim| file.add(lblk, claim))
}

/// Takes a block; gives it back at once.
fn has(file: &Arc<Prealloc>, lblk: u32) -> bool {
    matches!(file.take(lblk, 1, false), Taken::Claim(_))
}

#[test]
fn files_that_were_not_written_lately_give_up_first() {
    let house = house();
    let free = house.alloc.usage().free;
    let files: Vec<Arc<Prealloc>> = (0..60).map(|_| house.alloc.prealloc()).collect();
    for (i, file) in files.iter().enumerate() {
        let capacity = house.alloc.prealloc_capacity();
        let len = capacity.min(1000) as u32;
        assert!(len > 0 && add(&house, file, 0, len));
        assert!(has(&files[0], i as u32), "the file that is always used lost its space at {i}");
        assert!(house.alloc.prealloc_stats().blocks <= free / 4 * 3);
    }
    assert!(house.alloc.prealloc_stats().discarded > 0);
    assert!(!has(&files[1], 0) && has(&files[59], 0));
    assert_eq!(house.alloc.usage().free, free);
    drop(files);
    let stats = house.alloc.prealloc_stats();
    assert_eq!((stats.live, stats.blocks, stats.bytes), (0, 0, 0));
    house.check_counts();
}

#[test]
fn memory_is_bounded_however_many_there_are() {
    let house = house();
    let files: Vec<Arc<Prealloc>> = (0..20).map(|_| house.alloc.prealloc()).collect();
    let mut most = 0;
    for i in 0..5000u32 {
        if house.alloc.prealloc_capacity() > 0 {
            assert!(add(&house, &files[i as usize / 250], i * 7, 1));
        }
        most = most.max(house.alloc.prealloc_stats().bytes);
    }
    assert!((32 << 10..=65 << 10).contains(&most), "{most} bytes");
}

#[test]
fn new_windows_hold_no_blocks_in_use() {
    let house = house();
    let file = house.alloc.prealloc();
    assert!(add(&house, &file, 100, 50));
    let Taken::Claim(claim) = file.take(120, 10, false) else { panic!("nothing to take") };
    file.discard();
    assert_eq!(house.alloc.prealloc_stats().blocks, 0);
    assert_eq!(file.trim(90, 0..1000), 0..100);
    assert!(matches!(file.take(130, 10, false), Taken::Spent(10)));
    drop(claim);
    assert_eq!(file.trim(90, 0..1000), 0..1000);
    assert!(add(&house, &file, 100, 50) && !add(&house, &file, 90, 20));
}

#[test]
fn preallocated_space_does_not_cause_enospc() {
    let house = house();
    let free = house.alloc.usage().free;
    let files: Vec<Arc<Prealloc>> = (0..4).map(|_| house.alloc.prealloc()).collect();
    files.iter().for_each(|file| assert!(add(&house, file, 0, 2000)));
    let small = house.alloc.claim_small(Small::File, &want(0, 3, 3)).unwrap();
    assert_eq!(small.len, 3);
    assert_eq!(house.alloc.usage().free, free - 3);
    drop(small);
    let mut claims = Vec::new();
    while let Ok(claim) = house.alloc.claim(&super::all(0, 4000)) {
        claims.push(claim);
    }
    assert_eq!(claims.iter().map(|claim| u64::from(claim.len)).sum::<u64>(), free);
    assert_eq!(house.alloc.prealloc_capacity(), 0);
    assert!(house.alloc.claim_small(Small::File, &want(0, 1, 1)).is_none());
    drop((claims, files));
    house.check_counts();
}

#[test]
fn without_free_space_preallocations_near_the_goal_are_discarded_first() {
    // Two flexible groups.
    let house = House::on(FeatureSet::named("1k").make_sized(256 << 20));
    let far = house.vol.geo.blocks_count - 5000;
    let files = [1, far].map(|goal| {
        let file = house.alloc.prealloc();
        assert!(file.add(0, house.alloc.claim(&want(goal, 300, 300)).unwrap()));
        file
    });
    let mut claims = Vec::new();
    while let Ok(claim) = FreeSpace::claim(&house.alloc.space, &super::all(1, 4000)) {
        claims.push(claim);
    }
    let near = house.alloc.claim(&super::all(1, 100)).unwrap();
    assert!(near.start.0 < far - 5000 && near.len == 100);
    assert!(!has(&files[0], 0) && has(&files[1], 0));
    while let Ok(claim) = house.alloc.claim(&super::all(1, 4000)) {
        claims.push(claim);
    }
    assert!(!has(&files[1], 0), "preallocated space is refused to no caller");
    drop((claims, near, files));
    house.check_counts();
}

#[test]
fn threads_share_preallocations_and_space_exactly() {
    let house = house();
    let free = house.alloc.usage().free;
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let house = &house;
            scope.spawn(move || {
                let file = house.alloc.prealloc();
                let mut held = Vec::new();
                for round in 0..2000u32 {
                    let lblk = round.wrapping_mul(2654435761) % 5000;
                    match file.take(lblk, 1 + round % 5, false) {
                        Taken::Claim(claim) => held.push(claim),
                        Taken::Spent(_) => {}
                        Taken::Nothing => {
                            let window = file.trim(lblk, u64::from(lblk)..u64::from(lblk) + 64);
                            let len = (window.end - window.start) as u32;
                            if house.alloc.prealloc_capacity() >= len.into() {
                                add(house, &file, lblk, len);
                            }
                        }
                    }
                    held.extend(house.alloc.claim_small(Small::File, &want(thread.into(), 1, 1)));
                    if round % 200 == 199 {
                        held.clear();
                    }
                    if round % 333 == 0 {
                        file.discard();
                    }
                }
            });
        }
    });
    assert_eq!(house.alloc.usage().free, free);
    house.check_counts();
}

#[test]
fn disabling_preallocation_releases_all_windows() {
    let house = house();
    let free = house.alloc.usage().free;
    let file = house.alloc.prealloc();
    assert!(add(&house, &file, 0, 500) && house.alloc.prealloc_stats().blocks == 500);
    let small = || house.alloc.claim_small(Small::File, &want(5000, 1, 1));
    drop(small().unwrap());
    assert!(house.alloc.prealloc_stats().blocks > 500);
    assert_eq!(house.alloc.set("lg", 0).unwrap(), 0);
    assert_eq!(house.alloc.prealloc_stats().blocks, 500);
    assert!(small().is_none());
    assert_eq!(house.alloc.set("pa", 0).unwrap(), 0);
    let stats = house.alloc.prealloc_stats();
    assert_eq!(
        (stats.blocks, stats.pa, stats.lg, house.alloc.prealloc_capacity()),
        (0, false, 0, 0)
    );
    // All threads share the run that one has begun. They start one after the other: two threads
    // that start at once may begin two runs.
    house.alloc.set("lg", 1).unwrap();
    (0..4).for_each(|_| std::thread::scope(|scope| drop(scope.spawn(|| drop(small().unwrap())))));
    let stats = house.alloc.prealloc_stats();
    assert_eq!((stats.small_misses, stats.small_hits), (2, 3));
    assert!(house.alloc.set("lg", 3).is_err() && house.alloc.set("pa", 2).is_err());
    house.alloc.set("pa", 1).unwrap();
    assert!(house.alloc.prealloc_capacity() > 0);
    house.alloc.set("lg", 2).unwrap();
    assert_eq!(house.alloc.usage().free, free);
}

#[test]
fn a_caller_without_space_waits_for_a_discard_in_progress() {
    let house = house();
    let mut claims = Vec::new();
    while let Ok(claim) = house.alloc.claim(&all(0, 5000)) {
        claims.push(claim);
    }
    let last = claims.pop().unwrap().split(8);
    let mut held = Some(last);
    for round in 0..300 {
        let file = house.alloc.prealloc();
        assert!(file.add(0, held.take().unwrap()));
        let meet = std::sync::Barrier::new(4);
        let got = std::thread::scope(|scope| {
            let claim = || {
                meet.wait();
                house.alloc.claim(&all(0, 1))
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).count()
        });
        assert_eq!(got, 4, "in round {round}");
        let more = house.alloc.claim(&all(0, 8)).unwrap();
        assert_eq!(more.len, 8);
        held = Some(more);
    }
}

#[test]
fn small_files_fill_holes_where_little_is_left() {
    let house = house();
    let mut claims = Vec::new();
    while let Ok(claim) = house.alloc.claim(&all(0, 64)) {
        claims.push(claim);
    }
    // Back come holes of one to eight blocks far from each other, and one long run.
    let holes: Vec<_> =
        (1..9).map(|len| (claims[len as usize * 5].split(len).start, len)).collect();
    claims.drain(45..60);
    let small = |len| {
        house
            .alloc
            .claim_small(Small::File, &Request { purpose: Purpose::Metadata, ..want(0, len, 1) })
    };
    for hole in holes {
        let claim = small(hole.1).unwrap();
        assert_eq!((claim.start, claim.len), hole);
        claims.push(claim);
    }
    // So does a larger request that begins elsewhere. A request that fits into no hole gets blocks
    // of the long run.
    let (hole, long) = (claims[5].split(20).start, claims[44].start.0 + 64..claims[45].start.0);
    let begins = house.alloc.inode_goal(InodeNr(11)).0;
    assert_eq!(house.alloc.claim(&all(begins, 20)).unwrap().start, hole);
    assert!(long.contains(&house.alloc.claim(&all(begins, 21)).unwrap().start.0));
}

/// The regression test for discards near a goal that visited the preallocations of all files.
#[test]
fn a_discard_near_a_goal_visits_no_preallocation_elsewhere() {
    // Two flexible groups.
    let house = House::on(FeatureSet::named("1k").make_sized(256 << 20));
    let far = house.vol.geo.blocks_count - 50_000;
    let at = |goal: u64| house.alloc.claim(&want(goal, 2, 2)).unwrap();
    let elsewhere: Vec<_> = (0..100).map(|_| house.alloc.prealloc()).collect();
    for file in &elsewhere {
        assert!(file.add(0, at(far)));
    }
    // A file with most of its preallocations elsewhere, too.
    let here = house.alloc.prealloc();
    assert!(here.add(0, at(1)) && (1..100).all(|i| here.add(i * 10, at(far))));
    let before = house.alloc.prealloc_stats();
    house.alloc.preallocs.shed_near(BlockNr(1));
    let after = house.alloc.prealloc_stats();
    assert_eq!((after.live, after.discarded - before.discarded), (199, 1));
    assert_eq!(after.discard_visited - before.discard_visited, 1);
    assert!(!has(&here, 0) && has(&here, 10) && elsewhere.iter().all(|file| has(file, 0)));
    // The file has left the list, and enters it again.
    house.alloc.preallocs.shed_near(BlockNr(1));
    assert_eq!(house.alloc.prealloc_stats().discard_visited, after.discard_visited);
    assert!(here.add(0, at(1)));
    house.alloc.preallocs.shed_near(BlockNr(1));
    assert!(!has(&here, 0));
    // Ended files and preallocations are not visited.
    drop(elsewhere);
    let before = house.alloc.prealloc_stats();
    house.alloc.preallocs.shed_near(BlockNr(far));
    let after = house.alloc.prealloc_stats();
    assert_eq!(after.discard_visited - before.discard_visited, 99);
    assert_eq!((after.live, after.blocks), (0, 0));
    house.check_counts();
}
