//! Trees: loaded, evicted, made again; summaries; limits; criteria.

use super::*;
use crate::alloc::Scanned;
use extant_sync::{Level, Mutex};
use std::fmt::Debug;
use std::thread;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

const FEATURES: &str =
    "none,extent,flex_bg,filetype,sparse_super,large_file,dir_index,metadata_csum,64bit";

/// Many small groups: 160 of 256 blocks, ten trees.
fn small_groups() -> House {
    House::on(Image::mke2fs(
        40 << 20,
        &["-b", "1024", "-g", "256", "-G", "16", "-N", "640", "-O", FEATURES],
    ))
}

/// Books every second block of all the free space there is.
fn fragment(house: &House) {
    let mut claims = Vec::new();
    while let Ok(claim) = house.alloc.claim(&all(0, 5000)) {
        claims.push(claim);
    }
    for mut claim in claims {
        while claim.len > 0 {
            let mut one = claim.split(1);
            let mut h = house.vol.start(house.alloc.credits(1)).unwrap();
            house.alloc.book(&mut h, &mut one, 1).unwrap();
            drop(claim.split(1));
        }
    }
}

fn stats(house: &House) -> SpaceStats {
    house.alloc.space_stats()
}

#[test]
fn frees_that_are_not_durable_stay_away_when_trees_are_made_again() {
    for set in SETS {
        let house = House::named(set);
        let mut taken = Vec::new();
        while let Ok(run) = take(&house, &all(0, 5000)) {
            taken.push(run);
        }
        let (start, len) = taken[taken.len() / 2];
        let (other, other_len) = taken[0];
        assert_ne!(start, other, "{set}");
        give(&house, (other, other_len)).unwrap();
        house.sync();
        give(&house, (start, len)).unwrap();
        // There is room, and the bitmap says that it is here, but the freeing may yet be undone.
        let freed = start.0..start.0 + u64::from(len);
        for _ in 0..3 {
            house.evict();
            let claim = house.alloc.claim(&all(start.0, 1)).unwrap();
            assert!(!freed.contains(&claim.start.0), "{set}: {claim:?}");
            house.evict();
        }
        house.sync();
        let again = house.alloc.claim(&all(start.0, len)).unwrap();
        assert_eq!((again.start, again.len), (start, len), "{set}");
    }
}

#[test]
fn claims_outlive_their_tree() {
    let house = House::named("default");
    let mut claim = house.alloc.claim(&want(5000, 100, 100)).unwrap();
    house.evict();
    let front = claim.split(40);
    let other = house.alloc.claim(&want(5000, 5000, 1)).unwrap();
    let apart = other.start.0 >= claim.start.0 + 60
        || other.start.0 + u64::from(other.len) <= front.start.0;
    assert!(apart, "{other:?} {claim:?}");
    house.evict();
    let mut h = house.vol.start(house.alloc.credits(60)).unwrap();
    let booked = house.alloc.book(&mut h, &mut claim, 60).unwrap();
    drop(h);
    drop((front, other));
    assert_eq!(house.alloc.claim(&want(5000, 40, 40)).unwrap().start, BlockNr(5000));
    give(&house, (booked, 60)).unwrap();
    house.sync();
    house.close().assert_clean();
}

#[test]
fn a_limit_of_memory_holds_and_evicted_trees_are_loaded_again() {
    let house = small_groups();
    let free = house.alloc.usage().free;
    let limit = house.alloc.set("mb_frsp_max_mem", 1).unwrap();
    assert_eq!(
        limit,
        extant_space::FreeTree::worst_bytes(16 * 256),
        "no limit is below the worst tree"
    );
    fragment(&house);
    let left = house.alloc.usage().free;
    assert!(left * 3 > free, "{left} of {free}");
    house.sync();
    house.evict();
    // Every tree is needed once, and there is room for two of them.
    let mut taken = 0;
    while let Ok(claim) = house.alloc.claim(&all(taken * 7 % 40_000, 1)) {
        assert_eq!(claim.len, 1);
        taken += 1;
        let mut claim = claim;
        let mut h = house.vol.start(house.alloc.credits(1)).unwrap();
        house.alloc.book(&mut h, &mut claim, 1).unwrap();
        assert!(stats(&house).frsp_tree_usage <= 2 * limit);
    }
    assert_eq!(taken, left);
    let stats = stats(&house);
    assert!(stats.trees_evicted > 10 && stats.cache_hits > 0, "{stats:?}");
    house.sync();
    house.check_counts();
}

#[test]
fn lowering_the_limit_evicts_at_once() {
    let house = small_groups();
    fragment(&house);
    let before = stats(&house);
    let worst = extant_space::FreeTree::worst_bytes(16 * 256);
    assert!(
        before.frsp_tree_usage > 2 * worst && before.trees_active + before.trees_inactive == 10,
        "{before:?}"
    );
    assert_eq!(house.alloc.set("mb_frsp_max_mem", worst).unwrap(), worst);
    let after = stats(&house);
    assert!(
        after.frsp_tree_usage <= worst && after.trees_active + after.trees_inactive < 10,
        "{after:?}"
    );
    // Their summaries stay.
    assert!((0..10).all(|tree| house.alloc.space.meta.get(tree) == 1));
    assert_eq!(house.alloc.set("mb_frsp_max_mem", 0).unwrap(), 0);
    assert!(
        house.alloc.set("frsp_cache_aggression", 4).is_err()
            && house.alloc.set("colour", 1).is_err()
    );
}

#[test]
fn the_whole_disk_is_known_without_a_tree_in_memory() {
    let house = small_groups();
    let hole = take(&house, &all(20_000, 200)).unwrap();
    fragment(&house);
    give(&house, hole).unwrap();
    let house = house.reopen();
    let unknown = stats(&house).trees_unknown;
    assert!(unknown > 8 && house.alloc.scanners() > 0, "{unknown}");
    house.alloc.set("prefetch_block_bitmaps", 0).unwrap();
    assert_eq!(house.alloc.scan_some(), Scanned::Off);
    house.alloc.set("prefetch_block_bitmaps", 1).unwrap();
    while house.alloc.scan_some() != Scanned::All {}
    let known = stats(&house);
    assert_eq!((known.trees_unknown, known.frsp_tree_usage, known.bitmaps_read), (0, 0, 0));
    assert_eq!(house.alloc.fragmentation().longest, Some(hole.1));
    // The one long run is found by loading its group and the goal's.
    let claim = house.alloc.claim(&all(1000, hole.1)).unwrap();
    assert_eq!((claim.start, claim.len), hole);
    assert!(stats(&house).bitmaps_read <= 2, "{:?}", stats(&house));
}

/// How many trees two requests for more than there is in one piece look at, at each level.
fn looks_at_each_level(mut house: House, scanned: bool) -> [u64; 4] {
    fragment(&house);
    house = house.reopen();
    std::array::from_fn(|level| {
        let opened = House::on(house.image.copy());
        opened.alloc.set("frsp_cache_aggression", level as u64).unwrap();
        // The scan begins, and has not come far.
        assert!(!scanned || opened.alloc.scanners() > 0);
        (0..2).for_each(|_| drop(opened.alloc.claim(&all(1000, 100)).unwrap()));
        stats(&opened).advice_unknown
    })
}

#[test]
fn a_level_sets_the_trees_that_a_request_examines() {
    // Of ten trees, each request looks at one more.
    assert_eq!(looks_at_each_level(small_groups(), false), [0, 2, 4, 10]);
}

/// A regression test: levels 0 to 2 acted alike.
#[test]
fn a_level_has_its_effect_beside_the_scan() {
    // At level 1 at that of the goal only.
    assert_eq!(looks_at_each_level(small_groups(), true), [0, 1, 4, 10]);
}

/// A regression test: a request looked at all trees, whatever the level.
#[test]
fn a_level_has_its_effect_with_few_trees() {
    let few = House::on(Image::mke2fs(
        20 << 20,
        &["-b", "1024", "-g", "256", "-G", "16", "-N", "320", "-O", FEATURES],
    ));
    assert_eq!((stats(&few).trees, few.alloc.scanners()), (5, 0));
    assert_eq!(looks_at_each_level(few, false), [0, 2, 4, 5]);
}

/// A regression test: the search that loaded a group counted as one that found it in memory.
#[test]
fn only_a_later_search_uses_a_tree_again() {
    let house = House::named("default");
    let claim = || house.alloc.claim(&want(5000, 10, 10)).unwrap();
    let seen = || {
        let stats = stats(&house);
        (stats.bitmaps_read, stats.cache_hits, stats.trees_inactive, stats.trees_active)
    };
    assert_eq!(seen(), (0, 0, 0, 0));
    let first = claim();
    assert_eq!(seen(), (1, 0, 1, 0));
    let second = claim();
    assert_eq!(seen(), (1, 1, 0, 1));
    house.evict();
    assert_eq!(seen(), (1, 1, 0, 0));
    let third = claim();
    assert_eq!(seen(), (2, 1, 1, 0));
    drop((first, second, third));
}

#[test]
fn first_blocks_and_partial_groups_have_their_places() {
    // 1 KiB blocks begin at block 1, and the last group is a short one.
    let house = House::on(Image::mke2fs(
        (9 << 20) + 77 * 1024,
        &["-b", "1024", "-g", "1024", "-G", "4", "-O", FEATURES],
    ));
    assert_eq!(house.vol.geo.first_data_block, 1);
    let total = house.alloc.usage().free;
    let mut seen = std::collections::BTreeSet::new();
    while let Ok((start, len)) = take(&house, &all(0, 100)) {
        assert!(start.0 >= 1 && start.0 + u64::from(len) <= house.vol.geo.blocks_count);
        assert!((start.0..start.0 + u64::from(len)).all(|block| seen.insert(block)));
        assert_eq!(
            house.vol.geo.group_of_block(start),
            house.vol.geo.group_of_block(BlockNr(start.0 + u64::from(len) - 1))
        );
    }
    assert_eq!(seen.len() as u64, total);
    house.sync();
    house.check_counts();
    house.close();
}

/// Keeps traced events, one line each.
struct Listener(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "extant::frsp"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(span.metadata().name().to_owned());
        span.record(&mut line);
        self.0.lock().push(line.0);
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn searches_are_traced() {
    let house = small_groups();
    fragment(&house);
    let heard = Arc::new(Mutex::new(Level::Leaf, Vec::new()));
    // While there is only one subscriber, `tracing` takes the answer of the first thread at a place
    // for that of all threads.
    let _second = Dispatch::new(Listener(heard.clone()));
    tracing::subscriber::with_default(Listener(heard.clone()), || {
        let unheard = || house.alloc.claim(&all(0, 16)).unwrap();
        thread::scope(|scope| scope.spawn(unheard).join().unwrap());
        house.alloc.claim(&all(0, 16)).unwrap();
        house.evict();
    });
    let heard = heard.lock();
    for words in [
        &["request", "goal=0", "len=16", "min=1", "purpose=Metadata"][..],
        &["optimiser", "criterion=Best", "want=16", "advice=", "unknown="],
        &["allocator step", "tree=", "best=1", "hoped=", "least=", "bytes="],
        &["found", "group=", "len=1"],
        &["tree freed", "tree="],
    ] {
        assert!(
            heard.iter().any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?} not in {heard:#?}"
        );
    }
}
