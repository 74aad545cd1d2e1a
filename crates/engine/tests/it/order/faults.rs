//! Histories in which the device fails, or the power is cut. All answers are right, and the state
//! afterwards is that of some moment in some order, with all promises of syncs.
//!
//! Names, links and attributes change by transactions, so they come back together as they were at
//! one moment. Each byte of a file comes back by itself: as it was, as it was written, or zero.

use super::model::{Answer, Ask, Model, PIECE, Place};
use super::{
    ASKS, Event, History, Program, THREADS, assert_clean, places, program, run, search, setups,
    states,
};
use crate::crash::{DEEP, EXT3, EXT4, INLINE, PageDevice, Setup};
use extant_blocks::{Failure, Fault, FaultDevice, Op};
use extant_engine::Fs;
use extant_testkit::figures;
use extant_testkit::rng::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Groups of threads at once.
const GROUPS: usize = 2;

type Device = Arc<FaultDevice<PageDevice>>;

/// The event on the device in a round, and the number of requests before it.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// One kind of request fails, once or from then on.
    Fails(Op, u64, bool),
    /// No further write reaches the device, and no error is reported.
    Cut(u64),
}

impl Plan {
    fn any(rng: &mut Rng) -> Plan {
        let nth = rng.below(30);
        match rng.below(4) {
            0 | 1 => Plan::Cut(nth),
            _ => Plan::Fails(
                *rng.pick(&[Op::Write, Op::Write, Op::Flush, Op::Read]),
                nth % 12,
                rng.one_in(2),
            ),
        }
    }

    fn inject(self, device: &Device) {
        match self {
            Plan::Fails(op, nth, false) => device.inject(Fault::new(op, nth)),
            Plan::Fails(op, nth, true) => device.inject(Fault::new(op, nth).from_then_on()),
            Plan::Cut(nth) => {
                device.inject(Fault::new(Op::Write, nth).from_then_on().with(Failure::Torn(0)));
            }
        }
    }
}

/// Returns the number of events of each thread that a sync promised: those answered before it
/// began.
fn promised(history: &History) -> Vec<usize> {
    let syncs = history
        .iter()
        .flatten()
        .filter(|event| event.ask == Ask::Sync(None) && event.answer == Answer::Done);
    let asked = syncs.map(|event| event.asked).max().unwrap_or(0);
    history
        .iter()
        .map(|events| events.iter().filter(|event| event.answered < asked).count())
        .collect()
}

/// Returns whether each byte is an old byte of the file, a written byte or zero, and the length is
/// one that the file had.
fn bytes_are_right(history: &History, from: &Model, to: &Model) -> bool {
    from.contents().zip(to.contents()).enumerate().all(|(file, (before, after))| {
        let events = || history.iter().flatten().map(|event: &Event| event.ask);
        let of_file =
            |ask: &Ask| matches!(ask, Ask::Write(own, ..) | Ask::Cut(own, _) if *own == file);
        if !events().any(|ask| of_file(&ask)) {
            return before == after;
        }
        let length = |ask: Ask| match ask {
            Ask::Write(own, at, _) if own == file => Some(at + PIECE),
            Ask::Cut(own, size) if own == file => Some(size),
            _ => None,
        };
        let written = |at: usize, byte: u8| {
            events().any(|ask| match ask {
                Ask::Write(own, start, value) => {
                    own == file && value == byte && (start..start + PIECE).contains(&at)
                }
                _ => false,
            })
        };
        let known = |(at, byte): (usize, &u8)| {
            *byte == 0 || before.get(at) == Some(byte) || written(at, *byte)
        };
        (after.len() == before.len() || events().filter_map(length).any(|len| len == after.len()))
            && after.iter().enumerate().all(known)
    })
}

fn open(setup: Setup, device: PageDevice) -> (Device, Fs) {
    let device = Arc::new(FaultDevice::new(device));
    let fs = Fs::open_device(device.clone(), &setup.options()).expect("opens");
    (device, fs)
}

/// The operations of one group, and the part that must be there afterwards.
struct Told {
    history: History,
    kept: Vec<usize>,
}

/// Runs operations without failures, perhaps syncs, and continues on a failing device. The promises
/// of a sync before the failure count, and so do those of later ones if nothing failed after all.
fn ask(fs: &Fs, held: &[Place], device: &Device, plan: Plan, rng: &mut Rng) -> Vec<Told> {
    let mut some = || (0..GROUPS).map(|_| program(rng, THREADS, ASKS / 2)).collect();
    let (before, after): (Vec<Program>, Vec<Program>) = (some(), some());
    let early = run(fs, held, &before);
    let synced = rng.one_in(2) && fs.sync().is_ok();
    plan.inject(device);
    let late = run(fs, held, &after);
    let told = |(early, late): (History, History)| {
        let kept = if synced { early.iter().map(Vec::len).collect() } else { promised(&early) };
        let history = joined(early, late);
        let all = if device.failed() == 0 { promised(&history) } else { Vec::new() };
        let kept = kept
            .iter()
            .enumerate()
            .map(|(n, kept)| (*kept).max(all.get(n).copied().unwrap_or(0)))
            .collect();
        Told { history, kept }
    };
    early.into_iter().zip(late).map(told).collect()
}

/// Joins two histories.
fn joined(mut early: History, late: History) -> History {
    let end = early.iter().flatten().map(|event| event.answered).max().unwrap_or(0) + 1;
    for (events, late) in early.iter_mut().zip(late) {
        let later = |event: Event| Event {
            asked: event.asked + end,
            answered: event.answered + end,
            ..event
        };
        events.extend(late.into_iter().map(later));
    }
    early
}

/// Returns a description of the first difference between state and promises.
fn wrong(told: &Told, from: &Model, to: &Model) -> Option<&'static str> {
    let enough = |done: &[usize]| done.iter().zip(&told.kept).all(|(done, kept)| done >= kept);
    let was_there = |done: &[usize], state: &Model| enough(done) && state.same_metadata(to);
    if !search(&told.history, from, Model::next_after_failure, was_there) {
        return Some("no moment of any order");
    }
    (!bytes_are_right(&told.history, from, to)).then_some("bytes that no call wrote")
}

/// Runs rounds on one file system, each with a plan. Returns the number of searched histories.
fn rounds(setup: Setup, seed: u64, mut goes_on: impl FnMut(u64) -> bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut pages = setup.pages();
    let mut round = 0;
    while goes_on(round) {
        let (device, fs) = open(setup, PageDevice::new(pages));
        let held = places(&fs, GROUPS);
        fs.sync().expect("a device that is well");
        let from = states(&fs, &held);
        let plan = Plan::any(&mut rng);
        let told = ask(&fs, &held, &device, plan, &mut rng);
        drop(held);
        if matches!(plan, Plan::Cut(_)) || rng.one_in(2) {
            fs.crash();
        } else {
            let _errors_are_told = fs.unmount();
        }
        let (device, fs) = open(setup, PageDevice::new(device.inner().pages()));
        let held = places(&fs, GROUPS);
        for ((told, from), to) in told.iter().zip(&from).zip(states(&fs, &held)) {
            if let Some(what) = wrong(told, from, &to) {
                panic!(
                    "{}, seed {seed}, round {round}, {plan:?}: {what}: {:#?}\nof which stay \
                    {:?}\nfrom {from:?}\nto {to:?}",
                    setup.name, told.history, told.kept
                );
            }
        }
        drop(held);
        fs.unmount().expect("a device that is well");
        pages = device.inner().pages();
        // Printed with the output of a failure.
        println!("{}, seed {seed}, round {round}, {plan:?}", setup.name);
        assert_clean(device.inner());
        round += 1;
    }
    round * GROUPS as u64
}

#[test]
fn state_after_failures_is_that_of_some_order() {
    for (seed, setup) in [EXT4, INLINE, EXT3, DEEP].into_iter().enumerate() {
        assert_eq!(rounds(setup, seed as u64, |round| round < 30), 30 * GROUPS as u64);
    }
}

/// The check notices lost changes that a sync promised, and bytes that no operation wrote.
#[test]
fn lost_changes_are_detected() {
    let (device, fs) = open(EXT4, PageDevice::new(EXT4.pages()));
    let held = places(&fs, 1);
    let from = states(&fs, &held);
    let programs = [vec![vec![
        Ask::Create((0, 0)),
        Ask::Write(0, 5, 7),
        Ask::Sync(None),
        Ask::Create((0, 1)),
    ]]];
    let history = run(&fs, &held, &programs).swap_remove(0);
    let to = states(&fs, &held);
    let kept = promised(&history);
    assert_eq!(kept, [2]);
    let told = Told { history, kept };
    assert_eq!(wrong(&told, &from[0], &to[0]), None);
    assert_eq!(wrong(&told, &from[0], &from[0]), Some("no moment of any order"));
    let less = Told { history: vec![told.history[0][..1].to_vec()], kept: vec![1] };
    assert_eq!(wrong(&less, &from[0], &to[0]), Some("no moment of any order"));
    let without = vec![[&told.history[0][..1], &told.history[0][2..]].concat()];
    assert_eq!(
        wrong(&Told { history: without, kept: vec![1] }, &from[0], &to[0]),
        Some("bytes that no call wrote")
    );
    drop(held);
    fs.unmount().expect("a device that is well");
    assert_clean(device.inner());
}

/// Runs for `EXTANT_ORDER_SECONDS` (default: a minute).
#[test]
#[ignore = "runs for as long as it is told to"]
fn failing_histories() {
    let end = Instant::now() + Duration::from_secs(figures::number("EXTANT_ORDER_SECONDS", 60));
    let mut figures = figures::Figures::open();
    while Instant::now() < end {
        let (seed, began) = (figures.next_seed("histories with failures"), Instant::now());
        let setup = *Rng::new(seed).pick(&setups(&[EXT4, INLINE, EXT3, DEEP]));
        let searched = rounds(setup, seed, |_| began.elapsed().as_secs() < 10);
        figures.add("histories with failures", seed, &[("histories", searched)]);
    }
    println!("{}", figures.told("histories with failures"));
}
