//! Cost of a job for this process: processor time, and instructions where the machine counts them.

use crate::jobs::Watch;
use parking_lot::Mutex;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::Duration;

/// Measures the cost of one job after the other for the whole process. Make it before any thread
/// whose instructions are to count.
pub struct Meter {
    counter: Option<Mutex<Counter>>,
    /// The last reading while a job runs, and then the job's cost.
    cost: Mutex<Cost>,
}

/// Cost of a job, and of a sync behind it: work that it left to threads in the background.
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
        Meter { counter: counter().ok().map(Mutex::new), cost: Mutex::default() }
    }

    /// Returns the cost of the last job.
    pub fn cost(&self) -> Cost {
        *self.cost.lock()
    }

    /// Returns the cost so far.
    fn read(&self) -> Cost {
        let time = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
        let instructions = self.counter.as_ref().and_then(|counter| counter.lock().read().ok());
        Cost { time, instructions }
    }
}

fn counter() -> io::Result<Counter> {
    let mut counter =
        Builder::new(Hardware::INSTRUCTIONS).inherit(true).include_kernel().build()?;
    counter.enable()?;
    Ok(counter)
}

impl Watch for Meter {
    fn start(&self) {
        *self.cost.lock() = self.read();
    }

    fn until_durable(&self) -> bool {
        true
    }

    fn stop(&self) {
        let (now, mut cost) = (self.read(), self.cost.lock());
        let both = now.instructions.zip(cost.instructions);
        cost.instructions = both.map(|(now, before)| now.saturating_sub(before));
        cost.time = now.time.saturating_sub(cost.time);
    }
}
