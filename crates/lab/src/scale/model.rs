//! The simulation: threads, each on its processor, that repeat one operation.
//!
//! An operation is private work between visits to shared lines. A visit moves the line to the
//! visitor's cache, for which all visitors queue; a visit to a lock also holds it. For example, an
//! operation of 3 µs with one visit to a lock that is held for 1 µs is 1 µs of private work, the
//! move, 1 µs with the lock, and 1 µs of private work; with a hundred processors it runs a million
//! times a second at most. The order of events follows from their times and a fixed seed.

use super::costs::{Costs, Topology};
use extant_sync::SplitMix64;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Add;

/// Visits of an operation to one group of lines.
#[derive(Clone, Debug)]
pub struct Visits {
    /// Lines, one of which each visit chooses at random.
    pub lines: usize,
    /// Visits of an operation.
    pub each: f64,
    /// How long a visit holds the lock on the line, in nanoseconds; 0 for atomics.
    pub hold: f64,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Duration without other processors, in nanoseconds, with the holds of all locks.
    pub service: f64,
    pub visits: Vec<Visits>,
}

impl Operation {
    /// Returns the service time, the moves of lines, those of locks, and how long these are held.
    pub fn input(&self) -> [f64; 4] {
        let sum = |each: fn(&Visits) -> f64| self.visits.iter().map(each).fold(0.0, Add::add);
        let locks = sum(|visits| if visits.hold > 0.0 { visits.each } else { 0.0 });
        [self.service, sum(|visits| visits.each), locks, sum(|visits| visits.each * visits.hold)]
    }
}

/// Operations of a simulation, all threads together, and of each thread at least.
const OPERATIONS: usize = 20_000;
const EACH: usize = 400;

#[derive(Clone, Debug, Default)]
struct Line {
    owner: Option<usize>,
    /// When the last move ends.
    free: u64,
    held: bool,
    /// Threads that wait for the lock, and since when.
    waiting: VecDeque<(usize, u64)>,
}

/// The next event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// It comes to the line of its next visit.
    Arrive,
    /// It releases the lock on that line.
    Release,
    /// Its operation ends.
    End,
}

/// A thread's operation: visits before its end, the next one last, as group and line.
#[derive(Clone, Debug, Default)]
struct Thread {
    plan: Vec<(usize, usize)>,
    /// Visits that are due, by group; fractions remain for later operations.
    due: Vec<f64>,
    /// Private work between two visits.
    piece: f64,
}

struct Simulation<'a> {
    operation: &'a Operation,
    topology: Topology,
    costs: &'a Costs,
    threads: Vec<Thread>,
    lines: Vec<Vec<Line>>,
    /// Time in picoseconds, the number of the event (for a fixed order), thread, event.
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    number: u64,
    random: SplitMix64,
}

/// Returns the operations per second of one thread on each processor.
pub fn rate(operation: &Operation, topology: Topology, costs: &Costs) -> f64 {
    let visits = &operation.visits;
    // Threads come to seldom visits one after the other.
    let begin = |thread: usize| Thread {
        due: visits.iter().map(|v| v.each * thread as f64 / topology.cpus as f64).collect(),
        ..Thread::default()
    };
    let mut simulation = Simulation {
        operation,
        topology,
        costs,
        threads: (0..topology.cpus).map(begin).collect(),
        lines: visits.iter().map(|v| vec![Line::default(); v.lines.max(1)]).collect(),
        events: BinaryHeap::new(),
        number: 0,
        random: SplitMix64::new(1),
    };
    (0..topology.cpus).for_each(|thread| simulation.begin(0, thread));
    let total = OPERATIONS.max(EACH * topology.cpus);
    // The first fifth is not measured: all threads begin at once.
    let (mut done, mut since) = (0, 0);
    while let Some(Reverse((now, _, thread, event))) = simulation.events.pop() {
        match event {
            Event::Arrive => simulation.arrive(now, thread),
            Event::Release => simulation.release(now, thread),
            Event::End if done + 1 == total => {
                return (total - total / 5) as f64 / (now - since).max(1) as f64 * 1e12;
            }
            Event::End => {
                done += 1;
                since = if done == total / 5 { now } else { since };
                simulation.begin(now, thread);
            }
        }
    }
    0.0
}

/// Returns nanoseconds in picoseconds.
fn picos(nanos: f64) -> u64 {
    (nanos * 1000.0) as u64
}

impl Simulation<'_> {
    /// Plans an operation: its visits in random order.
    fn begin(&mut self, now: u64, thread: usize) {
        let mut plan = Vec::new();
        let mut held = 0.0;
        for (group, visits) in self.operation.visits.iter().enumerate() {
            let due = self.threads[thread].due[group] + visits.each;
            self.threads[thread].due[group] = due.fract();
            for _ in 0..due as usize {
                let line = self.below(self.lines[group].len());
                plan.insert(self.below(plan.len() + 1), (group, line));
                held += visits.hold;
            }
        }
        let piece = (self.operation.service - held).max(0.0) / (plan.len() + 1) as f64;
        let due = std::mem::take(&mut self.threads[thread].due);
        self.threads[thread] = Thread { plan, due, piece };
        self.go_on(now, thread);
    }

    /// Does the private work until the next visit, half to one and a half of its mean.
    fn go_on(&mut self, now: u64, thread: usize) {
        let some = 0.5 + self.below(1 << 32) as f64 / (1u64 << 32) as f64;
        let Thread { plan, piece, .. } = &self.threads[thread];
        let event = if plan.is_empty() { Event::End } else { Event::Arrive };
        self.push(now + picos(piece * some), thread, event);
    }

    fn arrive(&mut self, now: u64, thread: usize) {
        let Some(&(group, line)) = self.threads[thread].plan.last() else { return };
        let hold = self.operation.visits[group].hold;
        let line = &mut self.lines[group][line];
        if line.held {
            return line.waiting.push_back((thread, now));
        }
        let owner = line.owner.replace(thread);
        let moved = owner.map_or(0.0, |owner| self.topology.transfer(self.costs, owner, thread));
        // A line moves once at a time, so visitors queue.
        line.free = now.max(line.free) + picos(moved);
        let free = line.free;
        if hold > 0.0 {
            line.held = true;
            self.push(free + picos(hold), thread, Event::Release);
        } else {
            self.threads[thread].plan.pop();
            self.go_on(free, thread);
        }
    }

    /// Releases a lock as parking locks do: a waiting thread that does not sleep yet takes it, and
    /// one that sleeps is woken to try again.
    fn release(&mut self, now: u64, thread: usize) {
        let Some((group, line)) = self.threads[thread].plan.pop() else { return };
        let (line, spin) = (&mut self.lines[group][line], picos(self.costs.spin));
        line.held = false;
        let asleep = |(_, since): &(usize, u64)| now - since > spin;
        let sleeper = line.waiting.front().is_some_and(asleep);
        let sleeper = if sleeper { line.waiting.pop_front() } else { None };
        let spinner = line.waiting.iter().position(|waiting| !asleep(waiting));
        let spinner = spinner.and_then(|at| line.waiting.remove(at));
        let mut after = now;
        if let Some((sleeper, _)) = sleeper {
            after += picos(self.costs.wake_call);
            self.push(now + picos(self.costs.wake), sleeper, Event::Arrive);
        }
        if let Some((spinner, _)) = spinner {
            self.arrive(now, spinner);
        }
        self.go_on(after, thread);
    }

    fn push(&mut self, time: u64, thread: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, thread, event)));
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::costs::COSTS;
    use super::*;

    fn operation(service: f64, visits: &[(usize, f64, f64)]) -> Operation {
        let visits = visits.iter().map(|&(lines, each, hold)| Visits { lines, each, hold });
        Operation { service, visits: visits.collect() }
    }

    /// Operations per microsecond.
    fn on(cpus: usize, operation: &Operation, costs: &Costs) -> f64 {
        rate(operation, Topology { cpus, cores: 10 }, costs) / 1e6
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.03, "{found} and not {expected}");
    }

    #[test]
    fn work_that_shares_nothing_is_done_by_as_many_processors() {
        let alone = operation(2000.0, &[]);
        for cpus in [1, 2, 10, 128] {
            near(on(cpus, &alone, &COSTS), cpus as f64 / 2.0);
        }
        // One thread owns each line, and waits for none.
        near(on(1, &operation(2000.0, &[(1, 4.0, 100.0), (9, 0.5, 0.0)]), &COSTS), 0.5);
    }

    #[test]
    fn one_lock_is_taken_once_in_each_critical_section() {
        let spinning = Costs { spin: f64::MAX, ..COSTS };
        let locked = operation(3000.0, &[(1, 1.0, 1000.0)]);
        assert!(on(2, &locked, &spinning) < 2.0 / 3.0, "threads wait for each other");
        near(on(10, &locked, &spinning), 1e3 / (1000.0 + COSTS.socket));
        // The lock is free while a thread wakes, once all wait so long that they sleep.
        let long = operation(15_000.0, &[(1, 1.0, 5000.0)]);
        let [awake, asleep] = [&spinning, &COSTS].map(|costs| on(10, &long, costs));
        assert!(asleep < 0.95 * awake, "{asleep} when threads sleep, {awake} when they spin");
        // A lock for each does not limit.
        assert!(on(10, &operation(3000.0, &[(4096, 1.0, 1000.0)]), &COSTS) > 3.1);
    }

    #[test]
    fn one_line_moves_once_at_a_time() {
        let counted = operation(300.0, &[(1, 1.0, 0.0)]);
        near(on(10, &counted, &COSTS), 1e3 / COSTS.socket);
        // Half of the visits, twice as many operations.
        near(on(10, &operation(50.0, &[(1, 0.5, 0.0)]), &COSTS), 2e3 / COSTS.socket);
        let [near, far] = [10, 80].map(|cpus| on(cpus, &counted, &COSTS));
        assert!(far < near / 2.0, "{far} across sockets, {near} within one");
        assert_eq!(on(80, &counted, &COSTS), far, "no run differs from another");
    }
}
