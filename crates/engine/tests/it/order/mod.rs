//! Linearizability: the answers to concurrent threads are right in some order. For histories of a
//! few operations, a search looks for an order in which a plain model gives the same answers and
//! reaches the same state. In that order no operation precedes one that was answered before it
//! began. Groups of threads have their own directories and files, so each group's history is
//! searched by itself. A history without such an order is repeated with fewer operations, until
//! none can be left out.

mod faults;
mod model;

use crate::crash::{DEEP, EXT2, EXT3, EXT4, INLINE, LAYOUTS, PageDevice, Setup};
use extant_engine::Fs;
use extant_testkit::rng::Rng;
use extant_testkit::{Scratch, e2fsck, figures};
use model::{Answer, Ask, Model, Place};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The operations of each thread, in order.
type Program = Vec<Vec<Ask>>;

/// Threads of one group.
const THREADS: usize = 3;
/// Operations of each thread in one round.
const ASKS: usize = 5;

/// Number of runs of a smaller program without a failure before it counts as right.
const TRIES: u32 = 60;

/// An operation with its answer, and the times of both.
#[derive(Clone, Debug)]
struct Event {
    ask: Ask,
    answer: Answer,
    asked: u64,
    answered: u64,
}

type History = Vec<Vec<Event>>;

fn program(rng: &mut Rng, threads: usize, asks: usize) -> Program {
    (0..threads).map(|_| (0..asks).map(|_| Ask::any(rng)).collect()).collect()
}

/// Runs the programs of all groups at once.
fn run(fs: &Fs, places: &[Place], programs: &[Program]) -> Vec<History> {
    let (clock, threads) = (AtomicU64::new(0), programs.iter().map(Vec::len).sum());
    let (clock, barrier) = (&clock, &Barrier::new(threads));
    std::thread::scope(|scope| {
        let start = |place: &'_ Place, asks: &'_ [Ask]| {
            barrier.wait();
            let tick = || clock.fetch_add(1, SeqCst);
            let answered = |ask: &Ask| {
                let asked = tick();
                let answer = place.ask(fs, *ask);
                Event { ask: *ask, answer, asked, answered: tick() }
            };
            asks.iter().map(answered).collect::<Vec<_>>()
        };
        let groups: Vec<Vec<_>> = places
            .iter()
            .zip(programs)
            .map(|(place, program)| {
                program.iter().map(|asks| scope.spawn(move || start(place, asks))).collect()
            })
            .collect();
        groups
            .into_iter()
            .map(|group| group.into_iter().map(|t| t.join().expect("no panic")).collect())
            .collect()
    })
}

/// Returns whether some order of a history leads from one state to the other.
fn has_order(history: &History, from: &Model, to: &Model) -> bool {
    let all = |done: &[usize]| done.iter().zip(history).all(|(done, events)| *done == events.len());
    search(history, from, Model::next, |done, state| all(done) && state == to)
}

/// Returns whether some order of a part of a history leads to the goal: a state, and the number of
/// completed operations of each thread. `next` returns the states after an operation with its
/// answer.
fn search(
    history: &History,
    from: &Model,
    next_states: impl Fn(&Model, Ask, &Answer) -> Vec<Model>,
    found: impl Fn(&[usize], &Model) -> bool,
) -> bool {
    let mut seen = HashSet::new();
    let mut todo = vec![(vec![0; history.len()], from.clone())];
    while let Some((done, state)) = todo.pop() {
        if found(&done, &state) {
            return true;
        }
        let next = |thread: usize| history[thread].get(done[thread]);
        // An operation that was answered before another one began precedes it.
        let first =
            (0..history.len()).filter_map(next).map(|event| event.answered).min().unwrap_or(0);
        for thread in 0..history.len() {
            let Some(event) = next(thread).filter(|event| event.asked <= first) else { continue };
            for after in next_states(&state, event.ask, &event.answer) {
                let mut done = done.clone();
                done[thread] += 1;
                if seen.insert((done.clone(), after.clone())) {
                    todo.push((done, after));
                }
            }
        }
    }
    false
}

/// A new file system with the places of so many groups.
fn stage(setup: Setup, groups: usize) -> (Arc<PageDevice>, Fs, Vec<Place>) {
    let device = Arc::new(PageDevice::new(setup.pages()));
    let fs = Fs::open_device(device.clone(), &setup.options()).expect("opens");
    let places = places(&fs, groups);
    (device, fs, places)
}

fn places(fs: &Fs, groups: usize) -> Vec<Place> {
    (0..groups).map(|nr| Place::new(fs, nr).expect("directories and files")).collect()
}

fn states(fs: &Fs, places: &[Place]) -> Vec<Model> {
    places.iter().map(|place| place.state(fs).expect("readable")).collect()
}

/// Returns the history of a program on a new file system, if it has no order.
fn fails(setup: Setup, program: &Program) -> Option<History> {
    let (_device, fs, places) = stage(setup, 1);
    let from = states(&fs, &places);
    let history = run(&fs, &places, std::slice::from_ref(program)).swap_remove(0);
    let to = states(&fs, &places);
    fs.crash();
    (!has_order(&history, &from[0], &to[0])).then_some(history)
}

/// Leaves operations out while the program still fails sometimes.
fn shrunk(setup: Setup, mut program: Program) -> (Program, Option<History>) {
    let tried = |program: &Program| (0..TRIES).find_map(|_| fails(setup, program));
    let mut found = tried(&program);
    let mut at = 0;
    while found.is_some() && at < program.iter().map(Vec::len).sum() {
        let mut smaller = program.clone();
        let mut left = at;
        for asks in &mut smaller {
            if left < asks.len() {
                asks.remove(left);
                break;
            }
            left -= asks.len();
        }
        match tried(&smaller) {
            Some(history) => (program, found) = (smaller, Some(history)),
            None => at += 1,
        }
    }
    (program, found)
}

/// Runs rounds on one file system, with remounts, and power cuts after a sync, in between. Returns
/// the number of searched histories.
fn rounds(
    setup: Setup,
    groups: usize,
    threads: usize,
    seed: u64,
    mut goes_on: impl FnMut(u64) -> bool,
) -> u64 {
    let mut rng = Rng::new(seed);
    let (mut device, mut fs, mut held) = stage(setup, groups);
    let mut round = 0;
    while goes_on(round) {
        let from = states(&fs, &held);
        let programs: Vec<Program> =
            (0..groups).map(|_| program(&mut rng, threads, ASKS)).collect();
        let histories = run(&fs, &held, &programs);
        let to = states(&fs, &held);
        for (nr, history) in histories.iter().enumerate() {
            if !has_order(history, &from[nr], &to[nr]) {
                let small = shrunk(setup, programs[nr].clone());
                panic!(
                    "{}, seed {seed}, round {round}: no order of {history:#?}\nfrom {:?}\nto \
                    {:?}\nsmaller: {small:#?}",
                    setup.name, from[nr], to[nr]
                );
            }
        }
        round += 1;
        if rng.one_in(8) {
            (device, fs, held) = again(setup, device, fs, held, !setup.unlogged && rng.one_in(2));
        }
    }
    drop(held);
    fs.unmount().expect("unmount");
    assert_clean(&device);
    round * groups as u64
}

/// Closes and opens, or cuts the power after a sync, and verifies that all is there.
fn again(
    setup: Setup,
    device: Arc<PageDevice>,
    fs: Fs,
    held: Vec<Place>,
    cut: bool,
) -> (Arc<PageDevice>, Fs, Vec<Place>) {
    let before = states(&fs, &held);
    fs.sync().expect("sync");
    let groups = held.len();
    drop(held);
    if cut {
        fs.crash()
    } else {
        fs.unmount().expect("unmount")
    }
    let device = Arc::new(PageDevice::new(device.pages()));
    let fs = Fs::open_device(device.clone(), &setup.options()).expect("opens again");
    let held = places(&fs, groups);
    assert_eq!(states(&fs, &held), before, "{}: after a remount (power cut: {cut})", setup.name);
    (device, fs, held)
}

/// Kinds of file systems of a long run.
fn setups(usual: &[Setup]) -> Vec<Setup> {
    usual.iter().copied().chain(LAYOUTS).collect()
}

fn assert_clean(device: &PageDevice) {
    let scratch = Scratch::new();
    let path = scratch.join("image");
    std::fs::write(&path, device.pages().to_vec()).expect("room");
    e2fsck::check(&path).assert_clean();
}

/// One thread gets exactly the answers of the model.
#[test]
fn one_thread_is_answered_as_the_model_says() {
    for (seed, setup) in [EXT4, EXT3, INLINE, EXT2, DEEP].into_iter().enumerate() {
        rounds(setup, 1, 1, seed as u64, |round| round < 150);
    }
}

#[test]
fn threads_are_answered_in_some_order() {
    for (seed, setup) in [EXT4, INLINE, EXT2, DEEP].into_iter().enumerate() {
        let searched = rounds(setup, 2, THREADS, 10 + seed as u64, |round| round < 120);
        assert_eq!(searched, 240);
    }
}

/// A history without an order is detected.
#[test]
fn a_wrong_answer_is_detected() {
    let (_device, fs, places) = stage(EXT4, 1);
    let from = states(&fs, &places);
    let programs = [vec![
        vec![Ask::Create((0, 0)), Ask::Lookup((0, 0))],
        vec![Ask::Write(0, 0, 7), Ask::Read(0, 0)],
    ]];
    let mut history = run(&fs, &places, &programs).swap_remove(0);
    let to = states(&fs, &places);
    assert!(has_order(&history, &from[0], &to[0]));
    assert!(!has_order(&history, &from[0], &from[0]));
    history[1][1].answer = Answer::Bytes(vec![8; 40]);
    assert!(!has_order(&history, &from[0], &to[0]));
    drop(places);
    fs.unmount().expect("unmount");
}

/// 33 threads for `EXTANT_ORDER_SECONDS` (default: a minute).
#[test]
#[ignore = "runs for as long as it is told to"]
fn many_threads_are_answered_in_some_order() {
    let end = Instant::now() + Duration::from_secs(figures::number("EXTANT_ORDER_SECONDS", 60));
    let mut figures = figures::Figures::open();
    while Instant::now() < end {
        let (seed, began) = (figures.next_seed("histories"), Instant::now());
        let setup = *Rng::new(seed).pick(&setups(&[EXT4, INLINE, EXT3, EXT2, DEEP]));
        let searched = rounds(setup, 11, THREADS, seed, |_| began.elapsed().as_secs() < 10);
        let operations = searched * (THREADS * ASKS) as u64;
        figures.add("histories", seed, &[("histories", searched), ("operations", operations)]);
    }
    println!("{}", figures.told("histories"));
}
