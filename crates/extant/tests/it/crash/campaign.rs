//! Which states of a scene are examined: a sample in `make test`, all cuts in `make crash`.

use super::examine::{Bench, Case, Depth, Tally};
use super::mix;
use super::scene::{self, Scene, Setup};
use super::seen::broken;
use super::states::{Bytes, PARTS, Part, Walk};
use extant_testkit::figures::{self, Figures};
use extant_testkit::rng::Rng;
use extant_testkit::tree::Manifest;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Kinds of file systems that mixes run on, and how many threads make the mix.
pub(crate) const KINDS: [(Setup, usize); 10] = [
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
];

/// Failures after which a campaign ends.
const ENOUGH: u64 = 20;

/// One in so many states is also recovered by e2fsck, by the kernel, and cut again in its recovery.
const E2FSCK: u64 = 4;
const KERNEL: u64 = 100;
const AGAIN: u64 = 8;

/// What was met of a scene, by the names of states.
type Met = HashMap<u64, Arc<Manifest>>;

/// Examines a state, or only what is promised if an equal one was met.
fn meet(
    bench: &mut Bench,
    scene: &Scene,
    walk: &Walk<'_>,
    state: &Bytes,
    met: &mut Met,
    rng: &mut Rng,
) -> Result<(), String> {
    let durable = walk.promised(scene);
    if let Some(held) = met.get(&state.name) {
        bench.tally.equal += 1;
        let complaints = broken(durable, held);
        return if complaints.is_empty() { Ok(()) } else { Err(complaints.join("; ")) };
    }
    let again = usize::from(rng.one_in(AGAIN));
    let depth = Depth { e2fsck: rng.one_in(E2FSCK), kernel: scene.setup.kernel && rng.one_in(KERNEL), again };
    let case = Case { setup: scene.setup, durable, tagged: scene.tagged };
    let held = catch_unwind(AssertUnwindSafe(|| bench.examine(case, state, depth, rng)));
    let held = held.unwrap_or_else(|_| Err("a panic".into()))?;
    met.insert(state.name, Arc::new(held));
    Ok(())
}

/// Cuts at a sample of events, each whole and with parts of what was not flushed.
pub(crate) fn sweep(name: &str, scene: &Scene, states: usize, seed: u64) {
    let (mut bench, mut met, mut rng) = (Bench::new(), Met::new(), Rng::new(seed));
    let cuts = scene.events.iter().filter(|event| event.changes()).count();
    let step = (cuts * 4).div_ceil(states).max(1) as u64;
    let mut walk = Walk::new(&scene.base, &scene.events);
    let mut left = rng.below(step);
    while let Some(cut) = walk.step() {
        let end = cut == scene.events.len();
        if left > 0 && !end {
            left -= 1;
            continue;
        }
        left = step - 1;
        let parts = [Part::All, *rng.pick(&PARTS[1..]), *rng.pick(&PARTS[2..]), *rng.pick(&PARTS[2..])];
        for part in parts {
            let state = walk.state(part, &mut rng);
            let result = meet(&mut bench, scene, &walk, &state, &mut met, &mut rng);
            result.unwrap_or_else(|why| panic!("{name}: {part:?} at {cut}: {why}"));
        }
    }
    println!("{name}: {:?}, {} events", bench.tally, scene.events.len());
    assert!(bench.tally.states > 4, "{name}: too few states to say anything");
}

/// All cuts of a mix.
fn all_cuts(seed: u64, bench: &mut Bench, broken: &mut dyn FnMut(String, &Bytes)) {
    let (setup, threads) = KINDS[(seed % KINDS.len() as u64) as usize];
    let scene = mix::scene(setup, threads, seed);
    let (mut met, mut rng) = (Met::new(), Rng::new(seed));
    let mut walk = Walk::new(&scene.base, &scene.events);
    while let Some(cut) = walk.step() {
        for part in [Part::All, Part::Nothing, *rng.pick(&PARTS[2..]), *rng.pick(&PARTS[2..])] {
            let state = walk.state(part, &mut rng);
            if let Err(why) = meet(bench, &scene, &walk, &state, &mut met, &mut rng) {
                broken(format!("{} of {threads}, seed {seed}, {part:?} at {cut}: {why}", setup.name), &state);
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
        while Instant::now() < self.end && self.failures.load(Ordering::SeqCst) < ENOUGH {
            let seed = self.next.fetch_add(1, Ordering::SeqCst);
            let (mut bench, began) = (Bench::new(), Instant::now());
            let mut failures = 0;
            let made = catch_unwind(AssertUnwindSafe(|| {
                all_cuts(seed, &mut bench, &mut |why, state| {
                    failures += 1;
                    keep(seed, failures, &why, state);
                });
            }));
            failures += u64::from(made.is_err());
            self.failures.fetch_add(failures, Ordering::SeqCst);
            self.note(seed, &bench.tally, failures, began.elapsed());
        }
    }

    fn note(&self, seed: u64, tally: &Tally, failures: u64, time: Duration) {
        let numbers = [
            ("states", tally.states),
            ("equal", tally.equal),
            ("recovered by e2fsck too", tally.e2fsck),
            ("recovered by the kernel too", tally.kernel),
            ("cut while recovering", tally.again),
            ("failures", failures),
            ("milliseconds", time.as_millis() as u64),
        ];
        self.figures.lock().expect("no panic").add("power cuts", seed, &numbers);
    }
}

/// Keeps a state that was wrong.
fn keep(seed: u64, nr: u64, why: &str, state: &Bytes) {
    let dir = std::env::temp_dir().join("extant-crash");
    let path = dir.join(format!("{seed}-{nr}.img"));
    let kept = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&path, &state.bytes));
    println!("{why}\n    {}: {kept:?}", path.display());
}

/// Goes on with the seed after those in the file of figures, for `EXTANT_CRASH_SECONDS` (600 unless told), with
/// `EXTANT_CRASH_WORKERS` (2).
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
        (0..figures::number("EXTANT_CRASH_WORKERS", 2)).for_each(|_| drop(scope.spawn(|| campaign.work())));
    });
    let (next, failures) = (campaign.next.into_inner(), campaign.failures.into_inner());
    let figures = campaign.figures.into_inner().expect("no panic");
    println!("seeds {first} to {}: {}", next - 1, figures.told("power cuts"));
    assert_eq!(failures, 0, "states that are not as they should be");
}
