//! FUSE over io_uring: requests come through rings, one queue for each processor.
//!
//! A queue's requests come from its processor, and the thread that serves them stays there: a
//! caller and its server do not meet in two caches. Each thread has a ring of its own, and in it
//! slots for requests. The kernel fills a slot when somebody asks; one system call sends the
//! replies and takes what came meanwhile.

mod pace;
mod queue;
mod slot;

use crate::connection::forgets::ForgetReader;
use crate::connection::{join, needed};
use crate::flags::MAX_REQUEST;
use crate::held::HeldWrites;
use crate::service::Service;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use pace::Pace;
use queue::{Others, Place, Queue, Staff};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Whether the kernel may be asked.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// The processors that there may ever be: the kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Why this transport cannot be used here, if it cannot.
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

/// How many processors a list like `0-3,7` names.
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

/// Rings and threads for a connection, built before the kernel is told that requests may come this
/// way: what cannot be had shows while another transport can still be chosen.
pub struct Rings {
    places: Vec<Place>,
    others: Others,
}

impl Rings {
    /// Builds them for a connection.
    ///
    /// # Errors
    /// EPERM where io_uring is disabled (`kernel.io_uring_disabled`) or filtered, ENOMEM and the
    /// like.
    pub fn build(fuse: &File) -> io::Result<Rings> {
        let queues = processors()?;
        let threads =
            std::thread::available_parallelism().map_or(1, usize::from).min(queues.into());
        let place =
            |first: usize| Place::build(fuse, (0..queues).skip(first).step_by(threads).collect());
        Ok(Rings {
            places: (0..threads).map(place).collect::<io::Result<_>>()?,
            others: Others::start()?,
        })
    }
}

/// Starts the threads that serve the connection, which is mounted on `dir`; joined, they tell how
/// the mount ended.
pub fn start(
    service: Arc<impl Service>,
    fuse: Arc<File>,
    dir: &Path,
    rings: Rings,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let dir = dir.to_path_buf();
    let forgets = ForgetReader::new(&fuse)?;
    Builder::new().name("extant-fuse".into()).spawn(move || serve(&service, &dir, rings, &forgets))
}

fn serve(
    service: &Arc<impl Service>,
    dir: &Path,
    rings: Rings,
    // It keeps the connection open, which has to live longer than the rings.
    forgets: &ForgetReader,
) -> io::Result<()> {
    let others = Arc::new(rings.others);
    let staff = Arc::new(Staff {
        service: service.clone(),
        pace: Pace::default(),
        held: HeldWrites::new(),
    });
    let ends: Vec<_> = rings.places.iter().map(Place::end).collect();
    // The connection ends when nobody has a descriptor of it any more: for users who cannot unmount
    // it so.
    let end_all = || {
        ends.iter().for_each(|end| end());
        forgets.end();
    };
    let served = std::thread::scope(|scope| {
        let end_all = &end_all;
        let spawn = |name: String, work: Box<dyn FnOnce() -> io::Result<()> + Send>| {
            Builder::new().name(name).spawn_scoped(scope, move || needed(dir, end_all, work))
        };
        let mut running = Vec::new();
        for (number, place) in rings.places.into_iter().enumerate() {
            let (staff, others) = (staff.clone(), others.clone());
            running.push(spawn(
                format!("extant-ring-{number}"),
                Box::new(move || {
                    stay_on(number);
                    Queue::new(place, MAX_REQUEST as usize, staff, others)?.run()
                }),
            ));
        }
        let reader = service.clone();
        running.push(spawn("extant-forget".into(), Box::new(move || forgets.read(&*reader))));
        if running.iter().any(Result::is_err) {
            end_all();
        }
        running.into_iter().map(|thread| join(thread?)).fold(Ok(()), io::Result::and)
    });
    // After an early end a thread may wait for requests that nobody serves.
    if let Some(mut others) = Arc::into_inner(others).filter(|_| served.is_ok()) {
        others.stop();
    }
    service.end();
    served
}

/// The processor may be another one, where some are left out: that costs time only.
fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    let _ = set.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told() {
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
