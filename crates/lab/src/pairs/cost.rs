//! Cost of a job for this process: processor time, and instructions where the machine counts them.

use crate::jobs::Watch;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Counts of the whole process since it asked for them. Make it before any thread whose
/// instructions are to count.
pub struct Meter {
    counter: Option<Mutex<Counter>>,
}

/// A reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Processor time, including the kernel's in system calls of this process, excluding the
    /// kernel's own threads.
    pub time: Duration,
    /// Instructions, the kernel's likewise included.
    pub instructions: Option<u64>,
}

impl Meter {
    /// Asks the machine for a counter; many virtual machines have none.
    pub fn new() -> Meter {
        Meter { counter: counter().ok().map(Mutex::new) }
    }

    /// Returns the cost so far.
    pub fn read(&self) -> Cost {
        let time = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
        let counter =
            self.counter.as_ref().map(|c| c.lock().unwrap_or_else(PoisonError::into_inner));
        Cost { time, instructions: counter.and_then(|mut counter| counter.read().ok()) }
    }
}

fn counter() -> io::Result<Counter> {
    let mut counter =
        Builder::new(Hardware::INSTRUCTIONS).inherit(true).include_kernel().build()?;
    counter.enable()?;
    Ok(counter)
}

/// Measures the cost of a job.
pub struct Metered<'a> {
    meter: &'a Meter,
    cost: Mutex<Cost>,
}

impl<'a> Metered<'a> {
    /// Nothing yet.
    pub fn new(meter: &'a Meter) -> Self {
        Metered { meter, cost: Mutex::default() }
    }

    /// Returns the measured cost.
    pub fn cost(&self) -> Cost {
        *self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(Cost, Cost) -> Cost) {
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        *cost = change(*cost, self.meter.read());
    }
}

impl Watch for Metered<'_> {
    fn start(&self) {
        self.set(|_, now| now);
    }

    fn stop(&self) {
        self.set(|before, now| Cost {
            time: now.time.saturating_sub(before.time),
            instructions: now
                .instructions
                .zip(before.instructions)
                .map(|(now, before)| now.saturating_sub(before)),
        });
    }
}
