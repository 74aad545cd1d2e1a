//! Keeps processors from sleeping while something is measured.
//!
//! Between a request and its reply two processes wake each other. A processor that sleeps is woken
//! by another one's interrupt, which in a virtual machine costs as much as a whole request; whether
//! that happens hangs on where the scheduler put the two, which changes from run to run.

use std::fs::File;
use std::io::Write;

/// Where the latency is asked for that a processor may take to wake; it holds as long as the file
/// is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// As long as this lives processors that have nothing to do wait without sleeping.
#[derive(Debug)]
pub struct Awake {
    _open: Option<File>,
}

impl Awake {
    /// Asks for it; without the permission, or where there is no such thing, processors sleep as
    /// they do.
    pub fn hold() -> Awake {
        let open = File::options().write(true).open(LATENCY).and_then(|mut file| {
            file.write_all(&0i32.to_ne_bytes())?;
            Ok(file)
        });
        if let Err(e) = &open {
            eprintln!("extant-lab: processors may sleep while it measures: {LATENCY}: {e}");
        }
        Awake { _open: open.ok() }
    }
}
