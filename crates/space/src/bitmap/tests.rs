use super::*;
use proptest::prelude::*;

/// The same by single units.
#[derive(Debug, Clone)]
struct Model(Vec<bool>);

impl Model {
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (unit, free) in self.0.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if *free && run.end() == unit as u32 => run.len += 1,
                _ if *free => runs.push(Run { start: unit as u32, len: 1 }),
                _ => {}
            }
        }
        runs
    }

    fn all(&self, run: Run, free: bool) -> bool {
        self.0.get(run.start as usize..run.end() as usize).is_some_and(|part| part.iter().all(|unit| *unit == free))
    }

    fn set(&mut self, run: Run, free: bool) {
        self.0[run.start as usize..run.end() as usize].fill(free);
    }
}

fn check(map: &BitMap, model: &Model) {
    let runs = model.runs();
    assert_eq!(map.count(), runs.iter().map(|run| run.len).sum::<u32>());
    let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
    assert_eq!(map.longest(), if longest == 0 { 0 } else { 1 << longest.ilog2() });
    let mut orders = [0; ORDERS];
    runs.iter().for_each(|run| orders[order(run.len)] += 1);
    assert_eq!(map.runs, orders);
    let mut found = Vec::new();
    while let Some(run) = map.run_from(found.last().map_or(0, |run: &Run| run.end())) {
        found.push(run);
    }
    assert_eq!(found, runs);
}

#[derive(Debug, Clone)]
enum Step {
    Take { goal: u32, want: u32, min: u32 },
    TakeAt { start: u32, want: u32, min: u32 },
    TakeApart { want: u32, room: u32 },
    Give { start: u32, len: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![1u32..4, 1u32..80, 1u32..400];
    prop_oneof![
        (0u32..420, len.clone(), 1u32..20).prop_map(|(goal, want, min)| Step::Take { goal, want, min: min.min(want) }),
        (0u32..420, len.clone(), 1u32..9).prop_map(|(start, want, min)| Step::TakeAt {
            start,
            want,
            min: min.min(want)
        }),
        (1u32..40, 1u32..100).prop_map(|(want, room)| Step::TakeApart { want, room }),
        (0u32..420, len).prop_map(|(start, len)| Step::Give { start, len }),
    ]
}

fn apply(map: &mut BitMap, model: &mut Model, step: &Step) {
    match *step {
        Step::Take { goal, want, min } => {
            let best = model.runs().iter().map(|run| run.len).max().unwrap_or(0);
            let taken = map.take(goal, want, min);
            assert_eq!(taken.is_some(), best >= min);
            if let Some(run) = taken {
                assert!(model.all(run, true) && run.len >= min && run.len <= want);
                assert!(run.len == want || run.len.ilog2() == best.ilog2());
                model.set(run, false);
            }
        }
        Step::TakeAt { start, want, min } => {
            let free = model.0.iter().skip(start as usize).take_while(|unit| **unit).count() as u32;
            let taken = map.take_at(start, want, min);
            assert_eq!(taken, (free >= min).then_some(Run { start, len: free.min(want) }));
            if let Some(run) = taken {
                model.set(run, false);
            }
        }
        Step::TakeApart { want, room } => {
            if let Some(run) = map.take_apart(want, room) {
                let before = Run { start: run.start - room, len: room };
                assert!(run.len == want && model.all(run, true) && model.all(before, true));
                model.set(run, false);
            }
        }
        Step::Give { start, len } => {
            let run = Run { start, len };
            let possible = model.all(run, false);
            assert_eq!(map.give(run), possible);
            if possible {
                model.set(run, true);
            }
        }
    }
}

proptest! {
    #[test]
    fn behaves_as_the_model(len in 0u32..400, bytes in prop::collection::vec(any::<u8>(), 0..64), steps in prop::collection::vec(step(), 0..60)) {
        let mut map = BitMap::from_bitmap(&bytes, len);
        let mut model = Model((0..len).map(|bit| bytes.get(bit as usize / 8).is_some_and(|byte| byte & (1 << (bit % 8)) == 0)).collect());
        check(&map, &model);
        for step in &steps {
            apply(&mut map, &mut model, step);
            check(&map, &model);
        }
    }
}

#[test]
fn prefers_the_goal_and_then_what_follows() {
    let mut map = BitMap::from_bitmap(&[0; 128], 1000);
    assert_eq!(map.take(500, 100, 1), Some(Run { start: 500, len: 100 }));
    assert_eq!(map.take(500, 100, 1), Some(Run { start: 600, len: 100 }));
    assert_eq!(map.take(950, 100, 1), Some(Run { start: 0, len: 100 }));
    assert_eq!(map.take(0, 1000, 1), Some(Run { start: 100, len: 400 }));
    assert_eq!(map.take(0, 400, 301), None);
    assert!(!map.give(Run { start: 50, len: 900 }));
    assert!(map.give(Run { start: 0, len: 700 }));
    assert_eq!(map.count(), 1000);
}
