//! Random lives of claims, held against a set of used blocks.

use super::*;
use extant_testkit::FeatureSet;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Step {
    Claim { goal: u64, len: u32, min: u32, reserved: bool },
    Book { which: usize, len: u32 },
    Drop { which: usize },
    Free { which: usize, from: u32, len: u32 },
    Sync,
    Evict,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![1u32..8, 1u32..200, 1u32..9000];
    prop_oneof![
        4 => (0u64..9000, len, 1u32..50, any::<bool>())
            .prop_map(|(goal, len, min, reserved)| Step::Claim {
                goal,
                len,
                min: min.min(len),
                reserved,
            }),
        4 => (any::<usize>(), 1u32..300).prop_map(|(which, len)| Step::Book { which, len }),
        1 => any::<usize>().prop_map(|which| Step::Drop { which }),
        3 => (
            any::<usize>(),
            0u32..50,
            1u32..300,
        ).prop_map(|(which, from, len)| Step::Free { which, from, len }),
        1 => Just(Step::Sync),
        1 => Just(Step::Evict),
        1 => Just(Step::Reopen),
    ]
}

/// The file system and its expected state.
struct World {
    house: Option<House>,
    claims: Vec<Claim>,
    /// Booked runs.
    booked: Vec<(u64, u32)>,
    total: u64,
}

impl World {
    fn new(set: &str) -> World {
        let house = House::on(FeatureSet::named(set).make_sized(9 << 20));
        let total = house.alloc.usage().free;
        World { house: Some(house), claims: Vec::new(), booked: Vec::new(), total }
    }

    fn house(&self) -> &House {
        self.house.as_ref().unwrap()
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Claim { goal, len, min, reserved } => {
                self.claim(&Request { reserved, ..super::want(goal, len, min) })
            }
            Step::Book { which, len } => self.book(which, len),
            Step::Drop { which } => {
                if !self.claims.is_empty() {
                    drop(self.claims.swap_remove(which % self.claims.len()));
                }
            }
            Step::Free { which, from, len } => self.free(which, from, len),
            Step::Sync => self.house().sync(),
            Step::Evict => self.house().evict(),
            Step::Reopen => {
                self.claims.clear();
                self.house = self.house.take().map(House::reopen);
            }
        }
        self.check();
    }

    fn claim(&mut self, want: &Request) {
        let alloc = &self.house().alloc;
        if want.reserved && alloc.reserve(want.len, 0, true).is_err() {
            return;
        }
        let claim = alloc.claim(want);
        if want.reserved {
            let ratio = self.house().vol.geo.cluster_ratio();
            let used = claim.as_ref().map_or(0, |claim| claim.len);
            alloc.unreserve(want.len.next_multiple_of(ratio) - used);
        }
        if let Ok(claim) = claim {
            assert!(claim.len >= want.min);
            self.claims.push(claim);
        }
    }

    fn book(&mut self, which: usize, len: u32) {
        if self.claims.is_empty() {
            return;
        }
        let which = which % self.claims.len();
        let mut claim = self.claims.swap_remove(which);
        let before = claim.len;
        let house = self.house();
        let mut h = house.vol.start(house.alloc.credits(len)).unwrap();
        let start = house.alloc.book(&mut h, &mut claim, len.min(before)).unwrap();
        assert_eq!(house.vol.journal.stats().overdrawn, 0);
        drop(h);
        self.booked.push((start.0, before - claim.len));
        if claim.len > 0 {
            self.claims.push(claim);
        }
    }

    fn free(&mut self, which: usize, from: u32, len: u32) {
        if self.booked.is_empty() {
            return;
        }
        let ratio = self.house().vol.geo.cluster_ratio();
        let at = which % self.booked.len();
        let (start, all) = self.booked.swap_remove(at);
        let from = (from / ratio * ratio).min(all - ratio);
        let len = len.next_multiple_of(ratio).min(all - from);
        let house = self.house();
        let mut h = house.vol.start(house.alloc.credits(len)).unwrap();
        house.alloc.free(&mut h, BlockNr(start + u64::from(from)), len, Purpose::Data).unwrap();
        drop(h);
        let end = from + len;
        let rest = [(start, from), (start + u64::from(end), all - end)];
        self.booked.extend(rest.into_iter().filter(|(_, len)| *len > 0));
    }

    /// Nothing overlaps, and the sums agree.
    fn check(&self) {
        let mut used: BTreeMap<u64, u32> = self.booked.iter().copied().collect();
        used.extend(self.claims.iter().map(|claim| (claim.start.0, claim.len)));
        let ends = used.iter().map(|(start, len)| start + u64::from(*len));
        assert!(ends.zip(used.keys().skip(1)).all(|(end, next)| end <= *next));
        let sum: u64 = used.values().map(|len| u64::from(*len)).sum();
        assert_eq!(self.house().alloc.usage().free + sum, self.total);
        let booked: u64 = self.booked.iter().map(|(_, len)| u64::from(*len)).sum();
        let free = self.house().groups.free_clusters() << self.house().vol.geo.cluster_bits;
        assert_eq!(free + booked, self.total);
    }

    fn end(mut self) {
        self.claims.clear();
        while let Some((start, len)) = self.booked.pop() {
            super::give(self.house(), (BlockNr(start), len)).unwrap();
        }
        let house = self.house.take().unwrap();
        house.sync();
        house.check_counts();
        house.close().assert_clean();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn claims_live_as_the_model_says(
        bigalloc: bool,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new(if bigalloc { "bigalloc_1k" } else { "1k" });
        for step in &steps {
            world.apply(step);
        }
        world.end();
    }
}
