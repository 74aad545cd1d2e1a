//! FUSE over io_uring: requests come through rings, one queue for each processor.
//!
//! The requests of a queue come from one processor, and the thread that serves them stays on it, so
//! that the caller and its server share a cache. Each thread has its own ring, and in it slots for
//! requests. The kernel fills a slot with a request; one system call sends the replies and takes
//! new requests.

mod latency;
mod queue;
mod slot;

use crate::connection::forget::ForgetReader;
use crate::connection::init::MAX_REQUEST;
use crate::connection::{ForcedEnd, join, needed};
use crate::handler::Handler;
use crate::transport::held_writes::HeldWrites;
use latency::Pace;
use queue::{Dispatcher, Place, Queue, WorkerPools};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Switch of FUSE over io_uring.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// List of the possible processors. The kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Returns the reason why this transport is unavailable; `None` if it is available.
pub fn missing() -> Option<String> {
    missing_of(fs::read_to_string(ENABLED))
}

fn missing_of(switch: io::Result<String>) -> Option<String> {
    match switch {
        Err(_) => Some(
            "this kernel has no FUSE over io_uring (Linux 6.14 has, with CONFIG_FUSE_IO_URING)"
                .into(),
        ),
        Ok(value) if value.trim() != "Y" => {
            Some(format!("FUSE over io_uring is off (write 1 to {ENABLED})"))
        }
        Ok(_) => None,
    }
}

/// Counts the processors of a list like `0-3,7`.
fn count(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0u16, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn processors() -> io::Result<u16> {
    let list = fs::read_to_string(POSSIBLE)?;
    count(&list)
        .filter(|n| *n > 0)
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE} is not understood")))
}

/// Disabled rings for a connection that is yet to be made. They are built before the process
/// restricts its system calls, which then need not include the one that makes rings.
pub struct Rings(Vec<Place>);

impl Rings {
    /// Builds them. No thread starts.
    ///
    /// # Errors
    /// EPERM where io_uring is disabled (`kernel.io_uring_disabled`) or filtered, ENOMEM and the
    /// like.
    pub fn build() -> io::Result<Rings> {
        let queues = processors()?;
        let threads =
            std::thread::available_parallelism().map_or(1, usize::from).min(queues.into());
        let place = |first: usize| Place::build((0..queues).skip(first).step_by(threads).collect());
        Ok(Rings((0..threads).map(place).collect::<io::Result<_>>()?))
    }

    /// Sets the connection, and starts the threads beside those of the rings. This happens before
    /// INIT selects this transport, so that a failure still leaves the choice of the other one.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn connect(mut self, fuse: &File) -> io::Result<ConnectedRings> {
        self.0.iter_mut().for_each(|place| place.connect(fuse));
        Ok(ConnectedRings { places: self.0, pools: WorkerPools::start()? })
    }
}

/// Rings of a connection, and the threads beside those that serve them.
pub struct ConnectedRings {
    places: Vec<Place>,
    pools: WorkerPools,
}

/// Starts the threads that serve the connection, whose mount `forced` ends. Joining them gives the
/// result of serving.
pub fn start(
    handler: Arc<impl Handler>,
    fuse: Arc<File>,
    forced: &ForcedEnd,
    rings: ConnectedRings,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let forced = forced.clone();
    let forgets = ForgetReader::new(&fuse)?;
    Builder::new()
        .name("extant-fuse".into())
        .spawn(move || serve(&handler, &forced, rings, &forgets))
}

fn serve(
    handler: &Arc<impl Handler>,
    forced: &ForcedEnd,
    rings: ConnectedRings,
    // Keeps the connection open, which must outlive the rings.
    forgets: &ForgetReader,
) -> io::Result<()> {
    let pools = Arc::new(rings.pools);
    let dispatcher = Arc::new(Dispatcher {
        handler: handler.clone(),
        pace: Pace::default(),
        held: HeldWrites::new(),
    });
    let ends: Vec<_> = rings.places.iter().map(Place::end).collect();
    // The connection ends when its last descriptor is closed: for users without the right to
    // unmount by force.
    let end_all = || {
        ends.iter().for_each(|end| end());
        forgets.end();
    };
    let served = std::thread::scope(|scope| {
        let end_all = &end_all;
        let spawn = |name: String, work: Box<dyn FnOnce() -> io::Result<()> + Send>| {
            Builder::new().name(name).spawn_scoped(scope, move || needed(forced, end_all, work))
        };
        let mut running = Vec::new();
        for (number, place) in rings.places.into_iter().enumerate() {
            let (dispatcher, pools) = (dispatcher.clone(), pools.clone());
            running.push(spawn(
                format!("extant-ring-{number}"),
                Box::new(move || {
                    stay_on(number);
                    Queue::new(place, MAX_REQUEST as usize, dispatcher, pools)?.run()
                }),
            ));
        }
        let reader = handler.clone();
        running.push(spawn("extant-forget".into(), Box::new(move || forgets.read(&*reader))));
        if running.iter().any(Result::is_err) {
            end_all();
        }
        running.into_iter().map(|thread| join(thread?)).fold(Ok(()), io::Result::and)
    });
    // After an early end a thread may wait for requests that no thread serves.
    if let Some(mut pools) = Arc::into_inner(pools).filter(|_| served.is_ok()) {
        pools.stop();
    }
    handler.end();
    served
}

/// Binds this thread to a processor. Where processors are missing, the number may name another one;
/// that costs time only.
fn stay_on(processor: usize) {
    if processor < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_returns_the_reason() {
        let told =
            |switch: io::Result<&str>| missing_of(switch.map(Into::into)).unwrap_or_default();
        assert!(told(Err(io::ErrorKind::NotFound.into())).contains("has no FUSE over io_uring"));
        assert!(told(Ok("N\n")).contains(ENABLED));
        assert_eq!(missing_of(Ok("Y\n".into())), None);
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,7-11"), Some(9));
        assert_eq!(count(""), None);
        assert_eq!(count("3-1"), None);
    }
}
