//! Checks of file systems.

use crate::call::detached;
use crate::failure::Failure;
use crate::image::ImageArgs;
use extant_check::{Check, Finding};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Time between two looks at signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// The fields of `Finding` in their order.
type Parts = (
    (&'static str, &'static str, &'static str, String),
    (Option<u32>, Option<u32>, Option<u64>, Option<u64>, Option<&'static str>),
    (Option<u64>, Option<u64>),
);

fn parts(finding: &Finding) -> Parts {
    let place = finding.place;
    let (severity, repair) = (finding.severity().name(), finding.repair().name());
    (
        (finding.code.name(), severity, repair, finding.to_string()),
        (place.inode, place.group, place.block, place.logical, place.field),
        (finding.found, finding.expected),
    )
}

/// Checks a file system without changing it; the journal is replayed in memory unless `as_is`.
#[pyfunction]
pub(crate) fn check(
    py: Python<'_>,
    image: ImageArgs,
    journal: Option<ImageArgs>,
    as_is: bool,
    threads: usize,
) -> PyResult<Vec<Parts>> {
    let open = |image: &ImageArgs| image.device().map_err(|failure| failure.of_file(image.name()));
    let (device, journal) =
        detached(py, || Ok((open(&image)?, journal.as_ref().map(open).transpose()?)))?;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let work = move |sink: &mut dyn FnMut(Finding)| {
        let mut check = Check::new(device).as_is(as_is).threads(threads).interrupt(asked);
        if let Some(journal) = journal {
            check = check.journal(journal);
        }
        check.run(sink);
    };
    Ok(run(py, work, &stop)?.iter().map(parts).collect())
}

/// Runs the check on a thread of its own, so that this one sees signals.
fn run(
    py: Python<'_>,
    check: impl FnOnce(&mut dyn FnMut(Finding)) + Send + 'static,
    stop: &AtomicBool,
) -> PyResult<Vec<Finding>> {
    let (tell, told) = channel();
    let told = Mutex::new(told);
    let work = move || {
        let mut findings = Vec::new();
        let done = catch_unwind(AssertUnwindSafe(|| check(&mut |finding| findings.push(finding))));
        // The caller waits for it.
        let _ = tell.send(done.map(|()| findings).map_err(|panic| Failure::panicked(&*panic)));
    };
    let spawned = Builder::new().name("extant-check".into()).spawn(work);
    spawned.map_err(|error| Failure::from(error).raise(py))?;
    let mut raised = None;
    loop {
        let told = detached(py, || {
            match told.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(INTERVAL) {
                Ok(done) => done.map(Some),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Failure::panicked(&"the check ended without a result"))
                }
            }
        })?;
        match (told, raised) {
            (Some(_), Some(raised)) => return Err(raised),
            (Some(findings), None) => return Ok(findings),
            (None, before) => raised = before.or_else(|| py.check_signals().err()),
        }
        // The check ends soon, and releases the device.
        if raised.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
    }
}
