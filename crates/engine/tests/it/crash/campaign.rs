//! The choice of states of a scene to examine: a sample in `make test`, all cuts in `make crash`.

use super::examine::{Bench, Case, Depth, Tally};
use super::mix;
use super::scene::{self, Scene, Setup};
use super::seen::broken;
use super::states::{PARTS, Part, State, Walk};
use extant_testkit::figures::{self, Figures};
use extant_testkit::rng::Rng;
use extant_testkit::tree::Manifest;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Kinds of file systems that mixes run on, with the number of threads of a mix. Long campaigns add
/// [`scene::LAYOUTS`].
pub(crate) const KINDS: [(Setup, usize); 15] = [
    (scene::EXT4, 1),
    (scene::INLINE, 1),
    (scene::EXT3, 1),
    (scene::BIGALLOC, 1),
    (scene::POINTERS, 1),
    (scene::WIDE, 1),
    (scene::LOGGED, 1),
    (scene::LOGGED_EXT3, 1),
    (scene::EXT4, 3),
    (scene::QUOTA, 1),
    (scene::UNLOGGED, 1),
    (scene::EXT2, 1),
    (scene::DEEP, 1),
    (scene::DEEP_BIGALLOC, 1),
    (scene::FULL, 1),
];

/// Number of failures after which a campaign ends.
const ENOUGH: u64 = 20;

/// Inverse rates of the additional checks of states. Extant recovers every state, and every state
/// must keep its promises.
#[derive(Clone, Copy)]
struct Rates {
    /// Of the states that recover to a known tree, one in `same` is examined like the first of its
    /// kind.
    same: u64,
    /// Of the states that recover to a new tree, one in `go_on` is written to and checked by
    /// e2fsck.
    go_on: u64,
    /// One in `e2fsck` is recovered by e2fsck.
    e2fsck: u64,
    /// One in `kernel` is recovered by the kernel.
    kernel: u64,
    /// One in `again` is cut again during its recovery.
    again: u64,
}

const SHORT: Rates = Rates { same: 8, go_on: 1, e2fsck: 4, kernel: 100, again: 8 };

/// A run of another program takes a hundred times as long as a recovery.
const LONG: Rates = Rates { same: 200, go_on: 8, e2fsck: 60, kernel: 1000, again: 40 };

/// The states of a scene that were examined.
struct Met<'a> {
    scene: &'a Scene,
    rates: Rates,
    rng: Rng,
    /// By the names of states.
    states: HashMap<u64, Arc<Manifest>>,
    /// Trees by the names of the recovered states.
    recovered: HashMap<u64, Arc<Manifest>>,
}

impl Met<'_> {
    fn new(scene: &Scene, rates: Rates, seed: u64) -> Met<'_> {
        Met { scene, rates, rng: Rng::new(seed), states: HashMap::new(), recovered: HashMap::new() }
    }

    /// Examines a state. If an equal state was examined before, checks only its promises.
    fn meet(&mut self, bench: &mut Bench, walk: &Walk<'_>, state: &State) -> Result<(), String> {
        let durable = walk.promised(self.scene);
        let held = match self.states.get(&state.name) {
            Some(held) => {
                bench.tally.equal += 1;
                held.clone()
            }
            None => {
                let Scene { setup, tagged, .. } = *self.scene;
                let case = Case { state, setup, durable, tagged };
                let held = catch_unwind(AssertUnwindSafe(|| self.examine(bench, case)));
                held.unwrap_or_else(|_| Err("a panic".into()))?
            }
        };
        self.states.insert(state.name, held.clone());
        let complaints = broken(durable, &held);
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join("; ")) }
    }

    fn examine(&mut self, bench: &mut Bench, case: Case<'_>) -> Result<Arc<Manifest>, String> {
        let (rates, rng) = (self.rates, &mut self.rng);
        // Without a journal no recovery can be cut.
        let again = usize::from(!case.setup.unlogged && rng.one_in(rates.again));
        let recovered = bench.recover(case, again > 0)?;
        let name = recovered.name(&self.scene.base);
        if let Some(held) = self.recovered.get(&name).filter(|_| !rng.one_in(rates.same)) {
            bench.tally.same += 1;
            recovered.drop();
            return Ok(held.clone());
        }
        let depth = Depth {
            go_on: again > 0 || rng.one_in(rates.go_on),
            e2fsck: rng.one_in(rates.e2fsck),
            kernel: case.setup.kernel && rng.one_in(rates.kernel),
            again,
        };
        let held = Arc::new(bench.look(case, recovered, depth, rng)?);
        match self.recovered.insert(name, held.clone()) {
            Some(before) if !before.diff(&held).is_empty() => {
                Err(format!("equal bytes, unequal trees: {:?}", before.diff(&held)))
            }
            _ => Ok(held),
        }
    }
}

/// Cuts the power at a sample of events. Each cut is examined with all and with parts of the writes
/// since the last flush, and, after each promise, with none of them.
pub(crate) fn sweep(name: &str, scene: &Scene, states: usize, seed: u64) {
    let (mut bench, mut met, mut rng) =
        (Bench::new(), Met::new(scene, SHORT, seed), Rng::new(seed));
    let cuts = scene.events.iter().filter(|event| event.changes()).count();
    let step = (cuts * 4).div_ceil(states).max(1) as u64;
    let mut walk = Walk::new(&scene.base.pages, &scene.events);
    let mut left = rng.below(step);
    while let Some((cut, promised)) = walk.step_or_promise(scene) {
        let end = cut == scene.events.len();
        let sampled = (left == 0 && !promised && !scene.setup.unlogged) || end;
        left = if sampled { step - 1 } else { left.saturating_sub(u64::from(!promised)) };
        let parts =
            [Part::All, *rng.pick(&PARTS[1..]), *rng.pick(&PARTS[2..]), *rng.pick(&PARTS[2..])];
        let promised = promised && !scene.setup.unlogged;
        let parts = parts.into_iter().filter(|_| sampled).chain(promised.then_some(Part::Nothing));
        for part in parts {
            let state = walk.state(part, &mut rng);
            let result = met.meet(&mut bench, &walk, &state);
            result.unwrap_or_else(|why| panic!("{name}: {part:?} at {cut}: {why}"));
        }
    }
    println!("{name}: {:?}, {} events", bench.tally, scene.events.len());
    assert!(
        bench.tally.states > 4 || scene.setup.unlogged,
        "{name}: too few states to say anything"
    );
}

/// Maximum draws of parts for one cut: more where more writes are uncertain, none after all parts
/// were examined.
const MAX_DRAWS: usize = 24;

/// Examines all cuts of a mix, or, without a journal, its end.
fn all_cuts(seed: u64, bench: &mut Bench, broken: &mut dyn FnMut(String, &State)) {
    let kinds: Vec<_> = KINDS.into_iter().chain(scene::LAYOUTS.map(|setup| (setup, 1))).collect();
    let (setup, threads) = *Rng::new(seed).pick(&kinds);
    let scene = mix::scene(setup, threads, seed);
    let (mut met, mut rng) = (Met::new(&scene, LONG, seed), Rng::new(seed));
    let mut walk = Walk::new(&scene.base.pages, &scene.events);
    while let Some(cut) = walk.step() {
        if setup.unlogged && cut < scene.events.len() {
            continue;
        }
        for draw in 0..walk.uncertain().clamp(1, MAX_DRAWS) {
            let part = PARTS.get(draw).copied().unwrap_or_else(|| *rng.pick(&PARTS[2..]));
            let state = walk.state(part, &mut rng);
            if let Err(why) = met.meet(bench, &walk, &state) {
                broken(
                    format!("{} of {threads}, seed {seed}, {part:?} at {cut}: {why}", setup.name),
                    &state,
                );
            }
        }
    }
}

struct Campaign {
    end: Instant,
    next: AtomicU64,
    failures: AtomicU64,
    figures: Mutex<Figures>,
}

impl Campaign {
    fn work(&self) {
        let mut bench = Bench::new();
        while Instant::now() < self.end && self.failures.load(Ordering::SeqCst) < ENOUGH {
            let seed = self.next.fetch_add(1, Ordering::SeqCst);
            let began = Instant::now();
            let mut failures = 0;
            let made = catch_unwind(AssertUnwindSafe(|| {
                all_cuts(seed, &mut bench, &mut |why, state| {
                    failures += 1;
                    keep(seed, failures, &why, state);
                });
            }));
            failures += u64::from(made.is_err());
            self.failures.fetch_add(failures, Ordering::SeqCst);
            self.note(seed, &std::mem::take(&mut bench.tally), failures, began.elapsed());
        }
    }

    fn note(&self, seed: u64, tally: &Tally, failures: u64, time: Duration) {
        let numbers = [
            ("states", tally.states),
            ("equal", tally.equal),
            ("recovered to the same", tally.same),
            ("gone on from", tally.gone_on),
            ("recovered by e2fsck too", tally.e2fsck),
            ("recovered by the kernel too", tally.kernel),
            ("cut while recovering", tally.again),
            ("failures", failures),
            ("milliseconds", time.as_millis() as u64),
        ];
        self.figures.lock().expect("no panic").add("power cuts", seed, &numbers);
    }
}

/// Stores a state that failed.
fn keep(seed: u64, nr: u64, why: &str, state: &State) {
    let dir = std::env::temp_dir().join("extant-crash");
    let path = dir.join(format!("{seed}-{nr}.img"));
    let kept =
        std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&path, state.pages.to_vec()));
    println!("{why}\n    {}: {kept:?}", path.display());
}

/// Continues with the seed behind those in the file of figures, for `EXTANT_CRASH_SECONDS` (default
/// 600), with `EXTANT_CRASH_WORKERS` (default 2).
#[test]
#[ignore = "runs for as long as it is told to"]
fn crash_campaign() {
    let figures = Figures::open();
    let seconds = figures::number("EXTANT_CRASH_SECONDS", 600);
    let first = figures::number("EXTANT_CRASH_SEED", figures.next_seed("power cuts"));
    let campaign = Campaign {
        end: Instant::now() + Duration::from_secs(seconds),
        next: AtomicU64::new(first),
        failures: AtomicU64::new(0),
        figures: Mutex::new(figures),
    };
    std::thread::scope(|scope| {
        (0..figures::number("EXTANT_CRASH_WORKERS", 2))
            .for_each(|_| drop(scope.spawn(|| campaign.work())));
    });
    let (next, failures) = (campaign.next.into_inner(), campaign.failures.into_inner());
    let figures = campaign.figures.into_inner().expect("no panic");
    println!("seeds {first} to {}: {}", next - 1, figures.told("power cuts"));
    assert_eq!(failures, 0, "states that are not as they should be");
}
