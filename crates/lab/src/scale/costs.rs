//! The cost table of the simulation, and the machines that it simulates.
//!
//! The costs are quoted latencies and two estimates (`local`, `spin`), fixed before the first
//! comparison with published curves; docs/lab.md has the sources.

use extant_measure::options::invalid;
use std::io;
use std::str::FromStr;

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// An atomic operation on a line in the own cache, which is part of service times.
    pub local: f64,
    /// The same on a line that another processor of the socket has changed.
    pub socket: f64,
    /// The same for a neighboring socket, and for one beyond it.
    pub hops: [f64; 2],
    /// How long a thread waits for a lock before it sleeps.
    pub spin: f64,
    /// The call that wakes a sleeping thread.
    pub wake_call: f64,
    /// From that call until the woken thread runs.
    pub wake: f64,
}

/// Cycles at 2.13 GHz, and for wake-ups at 2.8 GHz.
pub const COSTS: Costs = Costs {
    local: 20.0 / 2.13,
    socket: 120.0 / 2.13,
    hops: [324.0 / 2.13, 430.0 / 2.13],
    spin: 2000.0,
    wake_call: 2700.0 / 2.8,
    wake: 7000.0 / 2.8,
};

/// Sockets that are neighbors of each other.
const NEIGHBORS: usize = 4;

/// The most processors.
pub const MAX_CPUS: usize = 128;

/// A machine: processors, and how many of them a socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    pub cpus: usize,
    pub cores: usize,
}

impl Topology {
    /// Returns the cost of a line that `from` changed last, for `to`.
    pub fn transfer(self, costs: &Costs, from: usize, to: usize) -> f64 {
        let [(from_socket, to_socket), near] =
            [self.cores, self.cores * NEIGHBORS].map(|cpus| (from / cpus, to / cpus));
        match (from_socket == to_socket, near.0 == near.1) {
            _ if from == to => 0.0,
            (true, _) => costs.socket,
            (_, true) => costs.hops[0],
            _ => costs.hops[1],
        }
    }
}

/// `8x10`: eight sockets with ten processors each.
impl FromStr for Topology {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Topology> {
        let parts =
            text.split_once('x').and_then(|(s, c)| Some((s.parse().ok()?, c.parse().ok()?)));
        let cpus = parts.and_then(|(sockets, cores): (usize, usize)| {
            Some(Topology { cpus: sockets.checked_mul(cores)?, cores })
        });
        let known = cpus.filter(|topology| (1..=MAX_CPUS).contains(&topology.cpus));
        known.ok_or_else(|| invalid(format!("{text} is no machine such as 8x10")))
    }
}

/// Returns the numbers of a range `1..128`: its ends, and powers of two between them.
pub fn numbers(range: &str) -> io::Result<Vec<usize>> {
    let (low, high) = range.split_once("..").unwrap_or((range, range));
    let [low, high]: [usize; 2] = [low, high].map(|n| n.parse().unwrap_or(0));
    if low == 0 || low > high || high > MAX_CPUS {
        return Err(invalid(format!("{range} is no range such as 1..{MAX_CPUS}")));
    }
    let powers = (0..usize::BITS).map(|n| 1 << n).filter(|n| (low + 1..high).contains(n));
    let mut all: Vec<usize> = [low].into_iter().chain(powers).chain([high]).collect();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_topologies_are_read() {
        assert_eq!(numbers("1..10").expect("a range"), [1, 2, 4, 8, 10]);
        assert_eq!(numbers("3").expect("a number"), [3]);
        assert!(["0..4", "8..4", "1..129", "x"].iter().all(|wrong| numbers(wrong).is_err()));
        let eight: Topology = "8x10".parse().expect("a machine");
        let costs = [0, 9, 10, 39, 40].map(|to| eight.transfer(&COSTS, 0, to));
        let [near, far] = COSTS.hops;
        assert_eq!(costs, [0.0, COSTS.socket, near, near, far]);
        let wrong = ["8", "0x10", "99x99", "axb", "9999999999x9999999999"];
        assert!(wrong.iter().all(|text| text.parse::<Topology>().is_err()));
    }
}
