//! SIGINT and SIGTERM while an image is opened for writing. They end waits, which may take minutes,
//! in order: another host that looks at the image meanwhile finds it unused. A second signal ends
//! the program.

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are noted instead of ending the program.
#[derive(Debug)]
pub struct Interrupt {
    /// A signal came.
    asked: Arc<AtomicBool>,
    /// Signals have their default effect.
    default: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Begins to note signals.
    pub fn register() -> io::Result<Interrupt> {
        let (asked, default) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut ids = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            // Before the flag is set: so it is the second signal that ends the program.
            ids.push(flag::register_conditional_default(signal, asked.clone())?);
            ids.push(flag::register_conditional_default(signal, default.clone())?);
            ids.push(flag::register(signal, asked.clone())?);
        }
        Ok(Interrupt { asked, default, ids })
    }

    /// Returns the flag that a signal sets.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }

    /// Lets signals end the program again. True if one came before.
    pub fn restore_default(&self) -> bool {
        self.default.store(true, Ordering::Release);
        self.asked.load(Ordering::Acquire)
    }

    /// Leaves signals to other actions, which must be registered already. True if a signal came
    /// before.
    pub fn hand_over(&self) -> bool {
        self.ids.iter().for_each(|id| {
            low_level::unregister(*id);
        });
        self.asked.load(Ordering::Acquire)
    }
}
